"""Reads and writes the text formats of the Extreme Classification Repository."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from scipy import sparse

from tf_dslide import _atomic
from tf_dslide.data._lines import Block, DataFormatError, Limits, parse_block, quote, to_int
from tf_dslide.data._sklearn import from_sklearn
from tf_dslide.data.dataset import Dataset

PathLike = str | os.PathLike

_GZIP_MAGIC = b"\x1f\x8b"
_LINES_PER_BLOCK = 16_384
_LARGEST_SIZE = 2**31 - 1  # ids are int32


def read_xmc(
    path: PathLike,
    *,
    num_features: int | None = None,
    num_labels: int | None = None,
    label_names: Sequence[str] | PathLike | None = None,
) -> Dataset:
    r"""Read a data set in the format of the Extreme Classification Repository.

    The first line is a header `N D L` (samples, features, labels); each further line is a sample,
    `label,label feature:value feature:value`, counted from 0. The file may be plain or gzipped:
    its content tells, not its name. A file without a header is read if both sizes are given.

    Legal, beside the ordinary: samples without labels (the line begins with a space or with a
    feature), samples without features, samples with neither (a blank line), features in any order
    (repeated ones add up), repeated labels, `#` comments, trailing spaces, Windows line ends, and
    blank lines after the last sample that the header announces.

    Takes about 0.7 s a million features on one core, and memory for twice the result.

    Args:
        path: The file.
        num_features: Width of the features; needed without a header, else it must agree with it.
        num_labels: Number of labels; likewise.
        label_names: A name for each label, or the path of a file for `read_names`.

    Returns:
        A `Dataset` named after the file.

    Raises:
        DataFormatError: The file breaks the format: a malformed token, an index out of bounds, a
            value that is NaN or infinite, a header that disagrees with the body or with the sizes
            given, no header where sizes are missing, an empty file, or a damaged gzip. The message
            gives the file, the line number, what was found and what was expected.

    Example:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "pets.txt"
    >>> _ = path.write_text("2 3 2\n0 0:0.6 1:0.8\n0,1 2:1\n")
    >>> data = read_xmc(path, label_names=["cat", "dog"])
    >>> data
    Dataset('pets': 2 samples, 3 features, 2 labels)
    >>> data.labels.toarray()
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    given = {"num_features": num_features, "num_labels": num_labels}
    with _open_lines(path) as lines:
        header = _read_header(lines, given)
        limits = Limits(lines.path, header.sizes["num_features"], header.sizes["num_labels"])
        blocks = _read_blocks(lines, header, limits)
    return Dataset(
        _csr(
            [block.feature_counts for block in blocks],
            [block.feature_ids for block in blocks],
            [block.values for block in blocks],
            limits.num_features,
        ),
        _csr(
            [block.label_counts for block in blocks],
            [block.label_ids for block in blocks],
            [np.ones(len(block.label_ids), np.float32) for block in blocks],
            limits.num_labels,
        ),
        _names(label_names),
        _stem(path),
    )


