"""The few sentences that a report begins with, each with the run files it is from."""

from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from reports.comparisons import NO_ACCURACY
from reports.formats import fraction, number, percent, seconds


class Headline(NamedTuple):
    """A sentence, and its sources as a table has them."""

    text: str
    source: str


def headlines(
    speedups: pd.DataFrame, traffic: pd.DataFrame, targets: pd.DataFrame
) -> dict[str, list[Headline]]:
    """By data set and network: the best speed-ups, the traffic saved, and the time to accuracy.

    Speed-ups are over Horovod with the most processes, or over the others where Horovod is missing.

    Args:
        speedups: From `comparisons.speedups_table`.
        traffic: From `comparisons.traffic_table`.
        targets: From `comparisons.targets_table`.
    """
    found: dict[str, list[Headline]] = {}
    for place, rows in _places(speedups.dropna(subset="speedup")):
        horovod = rows[rows["against"].str.startswith("Horovod")]
        chosen = horovod[horovod["ranks"] == horovod["ranks"].max()] if len(horovod) else rows
        for _, pairs in chosen.groupby("against", sort=False):
            best = pairs.loc[pairs["speedup"].idxmax()]
            found.setdefault(place, []).append(_speed(best))
    for place, rows in _places(traffic.dropna(subset="saved_percent")):
        best = rows.loc[rows["saved_percent"].idxmax()]
        found.setdefault(place, []).append(_traffic(best))
    ours = targets[targets["label"].str.startswith("D-SLIDE")] if len(targets) else targets
    ours = ours[~ours["note"].str.startswith(NO_ACCURACY)] if len(ours) else ours
    for place, rows in _places(ours):
        found.setdefault(place, []).append(_accuracy(rows))
    return found


def _places(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for (data, network), rows in table.groupby(["data", "network"], sort=False):
        yield f"{data}, network {network}", rows


def _speed(best: pd.Series) -> Headline:
    return Headline(
        f"{best['label']} trains {number(best['speedup'])} times as many samples a second as "
        f"{best['against']}{_but(best['note'])}.",
        best["source"],
    )


def _traffic(best: pd.Series) -> Headline:
    return Headline(
        f"{best['label']} sends {percent(best['saved_percent'])} fewer bytes a step than "
        f"{best['against']}{_but(best['note'])}.",
        best["source"],
    )


def _accuracy(rows: pd.DataFrame) -> Headline:
    first = rows.iloc[0]
    target = f"dense training's best P@1, {fraction(first['target_p1'])}"
    dense = f"dense training took {seconds(first['dense_seconds'])}"
    if pd.notna(first["dense_epoch"]):
        dense += f" ({_epochs(first['dense_epoch'])})"
    reached = rows.dropna(subset="seconds")
    if not len(reached):
        return Headline(f"No D-SLIDE run reached {target}; {dense}.", first["source"])
    best = reached.loc[reached["seconds"].idxmin()]
    return Headline(
        f"{best['label']} reached {target}, after {seconds(best['seconds'])}"
        f"{_but(best['note'])}; {dense}.",
        best["source"],
    )


def _epochs(count: float) -> str:
    return "1 epoch" if count == 1 else f"{number(count)} epochs"


def _but(note: object) -> str:
    return f" ({note})" if isinstance(note, str) and note else ""
