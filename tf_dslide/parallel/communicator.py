"""Packed exchanges between the ranks of a job, over MPI or within one process.

Wire format
-----------
In an exchange each rank sends one message (bytes, any number of them) to each other rank. The first
message of a message begins with a header of 64 bytes; integers are little-endian, without gaps:

| bytes | type | content |
| --- | --- | --- |
| 0 to 3 | 4 characters | `DSLX` |
| 4 to 5 | uint16 | version of this protocol: 1 |
| 6 to 7 | uint16 | 0 |
| 8 to 15 | uint64 | number of the exchange, counted from 1 by every rank |
| 16 to 19 | uint32 | CRC-32 of the kind of exchange, as UTF-8 |
| 20 to 23 | uint32 | 0 if the message follows in this message, else the size of the pieces |
| 24 to 31 | uint64 | bytes of the message |
| 32 to 63 | 32 characters | the kind's first 32 bytes, filled up with zeros: for error messages |

A message of up to 4 MiB (or `chunk_bytes` if that is less) follows its header in one message: a
copy of it is cheaper than another message. A larger one is sent from where it lies, in messages of
`chunk_bytes` without a header (the last may have less), and the first message tells the receiver
how much to make room for. Messages travel under tag 1 on a duplicate of the communicator; MPI keeps
their order between two ranks. On a second duplicate, under tag 2, a rank that ends tells all
others: JSON, `{"finished": number of its last whole exchange, "reason": text}`.
"""

import atexit
import json
import os
import struct
import sys
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tf_dslide.parallel.statistics import Counts, Statistics

MAGIC = b"DSLX"
VERSION = 1
HEADER = struct.Struct("<4sHHQIIQ32s")
_DATA_TAG = 1
_LEAVING_TAG = 2
# Up to this size a message is copied behind its header.
_COPIED_BYTES = 4 << 20
# Ranks may share cores, so a rank that waits must soon let others run; but a sleep takes about
# 100 us however short it is asked for, and wakes the peer late, which then sleeps itself.
_SPIN_SECONDS = 200e-6
_SHORTEST_SLEEP = 20e-6
_LONGEST_SLEEP = 500e-6
# How often a rank that waits looks for peers that have left.
_LOOK_SECONDS = 10e-3
# How long messages of a peer that has left may still be on their way.
_STRAGGLER_SECONDS = 2.0
# How long a program that ends waits for another thread's exchange.
_LAST_EXCHANGE_SECONDS = 2.0
# A launcher that is told to abort may drop what it has not yet passed on.
_DRAIN_SECONDS = 0.3
_SHOWN_CHARACTERS = 200


class RankError(RuntimeError):
    """The ranks of a job cannot go on together: one differs from the others, or has left."""


