"""Errors as one line on standard error, and the exit status that goes with them."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

FAILED = 1
INTERRUPTED = 130


class CommandError(Exception):
    """Something that the user can put right; the message says what was found and what to do."""


class OneLineErrors(TyperGroup):
    """The group of all commands, which reports mistakes in the options in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """As in Typer, but for the form of usage errors."""
        run = functools.partial(
            super().main, args, prog_name, complete_var, False, windows_expand_args, **extra
        )
        if not standalone_mode:
            return run()
        try:
            status = run()
        except typer.TyperException as error:
            sys.exit(_report_usage(error))
        # Typer gives the status of typer.Exit back as a value.
        sys.exit(status or 0)


def _report_usage(error: typer.TyperException) -> int:
    message, context = error.format_message(), getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # Not a mistake: `dslide` and `dslide train` alone show their help, which is the message.
        typer.echo(message)
        return error.exit_code
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    report(one_line(message).rstrip(".") + hint)
    return error.exit_code


def reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Decorates a command: what it raises becomes one line and an exit status.

    With the command's `debug` argument set, errors pass with their traceback.
    """

    @functools.wraps(command)
    def run(*args: Any, debug: bool = False, **kwargs: Any) -> None:
        try:
            command(*args, debug=debug, **kwargs)
        except (typer.Exit, typer.Abort, typer.TyperException, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            report("Interrupted before the output was written", prefix="")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            if debug:
                raise
            report(describe(error))
            raise typer.Exit(FAILED) from error

    return run


def report(message: str, prefix: str = "Error: ") -> None:
    """Writes one line to standard error."""
    print(prefix + message, file=sys.stderr, flush=True)


def describe(error: BaseException) -> str:
    """Says in one line what went wrong."""
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory {one_line(str(error))}".strip()
    if hasattr(error, "node_def") and hasattr(error, "message"):
        return one_line(_without_graph(error.message))
    if isinstance(error, (CommandError, ValueError, ImportError, OSError)):
        return one_line(str(error)) or type(error).__name__
    return (
        f"unexpected {type(error).__name__}: {one_line(str(error))}; "
        "run again with --debug to see where it comes from"
    )


def one_line(text: str) -> str:
    """Joins the lines of a message."""
    return " ".join(text.split())


def _without_graph(message: str) -> str:
    """Takes what an op said out of what TensorFlow wraps around it.

    The wrapping is a Python stack above, an empty line, and the nodes concerned in double brackets
    below.
    """
    said = message.partition("[[{{")[0].strip()
    return said.rpartition("\n\n")[2] or message
