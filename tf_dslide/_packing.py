"""Long lists of counts as short strings, for the JSON of saved models."""

import base64
import zlib
from typing import Any

import numpy as np


def pack_counts(counts: np.ndarray) -> str:
    """Counts as compressed text."""
    return base64.b64encode(zlib.compress(counts.astype("<i8").tobytes())).decode()


def unpack_counts(counts: Any) -> np.ndarray:
    """Counts `(units,) int64` from anything that NumPy takes, or from what `pack_counts` made."""
    if isinstance(counts, str):
        return np.frombuffer(zlib.decompress(base64.b64decode(counts)), "<i8").astype(np.int64)
    return np.asarray(counts, np.int64)
