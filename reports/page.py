"""Writes a report: one HTML page, one Markdown page, CSV tables and PNG figures."""

import base64
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from reports import comparisons, tables
from reports.beside import beside_table
from reports.figures import Drawn, draw
from reports.grouping import DataKey, by_data, by_network, plural
from reports.headlines import headlines
from reports.published import PAPER, URL
from reports.reading import Problem, Record
from reports.views import View, cell, view

RUNS = ["label", "data", "network", "status", "message", "started", "seconds", "gpu", "file"]
SPEED = ["label", "network", "status", "gpu", "samples_per_second", "median_step_seconds"]
SPEED += ["epoch_seconds", "epoch_measured", "bytes_per_rank_and_step", "bytes_source"]
SPEED += ["seconds_computing", "seconds_waiting", "peak_mb", "source"]
ACCURACY = ["label", "network", "status", "best_p1", "p3", "p5", "psp5", "train_seconds"]
ACCURACY += ["epoch", "last_p1", "evaluated", "source"]
# What a comparison is about stands first: on a phone the rest is out of sight.
SPEEDUPS = ["label", "against", "speedup", "network", "samples_per_second"]
SPEEDUPS += ["basis_samples_per_second", "note", "source"]
TRAFFIC = ["label", "against", "saved_percent", "network", "bytes_per_step"]
TRAFFIC += ["basis_bytes_per_step", "note", "source"]
TARGETS = ["label", "seconds", "times_as_fast", "network", "target_p1", "dense_seconds"]
TARGETS += ["dense_epoch", "note", "source"]
SAME = ["label", "against", "points", "network", "within_seconds", "p1", "basis_p1"]
SAME += ["note", "source"]


class Figure(NamedTuple):
    """A figure in a page: what was drawn, its file, and the image for HTML."""

    drawn: Drawn
    file: str
    data: str


class Section(NamedTuple):
    """All that is shown of one data set: its figures by network, and its tables."""

    anchor: str
    title: str
    shape: str
    figures: dict[str, list[Figure]]
    views: list[View]


def write_report(
    records: Sequence[Record],
    problems: Sequence[Problem],
    out: Path,
    *,
    markdown_only: bool = False,
) -> list[Path]:
    """Writes the report of some runs.

    Args:
        records: The runs, at least one.
        problems: What could not be read; the report says so.
        out: A folder, created if there is none. Files of an earlier report are replaced.
        markdown_only: Whether to write report.md and figures/*.png alone.

    Returns:
        The files written: report.html, report.md, tables/*.csv, figures/*.png.
    """
    frames = all_tables(records)
    sections = _sections(records, frames)
    files = _figure_files(sections)
    if not markdown_only:
        files |= {f"tables/{name}.csv": csv(frame) for name, frame in frames.items()}
    content = {
        "summary": _summary(records),
        "records": records,
        "problems": problems,
        "headlines": headlines(frames["speedups"], frames["traffic"], frames["time_to_accuracy"]),
        "sections": sections,
        "published": _published(frames["published"]),
        "runs": view(frames["runs"], RUNS, "Runs", "How each run ended."),
        "machines": _machines(records),
        "commands": _commands(records),
        "tables": sorted(name for name in files if name.endswith(".csv")),
        "paper": PAPER,
        "url": URL,
        "same_time": f"{100 * comparisons.SAME_TIME:.0f} %",
    }
    for template in ("report.md",) if markdown_only else ("report.html", "report.md"):
        files[template] = _environment().get_template(f"{template}.j2").render(content).encode()
    return _write(files, out)


def all_tables(records: Sequence[Record]) -> dict[str, pd.DataFrame]:
    """The tables of a report, by the name of their CSV file."""
    return {
        "runs": tables.runs_table(records),
        "speed": tables.speed_table(records),
        "accuracy": tables.accuracy_table(records),
        "curves": tables.curves_table(records),
        "ranks": tables.ranks_table(records),
        "speedups": comparisons.speedups_table(records),
        "traffic": comparisons.traffic_table(records),
        "time_to_accuracy": comparisons.targets_table(records),
        "same_time": comparisons.same_time_table(records),
        "published": beside_table(records),
    }


def _sections(records: Sequence[Record], frames: dict[str, pd.DataFrame]) -> list[Section]:
    groups = by_data(records)
    sections: list[Section] = []
    for key, group in groups.items():
        twins = sum(other.name == key.name for other in groups) > 1
        title = f"{key.name}, {key.num_train:,} samples" if twins else key.name
        anchor = _unused(_slug(title), [section.anchor for section in sections])
        figures = {
            network: [
                Figure(
                    drawn,
                    f"figures/{anchor}.{_slug(network)}.{drawn.name}.png",
                    base64.b64encode(drawn.png).decode(),
                )
                for drawn in draw(runs, records)
            ]
            for network, runs in by_network(group).items()
        }
        views = [view(_of(frames[name], group), *shown) for name, shown in VIEWS.items()]
        sections.append(Section(anchor, title, _shape(key, group), figures, views))
    return sections


