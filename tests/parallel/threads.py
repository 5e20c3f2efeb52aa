"""Ranks that are threads of this process: a communicator without MPI, and jobs of such ranks.

One rank runs at a time: it hands on the right to run when it waits in an exchange. So nothing that
a process has once (random numbers, Keras' own state) is touched by two ranks at the same time.
"""

import random
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any
from unittest import mock

import numpy as np

from tf_dslide.parallel import strategy
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.protocol import COPIED_BYTES, HEADER, Turn
from tf_dslide.parallel.statistics import Counts


class World:
    """What the ranks of a job share.

    Attributes:
        baton: Held by the rank that runs.
        boxes: The messages on their way, by sender and receiver.
        left: What ranks said when they left.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.baton = threading.Lock()
        self.boxes = {(i, j): SimpleQueue() for i in range(size) for j in range(size)}
        self.left: dict[int, dict] = {}


class ThreadedCommunicator(Communicator):
    """A rank of a `World`; its thread must hold the baton."""

    def __init__(self, rank: int, world: World, timeout: float = 20.0) -> None:
        super().__init__()
        self.rank, self.size, self.timeout = rank, world.size, timeout
        self._world = world

    def _alltoallv(self, turn: Turn, messages: list[np.ndarray]) -> list[np.ndarray]:
        received = list(messages)
        others = [peer for peer in range(self.size) if peer != self.rank]
        counts = Counts(exchanges=1)
        for peer in others:
            message = messages[peer]
            self._world.boxes[self.rank, peer].put(turn.header(len(message)) + message.tobytes())
            counts.messages_sent += 1 + (len(message) > COPIED_BYTES)
            counts.bytes_sent += HEADER.size + len(message)
        # Python's random numbers, of which Keras makes its seeds, are a rank's own.
        state = random.getstate()
        self._world.baton.release()
        try:
            for peer in others:
                received[peer] = self._take(turn, peer)
                counts.bytes_received += HEADER.size + len(received[peer])
        finally:
            self._world.baton.acquire()
            random.setstate(state)
        self.stats.add(turn.kind, counts)
        return received

    def _take(self, turn: Turn, peer: int) -> np.ndarray:
        begin = time.monotonic()
        while True:
            # Before the look into the box: who has left sends nothing more.
            left = dict(self._world.left)
            try:
                data = self._world.boxes[peer, self.rank].get(timeout=0.01)
                break
            except Empty:
                turn.require_hope([peer], left, time.monotonic() - begin, self.timeout)
        length, _ = turn.read(peer, data[: HEADER.size])
        assert length == len(data) - HEADER.size
        return np.frombuffer(bytearray(data), np.uint8)[HEADER.size :]

    def close(self, reason: str = "its program ended") -> None:
        self._closed = True
        self._world.left[self.rank] = {"finished": self._finished, "reason": reason}

    def abort(self, code: int = 1) -> None:
        raise AssertionError("no test in one process may end it")


def run_threads(size: int, work: Callable[[Communicator], Any]) -> list:
    """Calls `work(communicator)` on every rank; gives results, or errors raised."""
    world = World(size)
    results: list = [None] * size

    def run(rank: int) -> None:
        with world.baton:
            communicator = ThreadedCommunicator(rank, world)
            try:
                results[rank] = work(communicator)
            except Exception as error:
                results[rank] = error
            communicator.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    # What a rank does with its process is not for threads.
    with (
        mock.patch.object(strategy, "install_fault_handlers"),
        mock.patch.object(strategy.MPIModelParallel, "_share_cores"),
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def succeed(size: int, work: Callable[[Communicator], Any]) -> list:
    """The results of `work` on ranks none of which may fail."""
    results = run_threads(size, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results
