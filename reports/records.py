"""Writes and reads run files: one JSON event a line, as `reports.schema` describes them.

Each event reaches the file as it happens, so that a run that is stopped leaves a readable file.
This module needs nothing but Python: training processes import it.

Example:

    with RunWriter("runs/places.dslide-lsh.local.1.jsonl") as writer:
        writer.run(method="dslide-lsh", title="D-SLIDE, LSH per sample", ...)
        writer.measure(epoch=1, step=480, samples=491_520, train_seconds=31.2, p1=0.31)
        writer.end("ok", seconds=40.1)
    for record in read_runs(["runs"])[0]:
        print(record.file, record.status)
"""

import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reports.reading import Problem, Record, read_run, read_runs
from reports.schema import EVENTS, SCHEMA, STATUSES, End, RecordError, Scalar, as_json, build

__all__ = [
    "SCHEMA",
    "STATUSES",
    "Problem",
    "Record",
    "RecordError",
    "RunWriter",
    "append_end",
    "read_run",
    "read_runs",
]


class RunWriter:
    """Writes one run file, event by event; a context manager.

    If the block ends by an exception, the file stays without an `end` event, and the one who
    started the run adds it with `append_end`. An existing file is replaced, its folder created.

    Args:
        path: The file, by custom `<data>.<method>.<network>.<ranks>.jsonl`.

    Raises:
        RecordError: From each method, if an event does not fit the schema or comes out of order.
            Nothing is written then.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")
        self._seen: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Nothing can be written afterwards."""
        self._file.close()

    def run(
        self,
        *,
        method: str,
        title: str,
        model: Mapping[str, Any],
        data: Mapping[str, Any],
        settings: Mapping[str, Scalar],
        ranks: int,
        hosts: Sequence[str],
        network: str,
        environment: Mapping[str, Scalar],
        threads_per_rank: int | None = None,
        seed: int | None = None,
        command: str = "",
        run_id: str | None = None,
        time: str | None = None,
    ) -> None:
        """Writes the first event. `run_id` and `time` are a new id and now, unless given."""
        values = {
            name: value
            for name, value in locals().items()
            if name not in ("self", "run_id", "time")
        }
        values["run_id"] = uuid.uuid4().hex if run_id is None else run_id
        values["time"] = datetime.now(UTC).isoformat(timespec="seconds") if time is None else time
        self._write("run", values)

    def measure(
        self,
        *,
        step: int,
        samples: int,
        train_seconds: float,
        epoch: float | None = None,
        loss: float | None = None,
        p1: float | None = None,
        p3: float | None = None,
        p5: float | None = None,
        psp5: float | None = None,
        evaluation_seconds: float | None = None,
    ) -> None:
        """Writes accuracy and loss after some training. A loss that is not finite becomes null."""
        values = {name: value for name, value in locals().items() if name != "self"}
        if isinstance(loss, Real) and not math.isfinite(loss):
            values["loss"] = None
        self._write("measure", values)

    def steps(
        self,
        *,
        steps: int | None = None,
        median_step_seconds: float | None = None,
        mean_step_seconds: float | None = None,
        samples_per_second: float | None = None,
        epoch_seconds: float | None = None,
        epoch_measured: bool | None = None,
        ranks: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Writes the figures over the training steps; None where one could not be measured."""
        self._write("steps", {name: value for name, value in locals().items() if name != "self"})

    def end(self, status: str, message: str = "", seconds: float | None = None) -> None:
        """Writes the last event. `status` is one of `STATUSES`."""
        self._write("end", {"status": status, "message": message, "seconds": seconds})

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        if (event == "run") == ("run" in self._seen):
            rule = "comes first" if event != "run" else "comes once"
            raise RecordError(f"{event}: out of order; the event run {rule}")
        if "end" in self._seen or (event == "steps" and event in self._seen):
            earlier = "end" if "end" in self._seen else event
            raise RecordError(f"{event}: out of order; {earlier} is written already")
        line = _line(event, build(EVENTS[event], values, event, strict=True))
        self._file.write(line)
        self._file.flush()
        self._seen.add(event)


def append_end(
    path: str | os.PathLike[str], status: str, message: str = "", seconds: float | None = None
) -> bool:
    """Adds the `end` event to the file of a run that died before it could write one.

    Args:
        path: A run file, possibly cut short in its last line.
        status: One of `STATUSES`.
        message: Why the run ended.
        seconds: Duration of the run.

    Returns:
        Whether the event was added; False if the file has one already.

    Raises:
        RecordError: The file is not a run file, or the values do not fit the schema.
    """
    if read_run(path).end is not None:
        return False
    values = {"status": status, "message": message, "seconds": seconds}
    line = _line("end", build(End, values, "end", strict=True))
    cut = not Path(path).read_bytes().endswith(b"\n")
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("\n" * cut + line)
    return True


def _line(event: str, value: Any) -> str:
    return json.dumps({"event": event, **as_json(value)}, allow_nan=False) + "\n"
