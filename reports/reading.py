"""Reads run files, also ones that are cut short, broken in places, or foreign."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from reports.schema import (
    EVENTS,
    SCHEMA,
    End,
    Measure,
    RecordError,
    RunEvent,
    StepFigures,
    build,
)


@dataclass(frozen=True)
class Record:
    """One run, as read from its file.

    Attributes:
        file: The file's name, as a report shows it.
        run: What was trained, on what, where and how.
        measures: Accuracy and loss, in the file's order.
        steps: Speed, traffic and memory; None if the run did not come so far.
        end: How the run ended; None if the file does not say.
        notices: What is wrong with the file, in words.
    """

    file: str
    run: RunEvent
    measures: tuple[Measure, ...] = ()
    steps: StepFigures | None = None
    end: End | None = None
    notices: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """The run's status; "incomplete" if the file has no `end` event."""
        return "incomplete" if self.end is None else self.end.status


class Problem(NamedTuple):
    """A file, or a part of one, that could not be read: its name, and why."""

    file: str
    message: str


def read_run(path: str | os.PathLike[str]) -> Record:
    """Reads a run file, also one that is cut short: what cannot be read becomes a notice.

    Raises:
        RecordError: The file cannot be read, is empty, or is not a run file of this schema.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecordError(f"cannot be read: {error.strerror}") from None
    if not any(line.strip() for line in lines):
        raise RecordError("the file is empty")
    record = Record(path.name, _first(lines[0]))
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            record = _with_line(record, line, number, last=number == len(lines))
    return record


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Record], list[Problem]]:
    """Reads run files.

    Args:
        paths: Files, and folders that are searched for `*.jsonl`, in subfolders too.

    Returns:
        The runs in the order of their names, and what could not be read. Files are named from the
        folder that all of them share.
    """
    files, problems = _files(paths)
    shared = os.path.commonpath([file.parent for file in files]) if files else ""
    records = []
    for file in files:
        name = Path(os.path.relpath(file, shared)).as_posix()
        try:
            record = replace(read_run(file), file=name)
        except RecordError as error:
            problems.append(Problem(name, str(error)))
            continue
        records.append(record)
        problems += [Problem(name, notice) for notice in record.notices]
    return records, problems


def _files(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Path], list[Problem]]:
    found: set[Path] = set()
    problems = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = {file.resolve() for file in path.rglob("*.jsonl") if file.is_file()}
            found |= inside
            if not inside:
                problems.append(Problem(str(given), "no *.jsonl file in this folder"))
        elif path.exists():
            found.add(path.resolve())
        else:
            problems.append(Problem(str(given), "no such file or folder"))
    return sorted(found), problems


def _first(line: str) -> RunEvent:
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("event") != "run":
        raise RecordError("not a run file: the first line is not an event `run`")
    if values.get("schema") != SCHEMA:
        raise RecordError(
            f"schema {values.get('schema')!r}; this program reads schema {SCHEMA} only"
        )
    return build(RunEvent, values, "run", strict=False)


def _with_line(record: Record, line: str, number: int, last: bool) -> Record:
    """The record with one more line's event in it, or with a notice why not."""

    def noticed(message: str) -> Record:
        return replace(record, notices=(*record.notices, f"line {number}: {message}"))

    try:
        values = json.loads(line)
    except ValueError:
        return noticed("cut short" if last else "not JSON; left out")
    event = values.get("event") if isinstance(values, dict) else None
    if event not in ("measure", "steps", "end"):
        return noticed(f"unexpected event {event!r}; left out")
    try:
        value: Any = build(EVENTS[event], values, event, strict=False)
        value = replace(value, line=number)
    except RecordError as error:
        return noticed(f"{error}; left out")
    if isinstance(value, Measure):
        return replace(record, measures=(*record.measures, value))
    if getattr(record, event) is not None:
        return noticed(f"a second event {event}; left out")
    return replace(record, **{event: value})
