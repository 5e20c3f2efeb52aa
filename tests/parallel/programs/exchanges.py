"""Cases of `test_communicator.py`: `exchanges.py mpi|lone CASE [CHUNK_BYTES]`, on any ranks.

Rank 0 prints what the ranks have found as one line of JSON, in the order of ranks.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import light  # noqa: F401
import numpy as np
import pytest

from tf_dslide.parallel.communicator import (
    HEADER,
    Communicator,
    LoneCommunicator,
    MPICommunicator,
)

SIZES = (0, 1, 7, 63, 64, 65, 128, 129, 1000)


def _parcel(number: int, source: int, target: int, sizes: tuple[int, ...]) -> np.ndarray:
    """What `source` sends to `target`; every rank can work out all of them."""
    rng = np.random.default_rng([number, source, target])
    return rng.integers(0, 256, rng.choice(sizes), dtype=np.uint8)


def _messages(size: int, chunk_bytes: int) -> int:
    return 1 if size <= min(chunk_bytes, 4 << 20) else 1 + -(-size // chunk_bytes)


def _exchange_and_check(
    comm: Communicator, chunk_bytes: int, rounds: int, sizes: tuple[int, ...]
) -> dict:
    messages = sent = received = 0
    for number in range(rounds):
        messages = [_parcel(number, comm.rank, peer, sizes) for peer in range(comm.size)]
        sent_sizes = [len(message) for message in messages]
        result = comm.exchange("random", messages)
        # What was sent may be changed at once, and what came is the receiver's own.
        for peer in set(range(comm.size)) - {comm.rank}:
            np.testing.assert_array_equal(messages[peer], _parcel(number, comm.rank, peer, sizes))
            messages[peer][:] = 0
        for peer, got in enumerate(result):
            np.testing.assert_array_equal(got, _parcel(number, peer, comm.rank, sizes))
            assert got.dtype == np.uint8
            if peer == comm.rank:
                assert np.shares_memory(got, messages[peer]) or not len(got)
                continue
            got[:] = 1
            messages += _messages(sent_sizes[peer], chunk_bytes)
            sent += sent_sizes[peer] + HEADER.size
            received += len(got) + HEADER.size
    counts = comm.stats.total["random"]
    assert counts.exchanges == rounds
    assert (counts.messages_sent, counts.bytes_sent) == (messages, sent)
    assert counts.bytes_received == received
    return {"messages": messages}


def random_sizes(comm: Communicator, chunk_bytes: int) -> dict:
    """Every message arrives as it was sent, and is counted to the byte."""
    return _exchange_and_check(comm, chunk_bytes, 60, SIZES)


def large(comm: Communicator, chunk_bytes: int) -> dict:
    """The same with megabytes, beyond what MPI sends without waiting for the receiver."""
    sizes = (0, 200_000, 1 << 20, 4 << 20, (4 << 20) + 1, 5_000_000)
    return _exchange_and_check(comm, chunk_bytes, 5, sizes)


def many(comm: Communicator, _: int) -> dict:
    """2,000 small exchanges."""
    for number in range(2_000):
        got = comm.exchange("small", [bytes([number % 251, comm.rank])] * comm.size)
        assert [bytes(message) for message in got] == [
            bytes([number % 251, peer]) for peer in range(comm.size)
        ]
        comm.stats.end_step()
    assert comm.stats.steps == 2_000
    counts = comm.stats.as_dict()
    counts["total"]["small"].pop("seconds_waiting")
    return counts["total"]["small"]


def buffers(comm: Communicator, _: int) -> dict:
    """Everything that has a buffer can be sent."""
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    for message in (matrix, matrix.tobytes(), bytearray(b"ab"), memoryview(b"abc"), matrix[:0]):
        for got in comm.exchange("buffer", [message] * comm.size):
            assert got.tobytes() == bytes(message)
            assert got.ctypes.data % 4 == 0
    for wrong in (matrix.T, matrix[:, 1:]):
        with pytest.raises(ValueError, match="C-contiguous"):
            comm.exchange("buffer", [wrong] * comm.size)
    comm.barrier()
    return {}


def values(comm: Communicator, _: int) -> dict:
    """`gather` and `agree`."""
    got = comm.gather({"rank": comm.rank, "array": np.arange(comm.rank), "pair": (1, None)})
    assert got == [
        {"rank": rank, "array": list(range(rank)), "pair": [1, None]} for rank in range(comm.size)
    ]
    for value in (1, 0.1, "ä", [1, [2]], {"b": 1, "a": np.float32(0.5)}, None, float("nan")):
        comm.agree("a value", value)
    comm.agree("order", {"b": 1, "a": 2} if comm.rank else {"a": 2, "b": 1})
    return {}


def threads(comm: Communicator, _: int) -> dict:
    """Exchanges from changing threads, beside one that computes; never two at once."""
    stop = threading.Event()
    sums = []

    def compute() -> None:
        while not stop.is_set():
            sums.append(int(np.arange(10_000).sum()))

    worker = threading.Thread(target=compute, daemon=True)
    worker.start()
    with ThreadPoolExecutor(4) as pool:
        for number in range(50):
            send = partial(comm.exchange, "thread", [number.to_bytes(2, "big")] * comm.size)
            got = pool.submit(send).result()
            assert [int.from_bytes(bytes(part), "big") for part in got] == [number] * comm.size
        if comm.size > 1:
            _two_at_once(comm, pool)
    stop.set()
    worker.join()
    assert sums
    assert set(sums) == {49_995_000}
    return {}


def _two_at_once(comm: Communicator, pool: ThreadPoolExecutor) -> None:
    """While a thread waits in an exchange, another gets an error, and does no harm."""
    if comm.rank == 0:
        waiting = pool.submit(comm.barrier)
        while not comm._lock.locked():
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="another thread is in exchange 'barrier'"):
            comm.exchange("thread", [b""] * comm.size)
        waiting.result()
    else:
        time.sleep(0.3)
        comm.barrier()


CASES: dict[str, Callable[[Communicator, int], dict]] = {
    case.__name__: case for case in (random_sizes, large, many, buffers, values, threads)
}


def main() -> None:
    world, case = sys.argv[1:3]
    chunk_bytes = int(sys.argv[3]) if len(sys.argv) > 3 else 1 << 30
    if world == "lone":
        comm: Communicator = LoneCommunicator()
    else:
        comm = MPICommunicator(timeout=20, chunk_bytes=chunk_bytes)
    results = comm.gather(CASES[case](comm, chunk_bytes))
    assert ("mpi4py" in sys.modules) == (world == "mpi")
    assert "tensorflow" not in sys.modules
    if comm.rank == 0:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
