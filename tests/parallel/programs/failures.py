"""Cases of `test_faults.py`: `failures.py CASE`. In most, rank 1 is the one that fails."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import light  # noqa: F401
import numpy as np

from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.faults import install_fault_handlers
from tf_dslide.parallel.mpi import MPICommunicator

# Far longer than any test waits.
FOREVER = 100.0


def _exchange_forever(comm: Communicator) -> None:
    end = time.monotonic() + FOREVER
    while time.monotonic() < end:
        comm.alltoallv("hidden", [b"abc"] * comm.size)


def _compute_forever() -> None:
    numbers = np.random.default_rng(0).random(300_000)
    end = time.monotonic() + FOREVER
    while time.monotonic() < end:
        np.sort(numbers)


def killed_while_others_wait(comm: Communicator) -> None:
    if comm.rank == 1:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.alltoallv("hidden", [b""] * comm.size)


def killed_while_others_exchange(comm: Communicator) -> None:
    if comm.rank == 1:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    _exchange_forever(comm)


def killed_while_others_compute(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    _compute_forever()


def first_killed(comm: Communicator) -> None:
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def crashed(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    comm.barrier()


def left_without_a_word(comm: Communicator) -> None:
    if comm.rank == 1:
        os._exit(7)
    comm.barrier()


def raised_while_others_wait(comm: Communicator) -> None:
    if comm.rank == 1:
        raise ValueError("no such file: labels.txt")
    _exchange_forever(comm)


def raised_while_others_compute(comm: Communicator) -> None:
    if comm.rank == 1:
        raise ValueError("no such file: labels.txt")
    _compute_forever()


def raised_in_thread(comm: Communicator) -> None:
    if comm.rank == 1:

        def work() -> None:
            raise ValueError("no such file: labels.txt")

        threading.Thread(target=work).start()
    _exchange_forever(comm)


def all_raised(comm: Communicator) -> None:
    raise ValueError("no such file: labels.txt")


def ended_while_others_exchange(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        sys.exit(0)
    _exchange_forever(comm)


def ended_with_exchange_in_thread(comm: Communicator) -> None:
    if comm.rank == 1:
        thread = threading.Thread(target=comm.barrier, daemon=True)
        thread.start()
        time.sleep(0.2)
        sys.exit(0)
    _compute_forever()


def caught(comm: Communicator) -> None:
    """A program that goes on to its end after a failure must not hang there."""
    try:
        comm.agree("the seed", comm.rank)
    except RuntimeError:
        print("caught", flush=True)


def raised_within_exchange(comm: Communicator) -> None:
    """What interrupts an exchange ends it for good."""

    def interrupt(*_: object) -> None:
        raise ValueError("no such file: labels.txt")

    if comm.rank == 1:
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        comm.alltoallv("hidden", [b""] * comm.size)
    _compute_forever()


def interrupted(comm: Communicator) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGINT)
    _exchange_forever(comm)


def in_order(comm: Communicator) -> None:
    """Ranks that end at different times, the last message still on its way."""
    comm.alltoallv("hidden", [bytes(3_000_000)] * comm.size)
    time.sleep(0.4 * comm.rank)
    print("whole", flush=True)


def forever(comm: Communicator) -> None:
    """Until a signal comes from outside."""
    if comm.rank == 0:
        print("running", flush=True)
    _exchange_forever(comm)


CASES: dict[str, Callable[[Communicator], None]] = {
    name: case
    for name, case in list(globals().items())
    if not name.startswith("_") and getattr(case, "__annotations__", {}).get("comm") is Communicator
}


def main() -> None:
    case, handlers = sys.argv[1], "bare" not in sys.argv
    communicator = MPICommunicator(timeout=FOREVER)
    if handlers:
        install_fault_handlers(communicator)
    CASES[case](communicator)


if __name__ == "__main__":
    main()
