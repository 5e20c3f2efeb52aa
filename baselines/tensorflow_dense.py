"""TensorFlow's dense softmax in one process."""

from typing import TYPE_CHECKING

import numpy as np

from baselines.training import Session, StepMethod, rate_of, stream_of

if TYPE_CHECKING:
    import tensorflow as tf

    from baselines.dense_softmax import Gradients


class TensorFlowDense(StepMethod):
    """A dense softmax with all neurons, trained by Adam."""

    own_part = False

    def __init__(self, session: Session) -> None:
        import tensorflow as tf

        from baselines.dense_softmax import DenseNetwork, log_prior
        from benchmarks.peers import AdamSchedule

        task, train = session.task, session.train
        self.network = DenseNetwork(
            train.num_features,
            task.hidden,
            train.num_labels,
            task.seed,
            log_prior(train.label_counts),
        )
        self._rates = AdamSchedule(rate_of(session))
        self._stream = stream_of(session, self.own_part)
        self._step = tf.function(self._train_on)

    def step(self) -> float:
        """One step."""
        return float(self._step(*next(self._stream)))

    def best(self, features: "tf.SparseTensor", k: int) -> np.ndarray:
        """Exact."""
        from baselines.dense_softmax import best_of

        return best_of(self.network.logits, self.network.hidden(features), k)

    def _train_on(self, features: "tf.SparseTensor", labels: "tf.RaggedTensor") -> "tf.Tensor":
        found = self._joined(self.network.gradients(features, labels))
        self.network.apply(found.weights, self._rates.next())
        return found.loss

    def _joined(self, found: "Gradients") -> "Gradients":
        """The gradients of all processes together; there is but one here."""
        return found
