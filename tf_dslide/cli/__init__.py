"""The command line `dslide`: train, tune, evaluate and use classifiers without writing Python.

`main` is the entry point; `application` holds the commands. Nothing there imports TensorFlow until
a command needs it, so that `--help` and mistakes in the options are answered at once.
"""

import sys
from importlib.util import find_spec

__all__ = ["main"]

# What the extra `cli` brings: the layers do without.
_NEEDED = ("typer", "rich", "sklearn")


def main() -> None:
    """Runs `dslide` with the arguments of the process, and exits.

    The exit status is 0 if all went well, 1 after an error, 2 after a mistake in the options or
    where the extra `cli` is not installed, and 130 after Ctrl-C. An error is one line on standard
    error; `--debug` after a command shows where it came from.
    """
    if any(find_spec(package) is None for package in _NEEDED):
        print("dslide needs more packages: pip install 'tf-dslide[cli]'", file=sys.stderr)
        sys.exit(2)
    from tf_dslide.cli.application import app

    app(prog_name="dslide")
