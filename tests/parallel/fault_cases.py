"""What befalls ranks that go on together no longer, on any communicator; imports no TensorFlow.

In each case rank 1 is not like the others, and all ranks raise a `RankError`.
"""

import time
from collections.abc import Callable

from tf_dslide.parallel.communicator import Communicator

_NEXT = "do the same in the same order"


def other_kind(comm: Communicator) -> None:
    comm.barrier()
    comm.alltoallv("softmax" if comm.rank == 1 else "hidden", [b""] * comm.size)


def other_order(comm: Communicator) -> None:
    kinds = ["hidden", "softmax"]
    for kind in reversed(kinds) if comm.rank == 1 else kinds:
        comm.alltoallv(kind, [bytes(5_000_000)] * comm.size)


def one_more(comm: Communicator) -> None:
    for _ in range(3 + (comm.rank == 1)):
        comm.alltoallv("hidden", [b""] * comm.size)
    comm.agree("the seed", 1)


def disagreed(comm: Communicator) -> None:
    comm.agree("the batch size", 32)
    comm.agree("the batch size", 64 if comm.rank == 1 else 32)


def disagreed_by_key(comm: Communicator) -> None:
    settings = {"seed": 1, "versions": {"numpy": "2.4"}, "files": ["a", "b"]}
    if comm.rank == 1:
        settings |= {"versions": {"numpy": "1.26"}, "extra": True}
    comm.agree("the settings", settings)


def all_differ(comm: Communicator) -> None:
    comm.agree("the seed", comm.rank)


def stuck(comm: Communicator) -> None:
    comm.barrier()  # before that a rank may have started later than others
    comm.timeout = 0.5
    if comm.rank == 1:
        time.sleep(1.5)
    comm.alltoallv("hidden", [b""] * comm.size)
    # The others had given up when rank 1 came.
    comm.barrier()


# Cases, and what rank 0 of three says.
TOLD: dict[Callable[[Communicator], None], tuple[str, ...]] = {
    other_kind: ("rank 0 is at ", "'hidden' but rank 1 at ", _NEXT),
    other_order: ("rank 0 is at ", "'hidden' but rank 1 at ", _NEXT),
    one_more: ("rank 0 is at ", "'agree' but rank 1 at ", "'hidden'"),
    disagreed: (
        "the batch size must be the same on all ranks; ",
        "received 32 (ranks 0, 2), 64 (rank 1)",
    ),
    disagreed_by_key: (
        'received versions.numpy: "2.4" (ranks 0, 2), "1.26" (rank 1); ',
        "extra: nothing (ranks 0, 2), true (rank 1)",
    ),
    all_differ: ("the seed must be ", "0 (rank 0), 1 (rank 1), 2 (rank 2)"),
    stuck: ("rank 0 has waited 0.5 s at ", "'hidden' for rank 1; "),
}
