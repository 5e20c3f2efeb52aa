"""tf_dslide: Keras layers for classifiers with 10^4 to 10^7 outputs on ordinary CPUs."""

import sys

from tf_dslide._version import __version__


def _is_command_line() -> bool:
    """Whether this import is the first act of the program `dslide` or `python -m tf_dslide.cli`."""
    return sys.argv[0].rpartition("/")[2] == "dslide" or "tf_dslide.cli" in sys.orig_argv[1:4]


# The command line answers `--help` and mistakes in its options before it starts TensorFlow, which
# takes seconds; it imports what it needs itself. Everybody else gets all names at once, and with
# them the registration that `keras.models.load_model` relies on.
if not _is_command_line():
    try:
        from tf_dslide._public import *  # noqa: F403
        from tf_dslide._public import __all__ as _names
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            "tf_dslide needs TensorFlow 2.21, which is not installed: pip install "
            "'tf-dslide[cpu]' for tensorflow-cpu, or 'tf-dslide[tensorflow]' for tensorflow"
        ) from error

    __all__ = [*_names, "__version__"]
