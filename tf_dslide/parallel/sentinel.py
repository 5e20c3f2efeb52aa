"""Watches the ranks of one host from outside, and says which one was killed.

A program of its own, started by `faults.py` as `python sentinel.py JSON`: when a
rank is killed, an MPI launcher kills all others at once, so none of them could tell. It starts in
milliseconds since it imports nothing but the standard library, and ends with the ranks.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

# From Linux's pidfd.h: how a process ended, even if its parent has asked already (6.15 and later).
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_BYTES = 64
_EXIT_CODE_AT = 60
# How long a launcher may take to end the other ranks before we do.
_GRACE_SECONDS = 3.0


def status_of(pid: int, descriptor: int) -> int | None:
    """Wait status of a process that has ended; `None` if the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] == "Z":
            return int(fields[-1])
    with suppress(OSError):
        info = bytearray(_PIDFD_INFO_BYTES)
        struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
        if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
            return struct.unpack_from("=i", info, _EXIT_CODE_AT)[0]
    return None


def killed_for_memory() -> int:
    """How many processes the kernel has killed since its start because memory had run out."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0


def cause_of(status: int | None, memory_ran_out: bool) -> str:
    """How a process ended, as text."""
    if status is None:
        return "has died"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(ValueError):
            text = f"was killed by signal {number} ({signal.Signals(number).name})"
            return text + (": the host's memory had run out" if memory_ran_out else "")
        return f"was killed by signal {number}"
    return f"ended with exit code {os.WEXITSTATUS(status)} without leaving the job in order"


class Sentinel:
    """Waits for the first rank that ends, and says how, unless that was announced.

    Args:
        folder: Holds `reported`, a file that is not empty once a rank has said why the job ends, or
            all have left it; and for each rank a named pipe, whose other end the rank keeps open.
        pids: Process of each rank of this host.
        size: Number of ranks of all hosts.
    """

    def __init__(self, folder: Path, pids: dict[int, int], size: int) -> None:
        self._pids = pids
        self._size = size
        self._kills = killed_for_memory()
        self._reported = os.open(folder / "reported", os.O_RDONLY)
        self._processes = {rank: os.pidfd_open(pid) for rank, pid in pids.items()}
        # A process that ends closes its files before it counts as ended. The launcher waits for
        # the former, and the ranks that it then kills may be the first that have ended.
        pipes = {os.open(folder / f"{rank}", os.O_RDONLY | os.O_NONBLOCK): rank for rank in pids}
        self._watched = pipes | {process: rank for rank, process in self._processes.items()}
        # Tells of events in their order, other than `select.poll`.
        self._events = select.epoll()

    def start(self) -> None:
        """Begins to watch; the ranks must have opened their pipes, which is an event as well."""
        for descriptor in self._watched:
            self._events.register(descriptor, select.EPOLLIN)

    def watch(self) -> None:
        """Returns when the job has ended."""
        rank = self._first_ended()
        if os.fstat(self._reported).st_size:
            return
        status = status_of(self._pids[rank], self._processes[rank])
        memory_ran_out = killed_for_memory() > self._kills
        # Launchers use this signal to end the ranks of all hosts when one of any host has died.
        # Then the message comes from that host.
        if status != signal.SIGKILL or len(self._pids) == self._size or memory_ran_out:
            sys.stderr.write(
                f"rank {rank} of {self._size} (process {self._pids[rank]} on "
                f"{socket.gethostname()}) {cause_of(status, memory_ran_out)}\n"
            )
            sys.stderr.flush()
        self._end_others()

    def _first_ended(self) -> int:
        while True:
            descriptor = self._events.poll(maxevents=1)[0][0]
            rank = self._watched[descriptor]
            if self._has_ended(rank, _GRACE_SECONDS):
                return rank
            # The rank has closed all its files, or so it seems, and lives on.
            self._events.unregister(descriptor)

    def _has_ended(self, rank: int, seconds: float) -> bool:
        return bool(select.select([self._processes[rank]], [], [], seconds)[0])

    def _end_others(self) -> None:
        """Ends the ranks that the launcher leaves waiting for the dead one."""
        end = time.monotonic() + _GRACE_SECONDS
        for rank, process in self._processes.items():
            if not self._has_ended(rank, max(0.0, end - time.monotonic())):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)


if __name__ == "__main__":
    # A Ctrl-C or the end of a terminal is for the ranks.
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    options = json.loads(sys.argv[1])
    processes = {int(rank): pid for rank, pid in options["pids"].items()}
    sentinel = Sentinel(Path(options["folder"]), processes, options["size"])
    print("ready", flush=True)
    sys.stdin.readline()
    sentinel.start()
    print("watching", flush=True)
    sentinel.watch()
