"""Published figures and measured ones side by side, with what differs between their conditions."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from reports.formats import percent, times
from reports.grouping import (
    DSLIDE,
    bandwidth,
    data_key,
    find_basis,
    gpu,
    in_order,
    labels,
    plural,
)
from reports.published import PUBLISHED, Published
from reports.reading import Record
from reports.tables import SEPARATOR, bytes_per_step, epoch_seconds, peak_mb, rate, source

BESIDE = [
    "claim",
    "published",
    "published_hardware",
    "measured",
    "run",
    "measured_hardware",
    "differs",
    "source",
]


class Found(NamedTuple):
    """A measured figure that stands beside a published one."""

    record: Record
    basis: Record | None
    figure: str


def beside_table(records: Sequence[Record]) -> pd.DataFrame:
    """One row for each published figure and each measured one that it can stand beside.

    A published figure without a measured one has a row that says what is missing.
    """
    names = labels(records)
    rows: list[dict[str, Any]] = []
    for published in PUBLISHED:
        head = {
            "claim": published.claim,
            "published": published.figure,
            "published_hardware": published.hardware,
        }
        found = list(_found(published, records))
        if not found:
            rows.append(head | {"measured": "not measured", "differs": _missing(published)})
        for record, basis, figure in found:
            both = [record] if basis is None else [record, basis]
            rows.append(
                head
                | {
                    "measured": figure,
                    "run": f"{names[record.file]}, {record.run.data.name}",
                    "measured_hardware": hardware(record),
                    "differs": "; ".join(differences(published, record)),
                    "source": SEPARATOR.join(source(one, one.steps) for one in both),
                }
            )
    return pd.DataFrame(rows, columns=BESIDE)


def hardware(record: Record) -> str:
    """A run's processes, machine and network in one line."""
    run, environment = record.run, record.run.environment
    parts = [plural(run.ranks, "process")]
    if run.threads_per_rank:
        parts[0] += f" of {plural(run.threads_per_rank, 'thread')}"
    hosts = len(set(run.hosts))
    parts.append(f"{plural(hosts, 'host')}, {run.network}")
    parts.append(str(environment.get("processor") or "processor not recorded"))
    if isinstance(memory := environment.get("memory_gb"), int | float):
        parts.append(f"{memory:.4g} GB in the machine")
    parts += [gpu(record)] if gpu(record) else []
    return "; ".join(parts)


def differences(published: Published, record: Record) -> list[str]:
    """What differs between the conditions of a published figure and of a run, in words."""
    run = record.run
    found = []
    if published.nodes and len(set(run.hosts)) != published.nodes:
        found.append(
            f"{plural(len(set(run.hosts)), 'host')}, not {plural(published.nodes, 'node')}"
        )
    if published.cores and run.threads_per_rank != published.cores:
        threads = (
            plural(run.threads_per_rank, "thread") if run.threads_per_rank else "unknown threads"
        )
        found.append(f"{threads} a process, not {plural(published.cores, 'core')} a node")
    if published.network and bandwidth(run.network) != bandwidth(published.network):
        found.append(f"network {run.network}, not {published.network}")
    if "synthetic" in run.data.source.lower() or "preset" in run.data.source.lower():
        found.append(f"data: {run.data.source}")
    found.append("another processor and another program")
    if record.status != "ok":
        found.append(f"this run: {record.status}")
    return found


def _found(published: Published, records: Sequence[Record]) -> Iterator[Found]:
    ours = [record for record in in_order(records) if record.run.method.startswith(DSLIDE)]
    if published.kind == "size":
        yield from _largest(ours)
        return
    for record in ours:
        if published.nodes not in (None, record.run.ranks) or record.run.ranks < 2:
            continue
        if published.network and bandwidth(record.run.network) != bandwidth(published.network):
            continue
        if not record.run.data.name.lower().startswith(published.data):
            continue
        yield from (
            _against_gpu(published, record, records)
            if published.kind == "gpu"
            else (_against_horovod(published, record, records))
        )


def _against_horovod(
    published: Published, record: Record, records: Sequence[Record]
) -> Iterator[Found]:
    value = {"speed": rate, "epoch": epoch_seconds, "traffic": bytes_per_step}[published.kind]
    basis = find_basis(record, "horovod-dense", records, lambda one: bool(value(one)), "").record
    ours, theirs = value(record), value(basis) if basis else None
    if not ours or not theirs:
        return
    figure = {
        "speed": f"{times(ours / theirs)} as fast",
        "epoch": f"{ours:,.4g} s and {theirs:,.4g} s",
        "traffic": f"{percent(100 * (1 - ours / theirs))} less",
    }[published.kind]
    yield Found(record, basis, figure)


def _against_gpu(
    published: Published, record: Record, records: Sequence[Record]
) -> Iterator[Found]:
    for other in in_order(records):
        if published.gpu not in gpu(other) or data_key(other) != data_key(record):
            continue
        ours, theirs = rate(record), rate(other)
        if ours and theirs and not other.run.method.startswith(DSLIDE):
            yield Found(
                record,
                other,
                f"{times(ours / theirs)} as fast as {other.run.title} on {gpu(other)}",
            )


def _largest(records: Sequence[Record]) -> Iterator[Found]:
    able = [one for one in records if one.run.model.parameters and one.steps is not None]
    if able:
        record = max(able, key=lambda one: (one.run.model.parameters or 0, one.file))
        figure = f"{(record.run.model.parameters or 0) / 1e6:,.4g} million parameters"
        if (peak := peak_mb(record)) is not None:
            figure += f", at most {peak / 1000:,.3g} GB a process"
        yield Found(record, None, figure)


def _missing(published: Published) -> str:
    """Which runs would be needed beside a published figure."""
    if published.kind == "size":
        return "no D-SLIDE run with measured steps"
    data = f" on {published.data}" if published.data else ""
    nodes = (
        f" with {plural(published.nodes, 'process')}"
        if published.nodes
        else " with 2 or more processes"
    )
    if published.kind == "gpu":
        return f"no D-SLIDE run{nodes}{data} beside a run on a {published.gpu}"
    network = f" under {published.network}" if published.network else ""
    return f"no pair of a D-SLIDE and a dense Horovod run{nodes}{network}{data}"
