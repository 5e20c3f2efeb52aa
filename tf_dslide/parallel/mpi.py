"""Ranks that MPI has started."""

import atexit
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.errors import RankError, named, shortened
from tf_dslide.parallel.protocol import COPIED_BYTES, DATA_TAG, HEADER, LEAVING_TAG, Turn
from tf_dslide.parallel.statistics import Counts

# Ranks may share cores, so a rank that waits must soon let others run; but a sleep takes about
# 100 us however short it is asked for, and wakes the peer late, which then sleeps itself.
_SPIN_SECONDS = 200e-6
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 500e-6
# How often a rank that waits looks for peers that have left.
_LOOK_SECONDS = 10e-3
# How long a program that ends waits for another thread's exchange.
_LAST_EXCHANGE_SECONDS = 2.0
# A launcher that is told to abort may drop what it has not yet passed on.
_DRAIN_SECONDS = 0.3


class MPICommunicator(Communicator):
    """The ranks of an MPI job.

    Creating it is collective. It works on duplicates of `comm`, so it does not meet the messages
    that a program sends itself. Waiting ranks sleep between looks rather than keep a core busy. At
    the program's end a rank tells the others that it leaves, and then waits until all leave: one
    that still needs it gets a `RankError`.

    Args:
        comm: An mpi4py intracommunicator, by default `MPI.COMM_WORLD`.
        timeout: Seconds without any message after which a waiting rank gives up.

    Raises:
        ImportError: mpi4py or the MPI library is missing.
        RuntimeError: MPI allows calls from the main thread only.
        ValueError: A setting that cannot be.
    """

    def __init__(self, comm: Any = None, timeout: float = 600.0) -> None:
        super().__init__()
        if not timeout > 0:
            raise ValueError(f"`timeout` must be seconds above 0; received {timeout}")
        self._mpi = _load_mpi()
        self._comm = self._mpi.COMM_WORLD if comm is None else comm
        if self._comm.Is_inter():
            raise ValueError("`comm` must be an intracommunicator; received an intercommunicator")
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.timeout = timeout
        self._data = self._duplicate()
        self._control = self._duplicate()
        self._left: dict[int, dict] = {}
        self._closing = False
        # What an exchange that failed has left in MPI's hands must not be freed.
        self._abandoned: list[Any] = []
        atexit.register(self._close_at_exit)

    def _duplicate(self) -> Any:
        """A duplicate of the communicator that raises errors, within the time limit."""
        duplicate, request = self._comm.Idup()
        begin = time.monotonic()
        while not request.Test():
            if time.monotonic() - begin > self.timeout:
                raise self._failed(
                    RankError(
                        f"rank {self.rank} waited {self.timeout:g} s for all {self.size} ranks to "
                        "create their MPICommunicator; every rank must do so"
                    )
                )
            time.sleep(_LONGEST_SLEEP)
        duplicate.Set_errhandler(self._mpi.ERRORS_RETURN)
        return duplicate

    def _alltoallv(self, turn: Turn, messages: list[np.ndarray]) -> list[np.ndarray]:
        exchange = _Exchange(self._mpi, self._data, turn, messages)
        try:
            exchange.start()
            begin = time.perf_counter()
            self._wait_for(exchange)
        except self._mpi.Exception as error:
            self._abandoned.append(exchange)
            raise RankError(
                f"MPI failed at {turn.name} with {named(exchange.awaited())}: {error}"
            ) from error
        except BaseException:
            self._abandoned.append(exchange)
            raise
        exchange.counts.seconds_waiting = time.perf_counter() - begin
        self.stats.add(turn.kind, exchange.counts)
        return exchange.received

    def _wait_for(self, exchange: "_Exchange") -> None:
        """Polls until all messages have come and gone."""
        if exchange.poll() and exchange.done:
            return
        begin = progress = time.monotonic()
        look = begin + _LOOK_SECONDS
        pause = _SHORTEST_SLEEP
        while True:
            moved = exchange.poll()
            if exchange.done:
                return
            now = time.monotonic()
            if moved:
                progress, pause = now, _SHORTEST_SLEEP
            if now >= look:
                look = now + _LOOK_SECONDS
                self._look_at_peers(exchange, now - progress)
            if now - progress > _SPIN_SECONDS:
                time.sleep(pause)
                pause = min(1.3 * pause, _LONGEST_SLEEP)

    def _look_at_peers(self, exchange: "_Exchange", idle: float) -> None:
        """Raises if it is in vain to wait any longer."""
        self._hear_who_leaves()
        exchange.turn.require_hope(exchange.awaited(), self._left, idle, self.timeout)
        if self._closing:
            raise RankError(f"rank {self.rank} ended while it was at {exchange.turn.name}")

    def _hear_who_leaves(self) -> None:
        status = self._mpi.Status()
        while self._control.Iprobe(self._mpi.ANY_SOURCE, LEAVING_TAG, status):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._control.Recv([text, self._mpi.BYTE], status.Get_source(), LEAVING_TAG)
            self._left[status.Get_source()] = json.loads(text)

    def close(self, reason: str = "its program ended") -> None:
        """Tells the other ranks that this one leaves, and waits until all leave.

        A rank that waits for this one then raises a `RankError`. While others only compute, this
        waits for them, as the end of an MPI program does anyway. Python calls this at the end of
        the program.

        Args:
            reason: Why this rank leaves: a few words.

        Raises:
            RankError: An exchange has failed before, or a thread is still in one. MPI cannot end
                in order then, so `abort` must follow; at the end of the program it does.
        """
        if self._closed or self._mpi.Is_finalized():
            return
        self._closing = True
        if not self._lock.acquire(timeout=_LAST_EXCHANGE_SECONDS):
            raise self._failed(RankError(f"rank {self.rank} ended within an exchange"))
        try:
            if self.failure is not None:
                raise self.failure
            self._closed = True
            self._leave(reason)
        except self._mpi.Exception as error:
            raise self._failed(RankError(f"MPI failed at the end of the job: {error}")) from error
        finally:
            self._lock.release()

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except RankError as error:
            # MPI_Finalize would wait for messages that never come.
            sys.stderr.write(f"rank {self.rank} of {self.size} failed: {error}\n")
            self.abort()

    def _leave(self, reason: str) -> None:
        note = {"finished": self._finished, "reason": shortened(reason)}
        text = json.dumps(note).encode()
        peers = [peer for peer in range(self.size) if peer != self.rank]
        requests = [
            self._control.Isend([text, self._mpi.BYTE], peer, LEAVING_TAG) for peer in peers
        ]
        pause = _SHORTEST_SLEEP
        # Nobody may enter MPI_Finalize, where all wait for all, while another may still fail.
        while not (self._mpi.Request.Testall(requests) and len(self._left) == len(peers)):
            self._hear_who_leaves()
            time.sleep(pause)
            pause = min(1.3 * pause, _LOOK_SECONDS)

    def abort(self, code: int = 1) -> None:
        """Ends all ranks, once what this one has printed is on its way."""
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        time.sleep(_DRAIN_SECONDS)
        self._comm.Abort(code)


