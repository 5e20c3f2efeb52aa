"""Sampled softmax with a row-sparse Adam in TensorFlow's own ops, in one process."""

from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.training import Session, StepMethod, rate_of, stream_of

if TYPE_CHECKING:
    import tensorflow as tf


class TensorFlowSampled(StepMethod):
    """Uniform negatives that the batch shares, and its labels."""

    own_part = False

    def __init__(self, session: Session) -> None:
        import tensorflow as tf

        self.peer = self._make(session)
        self._stream = stream_of(session, self.own_part)
        self._step = tf.function(self.peer.step)

    def _make(self, session: Session) -> Any:
        from benchmarks.peers import RowAdamPeer

        return RowAdamPeer(*peer_arguments(session))

    def step(self) -> float:
        """One step."""
        return float(self._step(*next(self._stream)))

    def best(self, features: "tf.SparseTensor", k: int) -> np.ndarray:
        """Exact, over all neurons."""
        from baselines.dense_softmax import best_of
        from benchmarks.peers import Output

        output = Output(self.peer.kernel.weight, self.peer.bias.weight)
        return best_of(output.logits, self.peer.hidden(features), k)


def peer_arguments(session: Session) -> tuple[Any, ...]:
    """Of `RowAdamPeer`: shape, softmax, rate, seed, and how negatives are drawn, and the prior."""
    from baselines.dense_softmax import log_prior
    from benchmarks import peers

    task, train = session.task, session.train
    shape = peers.Shape(train.num_features, task.hidden, train.num_labels, task.active)
    softmax = peers.softmax_of_all_candidates
    prior = log_prior(train.label_counts)
    return shape, softmax, rate_of(session), task.seed, alike(task.seed), prior


def alike(seed: int) -> Any:
    """Draws negatives from a counter, so that all processes that start alike draw alike."""
    import tensorflow as tf

    step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def draw(count: int, units: int) -> tf.Tensor:
        key = tf.stack([tf.constant(seed, tf.int64), step.assign_add(1)])
        # A few more than needed, because some are drawn twice.
        drawn = tf.random.stateless_uniform([2 * count + 64], key, 0, units, tf.int32)
        return tf.unique(drawn).y[:count]

    return draw
