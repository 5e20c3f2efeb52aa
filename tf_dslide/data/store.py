"""Keeps a data set in a folder of arrays that are mapped into memory instead of read."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

from tf_dslide import _atomic
from tf_dslide.data._lines import quote
from tf_dslide.data.dataset import Dataset

PathLike = str | os.PathLike

# Raise it also when a reader comes to read the same file otherwise: caches are then made anew.
_FORMAT = 1
_MANIFEST = "manifest.json"
_NAMES = "label_names.json"
_ARRAYS = (
    "features.indptr.npy",
    "features.indices.npy",
    "features.data.npy",
    "labels.indptr.npy",
    "labels.indices.npy",
)
_READ_SIZE = 1 << 20


class StoreError(ValueError):
    """A folder does not hold a whole data set as `save_dataset` writes it.

    Args:
        path: The file at fault.
        found: What is there.
        expected: What should be.

    Example:
    >>> print(StoreError("pets/manifest.json", "format 7", "format 1"))
    pets/manifest.json: found format 7, expected format 1
    """

    def __init__(self, path: PathLike, found: str, expected: str):
        self.path = os.fspath(path)
        self.found = found
        self.expected = expected
        super().__init__(path, found, expected)

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}, expected {self.expected}"


def save_dataset(folder: PathLike, dataset: Dataset) -> None:
    """Save a data set as a folder that `load_dataset` maps into memory.

    The folder holds the parts of both CSR matrices as NumPy files (`features.indptr.npy`,
    `features.indices.npy`, `features.data.npy`, `labels.indptr.npy`, `labels.indices.npy`),
    `label_names.json` if there are names, and `manifest.json` with sizes and checksums. It appears
    under its name when it is whole. A data set saved there before is replaced; who has it mapped
    keeps the old one. (A process killed meanwhile leaves a hidden folder beside it.)

    Takes 8 bytes a feature, 4 a label and 8 a sample (indices twice as much where SciPy needs 64
    bits), no memory to speak of, and the time to write them.

    Args:
        folder: Where to save. Missing folders above it are made.
        dataset: The data.

    Raises:
        FileExistsError: The path is taken by something else than a saved data set or an empty
            folder.
        ValueError: A label name is no `str`.
        OSError: The folder cannot be written.

    Example:
    >>> import pathlib, tempfile
    >>> from scipy import sparse
    >>> folder = pathlib.Path(tempfile.mkdtemp()) / "pets"
    >>> save_dataset(folder, Dataset(sparse.eye(2), sparse.eye(2), ["cat", "dog"], "pets"))
    >>> load_dataset(folder)
    Dataset('pets': 2 samples, 2 features, 2 labels)
    """
    target = Path(os.path.realpath(folder))
    if not _may_replace(target):
        raise FileExistsError(
            f"{target} is there and holds no saved data set: it would be lost; move it away or "
            "save elsewhere"
        )
    write_store(target, dataset)


def load_dataset(folder: PathLike, *, mmap: bool = True, verify: bool = False) -> Dataset:
    """Load a data set that `save_dataset` saved.

    Nothing is parsed and nothing is checked again that was checked when the data were saved: only
    the manifest, the size and form of each part, and where its rows begin and end. With `mmap` the
    parts stay in their files until they are used, and several processes share them; loading
    takes milliseconds, and memory only for the labels' ones (4 bytes a label) and the names.

    Args:
        folder: The folder.
        mmap: Whether to map the parts, read-only, or to read them into memory.
        verify: Whether to compare checksums first, which reads all parts (about 2 GB a second).

    Returns:
        The `Dataset`. Mapped arrays may not be written to; `take` copies what it picks.

    Raises:
        FileNotFoundError: There is no such folder (`NotADirectoryError` if it is a file).
        StoreError: The manifest or a part is missing, damaged, cut short or of another format. The
            message gives the file, what was found and what was expected. Without `verify`, damage
            that changes no sizes goes unnoticed.

    Example:
    >>> import tempfile
    >>> from scipy import sparse
    >>> folder = tempfile.mkdtemp()
    >>> save_dataset(folder, Dataset(sparse.csr_matrix([[0.6, 0.8]]), sparse.csr_matrix([[0, 1]])))
    >>> data = load_dataset(folder, verify=True)
    >>> data.features.toarray()
    array([[0.6, 0.8]], dtype=float32)
    >>> data.features.data.flags.writeable
    False
    """
    return read_store(Path(folder), mmap=mmap, verify=verify)[0]


def write_store(folder: Path, dataset: Dataset, source: Any = None) -> None:
    """Write a data set to `folder`, in place of whatever is there.

    Args:
        folder: Where to write; not a symbolic link.
        dataset: The data.
        source: What it was made from, JSON; `read_store` gives it back.

    Raises:
        ValueError: A label name is no `str`.
        OSError: The folder cannot be written.

    Example:
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_store(folder, Dataset(sparse.eye(2), sparse.eye(2)), source="two")
    >>> read_store(folder)[1]
    'two'
    """
    with _atomic.new_folder(folder) as unfinished:
        _write_parts(unfinished, dataset, source)


def read_store(folder: Path, *, mmap: bool = True, verify: bool = False) -> tuple[Dataset, Any]:
    """Load what `write_store` wrote; arguments and errors as of `load_dataset`.

    Returns:
        The data set, and the `source` given when it was written.

    Example:
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_store(folder, Dataset(sparse.eye(2), sparse.eye(2)))
    >>> read_store(folder, mmap=False)
    (Dataset('data': 2 samples, 2 features, 2 labels), None)
    """
    with _Folder(folder) as opened:
        manifest = _read_manifest(opened)
        parts = {
            name: _read_part(opened, name, part, mmap=mmap, verify=verify)
            for name, part in manifest["parts"].items()
        }
    shapes = {
        "features": (manifest["num_samples"], manifest["num_features"]),
        "labels": (manifest["num_samples"], manifest["num_labels"]),
    }
    features, labels = (_csr(folder, kind, shape, parts) for kind, shape in shapes.items())
    dataset = Dataset._trusted(features, labels, parts.get(_NAMES), manifest["name"])
    return dataset, manifest["source"]


class _Folder:
    """A folder held open: its files are found together even when its name goes to another one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> _Folder:
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise type(error)(
                f"{self.path}: no such folder; expected one that save_dataset made"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def open(self, name: str, expected: str) -> BinaryIO:
        """Open a file to read; a `StoreError` tells what was expected of a missing one."""
        try:
            descriptor = os.open(name, os.O_RDONLY, dir_fd=self._descriptor)
        except FileNotFoundError as error:
            raise StoreError(self.path / name, "no such file", expected) from error
        return open(descriptor, "rb")


def _write_parts(folder: Path, dataset: Dataset, source: Any) -> None:
    parts: dict[str, dict[str, Any]] = {}
    if dataset.label_names is not None:
        for name in dataset.label_names:
            if not isinstance(name, str):
                raise ValueError(f"label_names holds {name!r}; only str can be saved")
        (folder / _NAMES).write_text(json.dumps(dataset.label_names), encoding="ascii")
        parts[_NAMES] = {}
    for name, array in _arrays(dataset).items():
        np.save(folder / name, array)
        parts[name] = {"dtype": array.dtype.str, "length": len(array)}
    for name, part in parts.items():
        with (folder / name).open("rb") as file:
            part["crc32"] = _crc32(file)
            part["bytes"] = file.tell()
    content = {
        "name": dataset.name,
        "num_samples": dataset.num_samples,
        "num_features": dataset.num_features,
        "num_labels": dataset.num_labels,
        "parts": parts,
        "source": source,
    }
    manifest = {"format": _FORMAT, "crc32": _content_crc32(content), "content": content}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="ascii")


