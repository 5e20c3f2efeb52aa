"""The command line of `compare.py`: what to run, one method after the other, and a table."""

import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from baselines import datasets
from baselines.jobs import LOCAL, Place, place, run
from baselines.methods import GROUPS, METHODS, Kind
from baselines.task import Task
from benchmarks.environment import describe
from benchmarks.netcluster.netcluster import ClusterError, Link, require
from reports.grouping import TITLES
from reports.records import read_run


def environment() -> dict[str, Any]:
    """Machine, versions and commit."""
    found: dict[str, Any] = describe()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found["memory_gb"] = round(memory / 1e9, 1)
    for package in ("mpi4py", "horovod", "omikuji"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def command_line(words: Sequence[str]) -> str:
    """The command as typed, without the folders of this machine that lead to a file."""
    return shlex.join(["python", "baselines/compare.py", *map(_without_folders, words)])


def _without_folders(word: str) -> str:
    """A word of the command line; a path in it is cut to what follows the working folder."""
    start = word.find("/")
    if start < 0 or (start > 0 and word[start - 1] not in ":="):
        return word  # no path, or one that begins here
    path = Path(word[start:])
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name
    return f"{word[:start]}{here}"


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    data: list[str]
    methods: list[str]
    epochs: int | None
    seconds: float | None
    networks: list[str]
    ranks: list[int]
    wire: str
    out: Path
    hidden: int
    batch_size: int
    rates: Mapping[str, float]
    active: int | None
    train_rows: int | None
    test_rows: int
    seed: int
    limit: float


@dataclass(frozen=True)
class Scene:
    """One data set in one place, for all methods.

    Attributes:
        settings: What the command line says.
        machine: What `environment` says.
        split: The data.
        stored: Where the runs' processes find them.
        at: Where the runs take place.
    """

    settings: Settings
    machine: dict[str, Any]
    split: datasets.Split
    stored: datasets.Stored
    at: Place

    def task(self, method: str) -> Task:
        """What one method is to do."""
        settings, kind = self.settings, METHODS[method]
        processes = kind.processes(self.at.ranks)
        cores = self.at.cores(kind.on_all_ranks)
        name = f"{self.split.name}.{method}.{self.at.network}.{processes}.jsonl"
        rate = settings.rates.get(method, kind.learning_rate)
        active = settings.active or min(3000, max(64, self.split.train.num_labels // 10))
        return Task(
            method=method,
            record=str(settings.out / name),
            run={
                "method": method,
                "title": TITLES[method],
                "model": self._model(kind),
                "data": self._data(),
                "settings": self._trained(kind, rate, active),
                "ranks": processes,
                "hosts": self._hosts(processes),
                "network": self.at.network,
                "seed": settings.seed,
                "threads_per_rank": len(cores[0] if cores else os.sched_getaffinity(0)),
                "environment": self.machine,
                "command": command_line(sys.argv[1:]),
            },
            train=self.stored.train,
            test=self.stored.test,
            hidden=settings.hidden,
            batch_size=settings.batch_size,
            learning_rate=rate,
            epochs=settings.epochs,
            seconds=settings.seconds,
            active=active,
            seed=settings.seed,
            wire=settings.wire,
            cores=cores,
            interface="eth0" if self.at.cluster else None,
        )

    def _model(self, kind: Kind) -> dict[str, Any]:
        units, hidden = self.split.train.num_labels, self.settings.hidden
        if not kind.hidden_layer:
            return {"units": units, "hidden": None, "parameters": None}
        parameters = (self.split.train.num_features + 1) * hidden + (hidden + 1) * units
        return {"units": units, "hidden": hidden, "parameters": parameters}

    def _data(self) -> dict[str, Any]:
        train, test = self.split.train, self.split.test
        return {
            "name": self.split.name,
            "num_features": train.num_features,
            "num_labels": train.num_labels,
            "num_train": train.num_samples,
            "num_test": test.num_samples,
            "evaluated": test.num_samples,
            "source": self.split.source,
        }

    def _trained(self, kind: Kind, rate: float, active: int) -> dict[str, Any]:
        settings = self.settings
        steps = {"batch_size": settings.batch_size, "learning_rate": rate, "active": active}
        limits = {"epochs": settings.epochs, "seconds": settings.seconds}
        wire = {"wire": settings.wire} if kind.make[0] == "dslide" and self.at.ranks > 1 else {}
        return {**(steps if kind.in_steps else {}), **limits, **kind.settings, **wire}

    def _hosts(self, processes: int) -> list[str]:
        hosts = list(self.at.hosts)
        return hosts[:processes] if len(hosts) >= processes else [hosts[0]] * processes


def compare(settings: Settings, hosts: Sequence[str]) -> int:
    """Runs everything; the exit status."""
    records: list[Path] = []
    status = 0
    try:
        for where in settings.data:
            datasets.require(where)
        if any(network != LOCAL for network in settings.networks):
            require()
        settings.out.mkdir(parents=True, exist_ok=True)
        machine = environment()
        for where in settings.data:
            split = datasets.load(where, settings.seed, settings.train_rows, settings.test_rows)
            for record in run_all(settings, machine, split, hosts):
                records.append(record)
    except (OSError, ValueError, ClusterError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    if records:
        show([record for record in records if record.exists()])
        print(f"python -m reports {settings.out} -o report")
    return status


def run_all(
    settings: Settings,
    machine: dict[str, Any],
    split: datasets.Split,
    hosts: Sequence[str],
) -> Iterator[Path]:
    """Runs all methods on one data set, over each network and on each number of ranks.

    Yields each record before its run.
    """
    with tempfile.TemporaryDirectory() as folder:
        stored = datasets.store(split, Path(folder))
        for network, ranks in product(settings.networks, settings.ranks):
            with place(network, ranks, hosts, max(settings.ranks)) as at:
                scene = Scene(settings, machine, split, stored, at)
                for task in map(scene.task, _methods_for(settings, ranks)):
                    yield Path(task.record)
                    run_and_tell(task, Path(folder), at, settings.limit)


def _methods_for(settings: Settings, ranks: int) -> list[str]:
    """Methods of one process run once, however many numbers of ranks there are."""
    first = ranks == settings.ranks[0]
    return [name for name in settings.methods if first or METHODS[name].on_all_ranks]


def run_and_tell(task: Task, folder: Path, at: Place, limit: float) -> None:
    """Runs a job and says how it ended.

    Raises:
        KeyboardInterrupt: It was stopped from the keyboard; its record says so.
    """
    where = f"{task.run['data']['name']}, {at.network}"
    print(f"{task.method}: {TITLES[task.method]}; {where}", flush=True)
    ending = run(task, folder / "task.json", at, limit)
    if ending.status != "ok":
        print(f"{task.method}: {ending.status}: {ending.message}", flush=True)
    if ending.status == "interrupted":
        raise KeyboardInterrupt


def show(records: Sequence[Path]) -> None:
    """A table of what was measured."""
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for column in ("data", "method", "network", "ranks", "status"):
        table.add_column(column, overflow="fold")  # names in full, if need be over several lines
    for column in ("samples/s", "step, ms", "waiting, ms", "MB a step", "peak MB"):
        table.add_column(column)
    for column in ("P@1", "P@5", "training, s"):
        table.add_column(column)
    for path in records:
        found = read_run(path)
        last = found.measures[-1] if found.measures else None
        steps = found.steps
        parts = (steps.ranks or []) if steps else []
        table.add_row(
            found.run.data.name,
            found.run.method,
            found.run.network,
            str(found.run.ranks),
            found.status,
            _number(steps.samples_per_second if steps else None, "{:,.0f}"),
            _number(steps.median_step_seconds if steps else None, "{:,.1f}", 1e-3),
            _number(max((p.seconds_waiting or 0 for p in parts), default=None), "{:,.1f}", 1e-3),
            _number(max((p.bytes_sent_per_step or 0 for p in parts), default=None), "{:,.3f}", 1e6),
            _number(max((p.peak_mb or 0 for p in parts), default=None), "{:,.0f}"),
            _number(last.p1 if last else None, "{:.2f}", 0.01),
            _number(last.p5 if last else None, "{:.2f}", 0.01),
            _number(last.train_seconds if last else None, "{:,.1f}"),
        )
    console = Console()
    # A file is as wide as it needs.
    (console if console.is_terminal else Console(width=160)).print(table)


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


def chosen_methods(text: str) -> list[str]:
    """The methods in a list with commas, in which a group stands for its methods."""
    chosen: list[str] = []
    for name in filter(None, map(str.strip, text.split(","))):
        if name not in METHODS and name not in GROUPS:
            raise typer.BadParameter(
                f"no method {name!r}; there are {', '.join(METHODS)}, and the groups "
                f"{', '.join(GROUPS)}"
            )
        chosen += GROUPS.get(name, (name,))
    if not chosen:
        raise typer.BadParameter(f"name at least one of {', '.join(METHODS)}")
    return list(dict.fromkeys(chosen))


def chosen_rates(texts: Sequence[str]) -> dict[str, float]:
    """The learning rates of methods, from texts such as `tf-dense=0.01`."""
    rates: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            rate = float(value)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not METHOD=RATE") from None
        rates.update(dict.fromkeys(chosen_methods(name), rate))
    return rates


def main(
    context: typer.Context,
    data: Annotated[
        list[str],
        typer.Option(
            help="preset, folder with train.txt.gz and test.txt.gz (tf-idf:FOLDER weights counts), "
            "skipgram:FILE; may be repeated"
        ),
    ] = ["small"],  # noqa: B006
    methods: Annotated[
        str, typer.Option(help=f"separated by commas; groups: {', '.join(GROUPS)}")
    ] = "usual",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="passes over the data; 5 without --seconds")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="of training, for each method")
    ] = None,
    network: Annotated[
        list[str], typer.Option(help="local, or RATE,DELAY of emulated hosts; may be repeated")
    ] = [LOCAL],  # noqa: B006
    ranks: Annotated[
        list[int], typer.Option(min=1, help="all of mpirun's, or 1; may be repeated")
    ] = [],  # noqa: B006
    wire: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="what D-SLIDE's ranks send")
    ] = "float32",
    out: Annotated[Path, typer.Option(help="folder of the run files")] = Path("runs"),
    hidden: Annotated[int, typer.Option(min=1)] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="of all ranks together")] = 256,
    learning_rate: Annotated[list[str], typer.Option(help="METHOD=RATE; may be repeated")] = [],  # noqa: B006
    active: Annotated[
        int | None, typer.Option(min=1, help="default: a tenth of the labels, at most 3000")
    ] = None,
    train_rows: Annotated[int | None, typer.Option(min=1, help="use only the first")] = None,
    test_rows: Annotated[int, typer.Option(min=1, help="evaluate only the first")] = 5000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[float, typer.Option(min=1, help="seconds, for each method in all")] = 3600.0,
) -> None:
    """Trains the same classifier by each method and writes a run file for each."""
    hosts = context.obj
    ranks = list(dict.fromkeys(ranks)) or [len(hosts)]
    if 1 < len(hosts) < max(ranks):
        raise typer.BadParameter(
            f"{max(ranks)} ranks are more than the {len(hosts)} that mpirun has started"
        )
    for text in network:
        if text != LOCAL:
            try:
                Link.parse(text)
            except ClusterError as error:
                raise typer.BadParameter(str(error)) from None
    settings = Settings(
        data=data,
        methods=chosen_methods(methods),
        epochs=5 if epochs is None and seconds is None else epochs,
        seconds=seconds,
        networks=network,
        ranks=ranks,
        wire=wire,
        out=out,
        hidden=hidden,
        batch_size=batch_size,
        rates=chosen_rates(learning_rate),
        active=active,
        train_rows=train_rows,
        test_rows=test_rows,
        seed=seed,
        limit=limit,
    )
    raise typer.Exit(compare(settings, hosts))


def application() -> typer.Typer:
    """The command line; its context's `obj` are the hosts of the ranks it was started on."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    return app


def start(hosts: Sequence[str]) -> None:
    """Runs the command line.

    Args:
        hosts: Of the ranks that this program was started on.
    """
    # Whoever ends this program ends its jobs too, and keeps what they measured.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    application()(obj=hosts, prog_name="compare.py")
