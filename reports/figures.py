"""Figures of the runs on one data set, as PNG bytes with the text that stands for them."""

import io
from collections.abc import Callable, Iterator, Sequence
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from reports.formats import megabytes, seconds, size
from reports.grouping import batch_size, labels, title
from reports.reading import Record
from reports.style import LINES, Look, drawing, looks
from reports.tables import (
    bytes_per_rank,
    epoch_seconds,
    mean,
    measured,
    over_ranks,
    peak_mb,
    rate,
)

COMPUTING, WAITING = "#0072B2", "#E69F00"
ROW, FRAME = 0.52, 0.75  # inches of a bar with its label, and of the rest


class Drawn(NamedTuple):
    """A figure.

    Attributes:
        name: Beginning of its file's name.
        caption: What it shows.
        text: Its content in words, for those who do not see it.
        png: The image; empty if there is nothing to show, and `text` says why.
    """

    name: str
    caption: str
    text: str
    png: bytes


class Bar(NamedTuple):
    """A bar: its label, the method's look, its value, and the text at its end."""

    label: str
    look: Look
    value: float | None
    text: str


def draw(records: Sequence[Record], everything: Sequence[Record]) -> Iterator[Drawn]:
    """All figures of the runs on one data set under one network.

    Args:
        records: Those runs, in order.
        everything: All runs, so that a method looks the same on each data set.
    """
    style = looks(everything)
    names = labels(records)
    yield _accuracy(records, names, style)
    for name, caption, unit, value, written, logarithmic in BARS:
        bars = [_bar(one, names[one.file], style, value(one), written) for one in records]
        yield _bars(name, caption, unit, bars, logarithmic)
    yield _time_split(records, names)
    yield _scaling(records, style)


BARS: tuple[tuple[str, str, str, Callable, Callable, bool], ...] = (
    ("epoch_time", "Time of an epoch", "seconds", epoch_seconds, seconds, True),
    ("bytes", "Bytes that each rank sends a step", "bytes", bytes_per_rank, size, True),
    ("memory", "Peak memory of the largest rank", "MB", peak_mb, megabytes, False),
)


def _bar(
    record: Record, label: str, style: dict[str, Look], value: float | None, written: Callable
) -> Bar:
    ended = "" if record.status == "ok" else record.status
    text = written(value) if value is not None else "" if ended else "not measured"
    return Bar(label, style[record.run.method], value, " · ".join(p for p in (text, ended) if p))


def _accuracy(records: Sequence[Record], names: dict[str, str], style: dict[str, Look]) -> Drawn:
    caption = "P@1 against training time"
    shown = [record for record in records if any(m.train_seconds > 0 for m in measured(record))]
    if not shown:
        return Drawn("accuracy", caption, "No run has a measured P@1.", b"")
    counts = sorted({record.run.ranks for record in shown})
    legend = [fill(_with_status(record, names[record.file]), 42) for record in shown]
    lines = sum(1 + text.count("\n") for text in legend)
    with drawing(2.7 + 0.22 * lines) as (figure, axes):
        for record, label in zip(shown, legend, strict=True):
            points = [m for m in measured(record) if m.train_seconds > 0]
            look = style[record.run.method]
            axes.plot(
                [m.train_seconds for m in points],
                [100 * (m.p1 or 0) for m in points],
                color=look.colour,
                marker=look.marker,
                markersize=5,
                linestyle=LINES[counts.index(record.run.ranks) % len(LINES)],
                label=label,
            )
        axes.set(xscale="log", xlabel="training time, seconds, logarithmic", ylabel="P@1, %")
        lowest, highest = axes.dataLim.intervaly
        if lowest < highest / 2:
            axes.set_ylim(bottom=0)
        _plain_ticks(axes.xaxis)
        figure.legend(loc="outside lower left", frameon=False, handlelength=2.6)
        text = "; ".join(
            f"{names[record.file]}: {100 * (measured(record)[-1].p1 or 0):.1f} % "
            f"after {seconds(measured(record)[-1].train_seconds)}"
            for record in shown
        )
        return Drawn("accuracy", caption, text, _png(figure))


def _bars(name: str, caption: str, unit: str, bars: Sequence[Bar], logarithmic: bool) -> Drawn:
    text = "; ".join(f"{bar.label}: {bar.text}" for bar in bars)
    values = [bar.value for bar in bars if bar.value]
    if not values:
        return Drawn(name, caption, f"Nothing measured. {text}.", b"")
    with drawing(FRAME + 0.2 + ROW * len(bars)) as (figure, axes):
        left = min(min(values) / 4, max(values) / 100) if logarithmic else 0.0
        for place, bar in enumerate(bars):
            length = max((bar.value or left) - left, 0)
            axes.barh(
                place,
                length,
                left=left,
                height=0.42,
                color=bar.look.colour,
                hatch=bar.look.hatch,
                edgecolor="white",
            )
            axes.annotate(
                f" {bar.text}",
                (left + length, place),
                va="center",
                ha="left",
                annotation_clip=False,
            )
        right = max(values) * (max(values) / left) ** 0.6 if logarithmic else max(values) * 1.7
        axes.set(xlim=(left, right), xscale="log" if logarithmic else "linear")
        axes.set_xlabel(f"{unit}, logarithmic" if logarithmic else unit)
        if logarithmic:
            _decades(axes.xaxis)
        _name_rows(axes, [bar.label for bar in bars])
        return Drawn(name, caption, text, _png(figure))


