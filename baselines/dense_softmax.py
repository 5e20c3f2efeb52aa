"""A network with one hidden layer and a dense softmax in TensorFlow's ops, as fast as they allow.

The gradients are written out: automatic differentiation would keep another `(batch, units)` array
or two. Adam is TensorFlow's own fused kernel, several times as fast as an Adam of single ops.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks import peers
from tf_dslide import LabelPrior


class Gradients(NamedTuple):
    """Mean loss, and its gradients by the weights, in their order."""

    loss: tf.Tensor
    weights: list[tf.Tensor]


class DenseNetwork:
    """Sparse features, `hidden` ReLUs, `units` classes.

    Args:
        features: Width of the input.
        hidden: Width of the hidden layer.
        units: Number of classes.
        seed: Of the first weights.
        prior: First bias of the output, `(units,)`.
    """

    def __init__(
        self, features: int, hidden: int, units: int, seed: int, prior: tf.Tensor | None = None
    ) -> None:
        self.weights = [
            tf.Variable(peers.glorot(features, hidden, seed)),
            tf.Variable(tf.zeros([hidden])),
            tf.Variable(peers.glorot(hidden, units, seed + 1)),
            tf.Variable(tf.zeros([units]) if prior is None else prior),
        ]
        self.moments = [[tf.Variable(tf.zeros_like(w)) for _ in range(2)] for w in self.weights]

    def hidden(self, features: tf.SparseTensor) -> tf.Tensor:
        """`(batch, hidden)`."""
        kernel, bias = self.weights[:2]
        return tf.nn.relu(tf.nn.bias_add(tf.sparse.sparse_dense_matmul(features, kernel), bias))

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """`(batch, units)`."""
        kernel, bias = self.weights[2:]
        return tf.nn.bias_add(tf.matmul(hidden, kernel), bias)

    def gradients(self, features: tf.SparseTensor, labels: tf.RaggedTensor) -> Gradients:
        """Cross-entropy to the uniform distribution over each row's labels.

        A row without labels has loss 0 and counts as a row.
        """
        hidden = self.hidden(features)
        counts = tf.cast(labels.row_lengths(), tf.float32)
        entries = tf.stack([labels.value_rowids(), tf.cast(labels.values, tf.int64)], axis=1)
        logits = self.logits(hidden)
        log_sums = tf.reduce_logsumexp(logits, axis=1)
        picked = tf.gather_nd(logits, entries)
        picked = tf.math.unsorted_segment_sum(picked, entries[:, 0], tf.size(counts))
        share = tf.cast(counts > 0, tf.float32) / tf.cast(tf.size(counts), tf.float32)
        loss = tf.reduce_sum(share * (log_sums - tf.math.divide_no_nan(picked, counts)))

        by_logit = tf.exp(logits - log_sums[:, None]) * share[:, None]
        wanted = tf.gather(tf.math.divide_no_nan(share, counts), entries[:, 0])
        by_logit = tf.tensor_scatter_nd_sub(by_logit, entries, wanted)
        by_sum = tf.matmul(by_logit, self.weights[2], transpose_b=True)
        by_sum = tf.where(hidden > 0, by_sum, 0.0)
        return Gradients(
            loss,
            [
                tf.sparse.sparse_dense_matmul(features, by_sum, adjoint_a=True),
                tf.reduce_sum(by_sum, axis=0),
                tf.matmul(hidden, by_logit, transpose_a=True),
                tf.reduce_sum(by_logit, axis=0),
            ],
        )

    def apply(self, gradients: list[tf.Tensor], rates: peers.AdamRates) -> None:
        """One step of Adam."""
        for weight, moments, gradient in zip(self.weights, self.moments, gradients, strict=True):
            peers.apply_adam([weight, *moments], gradient, rates)


def log_prior(counts: np.ndarray) -> tf.Tensor:
    """A first bias from the labels' counts: that of our own layers."""
    return LabelPrior(counts)(counts.shape, "float32")


def best_of(
    logits: Callable[[tf.Tensor], tf.Tensor], hidden: tf.Tensor, k: int, rows: int = 32
) -> np.ndarray:
    """The `k` best classes of each row, a few rows at a time: all logits would fill the memory."""
    parts = [
        tf.math.top_k(logits(hidden[begin : begin + rows]), k).indices.numpy()
        for begin in range(0, hidden.shape[0], rows)
    ]
    return np.concatenate(parts)
