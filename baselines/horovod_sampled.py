"""Sampled softmax in data parallel: Horovod gathers the gradients of the rows that were used."""

from typing import TYPE_CHECKING, Any

from baselines.horovod_common import Meter, broadcast, start
from baselines.tensorflow_dense import stream_of
from baselines.tensorflow_sampled import TensorFlowSampled, peer_arguments
from baselines.training import Exchanged, Session

if TYPE_CHECKING:
    import tensorflow as tf


class HorovodSampled(TensorFlowSampled):
    """Each rank trains on its part of each batch; all draw the same negatives."""

    def __init__(self, session: Session) -> None:
        start(session.ranks)
        self._meter = Meter(session.ranks.size)
        super().__init__(session)
        peer = self.peer
        tables = (peer.input_kernel, peer.kernel, peer.bias)
        broadcast([*(table.weight for table in tables), *peer.input_bias])

    def _make(self, session: Session) -> Any:
        return _gathering_peer(self._meter, peer_arguments(session))

    def _batches(self, session: Session) -> "tf.data.Iterator":
        return stream_of(session, own_part=True)

    def step(self) -> float:
        """One step."""
        loss = super().step()
        seconds, gathered, reduced, operations = self.peer.count.numpy()
        self._meter.add(float(seconds), int(reduced), int(gathered), int(operations))
        return loss

    def exchanged(self) -> Exchanged:
        """Time measured in the graph; bytes of a ring."""
        return self._meter.exchanged()


def _gathering_peer(meter: Meter, arguments: tuple[Any, ...]) -> Any:
    """A `RowAdamPeer` whose gradients are the means of all ranks'."""
    import tensorflow as tf

    from benchmarks import peers

    class GatheringPeer(peers.RowAdamPeer):
        """`count` holds a step's seconds, bytes gathered, bytes reduced, and operations."""

        def __init__(self) -> None:
            super().__init__(*arguments)
            self.count = tf.Variable(tf.zeros([4], tf.float64), trainable=False)

        def step(self, features: tf.SparseTensor, labels: tf.RaggedTensor) -> tf.Tensor:
            self.count.assign(tf.zeros([4], tf.float64))
            return super().step(features, labels)

        def _train(self, table: peers.Table, rows: peers.Rows, rates: peers.AdamRates) -> None:
            with tf.control_dependencies([rows.ids, rows.gradient]):
                before = tf.timestamp()
            with tf.control_dependencies([before]):
                parts = [tf.identity(rows.ids), tf.identity(rows.gradient)]
            ids, gradients = meter.gathered(parts)
            with tf.control_dependencies([ids, gradients]):
                after = tf.timestamp()
            sent = sum(tf.size(part, tf.int64) * 4 for part in parts)
            self._count(after - before, gathered=sent, operations=2)
            ids, places = tf.unique(ids)
            sums = tf.math.unsorted_segment_sum(gradients, places, tf.size(ids))
            table.train(ids, table.rows(ids), sums / meter.size, rates)

        def _whole(self, gradient: tf.Tensor) -> tf.Tensor:
            (mean,), (before, after) = meter.averaged([gradient])
            self._count(after - before, reduced=tf.size(gradient, tf.int64) * 4, operations=1)
            return mean

        def _count(
            self, seconds: tf.Tensor, gathered: Any = 0, reduced: Any = 0, operations: int = 0
        ) -> None:
            numbers = [seconds, gathered, reduced, operations]
            self.count.assign_add(tf.stack([tf.cast(n, tf.float64) for n in numbers]))

    return GatheringPeer()