def read_xmc_pair(
    features_path: PathLike,
    labels_path: PathLike,
    *,
    num_features: int | None = None,
    num_labels: int | None = None,
    label_names: Sequence[str] | PathLike | None = None,
) -> Dataset:
    r"""Read a data set kept in two files, one of features and one of labels.

    The features file has a header `N D` and a line `feature:value feature:value` for each sample;
    the labels file a header `N L` and a line `label:1 label:1`. All that `read_xmc` says of gzip,
    missing headers, legal oddities and errors holds for both. A label whose value is 0 is none.

    Args:
        features_path: The file of features.
        labels_path: The file of labels, its rows in the same order.
        num_features: Width of the features; needed without a header, else it must agree with it.
        num_labels: Number of labels; likewise.
        label_names: A name for each label, or the path of a file for `read_names`.

    Returns:
        A `Dataset` named after the features file. A repository split is
        `read_xmc_pair(...).take(read_split(...))`.

    Raises:
        DataFormatError: As in `read_xmc`, and where the two files differ in their rows.

    Example:
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "x.txt").write_text("2 3\n0:0.6 1:0.8\n2:1\n")
    >>> _ = (folder / "y.txt").write_text("2 2\n0:1\n0:1 1:1\n")
    >>> read_xmc_pair(folder / "x.txt", folder / "y.txt").labels.toarray()
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    features = _read_matrix(features_path, "num_features", num_features, "feature")
    labels = _read_matrix(labels_path, "num_labels", num_labels, "label")
    if features.shape[0] != labels.shape[0]:
        raise DataFormatError(
            labels_path, 1, f"{labels.shape[0]} rows", f"{features.shape[0]}, as in {features_path}"
        )
    return Dataset(features, labels, _names(label_names), _stem(features_path))


def read_split(path: PathLike, column: int = 0, *, first: int = 1) -> np.ndarray:
    r"""Read one column of a repository split file (`..._trSplit.txt`, `..._tstSplit.txt`).

    Args:
        path: A text file of integers, one split a column, one row number a line.
        column: Which split.
        first: What the file calls the first row; the repository counts from 1.

    Returns:
        Row numbers from 0, `(n,)` `int64`, for `Dataset.take`.

    Raises:
        ValueError: The file holds something else than integers, lacks the column, or has a row
            number below `first`.

    Example:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "trSplit.txt"
    >>> _ = path.write_text("1 2\n3 3\n")
    >>> read_split(path, column=1)
    array([1, 2])
    """
    try:
        rows = np.loadtxt(path, dtype=np.int64, usecols=column, ndmin=1)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path} has no column {column} of row numbers: {error}") from error
    if rows.size and rows.min() < first:
        raise ValueError(
            f"{path} names row {rows.min()} in column {column}, but its first row is {first}: "
            "pass `first=0` for a file that counts from 0"
        )
    return rows - first


def read_names(path: PathLike) -> tuple[str, ...]:
    r"""Read names, one a line, in order.

    Where a line holds an identifier, a tab and a name, as subject vocabularies do, the name is
    what follows the last tab. The file is UTF-8, plain or gzipped.

    Args:
        path: The file.

    Returns:
        The names, as many as the file has lines.

    Raises:
        DataFormatError: A line is not UTF-8, or the gzip is damaged.

    Example:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.txt"
    >>> _ = path.write_text("cat\np4\tdog\n")
    >>> read_names(path)
    ('cat', 'dog')
    """
    names = []
    with _open_lines(path) as lines:
        for line in lines:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataFormatError(path, lines.number, quote(line), "UTF-8 text") from error
            names.append(text.rstrip("\r\n").rpartition("\t")[2])
    return tuple(names)


def write_xmc(path: PathLike, dataset: Dataset) -> None:
    """Write a data set in the format that `read_xmc` reads, with its header.

    Values are written so that the very same `float32` is read back. A path that ends in `.gz` is
    gzipped (the same data give the same bytes). The file appears under its name only when it is
    whole; one that was there stays until then. About 1 s a million features, 2 s gzipped.

    Args:
        path: Where to write.
        dataset: The data. Label names are not part of the format.

    Raises:
        OSError: The file cannot be written.

    Example:
    >>> import pathlib, tempfile
    >>> from scipy import sparse
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "pets.txt.gz"
    >>> write_xmc(path, Dataset(sparse.csr_matrix([[0.6, 0.8]]), sparse.csr_matrix([[0, 1]])))
    >>> read_xmc(path).features.toarray()
    array([[0.6, 0.8]], dtype=float32)
    """
    features, labels = dataset.features, dataset.labels
    with _atomic_writer(Path(path)) as file:
        file.write(f"{dataset.num_samples} {features.shape[1]} {labels.shape[1]}\n".encode())
        if dataset.num_samples:
            dump_svmlight_file = from_sklearn("datasets", "dump_svmlight_file")
            digits = (_shortest_decimals(features.data), features.indices, features.indptr)
            dump_svmlight_file(
                _widened(sparse.csr_matrix(digits, features.shape)),
                _widened(labels),
                file,
                zero_based=True,
                multilabel=True,
            )


class _Lines:
    """The lines of a plain or gzipped file, counted, with damage to the gzip told by line."""

    def __init__(self, path: str, stream: BinaryIO):
        self.path = path
        self.number = 0
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        try:
            for line in self._stream:
                self.number += 1
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataFormatError(
                self.path, self.number + 1, f"damaged gzip data ({error})", "a complete gzip file"
            ) from error


@dataclass(frozen=True)
class _Header:
    samples: int | None
    sizes: dict[str, int]
    # The first row, where the search for a header has consumed one.
    first_row: list[bytes]


@contextmanager
def _open_lines(path: PathLike) -> Iterator[_Lines]:
    with open(path, "rb") as raw:
        zipped = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        stream = gzip.GzipFile(fileobj=raw) if zipped else raw
        yield _Lines(os.fspath(path), cast(BinaryIO, stream))


def _read_header(lines: _Lines, given: dict[str, int | None]) -> _Header:
    """Read the header, known by its shape: as many integers as it should have and nothing else."""
    for name, size in given.items():
        if size is not None and not 0 <= size <= _LARGEST_SIZE:
            raise ValueError(f"{name} is {size}; it must lie between 0 and {_LARGEST_SIZE}")
    shape = "N " + " ".join("D" if name == "num_features" else "L" for name in given)
    wanted = f"a header '{shape}', or " + " and ".join(f"`{name}=`" for name in given)
    for line in lines:
        content, comment, _ = line.partition(b"#")
        if comment and not content.strip():
            continue
        numbers = [to_int(token) for token in content.split()]
        if len(numbers) == 1 + len(given) and None not in numbers:
            return _checked_header(lines, cast(list[int], numbers), given)
        if None in given.values():
            raise DataFormatError(lines.path, lines.number, quote(line.rstrip()), wanted)
        return _Header(None, cast(dict[str, int], given), [line])
    raise DataFormatError(lines.path, max(1, lines.number), "an empty file", wanted)


def _checked_header(lines: _Lines, numbers: list[int], given: dict[str, int | None]) -> _Header:
    for size in numbers:
        if not 0 <= size <= _LARGEST_SIZE:
            expected = f"sizes between 0 and {_LARGEST_SIZE}"
            raise DataFormatError(lines.path, lines.number, f"{size} in the header", expected)
    for (name, wanted), size in zip(given.items(), numbers[1:], strict=True):
        if wanted is not None and wanted != size:
            found = f"{name} {size} in the header"
            raise DataFormatError(lines.path, lines.number, found, f"{wanted}, as the caller gave")
    return _Header(numbers[0], dict(zip(given, numbers[1:], strict=True)), [])


def _read_blocks(lines: _Lines, header: _Header, limits: Limits) -> list[Block]:
    """Read all rows, a bounded number of lines at a time."""
    blocks: list[Block] = []
    rows_left = header.samples
    first_line = lines.number + 1 - len(header.first_row)
    body = chain(header.first_row, lines)
    while chunk := list(islice(body, _LINES_PER_BLOCK)):
        blocks.append(parse_block(chunk, first_line, rows_left, limits))
        first_line += len(chunk)
        if rows_left is not None:
            rows_left -= len(blocks[-1])
    if rows_left:
        raise DataFormatError(
            lines.path,
            lines.number,
            f"the end of the file after {sum(map(len, blocks))} rows",
            f"{header.samples} rows, as the header announces",
        )
    return blocks


def _read_matrix(
    path: PathLike, size_name: str, size: int | None, column: str
) -> sparse.csr_matrix:
    """Read one file of the two-file variant: a matrix whose rows are `column:value` tokens."""
    with _open_lines(path) as lines:
        header = _read_header(lines, {size_name: size})
        width = header.sizes[size_name]
        limits = Limits(lines.path, width, 0, with_labels=False, column=column)
        blocks = _read_blocks(lines, header, limits)
    return _csr(
        [block.feature_counts for block in blocks],
        [block.feature_ids for block in blocks],
        [block.values for block in blocks],
        width,
    )


def _csr(
    counts: list[np.ndarray], columns: list[np.ndarray], values: list[np.ndarray], width: int
) -> sparse.csr_matrix:
    """Join the parts of CSR blocks."""
    if not counts:
        return sparse.csr_matrix((0, width), dtype=np.float32)
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])
    shape = (len(indptr) - 1, width)
    return sparse.csr_matrix((np.concatenate(values), np.concatenate(columns), indptr), shape)


def _names(label_names: Sequence[str] | PathLike | None) -> tuple[str, ...] | None:
    if label_names is None:
        return None
    if isinstance(label_names, (str, os.PathLike)):
        return read_names(label_names)
    return tuple(label_names)


def _stem(path: PathLike) -> str:
    name = Path(path).name
    for suffix in (".gz", ".txt", ".svm", ".libsvm"):
        name = name.removesuffix(suffix)
    return name


@contextmanager
def _atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a new file beside `path` that takes its name when the block ends without an error."""
    with _atomic.new_file(path) as unfinished, open(unfinished, "wb") as raw:
        if path.suffix == ".gz":
            # No name and no time inside, so that the bytes depend on the data alone.
            with gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
                yield cast(BinaryIO, stream)
        else:
            yield raw


def _shortest_decimals(values: np.ndarray) -> np.ndarray:
    """Replace each float32 by the float64 nearest to the shortest decimal that identifies it.

    scikit-learn prints 16 digits: 0.662 as float32 would stand in the file as 0.6620000004768372.
    """
    exact = values.astype(np.float64)
    magnitude = np.floor(np.log10(np.abs(exact), out=np.zeros_like(exact), where=exact != 0))
    shortest = exact
    for digits in (9, 8, 7, 6):
        scale = 10.0 ** (digits - 1 - magnitude)
        rounded = np.rint(exact * scale) / scale
        shortest = np.where(rounded.astype(np.float32) == values, rounded, shortest)
    return shortest


def _widened(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Give a matrix without columns one, empty: scikit-learn refuses to write it otherwise."""
    if matrix.shape[1]:
        return matrix
    return sparse.csr_matrix((matrix.shape[0], 1), dtype=matrix.dtype)
