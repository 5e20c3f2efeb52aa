"""Ends a job of many ranks when one fails: soon, with one message, and never with a hang."""

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.errors import RankError

# Ranks often fail together. Each waits a little longer than the one before it, so that the lowest
# of them reports, and ends the others before they do (an abort takes 0.3 s).
_TURN_SECONDS = 0.5
_LAST_TURN_SECONDS = 2.0
_INTERRUPTED = 130


def install_fault_handlers(communicator: Communicator) -> None:
    """Makes the end of one rank the end of all, with one message.

    Collective: all ranks must call it, once, after creating their communicator. From then on:

    - An exception that nobody catches, in any thread, is printed as `rank 2 of 4 failed: ...` and
      ends all ranks with exit code 1. If several ranks fail, the lowest prints.
    - A rank that is killed, or crashes, is named with the signal by a small process that watches
      the ranks of its host (Linux). The launcher then ends the other ranks; if it does not, that
      process ends those of its host after three seconds.
    - A rank whose program ends waits until all end; one that still needs it fails. See
      `Communicator.close`.
    - A keyboard interrupt ends all ranks without a message.

    Does nothing if there is one rank. A program with several communicators calls this for each.

    Args:
        communicator: The ranks.

    Raises:
        RankError: As in `Communicator.alltoallv`.

    Takes some 30 ms.

    Example:
    >>> from tf_dslide.parallel.lone import LoneCommunicator
    >>> from tf_dslide.parallel.faults import install_fault_handlers
    >>> install_fault_handlers(LoneCommunicator())
    """
    global _installed
    if communicator.size == 1:
        return
    if _installed is None:
        _installed = _Handlers(communicator)
        _installed.install()
    else:
        _installed.add(communicator)


class _Handlers:
    """What one rank does when it ends."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._all = [communicator]
        # Not empty once the end of the job was reported, or came in order; shared by the ranks
        # of this host and their sentinel.
        self._reported: int | None = None
        self._alive: int | None = None
        self._lock = threading.Lock()

    def add(self, communicator: Communicator) -> None:
        """Ends the job for a failure of this communicator too."""
        if communicator not in self._all:
            self._all.append(communicator)

    def install(self) -> None:
        """Takes over the ends of this program."""
        self._start_sentinel()
        sys.excepthook = self._uncaught
        threading.excepthook = self._uncaught_in_thread
        # Runs before the communicator's own end, which was registered before.
        atexit.register(self._at_exit)

    def _start_sentinel(self) -> None:
        communicator = self._communicator
        mine = {"pid": os.getpid(), "space": _process_space(communicator.rank)}
        everyone = communicator.allgather(mine)
        pids = {
            rank: other["pid"]
            for rank, other in enumerate(everyone)
            if other["space"] == mine["space"]
        }
        first = min(pids)
        sentinel = _Sentinel(pids, communicator.size) if communicator.rank == first else None
        folder = communicator.allgather(sentinel.folder if sentinel else "")[first]
        if folder:
            self._join(Path(folder))
        communicator.barrier()
        if sentinel:
            sentinel.start()
        # No rank may go on, and fail, before it is watched.
        communicator.barrier()

    def _join(self, folder: Path) -> None:
        """Opens the files that this rank shares with the others of its host."""
        with suppress(OSError):
            self._reported = os.open(folder / "reported", os.O_RDWR | os.O_APPEND)
            # Open until this process ends, however it does.
            pipe = folder / f"{self._communicator.rank}"
            self._alive = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)

    def _uncaught(
        self,
        kind: type[BaseException],
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            self._end("", _INTERRUPTED)
        for failure in [communicator.failure for communicator in self._all]:
            # TensorFlow puts a traceback around an error of a Python function that it calls.
            if failure is not None and str(failure) in str(error):
                self._end(str(failure))
        if isinstance(error, RankError):
            self._end(str(error))
        self._end("".join(traceback.format_exception(kind, error, trace)).rstrip())

    def _uncaught_in_thread(self, arguments: threading.ExceptHookArgs) -> None:
        if not issubclass(arguments.exc_type, SystemExit):
            self._uncaught(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)

    def _at_exit(self) -> None:
        try:
            for communicator in self._all:
                communicator.close()
        except RankError as error:
            self._end(str(error))
        # All ranks have said that they leave: none that ends now was killed.
        self._note_report()

    def _end(self, text: str, code: int = 1) -> None:
        """Reports the failure of this rank unless another does, and ends all ranks."""
        # A thread that fails while another already reports has nothing to add.
        with self._lock:
            if text:
                self._take_turn()
                if self._is_reported():
                    time.sleep(_LAST_TURN_SECONDS)
                else:
                    self._note_report()
                    self._print(text)
            self._note_report()
            # MPI's own message says only that it was told to abort.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            self._communicator.abort(code)
            os._exit(code)

    def _take_turn(self) -> None:
        """Waits for the report of a lower rank."""
        turn = min(self._communicator.rank * _TURN_SECONDS, _LAST_TURN_SECONDS)
        end = time.monotonic() + turn
        while time.monotonic() < end and not self._is_reported():
            time.sleep(0.01)

    def _print(self, text: str) -> None:
        communicator = self._communicator
        with suppress(Exception):
            sys.stderr.write(f"rank {communicator.rank} of {communicator.size} failed: {text}\n")
            sys.stderr.flush()

    def _is_reported(self) -> bool:
        return self._reported is not None and os.fstat(self._reported).st_size > 0

    def _note_report(self) -> None:
        if self._reported is not None:
            with suppress(OSError):
                os.write(self._reported, b"1")


_installed: _Handlers | None = None


def _process_space(rank: int) -> str:
    """The same text on all ranks that see each other's processes."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{kernel} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {rank}"


def _can_watch_processes() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class _Sentinel:
    """The process that watches the ranks of this host, where the system allows that.

    Attributes:
        folder: Of the files that it shares with the ranks; empty if there is none.
    """

    def __init__(self, pids: dict[int, int], size: int) -> None:
        self.folder = ""
        self._process: subprocess.Popen | None = None
        with suppress(OSError):
            self.folder = tempfile.mkdtemp(prefix="tf_dslide_")
            Path(self.folder, "reported").touch()
            if _can_watch_processes():
                for rank in pids:
                    os.mkfifo(Path(self.folder, f"{rank}"))
                self._run(json.dumps({"folder": self.folder, "pids": pids, "size": size}))

    def start(self) -> None:
        """Lets it watch, once all ranks have opened the files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        process = self._process
        if process and process.stdin and process.stdout:
            with suppress(OSError):
                process.stdin.close()
                process.stdout.readline()
                process.stdout.close()
            # It outlives this process, so Python need not ask for its end.
            process.returncode = 0

    def _run(self, options: str) -> None:
        script = str(Path(__file__).with_name("sentinel.py"))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Out of reach of a launcher that kills the process group of a rank.
            start_new_session=True,
        )
        if self._process.stdout:
            self._process.stdout.readline()
