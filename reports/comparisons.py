"""Comparisons of D-SLIDE with the other methods, each with its basis or the reason for its lack."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from reports.grouping import (
    DSLIDE,
    Basis,
    by_data,
    data_key,
    find_basis,
    gpu,
    in_order,
    labels,
    plural,
    title,
)
from reports.reading import Record
from reports.schema import Measure
from reports.tables import (
    SEPARATOR,
    best_measure,
    bytes_per_step,
    last_measure,
    measured,
    rate,
    source,
)

# Runs of equal length never end in the same instant; so much longer still counts as equal.
SAME_TIME = 0.05
NO_ACCURACY = "no P@1 measured"
REFERENCES = ("horovod-dense", "horovod-sampled", "tf-dense", "tf-sampled")
FURTHER = ("tf-rowadam", "omikuji")
PAIR = ["label", "against", "data", "network", "ranks"]
SPEEDUPS = [*PAIR, "speedup", "samples_per_second", "basis_samples_per_second", "note", "source"]
TRAFFIC = [*PAIR, "saved_percent", "bytes_per_step", "basis_bytes_per_step", "note", "source"]
TARGETS = [
    "label",
    "data",
    "network",
    "ranks",
    "target_p1",
    "seconds",
    "dense_seconds",
    "dense_epoch",
    "times_as_fast",
    "note",
    "source",
]
SAME = [*PAIR, "within_seconds", "p1", "basis_p1", "points", "note", "source"]


def references(records: Sequence[Record], more: Sequence[str] = ()) -> list[str]:
    """The methods that D-SLIDE is compared with on one data set.

    Args:
        records: The runs on that data set.
        more: Methods beside the four main ones that count if they were run.
    """
    run = dict.fromkeys(record.run.method for record in in_order(records))
    known = (*REFERENCES, *FURTHER)
    unknown = [name for name in run if name not in known and not name.startswith(DSLIDE)]
    return [*REFERENCES, *(name for name in more if name in run), *unknown]


def speedups_table(records: Sequence[Record]) -> pd.DataFrame:
    """D-SLIDE's samples a second over those of each other method on equal terms."""

    def row(record: Record, basis: Record) -> dict[str, Any]:
        ours, theirs = rate(record) or 0.0, rate(basis) or 0.0
        return {
            "speedup": ours / theirs,
            "samples_per_second": ours,
            "basis_samples_per_second": theirs,
            "source": _sources((record, record.steps), (basis, basis.steps)),
        }

    def usable(record: Record) -> bool:
        return bool(rate(record))

    return _pairs(
        records,
        lambda group: references(group, ["tf-rowadam"]),
        usable,
        "no speed measured",
        row,
        SPEEDUPS,
    )


def traffic_table(records: Sequence[Record]) -> pd.DataFrame:
    """How many percent fewer bytes D-SLIDE sends in a step than dense Horovod on equal terms."""

    def row(record: Record, basis: Record) -> dict[str, Any]:
        ours, theirs = bytes_per_step(record) or 0.0, bytes_per_step(basis) or 0.0
        return {
            "saved_percent": 100 * (1 - ours / theirs),
            "bytes_per_step": ours,
            "basis_bytes_per_step": theirs,
            "source": _sources((record, record.steps), (basis, basis.steps)),
        }

    together = [record for record in records if record.run.ranks > 1]

    def usable(record: Record) -> bool:
        return bool(bytes_per_step(record))

    return _pairs(
        together, lambda group: ["horovod-dense"], usable, "no bytes measured", row, TRAFFIC
    )


def same_time_table(records: Sequence[Record]) -> pd.DataFrame:
    """P@1 of D-SLIDE and of each other method within the other's training time.

    Each run's last evaluation within that time counts; D-SLIDE may have trained for less.
    """

    def row(record: Record, basis: Record) -> dict[str, Any]:
        theirs = last_measure(basis)
        assert theirs is not None  # usable
        limit = theirs.train_seconds
        within = [m for m in measured(record) if m.train_seconds <= limit * (1 + SAME_TIME)]
        ours = within[-1] if within else None
        note = "" if ours else _first_evaluated(record)
        return {
            "within_seconds": limit,
            "p1": ours.p1 if ours else None,
            "basis_p1": theirs.p1,
            "points": 100 * ((ours.p1 or 0) - (theirs.p1 or 0)) if ours else None,
            "note": note,
            "source": _sources((record, ours), (basis, theirs)),
        }

    def usable(record: Record) -> bool:
        return last_measure(record) is not None

    return _pairs(records, lambda group: references(group, FURTHER), usable, NO_ACCURACY, row, SAME)