def _arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """The arrays to store, by file name. The labels' data are all ones and not among them."""
    features, labels = dataset.features, dataset.labels
    # SciPy allows arrays longer than what is in use.
    stored, stored_labels = features.indptr[-1], labels.indptr[-1]
    arrays = (
        features.indptr,
        features.indices[:stored],
        features.data[:stored],
        labels.indptr,
        labels.indices[:stored_labels],
    )
    return dict(zip(_ARRAYS, arrays, strict=True))


def _may_replace(folder: Path) -> bool:
    """Whether nothing but a saved data set would be lost."""
    try:
        names = set(os.listdir(folder))
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    # Many a folder of something else has a manifest.json.
    return names <= {_MANIFEST, _NAMES, *_ARRAYS} and names != {_MANIFEST}


def _read_manifest(folder: _Folder) -> dict[str, Any]:
    path = folder.path / _MANIFEST
    with folder.open(_MANIFEST, "a folder that save_dataset made") as file:
        text = file.read()
    try:
        manifest = json.loads(text)
        found, crc32, content = manifest["format"], manifest.get("crc32"), manifest.get("content")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(path, quote(text), "a manifest of save_dataset") from error
    if found != _FORMAT:
        raise StoreError(
            path, f"format {found!r}", f"format {_FORMAT}: save the data again with this version"
        )
    if crc32 != _content_crc32(content):
        raise StoreError(
            path, f"checksum {crc32!r}", f"{_content_crc32(content)}: the manifest was changed"
        )
    return content


