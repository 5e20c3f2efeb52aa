"""What ranks send each other, as bytes.

A message is a header and arrays. The header (`HEADER`, 24 bytes, little endian): rows, columns of
the matrix that the message is about, the format of its numbers (0 float32, 1 bfloat16), whether it
holds the values that differ from zero alone, and a fingerprint of the batch that the sender sees.

- Activations: a mask of one bit a value, row by row, padded to whole bytes, and the values whose
  bit is set; or all values and no mask.
- Hidden gradients: the values where the receiver's activations differ from zero, row by row; both
  sides know the mask from the forward pass. Or all values.
- Other matrices: all values.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

HEADER = struct.Struct("<IIBBxxIQ")
_MAGIC = 0x0D51
FORMATS = {"float32": 0, "bfloat16": 1}
_DTYPES = (np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Message:
    """A message that was taken apart.

    Attributes:
        rows: Rows of the matrix.
        columns: Its columns.
        fingerprint: Of the batch that the sender sees, 0 if it did not look.
        body: The bytes after the header, `(n,) uint8`.
        wire: `"float32"` or `"bfloat16"`.
        sparse: Whether values that are zero were left out.
    """

    rows: int
    columns: int
    fingerprint: int
    body: np.ndarray
    wire: str
    sparse: bool


def make(
    matrix_shape: Sequence[int], arrays: Sequence[np.ndarray], wire: str, sparse: bool, mark: int
) -> bytes:
    """A header and the arrays' bytes."""
    rows, columns = matrix_shape
    header = HEADER.pack(rows, columns, FORMATS[wire], sparse, _MAGIC, mark)
    return b"".join([header, *(np.ascontiguousarray(a).view(np.uint8).data for a in arrays)])


def take_apart(data: np.ndarray) -> Message:
    """The opposite of `make`.

    Raises:
        ValueError: These bytes are no message.
    """
    if data.nbytes < HEADER.size:
        raise ValueError(f"a message has at least {HEADER.size} bytes; received {data.nbytes}")
    rows, columns, number_format, sparse, magic, mark = HEADER.unpack(data[: HEADER.size].tobytes())
    if magic != _MAGIC or number_format >= len(_DTYPES):
        raise ValueError(f"received bytes that are no message: {data[: HEADER.size].tobytes()!r}")
    wire = next(name for name, code in FORMATS.items() if code == number_format)
    return Message(rows, columns, mark, data[HEADER.size :], wire, bool(sparse))


def numbers(values: np.ndarray, wire: str) -> np.ndarray:
    """float32 numbers as they travel: rounded to the nearest bfloat16 if that is the format."""
    return values.astype(_DTYPES[FORMATS[wire]], copy=False)


def _floats(body: np.ndarray, wire: str) -> np.ndarray:
    return body.view(_DTYPES[FORMATS[wire]]).astype(np.float32, copy=False)


def pack_matrix(matrix: np.ndarray, wire: str = "float32", mark: int = 0) -> bytes:
    """All values of a matrix."""
    return make(matrix.shape, [numbers(matrix, wire)], wire, False, mark)


def pack_activations(matrix: np.ndarray, wire: str = "float32", mark: int = 0) -> bytes:
    """The values of a matrix that differ from zero, and where they are."""
    mask = matrix != 0
    return make(matrix.shape, [np.packbits(mask), numbers(matrix[mask], wire)], wire, True, mark)


def unpack(message: Message) -> np.ndarray:
    """The matrix of `pack_matrix` or `pack_activations`, `(rows, columns) float32`.

    Raises:
        ValueError: The message's length is not that of its matrix.
    """
    size = message.rows * message.columns
    item = _DTYPES[FORMATS[message.wire]].itemsize
    if not message.sparse:
        _expect_length(message, size * item)
        return _floats(message.body, message.wire).reshape(message.rows, message.columns)
    mask_bytes = -(-size // 8)
    mask = np.unpackbits(message.body[:mask_bytes], count=size).view(bool)
    _expect_length(message, mask_bytes + int(np.count_nonzero(mask)) * item)
    matrix = np.zeros(size, np.float32)
    # A copy: values need not lie at a multiple of their size.
    matrix[mask] = _floats(message.body[mask_bytes:].copy(), message.wire)
    return matrix.reshape(message.rows, message.columns)


def pack_at(
    matrix: np.ndarray, mask: np.ndarray | None, wire: str = "float32", mark: int = 0
) -> bytes:
    """The values of a matrix where the mask is set; all without one."""
    values = matrix if mask is None else matrix[mask]
    return make(matrix.shape, [numbers(values, wire)], wire, mask is not None, mark)


def add_at(message: Message, mask: np.ndarray | None, total: np.ndarray) -> None:
    """Adds what `pack_at` packed with the same mask to a matrix.

    Raises:
        ValueError: The message's length is not that of the mask.
    """
    count = total.size if mask is None else int(np.count_nonzero(mask))
    _expect_length(message, count * _DTYPES[FORMATS[message.wire]].itemsize)
    values = _floats(message.body, message.wire)
    if mask is None:
        total += values.reshape(total.shape)
    else:
        total[mask] += values


def _expect_length(message: Message, length: int) -> None:
    if message.body.nbytes != length:
        raise ValueError(
            f"a message of {message.rows} x {message.columns} values must have {length} bytes; "
            f"received {message.body.nbytes}"
        )
