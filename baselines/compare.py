"""Trains the same classifier by each method, one after the other, and keeps a record of each.

    mpirun -np 2 python baselines/compare.py
    python baselines/compare.py --ranks 2 --data amazon-670k --seconds 60 --network 1gbit,0.2ms
    python -m reports runs -o report

Each method is a job of its own, started by this program with as many ranks as it was started with
itself: its memory is its own, and if it fails, or the memory does not suffice for it, the others
go on. Methods of one process run on one of the hosts. Ctrl-C ends the comparison and keeps what
was measured. With `--network` the ranks are on hosts that this machine emulates, one core each if
there are not more, with that rate and delay between them (needs root).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

from baselines import datasets  # noqa: E402
from baselines.methods import METHODS, Kind  # noqa: E402
from baselines.ranks import launched_rank, without_launcher  # noqa: E402
from baselines.task import Task  # noqa: E402
from benchmarks.netcluster.netcluster import (  # noqa: E402
    MPI_OVER_TCP,
    Cluster,
    ClusterError,
    Link,
    beside_python,
    on_host,
)
from reports.records import RunWriter, append_end, read_run  # noqa: E402

LOCAL = "local"
WORKER = str(Path(__file__).with_name("worker.py"))
_SECONDS_TO_END = 10.0


class Ending(NamedTuple):
    """How a job ended."""

    status: str
    message: str = ""


@dataclass(frozen=True)
class Place:
    """Where jobs run.

    Attributes:
        network: Its name in the records.
        ranks: Ranks of the methods that use several.
        hosts: The host of each rank.
        cluster: The emulated hosts, if they are emulated.
    """

    network: str
    ranks: int
    hosts: Sequence[str]
    cluster: Cluster | None = None

    def command(self, task: str, processes: int) -> list[str]:
        """What starts a job."""
        program = [sys.executable, WORKER, task, str(processes)]
        if self.cluster:
            if processes == 1:
                return on_host(self.hosts[0], program)
            return self.cluster.mpi_command(program, processes)
        if processes == 1:
            return program
        there = ["-hosts", ",".join(self.hosts)] if len(set(self.hosts)) > 1 else []
        return [beside_python("mpirun"), *there, "-np", str(processes), *program]

    def cores(self, processes: int) -> list[list[int]] | None:
        """The cores of each process; `None` for all."""
        mine = sorted(os.sched_getaffinity(0))
        if processes == 1 and not self.cluster:
            return None
        if len(set(self.hosts)) > 1 and not self.cluster:
            return None  # real hosts: each rank has its own
        each = max(1, len(mine) // self.ranks)
        starts = range(0, each * self.ranks, each)
        return [[mine[(begin + i) % len(mine)] for i in range(each)] for begin in starts]

    def environment(self) -> dict[str, str]:
        """The variables of a job."""
        variables = without_launcher(dict(os.environ))
        variables["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
        )
        return variables | (MPI_OVER_TCP if self.cluster else {})


@contextmanager
def place(network: str, ranks: int, hosts: Sequence[str]) -> Iterator[Place]:
    """The hosts of a network, made if they are emulated.

    Raises:
        ClusterError: They cannot be emulated here.
    """
    if network == LOCAL:
        yield Place(network, ranks, hosts)
        return
    with Cluster(ranks, Link.parse(network)) as cluster:
        yield Place(network, ranks, cluster.names, cluster)


def outer_hosts() -> list[str] | None:
    """Hosts of the ranks that mpirun started this program on.

    One name if there is no mpirun; `None` on all ranks but the first, which have nothing to do. MPI
    is left at once, for the jobs to be started need it.
    """
    here = os.uname().nodename
    if not any(name in os.environ for name in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")):
        return [here]
    from mpi4py import MPI

    hosts = MPI.COMM_WORLD.allgather(here)
    rank = launched_rank()
    MPI.Finalize()
    return hosts if rank == 0 else None


def run(task: Task, path: Path, at: Place, limit: float) -> Ending:
    """Runs one job to its end; its run file is then whole."""
    kind = METHODS[task.method]
    begin = time.monotonic()
    if missing := kind.missing():
        hint = "`make baselines` builds it" if "horovod" in missing else "pip install it"
        ending = Ending("unavailable", f"{', '.join(missing)} is not installed; {hint}")
    else:
        ending = _run_job(task, path, at, limit)
    record = Path(task.record)
    if not record.exists() or not record.read_text().strip():
        with RunWriter(record) as writer:
            writer.run(**task.run)
    append_end(record, ending.status, ending.message, time.monotonic() - begin)
    end = read_run(record).end
    assert end is not None
    return Ending(end.status, end.message)


def _run_job(task: Task, path: Path, at: Place, limit: float) -> Ending:
    processes = at.ranks if METHODS[task.method].on_all_ranks else 1
    task.save(path)
    log = Path(task.record).with_suffix(".log")
    with log.open("w") as output:
        job = subprocess.Popen(
            at.command(str(path), processes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=at.environment(),
            start_new_session=True,  # Ctrl-C reaches this program alone, which ends the job
        )
        alarm = signal.signal(signal.SIGALRM, _raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            assert job.stdout
            for line in job.stdout:
                output.write(line)
                output.flush()
                if line.startswith(f"{task.method}: "):
                    print(line, end="", flush=True)
            status = job.wait()
        except TimeoutError:
            return Ending("timed out", f"not done after {limit:g} s")
        except KeyboardInterrupt:
            return Ending("interrupted", "stopped from the keyboard")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
            _end(job)
    return Ending("ok") if status == 0 else _failure(status, log)


def _raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError


def _end(job: subprocess.Popen) -> None:
    """Ends a job that still runs: in order first, so that mpirun ends its ranks."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def _failure(status: int, log: Path) -> Ending:
    """What a job that failed has said."""
    lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
    said = [line for line in lines if line.startswith("rank ")]
    killed = status in (-signal.SIGKILL, 128 + signal.SIGKILL) or any(
        "KILLED BY SIGNAL: 9" in line for line in lines
    )
    if killed and not said:
        return Ending("out of memory", "killed, as the system does when memory runs out")
    message = said[-1] if said else (lines[-1] if lines else "it said nothing")
    return Ending("failed", f"{message} (status {status}; {log.name})")


