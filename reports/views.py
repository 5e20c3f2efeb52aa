"""How the tables are shown: which columns, their headings, and how their numbers are written."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from reports import formats
from reports.tables import SEPARATOR


class Cell(NamedTuple):
    """A cell: text, kind (text, long, number, status, published or source), and run files."""

    text: str
    kind: str
    files: tuple[tuple[str, str], ...] = ()


class View(NamedTuple):
    """A table as shown.

    Attributes:
        title: Its heading.
        note: What it says and how to read it.
        heads: The columns' headings and kinds.
        rows: The cells.
        empty: What is said instead if there are no rows.
    """

    title: str
    note: str
    heads: list[Cell]
    rows: list[list[Cell]]
    empty: str


COLUMNS: dict[str, tuple[str, Callable[[Any], str] | None]] = {
    "label": ("Run", None),
    "against": ("Against", None),
    "data": ("Data", None),
    "network": ("Network", None),
    "status": ("Status", None),
    "message": ("Message", None),
    "started": ("Started (UTC)", formats.moment),
    "gpu": ("GPU", None),
    "seed": ("Seed", formats.text),
    "batch_size": ("Batch", formats.text),
    "threads_per_rank": ("Threads a process", formats.text),
    "hosts": ("Hosts", None),
    "run_id": ("Run id", None),
    "note": ("Note", None),
    "source": ("Run file: line", None),
    "file": ("Run file", None),
    "rank": ("Rank", formats.text),
    "host": ("Host", None),
    "seconds": ("Time", formats.seconds),
    "samples_per_second": ("Samples/s", formats.number),
    "basis_samples_per_second": ("Samples/s of the other", formats.number),
    "speedup": ("Times as fast", formats.number),
    "median_step_seconds": ("Step, median", formats.seconds),
    "mean_step_seconds": ("Step, mean", formats.seconds),
    "epoch_seconds": ("Epoch", formats.seconds),
    "epoch_measured": ("Whole epoch timed", formats.yes_no),
    "bytes_per_rank_and_step": ("Sent a rank and step", formats.size),
    "bytes_per_step": ("Sent a step, all ranks", formats.size),
    "bytes_sent_per_step": ("Sent a step", formats.size),
    "basis_bytes_per_step": ("Sent a step by the other", formats.size),
    "bytes_source": ("Bytes are", None),
    "saved_percent": ("Fewer bytes", formats.percent),
    "messages_per_step": ("Messages a step", formats.number),
    "seconds_computing": ("Computing a step", formats.seconds),
    "seconds_waiting": ("Waiting a step", formats.seconds),
    "peak_mb": ("Peak memory", formats.megabytes),
    "best_p1": ("Best P@1", formats.fraction),
    "last_p1": ("Last P@1", formats.fraction),
    "p1": ("P@1", formats.fraction),
    "basis_p1": ("P@1 of the other", formats.fraction),
    "points": ("Difference, points", formats.points),
    "p3": ("P@3", formats.fraction),
    "p5": ("P@5", formats.fraction),
    "psp5": ("PSP@5", formats.fraction),
    "train_seconds": ("After training for", formats.seconds),
    "within_seconds": ("Within", formats.seconds),
    "epoch": ("Epochs", formats.number),
    "evaluated": ("Test samples", formats.text),
    "target_p1": ("P@1 to reach", formats.fraction),
    "dense_seconds": ("Dense took", formats.seconds),
    "dense_epoch": ("Dense epochs", formats.number),
    "times_as_fast": ("Times as fast", formats.number),
    "claim": ("Figure", None),
    "published": ("Published", None),
    "published_hardware": ("Published hardware", None),
    "measured": ("Measured here", None),
    "run": ("Run", None),
    "measured_hardware": ("Hardware here", None),
    "differs": ("What differs, or is missing", None),
    "settings": ("Settings", None),
    "command": ("Command", None),
    "runs": ("Runs", None),
    "environment": ("Machine and versions", None),
}
LONG = (
    "message",
    "note",
    "settings",
    "command",
    "environment",
    "measured",
    "measured_hardware",
    "differs",
)
MARKS = {"ok": "✓", "incomplete": "…", "interrupted": "…", "unavailable": "-"}


def view(
    table: pd.DataFrame,
    columns: Sequence[str],
    title: str,
    note: str = "",
    empty: str = "No run has these figures.",
) -> View:
    """Some columns of a table, for a page; those that the table lacks are left out."""
    shown = [column for column in columns if column in table.columns]
    heads = [Cell(COLUMNS[column][0], _kind(column)) for column in shown]
    rows = [
        [cell(column, value) for column, value in zip(shown, values, strict=True)]
        for values in table[shown].itertuples(index=False, name=None)
    ]
    return View(title, note, heads, rows, empty)


def cell(column: str, value: Any) -> Cell:
    """One value as a cell."""
    kind, write = _kind(column), COLUMNS[column][1]
    if formats.is_missing(value):
        return Cell(formats.NOTHING, "number" if kind == "number" else "text")
    if kind == "source":
        return Cell(str(value), kind, tuple(_place(place) for place in value.split(SEPARATOR)))
    if kind == "status":
        return Cell(f"{MARKS.get(value, '✗')} {value}", kind)
    return Cell(write(value) if write else str(value), kind)


def _kind(column: str) -> str:
    if column in ("source", "file", "runs"):
        return "source"
    if column == "status":
        return column
    if column in LONG:
        return "long"
    if column.startswith("published"):
        return "published"
    return "number" if COLUMNS[column][1] and column != "started" else "text"


def _place(source: str) -> tuple[str, str]:
    """File and line of "file:line"; the line is empty if there is none."""
    file, colon, line = source.rpartition(":")
    return (file, line) if colon and line.isdigit() else (source, "")
