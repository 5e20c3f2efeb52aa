"""Sampled softmax in data parallel: Horovod gathers the gradients of the rows that were used."""

from typing import Any

from baselines.horovod_common import Meter, broadcast, start
from baselines.tensorflow_sampled import TensorFlowSampled, peer_arguments
from baselines.training import Exchanged, Session

# Ids and gradients of three tables, and one bias.
_OPERATIONS = 7


class HorovodSampled(TensorFlowSampled):
    """Each rank trains on its part of each batch; all draw the same negatives."""

    own_part = True

    def __init__(self, session: Session) -> None:
        start(session.ranks)
        self._meter = Meter(session.ranks.size)
        super().__init__(session)
        peer = self.peer
        tables = (peer.input_kernel, peer.kernel, peer.bias)
        broadcast([*(table.weight for table in tables), *peer.input_bias])

    def _make(self, session: Session) -> Any:
        return _gathering_peer(self._meter, peer_arguments(session))

    def step(self) -> float:
        """One step."""
        loss = super().step()
        seconds, gathered, reduced = self.peer.count.numpy()
        self._meter.add(float(seconds), int(reduced), int(gathered), _OPERATIONS)
        return loss

    def exchanged(self) -> Exchanged:
        """Time measured in the graph; bytes of a ring."""
        return self._meter.exchanged()


def _gathering_peer(meter: Meter, arguments: tuple[Any, ...]) -> Any:
    """A `RowAdamPeer` whose gradients are the means of all ranks'."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from benchmarks import peers

    class GatheringPeer(peers.RowAdamPeer):
        """`count` holds a step's seconds, and the bytes that it gathered and reduced."""

        def __init__(self) -> None:
            super().__init__(*arguments)
            self.count = tf.Variable(tf.zeros([3], tf.float64), trainable=False)

        def _joined(
            self, updates: list[tuple[peers.Table, peers.Rows]], dense: tf.Tensor
        ) -> tuple[list[tuple[peers.Table, peers.Rows]], tf.Tensor]:
            def communicate(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
                mean = hvd.allreduce(tensors[-1], op=hvd.Average)
                return [*map(hvd.allgather, tensors[:-1]), mean]

            sent = [part for _, rows in updates for part in (rows.ids, rows.gradient)]
            (*found, mean), seconds = meter.timed([*sent, dense], communicate)
            gathered = 4 * sum(tf.size(part) for part in sent)
            self.count.assign(
                tf.stack([tf.cast(n, tf.float64) for n in (seconds, gathered, 4 * tf.size(dense))])
            )
            pairs = zip(found[::2], found[1::2], strict=True)
            tables = [table for table, _ in updates]
            return [
                (table, self._summed(table, *pair))
                for table, pair in zip(tables, pairs, strict=True)
            ], mean

        @staticmethod
        def _summed(table: peers.Table, ids: tf.Tensor, gradients: tf.Tensor) -> peers.Rows:
            ids, places = tf.unique(ids)
            sums = tf.math.unsorted_segment_sum(gradients, places, tf.size(ids))
            return peers.Rows(ids, table.rows(ids), sums / meter.size)

    return GatheringPeer()
