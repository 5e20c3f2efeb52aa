"""Tables of what was measured, one row a run, a rank or an evaluation.

Every row names its run file and, where a single event is behind it, the line in that file. Numbers
are as in the file, in the units that the column names say.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports.grouping import batch_size, gpu, in_order, labels
from reports.reading import Record
from reports.schema import Measure, RankFigures

SEPARATOR = "; "  # between the sources of a row
SPEED = [
    "label",
    "data",
    "network",
    "status",
    "gpu",
    "samples_per_second",
    "median_step_seconds",
    "mean_step_seconds",
    "epoch_seconds",
    "epoch_measured",
    "bytes_per_rank_and_step",
    "bytes_per_step",
    "bytes_source",
    "messages_per_step",
    "seconds_computing",
    "seconds_waiting",
    "peak_mb",
    "method",
    "ranks",
    "batch_size",
    "source",
]
ACCURACY = [
    "label",
    "data",
    "network",
    "status",
    "best_p1",
    "p3",
    "p5",
    "psp5",
    "train_seconds",
    "epoch",
    "last_p1",
    "evaluated",
    "method",
    "ranks",
    "source",
]


def runs_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row a run: its conditions, how it ended, and its machine."""
    names = labels(records)
    rows = []
    for record in in_order(records):
        run = record.run
        rows.append(
            {
                "label": names[record.file],
                "data": run.data.name,
                "network": run.network,
                "status": record.status,
                "message": _message(record),
                "started": run.time,
                "seconds": record.end.seconds if record.end else None,
                "gpu": gpu(record) or None,
                "file": record.file,
                "run_id": run.run_id,
                "method": run.method,
                "title": run.title,
                "ranks": run.ranks,
                "hosts": " ".join(run.hosts),
                "threads_per_rank": run.threads_per_rank,
                "seed": run.seed,
                "hidden": run.model.hidden,
                "units": run.model.units,
                "parameters": run.model.parameters,
                "num_features": run.data.num_features,
                "num_labels": run.data.num_labels,
                "num_train": run.data.num_train,
                "num_test": run.data.num_test,
                "evaluated": run.data.evaluated,
                "data_source": run.data.source,
                "command": run.command,
                **{f"settings.{key}": value for key, value in run.settings.items()},
                **{f"environment.{key}": value for key, value in run.environment.items()},
            }
        )
    return _with_gpu(pd.DataFrame(rows), records)


def has_gpu(records: Sequence[Record]) -> bool:
    """Whether some run was made on a GPU."""
    return any(gpu(record) for record in records)


def speed_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row a run: speed, traffic, time split and memory. Runs without figures have empty ones.

    `bytes_per_rank_and_step`, `messages_per_step`, `seconds_computing` and `seconds_waiting` are
    means over the ranks, `bytes_per_step` is the sum, `peak_mb` the largest.
    """
    names = labels(records)
    rows = [_speed(record, names[record.file]) for record in in_order(records)]
    return _with_gpu(pd.DataFrame(rows, columns=SPEED), records)


def accuracy_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row a run: the evaluation with the best P@1 (the first, if several), and the last P@1."""
    names = labels(records)
    rows = []
    for record in in_order(records):
        best, last = best_measure(record), last_measure(record)
        rows.append(
            {
                "label": names[record.file],
                "data": record.run.data.name,
                "network": record.run.network,
                "status": record.status,
                "best_p1": best.p1 if best else None,
                "p3": best.p3 if best else None,
                "p5": best.p5 if best else None,
                "psp5": best.psp5 if best else None,
                "train_seconds": best.train_seconds if best else None,
                "epoch": best.epoch if best else None,
                "last_p1": last.p1 if last else None,
                "evaluated": record.run.data.evaluated,
                "method": record.run.method,
                "ranks": record.run.ranks,
                "source": source(record, best),
            }
        )
    return pd.DataFrame(rows, columns=ACCURACY)


