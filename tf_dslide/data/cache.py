"""Reads text files once, and from then on what was kept of them."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import operator
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_dslide.data.dataset import Dataset
from tf_dslide.data.store import PathLike, StoreError, read_store, write_store

_logger = logging.getLogger(__name__)


def cached(
    folder: PathLike, read: Callable[..., Dataset], /, *files: PathLike, **arguments: Any
) -> Dataset:
    r"""Call `read(*files, **arguments)`, or map what an earlier call kept in `folder`.

    What is kept counts only for the same reader, the same arguments, and files that have the same
    path, size and time of change. Otherwise the files are read again and it is replaced; so it is,
    with a warning in the log, where it is damaged or of another format: its checksums are compared
    each time. Several processes may use one folder: each reads the files until the first is done,
    and never sees what another has half written.

    A folder serves any number of files, and may be deleted at any time. It holds for each of them
    what `save_dataset` writes.

    Args:
        folder: Where to keep the data; made if missing.
        read: What reads them: `read_xmc`, `read_xmc_pair`, or a function of a module that
            depends on its arguments and their files alone.
        *files: The files, as `read` takes them.
        **arguments: What else `read` takes: numbers, strings, sequences of these, and files.

    Returns:
        The `Dataset`: in memory when the files were read, else mapped, read-only, as by
        `load_dataset`. Both have the same contents.

    Raises:
        TypeError: `read` is no function of a module, or does not take these arguments, or they
            cannot be told from others, or it returns no `Dataset`.
        OSError: The folder cannot be written; found out before the files are read. (Should the
            disk then be too small, a warning in the log says so and the data are returned.)
        Exception: What `read` raises.

    Example:
    >>> import pathlib, tempfile
    >>> from tf_dslide.data import read_xmc
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "pets.txt").write_text("2 3 2\n0 0:0.6 1:0.8\n0,1 2:1\n")
    >>> for _ in range(2):  # parsed, then mapped
    ...     data = cached(folder / "cache", read_xmc, folder / "pets.txt")
    >>> data
    Dataset('pets': 2 samples, 3 features, 2 labels)
    """
    # Taken before the files are read: should one change meanwhile, it is read again next time.
    source = _source(read, files, arguments)
    folder = Path(os.path.realpath(folder))
    entry = folder / f"{Path(files[0]).name}-{source['call'][:16]}"
    data = _read_entry(entry, source)
    if data is not None:
        return data
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # only an attempt tells whether we may write
        pass
    data = read(*files, **arguments)
    if not isinstance(data, Dataset):
        raise TypeError(f"{read.__qualname__} returned {data!r}; expected a Dataset")
    try:
        write_store(entry, data, source)
    except OSError as error:
        _logger.warning("%s could not be kept: %s", entry, error)
    return data


def _read_entry(entry: Path, source: dict[str, Any]) -> Dataset | None:
    try:
        data, made_from = read_store(entry, verify=True)
    except FileNotFoundError:
        return None
    except (StoreError, OSError) as error:
        _logger.warning("%s; reading the files themselves", error)
        return None
    return data if made_from == source else None


def _source(
    read: Callable[..., Dataset], files: tuple[PathLike, ...], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Tells one call from another, and one state of its files from another."""
    if not inspect.isfunction(read) or "<" in read.__qualname__:
        raise TypeError(
            f"read is {read!r}; expected a function of a module, such as read_xmc, because a cache "
            "knows it by its name"
        )
    if not files:
        raise TypeError(f"no file was given for {read.__qualname__} to read")
    bound = inspect.signature(read).bind(*files, **arguments)
    bound.apply_defaults()
    paths = [*files, *(value for value in bound.arguments.values() if _is_file(value))]
    call = {
        "reader": f"{read.__module__}.{read.__qualname__}",
        "arguments": {
            name: os.path.realpath(value) if _is_file(value) else value
            for name, value in bound.arguments.items()
        },
    }
    text = json.dumps(call, sort_keys=True, default=_as_json)
    return {
        "call": hashlib.sha256(text.encode()).hexdigest(),
        "files": {os.path.realpath(path): _state(path) for path in paths},
    }


def _is_file(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) and os.path.isfile(value)


def _state(path: PathLike) -> list[int]:
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns]


def _as_json(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.path.realpath(value)
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(
            f"an argument holds {value!r}; a cache can tell numbers, strings, files and sequences "
            "of these from one another"
        ) from None
