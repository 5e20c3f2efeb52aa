"""Where things are printed: results on standard output, messages on standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def output() -> Console:
    """The console of results."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def messages() -> Console:
    """The console of messages about the progress of the work."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def print_json(record: dict[str, Any]) -> None:
    """Prints one JSON object over several lines."""
    print(json.dumps(record, indent=2), flush=True)


@contextmanager
def status(message: str) -> Iterator[None]:
    """Shows what is being done while it takes time; only on a terminal."""
    with messages().status(message):
        yield


def progress(console: Console) -> Progress:
    """A progress display with a free text beside each bar; only on a terminal.

    Tasks need the field `note`.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
