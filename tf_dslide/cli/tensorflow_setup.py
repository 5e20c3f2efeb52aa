"""Starts TensorFlow: when a command needs it, quietly, with the number of threads asked for."""

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tf_dslide.cli.errors import CommandError

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Notes and warnings of TensorFlow's C++ log. Some are written before it heeds its level.
_CHATTER = re.compile(rb"[IW]\d{4} \d\d:|WARNING: All log messages before absl")


def start(threads: int | None = None) -> None:
    """Imports TensorFlow and the parts of tf_dslide that saved models refer to.

    Its log is silent, errors apart, unless the user has set `TF_CPP_MIN_LOG_LEVEL`.

    Args:
        threads: How many threads TensorFlow may use; `None` for all cores.

    Raises:
        CommandError: TensorFlow runs already, with another number of threads.
        ImportError: TensorFlow is missing, or the native library is, or they do not fit.
    """
    if "tensorflow" not in sys.modules and _LOG_LEVEL not in os.environ:
        os.environ[_LOG_LEVEL] = "2"
        with _without_chatter():
            _import()
    else:
        _import()
    if threads is not None:
        _limit(threads)


def _import() -> None:
    for part in ("_native", "layers", "losses", "metrics", "optimizers"):
        importlib.import_module(f"tf_dslide.{part}")


def _limit(threads: int) -> None:
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise CommandError(
            f"--threads {threads} comes too late: TensorFlow is running already in this process"
        ) from error


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Holds standard error back, and in the end prints what is not chatter.

    The C++ code writes to the descriptor itself, so it is the descriptor that is turned aside.
    """
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
        original = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(original, 2)
            os.close(original)
            held.seek(0)
            kept = b"".join(line for line in held if not _CHATTER.match(line))
            if kept:
                os.write(2, kept)
