"""What the two Horovod methods share: start, sums over ranks, and the time and bytes of them.

Horovod's own Keras optimizer and callbacks do nothing under Keras 3, without a word: ranks drift
apart. So gradients are summed here, by Horovod's operations, and `tests/baselines` checks that
ranks agree with one process on the joined batch.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from baselines.ranks import Ranks
from baselines.training import Exchanged

if TYPE_CHECKING:
    import tensorflow as tf


def start(ranks: Ranks) -> None:
    """Starts Horovod with the ranks that MPI has.

    Raises:
        RuntimeError: Horovod sees other ranks.
    """
    import horovod.tensorflow as hvd

    hvd.init()
    if hvd.size() != ranks.size or hvd.rank() != ranks.rank:
        raise RuntimeError(
            f"Horovod is rank {hvd.rank()} of {hvd.size()}, MPI rank {ranks.rank} of {ranks.size}: "
            "they use different MPI libraries; rebuild Horovod in this environment"
        )


def broadcast(variables: Sequence["tf.Variable"]) -> None:
    """Gives all ranks the values of rank 0."""
    import horovod.tensorflow as hvd

    hvd.broadcast_variables(variables, root_rank=0)


class Meter:
    """Seconds that a step's sums take on a rank, and the bytes that their algorithms send.

    A ring sends `2 (n - 1) / n` times a tensor's bytes in an allreduce, `n - 1` times a rank's part
    in an allgather. Where the network's interface has counters, the record has those instead.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._bytes = self._messages = 0
        self._seconds = 0.0

    @staticmethod
    def timed(
        tensors: Sequence["tf.Tensor"], communicate: Callable[[list], list]
    ) -> tuple[list["tf.Tensor"], "tf.Tensor"]:
        """What `communicate` makes of the tensors, and its seconds, in a `tf.function`.

        It begins when all tensors are there, so no computing is in that time.
        """
        import tensorflow as tf

        with tf.control_dependencies(tensors):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            results = communicate([tf.identity(tensor) for tensor in tensors])
        with tf.control_dependencies(results):
            return results, tf.timestamp() - before

    def add(self, seconds: float, reduced: int, gathered: int, operations: int) -> None:
        """Notes a step: its seconds, the bytes of the tensors, the operations on them."""
        self._seconds += seconds
        self._bytes += 2 * (self.size - 1) * reduced // self.size + (self.size - 1) * gathered
        self._messages += operations

    def exchanged(self) -> Exchanged:
        """So far."""
        return Exchanged(self._bytes, self._messages, self._seconds, "computed")
