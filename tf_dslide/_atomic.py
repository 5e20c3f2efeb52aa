"""Files and folders that come into being whole or not at all."""

import errno
import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Gives a path to write to, which takes the name `path` when the block ends without error.

    What was at `path` stays until then. The path given has the same suffix, since some writers
    choose their format by it.
    """
    target = path.resolve()
    unfinished = target.with_name(f".{target.stem}.{os.getpid()}.unfinished{target.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Gives a folder to write into, named `folder` when the block ends without error.

    What was there stays until then. Several processes may do the same: the last one stays.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # File systems that keep deleted files while they are mapped refuse to delete their folder.
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
    ) as beside:
        unfinished = Path(beside, "new")
        unfinished.mkdir()
        yield unfinished
        put_folder(unfinished, folder, Path(beside))


def put_folder(unfinished: Path, folder: Path, beside: Path) -> None:
    """Renames a folder. What has the name goes into `beside` first, and others may do the same.

    A folder cannot take the place of another one in one step; the earlier one is complete in
    `beside` in the instant between.
    """
    for attempt in itertools.count():
        try:
            os.rename(unfinished, folder)
            return
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        with suppress(FileNotFoundError):
            os.rename(folder, beside / f"old{attempt}")


def flush_to_disk(file: Any) -> None:
    """Returns when what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Returns when the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such call for folders.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
