"""Starts programs on several ranks, within a time limit."""

import inspect
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Outcome:
    """What a job has left.

    Attributes:
        code: Exit code of `mpirun`; `None` if the job ran into its time limit.
        stdout: Output of all ranks, line by line in any order.
        stderr: The same of the error output.
        seconds: Wall-clock time of the job.
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"exit code {self.code} after {self.seconds:.1f} s\n--- stdout\n{self.stdout}\n"
            f"--- stderr\n{self.stderr}"
        )


def need_mpi() -> str:
    """The program `mpirun`; skips the tests where it or mpi4py is missing."""
    pytest.importorskip("mpi4py", reason="tests of several ranks need mpi4py")
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if not found:
        pytest.skip("tests of several ranks need mpirun")
    return found


def run_ranks(
    program: Path | str | Callable[[], None],
    ranks: int,
    timeout: float,
    arguments: Sequence[object] = (),
    environment: dict[str, str] | None = None,
    launcher_options: Sequence[str] = (),
) -> Outcome:
    """Runs a program on several ranks and waits for its end.

    Args:
        program: A file, or source text, or a function without arguments whose source needs nothing
            around it.
        ranks: Number of ranks.
        timeout: Seconds after which the whole job is killed.
        arguments: The program's arguments.
        environment: Variables to set on top of this process's.
        launcher_options: Options of `mpirun`.
    """
    if isinstance(program, Path):
        command = [str(program)]
    elif isinstance(program, str):
        command = ["-c", textwrap.dedent(program)]
    else:
        source = textwrap.dedent(inspect.getsource(program))
        command = ["-c", f"{source}\n{program.__name__}()\n"]
    mpirun = need_mpi()
    begin = time.monotonic()
    job = subprocess.Popen(
        [
            mpirun,
            *launcher_options,
            "-np",
            str(ranks),
            sys.executable,
            *command,
            *map(str, arguments),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | (environment or {}),
        # A process group of its own, which `_end` can kill whole.
        start_new_session=True,
    )
    try:
        stdout, stderr = job.communicate(timeout=timeout)
        code: int | None = job.returncode
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(job)
        code = None
    finally:
        if job.poll() is None:
            _end(job)
    return Outcome(code, stdout, stderr, time.monotonic() - begin)


def _end(job: subprocess.Popen) -> tuple[str, str]:
    """Kills a job: first in order, so that mpirun ends the ranks of other hosts too."""
    job.terminate()
    try:
        return job.communicate(timeout=3)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return job.communicate()