class Communicator(ABC):
    """Exchanges between the ranks of a job; every call is collective.

    All ranks must make the same calls in the same order. Calls may come from any thread, but from
    one at a time.

    Attributes:
        rank: This process's number, from 0.
        size: Number of ranks.
        stats: Bytes, messages and waiting so far, by kind of exchange.
        failure: The `RankError` that ended the exchanges, or `None`. After it, every exchange
            raises it again.
    """

    rank: int
    size: int
    stats: Statistics
    failure: RankError | None

    def __init__(self) -> None:
        self.stats = Statistics()
        self.failure = None
        self._lock = threading.Lock()
        self._kind = ""

    def exchange(self, kind: str, messages: Sequence[Any]) -> list[np.ndarray]:
        """Sends a message to each rank and returns what each rank has sent to this one.

        Args:
            kind: What is exchanged; all ranks must name the same. Statistics are kept by kind.
            messages: For each rank the bytes to send to it: a C-contiguous array of any type, or
                any other contiguous buffer. Sizes may differ, and be 0. They may be changed once
                the call has returned.

        Returns:
            For each rank a vector of bytes, `uint8`. The rank's own message is handed back without
            a copy; all others are the caller's own.

        Raises:
            RankError: A rank is at another exchange, or has left, or did not answer in time.
            ValueError: Not one message a rank, or a message that is not contiguous.
            RuntimeError: Another thread is in an exchange.

        One message a peer, for a message of at most 4 MiB and `chunk_bytes`; beyond, one more than
        the number of pieces of `chunk_bytes`.

        Example:
        >>> from tf_dslide.parallel.communicator import LoneCommunicator
        >>> LoneCommunicator().exchange("hidden", [b"abc"])[0].tobytes()
        b'abc'
        """
        if len(messages) != self.size:
            raise ValueError(
                f"exchange {kind!r} needs one message for each of {self.size} ranks; received "
                f"{len(messages)}"
            )
        contents = [_as_bytes(message, kind) for message in messages]
        with self._alone(kind):
            return self._exchange(kind, contents)

    @abstractmethod
    def _exchange(self, kind: str, messages: list[np.ndarray]) -> list[np.ndarray]:
        """`exchange` with messages that are vectors of bytes, one a rank."""

    def gather(self, value: Any) -> list:
        """The values of all ranks, in the order of ranks, on each rank.

        Args:
            value: A small value that JSON can express; tuples come back as lists.

        Raises:
            TypeError: JSON cannot express the value.
            RankError: As in `exchange`.

        Example:
        >>> from tf_dslide.parallel.communicator import LoneCommunicator
        >>> LoneCommunicator().gather({"host": "a", "cores": 2})
        [{'host': 'a', 'cores': 2}]
        """
        return self._gather("gather", value)

    def agree(self, what: str, value: Any) -> None:
        """Makes sure that all ranks have the same value.

        Args:
            what: What the value is; begins the message if it differs.
            value: A value that JSON can express. Differences within a `dict` are shown by key.

        Raises:
            RankError: The values differ; all ranks raise the same message, which tells the ranks
                of each value.
            TypeError: JSON cannot express the value.

        Example:
        >>> from tf_dslide.parallel.communicator import LoneCommunicator
        >>> LoneCommunicator().agree("the batch size", 1024)
        """
        values = self._gather("agree", value)
        if any(_as_json(other) != _as_json(values[0]) for other in values):
            raise self._failed(RankError(_disagreement(what, values)))

    def barrier(self) -> None:
        """Returns when all ranks have called it.

        Raises:
            RankError: As in `exchange`.
        """
        self.exchange("barrier", [b""] * self.size)

    @abstractmethod
    def close(self, reason: str = "its program ended") -> None:
        """Tells the other ranks that this one leaves, and waits until all leave."""

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """Ends all ranks, without waiting for them."""

    def _gather(self, kind: str, value: Any) -> list:
        text = json.dumps(value, default=_plain).encode()
        messages = self.exchange(kind, [text] * self.size)
        return [json.loads(message.tobytes()) for message in messages]

    def _failed(self, error: RankError) -> RankError:
        self.failure = error
        return error

    @contextmanager
    def _alone(self, kind: str) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"exchange {kind!r} was called while another thread is in exchange "
                f"{self._kind!r}: exchanges must come one after the other, in the same order on "
                "all ranks"
            )
        self._kind = kind
        try:
            yield
        finally:
            self._lock.release()


class LoneCommunicator(Communicator):
    """The one rank of a job without MPI.

    Example:
    >>> from tf_dslide.parallel.communicator import LoneCommunicator
    >>> communicator = LoneCommunicator()
    >>> communicator.rank, communicator.size
    (0, 1)
    """

    rank = 0
    size = 1

    def _exchange(self, kind: str, messages: list[np.ndarray]) -> list[np.ndarray]:
        if self.failure is not None:
            raise self.failure
        self.stats.add(kind, Counts(exchanges=1))
        return messages

    def close(self, reason: str = "its program ended") -> None:
        """Nobody is there to tell: does nothing."""

    def abort(self, code: int = 1) -> None:
        """Ends this process, without what Python does at the end of a program."""
        os._exit(code)


