"""Loads the compiled library, once, after checking that it fits this TensorFlow."""

import ctypes
import functools
import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_dslide import _compat

PACKAGE = Path(__file__).resolve().parent.parent
LIBRARY = "_dslide_ops.so"
BUILD_INFO = "_build_info.json"
REBUILD = (
    "reinstall tf_dslide beside this TensorFlow, for example with "
    "`pip install --no-build-isolation --force-reinstall --no-deps .` in its source folder"
)

# Ops that read variables and change none. TensorFlow lets those run side by side, and leaves them
# out where nobody uses their result.
READING_OPS = (
    "DslideActiveLogits",
    "DslideCsrMatMul",
    "DslideActiveMatMul",
    "DslideTopK",
    "DslideFullCrossentropy",
    "DslideFullCrossentropyGradient",
    "DslideCrossentropyOfParts",
    "DslideSparseLinearSelect",
    "DslideSparseLinearTopK",
    "DslideSparseLinearLosses",
)


@dataclass(frozen=True)
class BuildInfo:
    """What the native library was built with, and what it runs on.

    Attributes:
        version: Version of tf_dslide.
        tensorflow_built: TensorFlow that the library was compiled against.
        tensorflow_found: TensorFlow that is running.
        compiler: The compiler's command.
        flags: The compiler's flags, those of single instruction sets apart.
        simd: Instruction set in use: `"portable"`, `"avx2"` or `"avx512"`.
    """

    version: str
    tensorflow_built: str
    tensorflow_found: str
    compiler: str
    flags: str
    simd: str

    def as_dict(self) -> dict[str, str]:
        """The same as a plain dictionary, for reports."""
        return asdict(self)


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def check_build(folder: Path, tensorflow_version: str) -> dict[str, Any]:
    """Returns what the library in `folder` was built with, or raises one clear `ImportError`.

    Args:
        folder: Where the library and the note beside it lie.
        tensorflow_version: The TensorFlow that is running. Minor versions of TensorFlow differ in
            their binary interface, patch versions do not.

    Raises:
        ImportError: The library is missing, or it was built for another TensorFlow.
    """
    library, note = folder / LIBRARY, folder / BUILD_INFO
    if not library.exists() or not note.exists():
        missing = library if not library.exists() else note
        raise ImportError(
            f"tf_dslide's native library is not complete: {missing} is missing; {REBUILD}."
        )
    try:
        built: dict[str, Any] = json.loads(note.read_text())
        built["tensorflow"], built["compiler"], built["flags"]
    except (ValueError, TypeError, KeyError) as error:
        raise ImportError(
            f"tf_dslide's build note {note} is damaged: {error!r}; {REBUILD}."
        ) from error
    if _release(built["tensorflow"]) != _release(tensorflow_version):
        raise ImportError(
            f"tf_dslide's native library was built for TensorFlow {built['tensorflow']}, but "
            f"TensorFlow {tensorflow_version} is running; {REBUILD}, or install "
            f"TensorFlow {built['tensorflow']}."
        )
    return built


@functools.cache
def load() -> ModuleType:
    """The module with the raw ops, `dslide_*`."""
    check_build(PACKAGE, tf.__version__)
    try:
        module = tf.load_op_library(str(PACKAGE / LIBRARY))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"tf_dslide's native library cannot be loaded: {error}; {REBUILD}."
        ) from error
    for op in READING_OPS:
        _compat.register_reading_op(op)
    refused = _library_string("dslide_simd_request_refused")
    if refused:
        warnings.warn(
            f"DSLIDE_SIMD={refused} asks for an instruction set that is unknown or that this "
            f"processor lacks; using {_library_string('dslide_simd_level')!r}. Known: 'portable', "
            "'avx2', 'avx512'.",
            stacklevel=2,
        )
    return module


def _library_string(function: str) -> str:
    call = getattr(ctypes.CDLL(str(PACKAGE / LIBRARY)), function)
    call.restype = ctypes.c_char_p
    text: bytes = call()
    return text.decode()


def build_info() -> BuildInfo:
    """Tells what the native library was built with and which instruction set it uses.

    The instruction set is the best that the processor runs. The environment variable `DSLIDE_SIMD`
    (`portable`, `avx2` or `avx512`), read when the library is first used, forces another one.

    Returns:
        A `BuildInfo`.

    Raises:
        ImportError: The library is missing, or was built for another TensorFlow.

    Example:
    >>> from tf_dslide import build_info
    >>> build_info().simd in ("portable", "avx2", "avx512")
    True
    """
    from tf_dslide._version import __version__

    load()
    built = check_build(PACKAGE, tf.__version__)
    return BuildInfo(
        version=__version__,
        tensorflow_built=built["tensorflow"],
        tensorflow_found=tf.__version__,
        compiler=built["compiler"],
        flags=built["flags"],
        simd=_library_string("dslide_simd_level"),
    )
