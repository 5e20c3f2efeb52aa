"""A training split over ranks that takes its orders from outside: what scaling.py starts.

`parallel_worker.py` is one rank of a job under mpirun, or with `--ranks 0` a training without a
strategy. It pins itself to a core before TensorFlow counts the cores, connects to the socket that
`Job`, at the other end, listens on, and then trains as many steps as each line asks for and answers
with a line of JSON. A rank without orders reads from its socket, so it takes no time from others.

With `--echo` a lone process plays each rank in turn, without MPI: every exchange gives a rank its
own message in place of its peers', of the same size. A rank then has a core for itself however few
there are, and its time is that of computing and packing alone.
"""

import argparse
import contextlib
import json
import math
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from environment import describe, launched_rank, peak_megabytes, quiet
from throughput import FitTrainer, Task, make_data
from workers import StepTimer

quiet()

SAMPLERS = {
    "lsh": ("LshSampler", "active"),
    "shared": ("SharedLshSampler", "active"),
    "uniform": ("UniformSampler", "num_sampled"),
}
_START_SECONDS = 300.0
_ANSWER_SECONDS = 600.0


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """What rank and `scaling.py` both know."""
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5, help="turns at each network")
    parser.add_argument("--steps", type=int, default=20, help="steps a turn")
    parser.add_argument("--seed", type=int, default=0)


# In a rank.
def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_training_options(parser)
    parser.add_argument("--orders", required=True, help="path of a Unix socket")
    parser.add_argument("--ranks", type=int, required=True, help="0: no strategy")
    parser.add_argument("--echo", action="store_true", help="play all ranks, one after the other")
    parser.add_argument("--cores", type=int, nargs="+", required=True, help="rank i: core i modulo")
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--sampler", choices=list(SAMPLERS), required=True)
    parser.add_argument("--wire", default="float32")
    return parser.parse_args()


def affinity() -> list[int]:
    """Cores that any thread of this process may use."""
    cores: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            cores |= os.sched_getaffinity(int(thread))
    return sorted(cores)


def resident_megabytes() -> float:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def echo(rank: int, size: int) -> Any:
    """A communicator whose peers send what this rank sends itself."""
    from tf_dslide.parallel.lone import LoneCommunicator
    from tf_dslide.parallel.protocol import HEADER
    from tf_dslide.parallel.statistics import Counts

    class Echo(LoneCommunicator):
        def __init__(self) -> None:
            super().__init__()
            self.rank, self.size = rank, size

        def allgather(self, value: Any) -> list:
            """The others are elsewhere."""
            return [value if peer == rank else None for peer in range(size)]

        def _alltoallv(self, turn: Any, messages: list) -> list:
            sent = sum(len(p) + HEADER.size for peer, p in enumerate(messages) if peer != rank)
            self.stats.add(turn.kind, Counts(exchanges=1, messages_sent=size - 1, bytes_sent=sent))
            return [messages[rank]] * size

    return Echo()


def make_model(args: argparse.Namespace, features: int, strategy: Any) -> Any:
    import keras

    import tf_dslide

    keras.utils.set_random_seed(args.seed)
    name, size = SAMPLERS[args.sampler]
    sampler = getattr(tf_dslide, name)(**{size: args.active, "seed": args.seed})
    model = keras.Sequential(
        [
            keras.Input((features,), sparse=True),
            tf_dslide.SparseDense(args.hidden, activation="relu", strategy=strategy),
            tf_dslide.DSlideDense(args.units, sampler=sampler, strategy=strategy),
        ]
    )
    model.compile(tf_dslide.SparseAdam(1e-3), tf_dslide.SlideCrossentropy())
    return model


class Rank:
    """A rank at work, or a training without ranks.

    Args:
        args: The settings.
        data: What it is trained on.
        communicator: `None`: MPI's, if there are ranks.
    """

    def __init__(self, args: argparse.Namespace, data: Any, communicator: Any = None) -> None:
        self.number = launched_rank() if communicator is None else communicator.rank
        self._strategy = None
        if args.ranks:
            from tf_dslide.parallel import MPIModelParallel

            self._strategy = MPIModelParallel(communicator, args.wire, verbose=False)
        model = make_model(args, data.num_features, self._strategy)
        self._trainer = FitTrainer(Task(args, data), model)

    def train(self, steps: int) -> dict:
        """Trains; returns clocks at the end of each step, and what each step exchanged."""
        clock, exchanged = self._clock()
        loss = self._trainer.train(steps, clock)
        if not math.isfinite(loss):
            raise SystemExit(f"rank {self.number}: the loss is {loss}")
        ends = {"ends": clock.ends, "cpu_ends": clock.cpu_ends}
        return {"rank": self.number, "loss": loss, **ends, "exchanged": exchanged}

    def _clock(self) -> tuple[Any, list[dict]]:
        clock = StepTimer()
        exchanged: list[dict] = []
        if self._strategy is None:
            return clock, exchanged
        stats, timed = self._strategy.stats, clock.on_train_batch_end
        stats.end_step()  # what building the model has exchanged

        def end_step(batch: int, logs: Any = None) -> None:
            timed(batch, logs)
            counts = stats.end_step()
            exchanged.append({kind: asdict(count) for kind, count in counts.items()})

        clock.on_train_batch_end = end_step
        return clock, exchanged


