"""Parses blocks of `label,label feature:value ...` lines into arrays.

A block goes to scikit-learn's svmlight reader first. That reader is quick, and both too strict
(features must ascend) and too lax (it skips blank lines, accepts labels such as `1.5`, drops
`qid:` tokens, and reports no line number). So a block that is not plainly within what the two
agree on is read again, token by token: the slow reader alone decides what is legal and what an
error says.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tf_dslide.data._sklearn import from_sklearn

# What a line of plain numbers can hold. Any other byte (a comment, a letter, an underscore that
# Python's int() would let pass) sends its block to the slow reader.
_PLAIN_BYTES = b"0123456789+-.eE,: \t\r\n"
_LONGEST_QUOTE = 60


class DataFormatError(ValueError):
    """A data file does not follow its format.

    Args:
        path: The file.
        line: 1-based number of the offending line.
        found: What stands there.
        expected: What the format asks for.

    Example:
    >>> print(DataFormatError("train.txt", 7, "label 12", "a label below 10"))
    train.txt, line 7: found label 12, expected a label below 10
    """

    def __init__(self, path: str | os.PathLike, line: int, found: str, expected: str):
        self.path = os.fspath(path)
        self.line = line
        self.found = found
        self.expected = expected
        super().__init__(path, line, found, expected)

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: found {self.found}, expected {self.expected}"


@dataclass(frozen=True)
class Limits:
    """What a file's lines may hold: where they come from, and the bounds on their numbers."""

    path: str
    num_features: int
    num_labels: int
    # The files of the two-file variant hold `index:value` tokens alone.
    with_labels: bool = True
    # What to call an index in messages: the label file's columns are labels.
    column: str = "feature"


@dataclass
class Block:
    """The rows of a block of lines, as the parts of two CSR matrices."""

    feature_counts: np.ndarray
    feature_ids: np.ndarray
    values: np.ndarray
    label_counts: np.ndarray
    label_ids: np.ndarray

    def __len__(self) -> int:
        return len(self.feature_counts)


def parse_block(
    lines: Sequence[bytes], first_line: int, rows_left: int | None, limits: Limits
) -> Block:
    """Parse consecutive lines of a file.

    Args:
        lines: The lines, each with its end (the last of a file may lack it).
        first_line: 1-based number of the first of them, for messages.
        rows_left: How many rows the header still announces, or `None` without a header.
        limits: The bounds to check against.

    Returns:
        The rows. Blank lines are rows without features and labels, except beyond `rows_left`,
        where they are ignored. Lines that hold only a comment are not rows.

    Raises:
        DataFormatError: A line is malformed, a number is out of bounds, or there are more rows
            than `rows_left`.
    """
    if rows_left is None or len(lines) <= rows_left:
        block = _parse_fast(lines, limits)
        if block is not None:
            return block
    return _parse_slow(lines, first_line, rows_left, limits)


def _parse_fast(lines: Sequence[bytes], limits: Limits) -> Block | None:
    """Parse by scikit-learn; `None` where only the slow reader can tell what the lines mean."""
    load_svmlight_file = from_sklearn("datasets", "load_svmlight_file")
    text = b"".join(lines)
    if text.translate(None, delete=_PLAIN_BYTES):
        return None
    try:
        features, label_sets = load_svmlight_file(
            io.BytesIO(text),
            n_features=max(1, limits.num_features),
            dtype=np.float32,
            multilabel=True,
            zero_based=True,
        )
    except (ValueError, OverflowError):
        return None
    label_counts = np.fromiter(map(len, label_sets), np.int64, count=len(label_sets))
    labels = np.fromiter(chain.from_iterable(label_sets), np.float64, count=label_counts.sum())
    agreed = (
        features.shape[0] == len(lines)  # scikit-learn leaves blank lines out
        and (limits.num_features > 0 or not features.nnz)
        and np.isfinite(features.data).all()
        and ((labels >= 0) & (labels < limits.num_labels) & (labels == np.floor(labels))).all()
    )
    if not agreed:
        return None
    return Block(
        np.diff(features.indptr),
        features.indices.astype(np.int32),
        features.data,
        label_counts,
        labels.astype(np.int32),
    )


def _parse_slow(
    lines: Sequence[bytes], first_line: int, rows_left: int | None, limits: Limits
) -> Block:
    """Parse token by token; the reference for what is legal, and the source of every message."""
    rows: list[tuple[list[int], list[tuple[int, float]]]] = []
    for number, line in enumerate(lines, first_line):
        content, comment, _ = line.partition(b"#")
        tokens = content.split()
        if comment and not tokens:
            continue
        if rows_left is not None and len(rows) == rows_left:
            if not tokens:
                continue
            raise DataFormatError(
                limits.path, number, "one more row", "no more rows than the header announces"
            )
        rows.append(_parse_row(tokens, number, limits))
    label_sets = [labels for labels, _ in rows]
    feature_sets = [features for _, features in rows]
    pairs = list(chain.from_iterable(feature_sets))
    return Block(
        np.array([len(features) for features in feature_sets], np.int64),
        np.array([index for index, _ in pairs], np.int32),
        np.array([value for _, value in pairs], np.float32),
        np.array([len(labels) for labels in label_sets], np.int64),
        np.array(list(chain.from_iterable(label_sets)), np.int32),
    )


def _parse_row(
    tokens: list[bytes], number: int, limits: Limits
) -> tuple[list[int], list[tuple[int, float]]]:
    labels: list[int] = []
    if limits.with_labels and tokens and b":" not in tokens[0]:
        labels = [_parse_label(token, number, limits) for token in tokens[0].split(b",")]
        tokens = tokens[1:]
    return labels, [_parse_feature(token, number, limits) for token in tokens]


def _parse_label(token: bytes, number: int, limits: Limits) -> int:
    label = _to_float(token)
    if label is None or label != np.floor(label):
        raise DataFormatError(limits.path, number, f"label {quote(token)}", "an integer")
    if not 0 <= label < limits.num_labels:
        raise DataFormatError(
            limits.path, number, f"label {quote(token)}", _bounds(limits.num_labels)
        )
    return int(label)


def _parse_feature(token: bytes, number: int, limits: Limits) -> tuple[int, float]:
    left, colon, right = token.partition(b":")
    index, value = to_int(left), _to_float(right)
    if not colon or index is None or value is None:
        raise DataFormatError(
            limits.path, number, quote(token), f"{limits.column}:value, such as 12:0.5"
        )
    if not 0 <= index < limits.num_features:
        found = f"{limits.column} {index} in {quote(token)}"
        raise DataFormatError(limits.path, number, found, _bounds(limits.num_features))
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if not np.isfinite(single):
        found = f"value {quote(right)} of {limits.column} {index}"
        raise DataFormatError(limits.path, number, found, "a finite float32")
    return index, float(single)


def _bounds(size: int) -> str:
    return f"0 <= index < {size}" if size else "none, because their number is 0"


def to_int(token: bytes) -> int | None:
    """Read an integer as `int()` does, less the underscores that Python allows."""
    try:
        return None if b"_" in token else int(token)
    except ValueError:
        return None


def _to_float(token: bytes) -> float | None:
    try:
        return None if b"_" in token else float(token)
    except ValueError:
        return None


def quote(text: bytes) -> str:
    """Show a piece of a file in a message, cut where it is long."""
    shown = text.decode("utf-8", errors="replace")
    if len(shown) > _LONGEST_QUOTE:
        shown = shown[:_LONGEST_QUOTE] + "..."
    return repr(shown)