def _time_split(records: Sequence[Record], names: dict[str, str]) -> Drawn:
    caption = "What a step's time goes to, mean over the ranks"
    split = [
        (
            record,
            mean(over_ranks(record, "seconds_computing")) or 0.0,
            mean(over_ranks(record, "seconds_waiting")) or 0.0,
        )
        for record in records
        if over_ranks(record, "seconds_computing") or over_ranks(record, "seconds_waiting")
    ]
    if not split:
        return Drawn("time_split", caption, "No run has measured how its steps divide.", b"")
    text = "; ".join(
        f"{names[record.file]}: computing {seconds(computing)}, waiting {seconds(waiting)}"
        for record, computing, waiting in split
    )
    with drawing(FRAME + 0.25 + ROW * len(split)) as (figure, axes):
        for place, (_, computing, waiting) in enumerate(split):
            whole = (computing + waiting) or 1.0
            edge = {"height": 0.42, "edgecolor": "white"}
            first = axes.barh(place, 100 * computing / whole, color=COMPUTING, **edge)
            second = axes.barh(
                place,
                100 * waiting / whole,
                left=100 * computing / whole,
                color=WAITING,
                hatch="//",
                **edge,
            )
            axes.annotate(f" {seconds(computing + waiting)}", (100, place), va="center")
        axes.set(xlim=(0, 130), xticks=[0, 25, 50, 75, 100], xlabel="% of a step")
        _name_rows(axes, [_with_status(record, names[record.file]) for record, _, _ in split])
        figure.legend(
            [first, second],
            ["computing", "waiting"],
            loc="outside lower left",
            ncols=2,
            frameon=False,
        )
        return Drawn("time_split", caption, text, _png(figure))


def _scaling(records: Sequence[Record], style: dict[str, Look]) -> Drawn:
    caption = "Samples a second by number of processes, both logarithmic"
    series: dict[tuple[str, int | None, int | None], list[tuple[int, float]]] = {}
    for record in records:
        if speed := rate(record):
            key = record.run.method, batch_size(record), record.run.model.hidden
            series.setdefault(key, []).append((record.run.ranks, speed))
    grown = {key: sorted(points) for key, points in series.items()}
    grown = {key: points for key, points in grown.items() if points[0][0] < points[-1][0]}
    if not grown:
        text = "No method was measured with different numbers of processes."
        return Drawn("scaling", caption, text, b"")
    names = {key: title(key[0], records) for key in grown}
    if len(set(names.values())) < len(names):
        names = {key: f"{names[key]}, batch {key[1]}, hidden {key[2]}" for key in grown}
    with drawing(2.7 + 0.22 * len(grown)) as (figure, axes):
        for key, points in grown.items():
            look = style[key[0]]
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=look.colour, marker=look.marker, label=fill(names[key], 42))
        counts = sorted({x for points in grown.values() for x, _ in points})
        axes.set(xscale="log", yscale="log", ylabel="samples a second")
        axes.set_xlabel("processes")
        axes.set_xticks(counts, [str(count) for count in counts], minor=False)
        axes.set_xticks([], minor=True)
        _plain_ticks(axes.yaxis)
        figure.legend(loc="outside lower left", frameon=False)
        text = "; ".join(
            f"{names[key]}: " + ", ".join(f"{y:,.0f} with {x}" for x, y in points)
            for key, points in grown.items()
        )
        return Drawn("scaling", caption, text, _png(figure))


def _with_status(record: Record, label: str) -> str:
    return label if record.status == "ok" else f"{label} ({record.status})"


def _name_rows(axes: Any, names: Sequence[str]) -> None:
    """Writes each row's name above its bar, where a phone has the width for it."""
    for place, name in enumerate(names):
        axes.annotate(
            name, (0, place - 0.24), xycoords=("axes fraction", "data"), va="bottom", ha="left"
        )
    axes.set(yticks=[], ylim=(len(names) - 0.6, -0.85))
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)


def _decades(axis: Any) -> None:
    """Numbers at powers of ten alone, so few that they do not touch."""
    from matplotlib.ticker import LogFormatterMathtext, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(10, numticks=6))
    axis.set_major_formatter(LogFormatterMathtext())
    axis.set_minor_locator(NullLocator())


def _plain_ticks(axis: Any) -> None:
    """Numbers as 0.1, 20, 3,000 on a logarithmic axis, at 1, 2 and 5 where the range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high / low < 200 else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _png(figure: Any) -> bytes:
    """The figure as a PNG with few colours, a third of the size that Matplotlib itself writes."""
    from PIL import Image

    stream = io.BytesIO()
    figure.canvas.draw()
    image = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    image.quantize(64, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()
