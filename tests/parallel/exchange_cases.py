"""What is exchanged in `test_communicator.py`, on any communicator; imports no TensorFlow."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.protocol import COPIED_BYTES, HEADER

SIZES = (0, 1, 7, 63, 64, 65, 128, 129, 1000)


def _message(number: int, source: int, target: int, sizes: tuple[int, ...]) -> np.ndarray:
    """What `source` sends to `target`; every rank can work out all of them."""
    rng = np.random.default_rng([number, source, target])
    return rng.integers(0, 256, rng.choice(sizes), dtype=np.uint8)


def _exchange_and_check(comm: Communicator, rounds: int, sizes: tuple[int, ...]) -> None:
    count = sent = received = 0
    for number in range(rounds):
        messages = [_message(number, comm.rank, peer, sizes) for peer in range(comm.size)]
        sent_sizes = [len(message) for message in messages]
        result = comm.alltoallv("random", messages)
        # What was sent may be changed at once, and what came is the receiver's own.
        for peer in set(range(comm.size)) - {comm.rank}:
            np.testing.assert_array_equal(messages[peer], _message(number, comm.rank, peer, sizes))
            messages[peer][:] = 0
        for peer, got in enumerate(result):
            np.testing.assert_array_equal(got, _message(number, peer, comm.rank, sizes))
            assert got.dtype == np.uint8
            if peer == comm.rank:
                assert np.shares_memory(got, messages[peer]) or not len(got)
                continue
            got[:] = 1
            count += 1 + (sent_sizes[peer] > COPIED_BYTES)
            sent += sent_sizes[peer] + HEADER.size
            received += len(got) + HEADER.size
    counts = comm.stats.total.pop("random")
    assert counts.exchanges == rounds
    assert (counts.messages_sent, counts.bytes_sent) == (count, sent)
    assert counts.bytes_received == received


def random_sizes(comm: Communicator) -> None:
    """Every message arrives as it was sent, and is counted to the byte."""
    _exchange_and_check(comm, 60, SIZES)


def large(comm: Communicator) -> None:
    """The same with megabytes, beyond what MPI sends without waiting for the receiver."""
    _exchange_and_check(comm, 5, (0, 200_000, 1 << 20, 4 << 20, (4 << 20) + 1, 5_000_000))


def many(comm: Communicator) -> None:
    """2,000 small exchanges."""
    for number in range(2_000):
        got = comm.alltoallv("small", [bytes([number % 251, comm.rank])] * comm.size)
        assert [bytes(message) for message in got] == [
            bytes([number % 251, peer]) for peer in range(comm.size)
        ]
        comm.stats.end_step()
    assert comm.stats.steps == 2_000
    counts = comm.stats.as_dict()["total"]["small"]
    assert counts.pop("seconds_waiting") >= 0
    each = 2_000 * (comm.size - 1)
    assert counts == {
        "exchanges": 2_000,
        "messages_sent": each,
        "bytes_sent": each * (2 + HEADER.size),
        "bytes_received": each * (2 + HEADER.size),
    }


def buffers(comm: Communicator) -> None:
    """Everything that has a buffer can be sent."""
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    for message in (matrix, matrix.tobytes(), bytearray(b"ab"), memoryview(b"abc"), matrix[:0]):
        for got in comm.alltoallv("buffer", [message] * comm.size):
            assert got.tobytes() == bytes(message)
            assert got.ctypes.data % 4 == 0
    for wrong in (matrix.T, matrix[:, 1:]):
        with pytest.raises(ValueError, match="C-contiguous"):
            comm.alltoallv("buffer", [wrong] * comm.size)
    comm.barrier()


def values(comm: Communicator) -> None:
    """`allgather` and `agree`."""
    got = comm.allgather({"rank": comm.rank, "array": np.arange(comm.rank), "pair": (1, None)})
    assert got == [
        {"rank": rank, "array": list(range(rank)), "pair": [1, None]} for rank in range(comm.size)
    ]
    for value in (1, 0.1, "ä", [1, [2]], {"b": 1, "a": np.float32(0.5)}, None, float("nan")):
        comm.agree("a value", value)
    comm.agree("order", {"b": 1, "a": 2} if comm.rank else {"a": 2, "b": 1})


def threads(comm: Communicator) -> None:
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
            send = partial(comm.alltoallv, "thread", [number.to_bytes(2, "big")] * comm.size)
            got = pool.submit(send).result()
            assert [int.from_bytes(bytes(part), "big") for part in got] == [number] * comm.size
        if comm.size > 1:
            _two_at_once(comm, pool)
    stop.set()
    worker.join()
    assert set(sums) == {49_995_000}


def _two_at_once(comm: Communicator, pool: ThreadPoolExecutor) -> None:
    """While a thread waits in an exchange, another gets an error, and does no harm."""
    if comm.rank == 0:
        waiting = pool.submit(comm.barrier)
        while not comm._lock.locked():
            time.sleep(0.001)
        with pytest.raises(RuntimeError, match="another thread is in exchange 'barrier'"):
            comm.alltoallv("thread", [b""] * comm.size)
        waiting.result()
    else:
        time.sleep(0.3)
        comm.barrier()


CASES: dict[str, Callable[[Communicator], None]] = {
    case.__name__: case for case in (random_sizes, large, many, buffers, values, threads)
}
