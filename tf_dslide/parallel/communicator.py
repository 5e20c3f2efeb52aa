"""Exchanges between the ranks of a job: what all communicators do alike."""

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tf_dslide.parallel.errors import RankError, as_json, disagreement, plain
from tf_dslide.parallel.protocol import Turn
from tf_dslide.parallel.statistics import Statistics


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
        self._started = 0
        self._finished = 0
        self._closed = False

    def alltoallv(self, kind: str, messages: Sequence[Any]) -> list[np.ndarray]:
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

        Example:
        >>> from tf_dslide.parallel.lone import LoneCommunicator
        >>> LoneCommunicator().alltoallv("hidden", [b"abc"])[0].tobytes()
        b'abc'
        """
        if len(messages) != self.size:
            raise ValueError(
                f"exchange {kind!r} needs one message for each of {self.size} ranks; received "
                f"{len(messages)}"
            )
        contents = [_as_bytes(message, kind) for message in messages]
        with self._alone(kind):
            if self.failure is not None:
                raise self.failure
            if self._closed:
                raise RankError(f"exchange {kind!r} was called after this rank has left its job")
            self._started += 1
            turn = Turn(self.rank, self._started, kind)
            try:
                received = self._alltoallv(turn, contents)
            except RankError as error:
                self._failed(error)
                raise
            except BaseException as error:
                self._failed(RankError(f"{turn.name} was interrupted by {error!r}"))
                raise
            self._finished = self._started
            return received

    @abstractmethod
    def _alltoallv(self, turn: Turn, messages: list[np.ndarray]) -> list[np.ndarray]:
        """`alltoallv` with messages that are vectors of bytes, one a rank."""

    def allgather(self, value: Any) -> list:
        """The values of all ranks, in the order of ranks, on each rank.

        Args:
            value: A small value that JSON can express; tuples come back as lists.

        Raises:
            TypeError: JSON cannot express the value.
            RankError: As in `alltoallv`.

        Example:
        >>> from tf_dslide.parallel.lone import LoneCommunicator
        >>> LoneCommunicator().allgather({"host": "a", "cores": 2})
        [{'host': 'a', 'cores': 2}]
        """
        return self._allgather("allgather", value)

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
        >>> from tf_dslide.parallel.lone import LoneCommunicator
        >>> LoneCommunicator().agree("the batch size", 1024)
        """
        values = self._allgather("agree", value)
        if any(as_json(other) != as_json(values[0]) for other in values):
            raise self._failed(RankError(disagreement(what, values)))

    def barrier(self) -> None:
        """Returns when all ranks have called it.

        Raises:
            RankError: As in `alltoallv`.
        """
        self.alltoallv("barrier", [b""] * self.size)

    @abstractmethod
    def close(self, reason: str = "its program ended") -> None:
        """Tells the other ranks that this one leaves, and waits until all leave."""

    @abstractmethod
    def abort(self, code: int = 1) -> None:
        """Ends all ranks, without waiting for them."""

    def _allgather(self, kind: str, value: Any) -> list:
        message = json.dumps(value, default=plain).encode()
        received = self.alltoallv(kind, [message] * self.size)
        return [json.loads(other.tobytes()) for other in received]

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