class MPICommunicator(Communicator):
    """The ranks of an MPI job.

    Creating it is collective. It works on duplicates of `comm`, so it does not meet the messages
    that a program sends itself. Waiting ranks sleep between looks rather than keep a core busy. At
    the program's end a rank tells the others that it leaves, and then waits until all leave: one
    that still needs it gets a `RankError`.

    Args:
        comm: An mpi4py intracommunicator, by default `MPI.COMM_WORLD`.
        timeout: Seconds without any message after which a waiting rank gives up.
        chunk_bytes: Largest message, or piece of a message, in one message.

    Raises:
        ImportError: mpi4py or the MPI library is missing.
        RuntimeError: MPI allows calls from the main thread only.
        ValueError: A setting that cannot be.
    """

    def __init__(
        self, comm: Any = None, timeout: float = 600.0, chunk_bytes: int = 1 << 30
    ) -> None:
        super().__init__()
        if not timeout > 0:
            raise ValueError(f"`timeout` must be seconds above 0; received {timeout}")
        largest = 2**31 - 1
        if not 1 <= chunk_bytes <= largest:
            raise ValueError(f"`chunk_bytes` must be from 1 to {largest}; received {chunk_bytes}")
        self._mpi = _load_mpi()
        self._comm = self._mpi.COMM_WORLD if comm is None else comm
        if self._comm.Is_inter():
            raise ValueError("`comm` must be an intracommunicator; received an intercommunicator")
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.timeout = timeout
        self.chunk_bytes = chunk_bytes
        self._data = self._duplicate()
        self._control = self._duplicate()
        self._status = self._mpi.Status()
        self._started = 0
        self._finished = 0
        self._left: dict[int, dict] = {}
        self._closing = False
        self._closed = False
        # Reused by every exchange: an exchange ends only when MPI needs its messages no more.
        self._rooms: list[np.ndarray] = [np.empty(0, np.uint8)] * self.size
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

    def _exchange(self, kind: str, messages: list[np.ndarray]) -> list[np.ndarray]:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise RankError(f"exchange {kind!r} was called after this rank has left its job")
        self._started += 1
        exchange = _Exchange(self, kind, messages)
        try:
            exchange.send()
            begin = time.perf_counter()
            self._wait_for(exchange)
        except self._mpi.Exception as error:
            self._abandoned.append(exchange)
            raise self._failed(
                RankError(f"MPI failed at {exchange.name} with {exchange.missing()}: {error}")
            ) from error
        except BaseException as error:
            self._abandoned.append(exchange)
            if self.failure is None:
                self._failed(RankError(f"{exchange.name} was interrupted by {error!r}"))
            raise
        exchange.counts.seconds_waiting = time.perf_counter() - begin
        self._finished = self._started
        self.stats.add(kind, exchange.counts)
        return exchange.result()

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

    def _room(self, peer: int, size: int) -> np.ndarray:
        """Room for the first message to a peer."""
        if len(self._rooms[peer]) < size:
            self._rooms[peer] = np.empty(size * 5 // 4, np.uint8)
        return self._rooms[peer][:size]

    def _look_at_peers(self, exchange: "_Exchange", idle: float) -> None:
        """Raises if it is in vain to wait any longer."""
        self._hear_who_leaves()
        for peer in exchange.awaited():
            note = self._left.get(peer)
            # A peer that finished this exchange has sent its messages, and they are on their way.
            if note and (note["finished"] < self._started or idle > _STRAGGLER_SECONDS):
                raise self._failed(
                    RankError(
                        f"rank {peer} has left ({note['reason']}) after exchange "
                        f"{note['finished']}, but rank {self.rank} waits for it at {exchange.name}"
                    )
                )
        if self._closing:
            raise self._failed(RankError(f"rank {self.rank} ended while it was at {exchange.name}"))
        if idle > self.timeout:
            raise self._failed(
                RankError(
                    f"rank {self.rank} has waited {self.timeout:g} s at {exchange.name} for "
                    f"{exchange.missing()}; are they stuck, or much slower? `timeout` sets how "
                    "long to wait"
                )
            )

    def _hear_who_leaves(self) -> None:
        status = self._mpi.Status()
        while self._control.Iprobe(self._mpi.ANY_SOURCE, _LEAVING_TAG, status):
            text = bytearray(status.Get_count(self._mpi.BYTE))
            self._control.Recv([text, self._mpi.BYTE], status.Get_source(), _LEAVING_TAG)
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
        note = {"finished": self._finished, "reason": _shortened(reason)}
        text = json.dumps(note).encode()
        peers = [peer for peer in range(self.size) if peer != self.rank]
        requests = [
            self._control.Isend([text, self._mpi.BYTE], peer, _LEAVING_TAG) for peer in peers
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
        name: Number and kind, for messages.
        counts: What was sent and received so far.
        done: Whether all messages have come and gone.
    """

    def __init__(self, owner: MPICommunicator, kind: str, messages: list[np.ndarray]) -> None:
        self._owner = owner
        self._parcels = messages
        self._kind = kind.encode()
        self._check = zlib.crc32(self._kind)
        self._number = owner._started
        rank, size = owner.rank, owner.size
        # Each rank begins with another peer, so that not all send to rank 0 first.
        peers = [*range(rank + 1, size), *range(rank)]
        self._incoming = {peer: _Incoming(self, owner, peer) for peer in peers}
        self._outgoing = [_Outgoing(self, owner, peer, messages[peer]) for peer in peers]
        self._moving: list[_Outgoing | _Incoming] = []
        self.name = f"exchange {self._number} {kind!r}"
        self.counts = Counts(exchanges=1)
        self.done = False

    def send(self) -> None:
        """Hands the first message to each peer to MPI."""
        for outgoing in self._outgoing:
            outgoing.start()
        self._moving = [*self._outgoing, *self._incoming.values()]

    def poll(self) -> bool:
        """Looks once at all messages; returns whether anything has moved."""
        moved = False
        for transfer in self._moving:
            moved |= transfer.poll()
        if moved:
            self._moving = [transfer for transfer in self._moving if not transfer.done]
        self.done = not self._moving
        return moved

    def write_header(self, room: np.ndarray, piece: int, total: int) -> None:
        """Writes the header of a message of `total` bytes into the first bytes of `room`."""
        HEADER.pack_into(
            room.data,
            0,
            *(MAGIC, VERSION, 0, self._number, self._check, piece, total, self._kind[:32]),
        )

    def read_header(self, peer: int, header: np.ndarray) -> tuple[int, int]:
        """Size of the pieces and of the whole message; raises if the message is not due now."""
        magic, version, _, number, check, piece, total, kind = HEADER.unpack(header.data)
        rank = self._owner.rank
        if (magic, version) != (MAGIC, VERSION):
            raise self._owner._failed(
                RankError(
                    f"rank {peer} speaks {magic!r} version {version}, but rank {rank} speaks "
                    f"{MAGIC!r} version {VERSION}: install the same tf_dslide on all hosts"
                )
            )
        if (number, check) != (self._number, self._check):
            other = f"exchange {number} {kind.rstrip(bytes(1)).decode(errors='replace')!r}"
            # The same text on both ranks.
            (low, first), (high, second) = sorted([(rank, self.name), (peer, other)])
            raise self._owner._failed(
                RankError(
                    f"rank {low} is at {first} but rank {high} at {second}: all ranks must do the "
                    "same in the same order; look for a condition on the rank, or data that differ"
                )
            )
        return piece, total

    def awaited(self) -> list[int]:
        """Peers that still have something to send, or else to receive."""
        incoming = {part.peer for part in self._moving if isinstance(part, _Incoming)}
        return sorted(incoming or {part.peer for part in self._moving})

    def missing(self) -> str:
        """The ranks waited for, as text."""
        return _ranks(self.awaited())

    def result(self) -> list[np.ndarray]:
        """All messages, in the order of ranks."""
        return [
            self._incoming[peer].message if peer in self._incoming else own
            for peer, own in enumerate(self._parcels)
        ]


class _Outgoing:
    """The message for a peer, one message after the other."""

    def __init__(
        self, exchange: _Exchange, owner: MPICommunicator, peer: int, message: np.ndarray
    ) -> None:
        self.peer = peer
        self.done = False
        self._exchange = exchange
        self._owner = owner
        self._parcel = message
        self._sent = 0
        self._request: Any = None

    def start(self) -> None:
        """Sends the header, and with it the message if it is small."""
        total, chunk = len(self._parcel), self._owner.chunk_bytes
        whole = total <= min(_COPIED_BYTES, chunk)
        self._sent = total if whole else 0
        room = self._owner._room(self.peer, HEADER.size + self._sent)
        self._exchange.write_header(room, 0 if whole else chunk, total)
        room[HEADER.size :] = self._parcel[: self._sent]
        self._post(room)

    def poll(self) -> bool:
        """Sends the next message once the last has gone; returns whether it has."""
        if not self._request.Test():
            return False
        if self._sent < len(self._parcel):
            piece = self._parcel[self._sent : self._sent + self._owner.chunk_bytes]
            self._sent += len(piece)
            self._post(piece)
        else:
            self.done = True
        return True

    def _post(self, message: np.ndarray) -> None:
        owner = self._owner
        self._request = owner._data.Isend([message, owner._mpi.BYTE], self.peer, _DATA_TAG)
        self._exchange.counts.messages_sent += 1
        self._exchange.counts.bytes_sent += len(message)


class _Incoming:
    """The message of a peer, one message after the other."""

    def __init__(self, exchange: _Exchange, owner: MPICommunicator, peer: int) -> None:
        self.peer = peer
        self.done = False
        self.message = np.empty(0, np.uint8)
        self._exchange = exchange
        self._owner = owner
        self._request: Any = None
        self._message = self.message
        # Bytes of a piece; 0 until the header has come.
        self._piece = 0
        self._received = 0

    def poll(self) -> bool:
        """Takes a message that has come; returns whether there was something to do."""
        if self._request is None:
            return self._begin() and (self.poll() or True)
        if not self._request.Test():
            return False
        if self._piece:
            self._received += len(self._message)
        else:
            self._end_header()
        self.done = self._received == len(self.message)
        if not self.done:
            self._post(self.message[self._received : self._received + self._piece])
        return True

    def _begin(self) -> bool:
        """Looks for the first message, whose size is not known before."""
        owner = self._owner
        found = owner._data.Improbe(self.peer, _DATA_TAG, owner._status)
        if found is None:
            return False
        size = owner._status.Get_count(owner._mpi.BYTE)
        self._message = np.empty(max(size, HEADER.size), np.uint8)
        self._request = found.Irecv([self._message, size, owner._mpi.BYTE])
        self._exchange.counts.bytes_received += size
        return True

    def _end_header(self) -> None:
        self._piece, total = self._exchange.read_header(self.peer, self._message[: HEADER.size])
        if self._piece:
            self.message = np.empty(total, np.uint8)
        else:
            self.message = self._message[HEADER.size :]
            self._received = total

    def _post(self, room: np.ndarray) -> None:
        owner = self._owner
        self._message = room
        self._request = owner._data.Irecv([room, owner._mpi.BYTE], self.peer, _DATA_TAG)
        self._exchange.counts.bytes_received += len(room)


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


def _as_bytes(message: Any, kind: str) -> np.ndarray:
    """A view of a buffer as bytes."""
    # NumPy's own arrays by a view: types such as bfloat16 have no buffer interface.
    if isinstance(message, np.ndarray):
        if not message.flags.c_contiguous:
            raise ValueError(
                f"the messages of exchange {kind!r} must be C-contiguous; received one of shape "
                f"{message.shape} and strides {message.strides}"
            )
        return message.reshape(-1).view(np.uint8)
    return np.frombuffer(message, np.uint8)


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"ranks exchange values that JSON can express; received {value!r}")


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=_plain)


def _disagreement(what: str, values: list) -> str:
    """Which ranks have which value."""
    parts = [_leaves(value) for value in values]
    differences = []
    for name in dict.fromkeys(name for part in parts for name in part):
        ranks: dict[str, list[int]] = {}
        for rank, part in enumerate(parts):
            ranks.setdefault(part.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            cases = [f"{_shortened(text)} ({_ranks(who)})" for text, who in ranks.items()]
            differences.append(name + ", ".join(cases))
    received = _shortened("; ".join(differences), 10 * _SHOWN_CHARACTERS)
    return f"{what} must be the same on all ranks; received {received}"


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """The values in nested dicts, as JSON, by `outer.inner: `."""
    if not (isinstance(value, dict) and value):
        return {path and f"{path}: ": _as_json(value)}
    leaves: dict[str, str] = {}
    for key, inner in value.items():
        leaves |= _leaves(inner, f"{path}.{key}" if path else key)
    return leaves


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0, 1, 2`."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def _shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