def curves_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row an evaluation: all measures of all runs."""
    fields = ("epoch", "step", "samples", "train_seconds", "loss", "p1", "p3", "p5", "psp5")
    columns = ["method", "data", "network", "ranks", *fields, "evaluation_seconds", "source"]
    rows = []
    for record in in_order(records):
        run = record.run
        for measure in record.measures:
            rows.append(
                {
                    "method": run.method,
                    "data": run.data.name,
                    "network": run.network,
                    "ranks": run.ranks,
                    **{name: getattr(measure, name) for name in fields},
                    "evaluation_seconds": measure.evaluation_seconds,
                    "source": source(record, measure),
                }
            )
    return pd.DataFrame(rows, columns=columns)


def ranks_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row a rank: its traffic, time split and memory."""
    fields = list(RankFigures.__dataclass_fields__)
    columns = ["method", "data", "network", *fields, "source"]
    rows = []
    for record in in_order(records):
        for rank in rank_figures(record):
            rows.append(
                {
                    "method": record.run.method,
                    "data": record.run.data.name,
                    "network": record.run.network,
                    **{name: getattr(rank, name) for name in fields},
                    "source": source(record, record.steps),
                }
            )
    return pd.DataFrame(rows, columns=columns)


def _with_gpu(table: pd.DataFrame, records: Sequence[Record]) -> pd.DataFrame:
    """The table without its GPU column if no run was made on one."""
    return table if has_gpu(records) else table.drop(columns="gpu")


def source(record: Record, event: Any = None) -> str:
    """Where a number is from: "file:line", or the file alone if no single event is behind it."""
    return f"{record.file}:{event.line}" if event is not None else record.file


def rank_figures(record: Record) -> list[RankFigures]:
    """The figures of a run's ranks; none if they were not measured."""
    return list(record.steps.ranks or []) if record.steps else []


def over_ranks(record: Record, name: str) -> list[float]:
    """One figure of all ranks; empty if it is missing for any of them."""
    values = [getattr(rank, name) for rank in rank_figures(record)]
    return [] if any(value is None for value in values) else values


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None


def rate(record: Record) -> float | None:
    """Samples a second; from the epoch's time if the run does not give it directly."""
    if record.steps is None:
        return None
    if record.steps.samples_per_second:
        return record.steps.samples_per_second
    seconds = record.steps.epoch_seconds
    return record.run.data.num_train / seconds if seconds else None


def bytes_per_step(record: Record) -> float | None:
    """Bytes that all ranks together send in a step; None if not known of every rank."""
    sent = over_ranks(record, "bytes_sent_per_step")
    return sum(sent) if len(sent) == record.run.ranks else None


def bytes_per_rank(record: Record) -> float | None:
    """Bytes that a rank sends in a step, in the mean; None if not known of every rank."""
    sent = bytes_per_step(record)
    return None if sent is None else sent / record.run.ranks


def epoch_seconds(record: Record) -> float | None:
    """Seconds of a pass over the training data."""
    return record.steps.epoch_seconds if record.steps else None


def peak_mb(record: Record) -> float | None:
    """Peak memory of the largest rank; None if not known of every rank."""
    return max(over_ranks(record, "peak_mb"), default=None)


def measured(record: Record) -> list[Measure]:
    """The evaluations that have a P@1, by training time."""
    return sorted(
        (measure for measure in record.measures if measure.p1 is not None),
        key=lambda measure: measure.train_seconds,
    )


def best_measure(record: Record) -> Measure | None:
    """The first evaluation with the highest P@1."""
    return max(measured(record), key=lambda measure: measure.p1 or 0.0, default=None)


def last_measure(record: Record) -> Measure | None:
    """The last evaluation with a P@1."""
    return next(reversed(measured(record)), None)


def _speed(record: Record, label: str) -> dict[str, Any]:
    steps = record.steps
    sources = {rank.bytes_source for rank in rank_figures(record)} - {None}
    return {
        "label": label,
        "data": record.run.data.name,
        "network": record.run.network,
        "status": record.status,
        "gpu": gpu(record) or None,
        "samples_per_second": rate(record),
        "median_step_seconds": steps.median_step_seconds if steps else None,
        "mean_step_seconds": steps.mean_step_seconds if steps else None,
        "epoch_seconds": epoch_seconds(record),
        "epoch_measured": steps.epoch_measured if steps else None,
        "bytes_per_rank_and_step": bytes_per_rank(record),
        "bytes_per_step": bytes_per_step(record),
        "bytes_source": ", ".join(sorted(str(name) for name in sources)) or None,
        "messages_per_step": mean(over_ranks(record, "messages_per_step")),
        "seconds_computing": mean(over_ranks(record, "seconds_computing")),
        "seconds_waiting": mean(over_ranks(record, "seconds_waiting")),
        "peak_mb": peak_mb(record),
        "method": record.run.method,
        "ranks": record.run.ranks,
        "batch_size": batch_size(record),
        "source": source(record, steps),
    }


def _message(record: Record) -> str:
    message = record.end.message if record.end else "the file has no end event"
    return "; ".join(part for part in (message, *record.notices) if part)