def _read_part(
    folder: _Folder, name: str, part: dict[str, Any], *, mmap: bool, verify: bool
) -> Any:
    """Check and load an array, or the names."""
    path = folder.path / name
    with folder.open(name, f"{part['bytes']:,} bytes") as file:
        size = os.fstat(file.fileno()).st_size
        if size != part["bytes"]:
            raise StoreError(path, f"{size:,} bytes", f"{part['bytes']:,} bytes")
        if verify:
            crc32 = _crc32(file)
            if crc32 != part["crc32"]:
                raise StoreError(
                    path, f"checksum {crc32}", f"{part['crc32']}: the file was changed or damaged"
                )
            file.seek(0)
        if name == _NAMES:
            return _read_names(path, file)
        return _read_array(path, file, part, mmap)


def _read_array(path: Path, file: BinaryIO, part: dict[str, Any], mmap: bool) -> np.ndarray:
    """Read or map an array. `np.load` would map by name only."""
    expected = f"{part['length']} numbers of dtype {part['dtype']}"
    try:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"its version is {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, SyntaxError, TokenError) as error:
        raise StoreError(path, f"no NumPy array ({error})", expected) from error
    if (shape, dtype.str) != ((part["length"],), part["dtype"]):
        raise StoreError(path, f"shape {shape} of dtype {dtype.str}", expected)
    if not mmap:
        return np.fromfile(file, dtype, part["length"])
    mapped = np.memmap(file, dtype, "r", file.tell(), shape)
    # A plain array over the mapping: NumPy's memmap class would pass on to every result.
    return np.asarray(mapped)


def _read_names(path: Path, file: BinaryIO) -> tuple[str, ...]:
    try:
        return tuple(json.load(file))
    except (ValueError, TypeError) as error:
        raise StoreError(path, f"no list ({error})", "a list of names") from error


def _csr(
    folder: Path, kind: str, shape: tuple[int, int], parts: dict[str, np.ndarray]
) -> sparse.csr_matrix:
    indptr, indices = parts[f"{kind}.indptr.npy"], parts[f"{kind}.indices.npy"]
    if indptr[0] != 0 or indptr[-1] != len(indices):
        raise StoreError(
            folder / f"{kind}.indptr.npy",
            f"rows from {indptr[0]} to {indptr[-1]}",
            f"from 0 to {len(indices)}, as {kind}.indices.npy has",
        )
    # SciPy's constructor would look at every index, and the flag keeps later calls from it.
    matrix = sparse.csr_matrix(shape, dtype=np.float32)
    matrix.indptr, matrix.indices = indptr, indices
    data = parts.get(f"{kind}.data.npy")
    matrix.data = np.ones(len(indices), np.float32) if data is None else data
    matrix.has_canonical_format = True
    return matrix


def _crc32(file: BinaryIO) -> int:
    crc32 = 0
    while piece := file.read(_READ_SIZE):
        crc32 = zlib.crc32(piece, crc32)
    return crc32


def _content_crc32(content: Any) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