def work(args: argparse.Namespace) -> None:
    number = launched_rank()
    os.sched_setaffinity(0, {args.cores[number % len(args.cores)]})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(args.orders)
        lines = connection.makefile("rw")
        answer(lines, {"rank": number, "host": os.uname().nodename})
        data = make_data(args)
        played = range(args.ranks) if args.echo else [None]
        ranks = [Rank(args, data, None if i is None else echo(i, args.ranks)) for i in played]
        for line in lines:
            steps = int(line)
            if steps > 0:
                answer(lines, {"turns": [rank.train(steps) for rank in ranks]})
            else:
                answer(lines, last_words())


def last_words() -> dict:
    return {
        "affinity": affinity(),
        "peak_mb": peak_megabytes(),
        "resident_mb": resident_megabytes(),
        "environment": describe(),
    }


def answer(lines: Any, figures: dict) -> None:
    lines.write(json.dumps(figures) + "\n")
    lines.flush()


# Outside.
class Place(NamedTuple):
    """Where a job runs.

    Attributes:
        launcher: What stands before the command of a rank.
        environment: Variables to set.
        hosts: The name that each rank's host must have; empty if it does not matter.
    """

    launcher: Sequence[str] = ()
    environment: Mapping[str, str] = {}
    hosts: Sequence[str] = ()


class Job:
    """The ranks of a job, seen from the outside; ended at the end of a `with`.

    Args:
        name: For messages.
        options: Of `parallel_worker.py`.
        processes: How many connect.
        place: Where they run.
        cores: Cores to pin them to, process i to core i modulo their number.
    """

    def __init__(
        self, name: str, options: Sequence[str], processes: int, place: Place, cores: Sequence[int]
    ) -> None:
        self.name = name
        self.processes = processes
        self._place = place
        self._cores = cores
        self._folder = tempfile.TemporaryDirectory()
        path = f"{self._folder.name}/orders"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(processes)
        self._listener.settimeout(0.2)
        command = [*place.launcher, sys.executable, str(Path(__file__).resolve()), *options]
        command += ["--orders", path, "--cores", *map(str, cores)]
        # Standard output is for the table.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            env={**os.environ, **place.environment},
        )
        self._command = shlex.join(command)
        self._ranks: dict[int, Any] = {}

    def __enter__(self) -> "Job":
        try:
            self._connect()
            self.train(2)  # the first step compiles; the first of hashed training builds the tables
        except BaseException:
            self.__exit__()
            raise
        print(f"{self.name}: ready", file=sys.stderr, flush=True)
        return self

    def __exit__(self, *error: object) -> None:
        for lines in self._ranks.values():
            with contextlib.suppress(OSError):
                lines.close()
        self._listener.close()
        if error and error[0] is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._folder.cleanup()

    def _connect(self) -> None:
        begin = time.monotonic()
        while len(self._ranks) < self.processes:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                if self._process.poll() is not None or time.monotonic() - begin > _START_SECONDS:
                    self._fail("some of its ranks did not start")
                continue
            connection.settimeout(_ANSWER_SECONDS)
            lines = connection.makefile("rw")
            connection.close()  # when the file is
            place = self._read(lines)
            rank, host = place["rank"], place["host"]
            if self._place.hosts and host != self._place.hosts[rank]:
                self._fail(f"rank {rank} runs on {host}, not on {self._place.hosts[rank]}")
            self._ranks[rank] = lines

    def train(self, steps: int) -> list[dict]:
        """Lets all train so many steps; what each rank answers, in their order."""
        return [turn for answer in self._ask(steps) for turn in answer["turns"]]

    def last_words(self) -> list[dict]:
        """Memory and versions of each process; raises unless each was on its core alone."""
        words = self._ask(0)
        for rank, said in enumerate(words):
            wanted = [self._cores[rank % len(self._cores)]]
            if said["affinity"] != wanted:
                self._fail(f"rank {rank} may use cores {said['affinity']}, not {wanted} alone")
        return words

    def _ask(self, steps: int) -> list[dict]:
        for lines in self._ranks.values():
            lines.write(f"{steps}\n")
            lines.flush()
        return [self._read(self._ranks[rank]) for rank in range(self.processes)]

    def _read(self, lines: Any) -> dict:
        try:
            line = lines.readline()
        except OSError as error:  # a time limit too
            self._fail(f"a rank did not answer: {error}")
        if not line:
            self._fail("a rank has ended")
        return json.loads(line)

    def _fail(self, what: str) -> Any:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        status = self._process.poll()
        raise SystemExit(f"{self.name}: {what}; status {status} of\n{self._command}")


if __name__ == "__main__":
    work(arguments())