def environment() -> dict[str, Any]:
    """Machine, versions and commit."""
    program = (
        "import json; from benchmarks.environment import describe; print(json.dumps(describe()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"compare.py: tf_dslide cannot be used here\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found["memory_gb"] = round(memory / 1e9, 1)
    for package in ("mpi4py", "horovod", "omikuji"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    data: str
    methods: list[str]
    epochs: int | None
    seconds: float | None
    networks: list[str]
    out: Path
    hidden: int
    batch_size: int
    rates: Mapping[str, float]
    active: int | None
    train_rows: int | None
    test_rows: int
    seed: int
    limit: float


def tasks(
    settings: Settings, split: datasets.Split, stored: datasets.Stored, at: Place, machine: dict
) -> Iterator[Task]:
    """One task a method."""
    units = split.train.num_labels
    active = settings.active or min(3000, max(64, units // 10))
    for method in settings.methods:
        kind = METHODS[method]
        ranks = at.ranks if kind.on_all_ranks else 1
        rate = settings.rates.get(method, kind.learning_rate)
        cores = at.cores(ranks)
        name = f"{split.name}.{method}.{at.network}.{ranks}.jsonl"
        yield Task(
            method=method,
            record=str(settings.out / name),
            run=run_event(settings, split, kind, method, at, machine, active, rate, cores),
            train=stored.train,
            test=stored.test,
            hidden=settings.hidden,
            batch_size=settings.batch_size,
            learning_rate=rate,
            epochs=settings.epochs,
            seconds=settings.seconds,
            active=active,
            seed=settings.seed,
            cores=cores,
            interface="eth0" if at.cluster else None,
        )


def run_event(
    settings: Settings,
    split: datasets.Split,
    kind: Kind,
    method: str,
    at: Place,
    machine: dict,
    active: int,
    rate: float,
    cores: list[list[int]] | None,
) -> dict[str, Any]:
    """The first event of a run file."""
    train, ranks = split.train, at.ranks if kind.on_all_ranks else 1
    hidden, units = settings.hidden, train.num_labels
    is_network = method != "omikuji"
    parameters = (train.num_features + 1) * hidden + (hidden + 1) * units if is_network else None
    trained = {"batch_size": settings.batch_size, "learning_rate": rate, "active": active}
    return {
        "method": method,
        "title": kind.title,
        "model": {
            "units": units,
            "hidden": hidden if is_network else None,
            "parameters": parameters,
        },
        "data": {
            "name": split.name,
            "num_features": train.num_features,
            "num_labels": units,
            "num_train": train.num_samples,
            "num_test": split.test.num_samples,
            "evaluated": split.test.num_samples,
            "source": split.source,
        },
        "settings": {
            **(trained if is_network else {}),
            "epochs": settings.epochs,
            "seconds": settings.seconds,
            **kind.settings,
        },
        "ranks": ranks,
        "hosts": list(at.hosts)[:ranks] if len(at.hosts) >= ranks else [at.hosts[0]] * ranks,
        "network": at.network,
        "seed": settings.seed,
        "threads_per_rank": len(cores[0]) if cores else len(os.sched_getaffinity(0)),
        "environment": machine,
        "command": " ".join(["python", "baselines/compare.py", *sys.argv[1:]]),
    }


def compare(settings: Settings, ranks: int, hosts: Sequence[str]) -> int:
    """Runs everything; the exit status."""
    try:
        split = datasets.load(settings.data, settings.seed, settings.train_rows, settings.test_rows)
    except (OSError, ValueError) as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    machine = environment()
    settings.out.mkdir(parents=True, exist_ok=True)
    records: list[Path] = []
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        stored = datasets.store(split, Path(folder))
        try:
            for network in settings.networks:
                with place(network, ranks, hosts) as at:
                    for task in tasks(settings, split, stored, at, machine):
                        records.append(Path(task.record))
                        run_and_tell(task, Path(folder), at, settings.limit)
        except ClusterError as error:
            print(f"compare.py: {network}: {error}", file=sys.stderr)
            status = 2
        except KeyboardInterrupt:
            status = 130
    show([record for record in records if record.exists()])
    print(f"python -m reports {settings.out} -o report")
    return status


def run_and_tell(task: Task, folder: Path, at: Place, limit: float) -> None:
    """Runs a job and says how it ended.

    Raises:
        KeyboardInterrupt: It was stopped from the keyboard; its record says so.
    """
    print(f"{task.method}: {METHODS[task.method].title}, {at.network}", flush=True)
    ending = run(task, folder / "task.json", at, limit)
    if ending.status != "ok":
        print(f"{task.method}: {ending.status}: {ending.message}", flush=True)
    if ending.status == "interrupted":
        raise KeyboardInterrupt


def show(records: Sequence[Path]) -> None:
    """A table of what was measured."""
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "network", "ranks", "status", "samples/s", "MB a step", "peak MB")
    for column in ("P@1", "P@5", "training, s"):
        table.add_column(column)
    for path in records:
        found = read_run(path)
        last = found.measures[-1] if found.measures else None
        steps = found.steps
        parts = (steps.ranks or []) if steps else []
        table.add_row(
            found.run.method,
            found.run.network,
            str(found.run.ranks),
            found.status,
            _number(steps.samples_per_second if steps else None, "{:,.0f}"),
            _number(max((p.bytes_sent_per_step or 0 for p in parts), default=None), "{:,.3f}", 1e6),
            _number(max((p.peak_mb or 0 for p in parts), default=None), "{:,.0f}"),
            _number(last.p1 if last else None, "{:.2f}", 0.01),
            _number(last.p5 if last else None, "{:.2f}", 0.01),
            _number(last.train_seconds if last else None, "{:,.1f}"),
        )
    console = Console()
    # A file is as wide as it needs.
    (console if console.is_terminal else Console(width=120)).print(table)


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


def _methods(text: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in METHODS:
            raise typer.BadParameter(f"no method {name!r}; there are {', '.join(METHODS)}")
    if not chosen:
        raise typer.BadParameter(f"name one at least of {', '.join(METHODS)}")
    return chosen


def _rates(texts: Sequence[str]) -> dict[str, float]:
    rates = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            rates[_methods(name)[0]] = float(value)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not METHOD=RATE") from None
    return rates


def main(
    data: Annotated[
        str, typer.Option(help="preset, folder with train.txt.gz and test.txt.gz, skipgram:FILE")
    ] = "small",
    methods: Annotated[str, typer.Option(help="separated by commas")] = ",".join(METHODS),
    epochs: Annotated[int | None, typer.Option(min=1, help="passes; 5 without --seconds")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="of training, a method")] = None,
    network: Annotated[
        list[str], typer.Option(help="local, or RATE,DELAY of emulated hosts; may be repeated")
    ] = [LOCAL],  # noqa: B006
    ranks: Annotated[int, typer.Option(min=1, help="without mpirun: how many")] = 1,
    out: Annotated[Path, typer.Option(help="folder of the run files")] = Path("runs"),
    hidden: Annotated[int, typer.Option(min=1)] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="of all ranks together")] = 256,
    learning_rate: Annotated[list[str], typer.Option(help="METHOD=RATE; may be repeated")] = [],  # noqa: B006
    active: Annotated[int | None, typer.Option(min=1, help="a tenth of the labels, 3000")] = None,
    train_rows: Annotated[int | None, typer.Option(min=1, help="use the first ones only")] = None,
    test_rows: Annotated[int, typer.Option(min=1, help="evaluate the first ones only")] = 5000,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[float, typer.Option(min=1, help="seconds of a method, all in all")] = 3600.0,
) -> None:
    """Trains the same classifier by each method and writes a run file for each."""
    hosts = outer_hosts()
    if hosts is None:
        return
    if len(hosts) > 1:
        ranks = len(hosts)
    for text in network:
        if text != LOCAL:
            try:
                Link.parse(text)
            except ClusterError as error:
                raise typer.BadParameter(str(error)) from None
    settings = Settings(
        data=data,
        methods=_methods(methods),
        epochs=5 if epochs is None and seconds is None else epochs,
        seconds=seconds,
        networks=network,
        out=out,
        hidden=hidden,
        batch_size=batch_size,
        rates=_rates(learning_rate),
        active=active,
        train_rows=train_rows,
        test_rows=test_rows,
        seed=seed,
        limit=limit,
    )
    raise typer.Exit(compare(settings, ranks, hosts))


if __name__ == "__main__":
    typer.run(main)