VIEWS: dict[str, tuple[list[str], str, str, str]] = {
    "speed": (
        SPEED,
        "Speed, traffic and memory",
        "Bytes and times are means over the ranks, memory is the largest rank's.",
        "",
    ),
    "accuracy": (
        ACCURACY,
        "Accuracy",
        "The evaluation with the best P@1 of each run, and the last P@1.",
        "",
    ),
    "speedups": (
        SPEEDUPS,
        "Speed-up",
        "Samples a second of D-SLIDE over those of another method on the same data, network, "
        "number of processes and batch size. Methods of one process are taken from any network.",
        "No D-SLIDE run on this data.",
    ),
    "traffic": (
        TRAFFIC,
        "Traffic saved",
        "Bytes that all ranks send in a step, beside those of dense Horovod on equal terms.",
        "No D-SLIDE run with more than one process on this data.",
    ),
    "time_to_accuracy": (
        TARGETS,
        "Time to the accuracy of dense training",
        "Training time to the first evaluation at or above the best P@1 that dense training "
        "(TensorFlow's, else Horovod's) reached on this data in the epochs that it had.",
        "No dense run with a P@1 on this data, so there is none to reach.",
    ),
    "same_time": (
        SAME,
        "Accuracy in the same time",
        "P@1 of D-SLIDE within the training time of the other run, at the last evaluation of each.",
        "No D-SLIDE run on this data.",
    ),
}


def _of(frame: pd.DataFrame, group: Sequence[Record]) -> pd.DataFrame:
    """The rows of a table whose first source is a file of these runs."""
    files = {record.file for record in group}
    first = frame["source"].str.split(tables.SEPARATOR).str[0].str.replace(r":\d+$", "", regex=True)
    return (
        frame[first.isin(files)].drop(columns=["data", "ranks"]).dropna(axis="columns", how="all")
    )


def _published(frame: pd.DataFrame) -> View:
    note = "In italics: the paper's own figures, on its own machines. They enter no computation."
    return view(frame, list(frame.columns), "Published figures beside ours", note)


def _machines(records: Sequence[Record]) -> View:
    """Processor, versions and commit of the runs, one row for all that agree."""
    rows: dict[str, list[str]] = {}
    for record in records:
        text = ", ".join(f"{key} {_plain(v)}" for key, v in record.run.environment.items())
        rows.setdefault(text, []).append(record.file)
    frame = pd.DataFrame(
        {
            "environment": list(rows),
            "runs": [tables.SEPARATOR.join(files) for files in rows.values()],
        }
    )
    return view(frame, list(frame.columns), "Machines and versions")


def _commands(records: Sequence[Record]) -> View:
    frame = pd.DataFrame(
        {
            "file": record.file,
            "run_id": record.run.run_id,
            "seed": record.run.seed,
            "hosts": " ".join(record.run.hosts),
            "threads_per_rank": record.run.threads_per_rank,
            "settings": ", ".join(f"{k} {_plain(v)}" for k, v in record.run.settings.items()),
            "command": record.run.command,
        }
        for record in records
    )
    return view(frame, list(frame.columns), "Settings and commands")


def _plain(value: Any) -> str:
    return "not set" if value is None else str(value)


def _summary(records: Sequence[Record]) -> str:
    states = [record.status for record in records]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    days = sorted({record.run.time[:10] for record in records})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{plural(len(records), 'run')} from {when}: {counts}."


def _shape(key: DataKey, group: Sequence[Record]) -> str:
    sources = dict.fromkeys(record.run.data.source for record in group if record.run.data.source)
    shape = (
        f"{key.num_train:,} training samples, {key.num_features:,} features, "
        f"{key.num_labels:,} labels"
    )
    return f"{shape} ({'; '.join(sources)})." if sources else f"{shape}."


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


def _unused(name: str, taken: Sequence[str]) -> str:
    number = 2
    while name in taken:
        name, number = f"{name.removesuffix(f'-{number - 1}')}-{number}", number + 1
    return name


def _figure_files(sections: Sequence[Section]) -> dict[str, bytes]:
    drawn = [
        figure for section in sections for figures in section.figures.values() for figure in figures
    ]
    return {figure.file: figure.drawn.png for figure in drawn if figure.drawn.png}


def csv(frame: pd.DataFrame) -> bytes:
    """A table as a CSV file, its numbers unrounded."""
    return frame.to_csv(index=False).encode()


def _write(files: dict[str, bytes], out: Path) -> list[Path]:
    written = []
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.append(path)
    return written


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = markdown
    environment.filters["places"] = lambda source: cell("source", source)
    return environment


def markdown(text: str) -> str:
    """A text as a Markdown table's cell or a paragraph: nothing in it is markup."""
    return re.sub(r"([\\|`*_<>\[\]])", r"\\\1", text).replace("\n", " ")
