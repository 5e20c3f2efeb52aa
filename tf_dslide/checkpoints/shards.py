"""A rank's file: variables in the format of the library safetensors, written piece by piece."""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tf_dslide import _atomic
from tf_dslide.checkpoints.ranks import CheckpointError

# What is in memory of a file at a time, beside the model.
PIECE_BYTES = 1 << 24
_TYPE_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def import_safetensors() -> Any:
    """The library, which the package can do without but for checkpoints."""
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "checkpoints need the package safetensors: pip install 'tf-dslide[mpi]'"
        ) from error
    return safetensors


def write_tensors(
    path: Path, variables: dict[str, tf.Variable], about: dict[str, str]
) -> tuple[int, int]:
    """Writes a safetensors file, one variable after the other; returns its size and CRC-32.

    The library's own `save_file` wants all tensors at once, and a variable may have to be copied
    to be read.
    """
    # The widest types first, as the library does, so that every tensor is aligned.
    order = sorted(variables, key=lambda key: (-variables[key].dtype.size, key))
    size, crc32 = 0, 0
    with path.open("wb") as file:
        for piece in _pieces(variables, order, about):
            file.write(piece)
            crc32 = zlib.crc32(piece, crc32)
            size += len(piece)
        _atomic.flush_to_disk(file)
    return size, crc32


def _pieces(
    variables: dict[str, tf.Variable], order: Sequence[str], about: dict[str, str]
) -> Iterator[Any]:
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for key in order:
        shape, dtype = shape_of(variables[key]), variables[key].dtype
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * dtype.size
        code = _TYPE_CODES.get(dtype.name)
        if code is None:
            raise CheckpointError(f"{key} is of type {dtype.name}, which cannot be saved")
        header[key] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for key in order:
        content = _bytes_of(variables[key])
        for begin in range(0, len(content), PIECE_BYTES):
            yield content[begin : begin + PIECE_BYTES]


def shape_of(variable: tf.Variable) -> list[int]:
    """The shape now, also where a variable may change it."""
    return tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64).numpy().tolist()


def _bytes_of(variable: tf.Variable) -> np.ndarray:
    """A variable's content as a vector of bytes, where possible without a copy."""
    tensor = variable.read_value()
    # Python's buffers, which need no copy, know nothing of bfloat16.
    content = tensor if tensor.dtype == tf.bfloat16 else memoryview(tensor)
    return np.asarray(content).reshape(-1).view(np.uint8)


def checksum(path: Path) -> int:
    """The CRC-32 of a file."""
    crc32 = 0
    with path.open("rb") as content:
        while piece := content.read(PIECE_BYTES):
            crc32 = zlib.crc32(piece, crc32)
    return crc32


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file whose tensors are read one by one.

    Raises:
        CheckpointError: It is none.
    """
    safetensors = import_safetensors()
    try:
        with safetensors.safe_open(path, framework="np") as tensors:
            yield tensors
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"the file {path.name} cannot be read: {error}") from error