class _Exchange:
    """One exchange under way.

    Attributes:
        turn: Which one.
        counts: What was sent and received so far.
        received: The messages of all ranks; those to come are missing.
        done: Whether all messages have come and gone.
    """

    def __init__(self, mpi: Any, comm: Any, turn: Turn, messages: list[np.ndarray]) -> None:
        self.turn = turn
        self.counts = Counts(exchanges=1)
        self.received = list(messages)
        self.done = False
        self._mpi, self._comm = mpi, comm
        rank, size = turn.rank, len(messages)
        # Each rank begins with another peer, so that not all send to rank 0 first.
        peers = [*range(rank + 1, size), *range(rank)]
        self._outgoing = {peer: self._send(peer, messages[peer]) for peer in peers}
        self._incoming = {peer: self._receive(peer) for peer in peers}

    def start(self) -> None:
        """Hands all messages to MPI."""
        for sending in self._outgoing.values():
            next(sending, None)

    def poll(self) -> bool:
        """Looks once at all messages; returns whether anything has moved."""
        moved = False
        for transfers in (self._incoming, self._outgoing):
            for peer, transfer in list(transfers.items()):
                news = next(transfer, "done")
                if news == "done":
                    del transfers[peer]
                moved |= bool(news)
        self.done = not (self._incoming or self._outgoing)
        return moved

    def awaited(self) -> list[int]:
        """Peers that still have something to send, or else to receive."""
        return sorted(self._incoming or self._outgoing)

    def _send(self, peer: int, message: np.ndarray) -> Iterator[str]:
        """Sends the message for a peer, header first; ends when it has gone."""
        header = self.turn.header(len(message))
        copied = len(message) <= COPIED_BYTES
        parts = [b"".join([header, message.data])] if copied else [header, message]
        requests = []
        for part in parts:
            requests.append(self._comm.Isend([part, self._mpi.BYTE], peer, DATA_TAG))
            self.counts.messages_sent += 1
            self.counts.bytes_sent += len(part)
        while not self._mpi.Request.Testall(requests):
            yield ""

    def _receive(self, peer: int) -> Iterator[str]:
        """Receives the message of a peer, whose size is not known before; ends when it is here."""
        status = self._mpi.Status()
        while not (found := self._comm.Improbe(peer, DATA_TAG, status)):
            yield ""
        size = status.Get_count(self._mpi.BYTE)
        first = np.empty(max(size, HEADER.size), np.uint8)
        request = found.Irecv([first, size, self._mpi.BYTE])
        yield "begun"
        while not request.Test():
            yield ""
        length, apart = self.turn.read(peer, first[: HEADER.size].data)
        message = first[HEADER.size :]
        if apart:
            message = np.empty(length, np.uint8)
            request = self._comm.Irecv([message, self._mpi.BYTE], peer, DATA_TAG)
            yield "begun"
            while not request.Test():
                yield ""
            size += length
        self.counts.bytes_received += size
        self.received[peer] = message


def _load_mpi() -> Any:
    """mpi4py's module, fit for calls from several threads."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise ImportError(
            "more than one rank needs mpi4py and an MPI library: pip install 'tf-dslide[mpi]' "
            f"({error})"
        ) from error
    level = MPI.Query_thread()
    if level < MPI.THREAD_SERIALIZED:
        names = {MPI.THREAD_SINGLE: "SINGLE", MPI.THREAD_FUNNELED: "FUNNELED"}
        raise RuntimeError(
            "TensorFlow's threads call MPI, so its thread level must be SERIALIZED or MULTIPLE; "
            f"received {names.get(level, level)}. Do not set mpi4py.rc.thread_level lower, and "
            "use an MPI library built with threads"
        )
    return MPI
