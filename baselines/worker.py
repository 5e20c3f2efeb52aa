"""One process of a run; `compare.py` starts it, under mpirun where a method uses several ranks.

`python baselines/worker.py TASK RANKS`: TASK is the file that describes the run.
"""

import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[1])

from baselines.ranks import Ranks, pin  # noqa: E402
from baselines.task import Task  # noqa: E402
from benchmarks.environment import launched_rank, quiet  # noqa: E402
from reports.records import RunWriter  # noqa: E402


def main(task: Task, size: int) -> None:
    """Trains, as one of `size` processes."""
    begin = time.perf_counter()
    rank = launched_rank() if size > 1 else 0
    pin(task.cores, rank)
    record = None
    if rank == 0:
        record = RunWriter(task.record)
        record.run(**task.run)
    comm = None
    if size > 1:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    try:
        train(task, Ranks(comm), record)
    except BaseException as error:
        fail(error, rank, record, time.perf_counter() - begin)
        if comm:
            comm.Abort(1)
        raise SystemExit(1) from None
    if record:
        record.end("ok", seconds=time.perf_counter() - begin)


def train(task: Task, ranks: Ranks, record: RunWriter | None) -> None:
    """Builds the method and trains it to the end."""
    from baselines.methods import METHODS
    from baselines.training import Session
    from tf_dslide.data import load_dataset

    session = Session(task, ranks, load_dataset(task.train), load_dataset(task.test), record)
    METHODS[task.method].build(session).train(session)


def fail(error: BaseException, rank: int, record: Any, seconds: float) -> None:
    """Says what went wrong: in full on standard error, in short in the record."""
    traceback.print_exception(error)
    lines = str(error).strip().splitlines() or [""]
    short = f"rank {rank}: {type(error).__name__}: {lines[0]}"
    print(short, file=sys.stderr, flush=True)
    if record:
        out_of_memory = isinstance(error, MemoryError) or (
            type(error).__name__ == "ResourceExhaustedError"
        )
        record.end("out of memory" if out_of_memory else "failed", short, seconds)


if __name__ == "__main__":
    quiet()
    main(Task.load(sys.argv[1]), int(sys.argv[2]))