def targets_table(records: Sequence[Record]) -> pd.DataFrame:
    """Training time of each run to the best P@1 that dense training reached on the same data.

    The time is that of the first evaluation at or above it. Empty where no dense run has a P@1.
    """
    names = labels(records)
    rows = []
    for group in by_data(records).values():
        for record in group:
            dense, target = dense_target(record, group)
            if dense is not None and target is not None:
                row = _reaching(record, dense, target)
                rows.append({"label": names[record.file], **_where(record), **row})
    return pd.DataFrame(rows, columns=TARGETS)


def dense_target(record: Record, records: Sequence[Record]) -> tuple[Record | None, Measure | None]:
    """The dense run on a run's data with the best P@1, and that evaluation.

    TensorFlow's dense training in one process sets the target; where there is none, Horovod's.
    """
    for method in ("tf-dense", "horovod-dense"):
        found = [
            (other, best)
            for other in records
            if other.run.method == method and data_key(other) == data_key(record)
            if (best := best_measure(other)) is not None
        ]
        if found:
            return max(found, key=lambda pair: (pair[1].p1 or 0.0, -pair[1].train_seconds))
    return None, None


def _reaching(record: Record, dense: Record, target: Measure) -> dict[str, Any]:
    there = next((m for m in measured(record) if (m.p1 or 0) >= (target.p1 or 0)), None)
    last, best = last_measure(record), best_measure(record)
    note = ""
    if record.file == dense.file:
        note = "sets the target"
    elif there is None and last is not None and best is not None:
        note = f"not reached: {100 * (best.p1 or 0):.2f} % at best in {last.train_seconds:,.4g} s"
    elif there is None:
        note = NO_ACCURACY
    notes = [note, "" if record.status == "ok" else record.status]
    notes += [f"dense training on {gpu(dense)}"] if gpu(dense) != gpu(record) and gpu(dense) else []
    return {
        "target_p1": target.p1,
        "seconds": there.train_seconds if there else None,
        "dense_seconds": target.train_seconds,
        "dense_epoch": target.epoch,
        "times_as_fast": _ratio(target.train_seconds, there.train_seconds) if there else None,
        "note": "; ".join(part for part in notes if part),
        "source": _sources((record, there), (dense, target)),
    }


def _pairs(
    records: Sequence[Record],
    methods: Callable[[Sequence[Record]], Sequence[str]],
    usable: Callable[[Record], bool],
    lacking: str,
    row: Callable[[Record, Record], dict[str, Any]],
    columns: list[str],
) -> pd.DataFrame:
    """One row for each D-SLIDE run and each method, `row` of the two or the reason for none."""
    names = labels(records)
    rows = []
    for group in by_data(records).values():
        for record in group:
            if not record.run.method.startswith(DSLIDE):
                continue
            for method in methods(group):
                basis = find_basis(record, method, group, usable, lacking)
                if not usable(record):
                    basis = Basis(None, f"this run ({record.status}): {lacking}")
                head = {
                    "label": names[record.file],
                    **_where(record),
                    "against": _against(method, basis, group),
                }
                rows.append(head | _compared(record, basis, row))
    return pd.DataFrame(rows, columns=columns)


def _compared(
    record: Record, basis: Basis, row: Callable[[Record, Record], dict[str, Any]]
) -> dict[str, Any]:
    if basis.record is None:
        return {"note": basis.reason, "source": source(record)}
    found = row(record, basis.record)
    notes = [found.get("note", ""), _caveat(record, basis.record)]
    return found | {"note": "; ".join(note for note in notes if note)}


def _against(method: str, basis: Basis, records: Sequence[Record]) -> str:
    name = title(method, records)
    if basis.record is None:
        return name
    return f"{name} · {plural(basis.record.run.ranks, 'process')}"


def _caveat(record: Record, basis: Record) -> str:
    """What is not equal between two runs that are compared, or not complete."""
    notes = []
    if basis.run.network != record.run.network:
        notes.append(f"the other under network {basis.run.network}")
    if gpu(basis) != gpu(record):
        notes.append(f"the other on {gpu(basis) or 'a CPU'}")
    if basis.run.environment.get("processor") != record.run.environment.get("processor"):
        notes.append("the other on another processor")
    notes += [f"this run: {record.status}"] if record.status != "ok" else []
    notes += [f"the other: {basis.status}"] if basis.status != "ok" else []
    return "; ".join(notes)


def _where(record: Record) -> dict[str, Any]:
    return {
        "data": record.run.data.name,
        "network": record.run.network,
        "ranks": record.run.ranks,
    }


def _first_evaluated(record: Record) -> str:
    first = measured(record)
    return f"first evaluated after {first[0].train_seconds:,.4g} s" if first else NO_ACCURACY


def _ratio(one: float, other: float) -> float | None:
    return one / other if other else None


def _sources(*events: tuple[Record, Any]) -> str:
    return SEPARATOR.join(dict.fromkeys(source(record, event) for record, event in events))
