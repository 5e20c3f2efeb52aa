"""Runs one method as a job of its own, on this machine, on hosts, or on emulated ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from baselines.methods import METHODS
from baselines.ranks import without_launcher
from baselines.task import Task
from benchmarks.netcluster.netcluster import (
    MPI_OVER_TCP,
    Cluster,
    Link,
    beside_python,
    on_host,
)
from reports.records import RunWriter, append_end, read_run

LOCAL = "local"
ROOT = Path(__file__).resolve().parents[1]
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
        sharers: Ranks that share this machine's cores; more than `ranks` where runs on fewer and
            on more ranks are compared, so that a rank has as many cores in all of them.
        cluster: The emulated hosts, if they are emulated.
    """

    network: str
    ranks: int
    hosts: Sequence[str]
    sharers: int
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

    def cores(self, on_all_ranks: bool) -> list[list[int]] | None:
        """The cores of each process of a method; `None` for all."""
        mine = sorted(os.sched_getaffinity(0))
        if not self.cluster and (not on_all_ranks or len(set(self.hosts)) > 1):
            return None  # a method of one process, or real hosts: each rank has its own
        each = max(1, len(mine) // self.sharers)
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
def place(network: str, ranks: int, hosts: Sequence[str], sharers: int) -> Iterator[Place]:
    """The hosts of a network, made if they are emulated.

    Args:
        network: `LOCAL`, or the rate and delay of emulated hosts' links.
        ranks: How many.
        hosts: Hosts of all ranks that there are, or this one alone.
        sharers: Ranks that share this machine's cores.

    Raises:
        ClusterError: They cannot be emulated here.
    """
    if network == LOCAL:
        yield Place(network, ranks, hosts[:ranks], sharers)
        return
    with Cluster(ranks, Link.parse(network)) as cluster:
        yield Place(network, ranks, cluster.names, sharers, cluster)


def run(task: Task, path: Path, at: Place, limit: float) -> Ending:
    """Runs one job to its end; its run file is then whole."""
    kind = METHODS[task.method]
    begin = time.monotonic()
    if missing := kind.missing():
        hint = "`make baselines` builds it" if "horovod" in missing else "`pip install` brings it"
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
    processes = METHODS[task.method].processes(at.ranks)
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
            return Ending("timed out", f"not finished after {limit:g} s")
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
        return Ending("out of memory", "killed, most likely because the machine ran out of memory")
    message = said[-1] if said else (lines[-1] if lines else "it printed nothing")
    return Ending("failed", f"{message} (status {status}; {log.name})")
