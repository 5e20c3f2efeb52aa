"""The dense softmax in data parallel: Horovod averages the gradients of all weights."""

from typing import TYPE_CHECKING

from baselines.horovod_common import Meter, broadcast, start
from baselines.tensorflow_dense import TensorFlowDense
from baselines.training import Exchanged, Session

if TYPE_CHECKING:
    import tensorflow as tf

    from baselines.dense_softmax import Gradients


class HorovodDense(TensorFlowDense):
    """Each rank trains the whole network on its part of each batch."""

    own_part = True

    def __init__(self, session: Session) -> None:
        import tensorflow as tf

        start(session.ranks)
        super().__init__(session)
        self._meter = Meter(session.ranks.size)
        self._waited = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._bytes = sum(4 * weight.shape.num_elements() for weight in self.network.weights)
        broadcast(self.network.weights)

    def step(self) -> float:
        """One step."""
        loss = super().step()
        self._meter.add(float(self._waited), self._bytes, 0, len(self.network.weights))
        return loss

    def exchanged(self) -> Exchanged:
        """Time measured in the graph; bytes of a ring."""
        return self._meter.exchanged()

    def _joined(self, found: "Gradients") -> "Gradients":
        import horovod.tensorflow as hvd

        def average(gradients: list["tf.Tensor"]) -> list["tf.Tensor"]:
            return hvd.grouped_allreduce(gradients, op=hvd.Average)

        means, seconds = self._meter.timed(found.weights, average)
        self._waited.assign(seconds)
        return found._replace(weights=means)
