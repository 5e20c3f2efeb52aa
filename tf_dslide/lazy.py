"""Logits that nobody has to materialise.

`DSlideDense` returns ordinary dense logits and leaves a `LazyLogits` on the tensor. A loss or a
metric that finds it computes what it needs from the layer's input and weights. The dense logits are
then an unused pure node, and TensorFlow leaves it out of the graph.
"""

from typing import Any

import tensorflow as tf

from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveLogits, ActiveSet, Csr
from tf_dslide.samplers import Selection, Selector

_ATTRIBUTE = "_dslide"

# The largest k that metrics asked for: one search serves them all.
_usual_k = 1


class Weights:
    """A layer's kernel and bias with the sampler at work on them.

    Attributes:
        kernel: Variable `(units, d) float32`.
        bias: Variable `(units,) float32` or `None`.
        selector: Chooses active sets, or `None` if every neuron is active.
        step: Variable `() int64`: training steps so far.
    """

    def __init__(
        self, kernel: Any, bias: Any, selector: Selector | None, step: tf.Variable
    ) -> None:
        self.kernel = kernel
        self.bias = bias
        self.selector = selector
        self.step = step
        self._likely_top_k: Any = None

    @property
    def units(self) -> int:
        """Number of neurons."""
        return int(self.kernel.shape[0])

    def sampled_logits(self, x: tf.Tensor, labels: Csr | None) -> tuple[ActiveLogits, Selection]:
        """Logits of the active set only, without the sampler's offsets, and the set.

        Without labels, the neurons that are likely to score high.
        """
        if self.selector is None:
            raise RuntimeError("there is nothing to sample: every neuron is active")
        selection = self.selector.select(x, labels, self.kernel, self.bias, self.step)
        # A part of a layer may have no neurons.
        view = ops.transpose(selection.active, max(1, self.units))
        return ops.active_logits(x, view, self.kernel, self.bias), selection

    def exact_top_k(self, x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The best `k` of all neurons."""
        return ops.top_k(x, self.kernel, self.bias, k)

    def likely_top_k(self, x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """The best `k` of the neurons that are likely to score high."""
        if self._likely_top_k is None:
            # Its many small ops take longer to be called from Python than to run.
            self._likely_top_k = tf.function(self._best_sampled, reduce_retracing=True)
        return self._likely_top_k(x, k)

    def _best_sampled(self, x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        logits, selection = self.sampled_logits(x, None)
        return ops.active_top_k(logits, selection.active, k)


class LazyLogits:
    """What is needed to compute with a layer's logits without having them.

    Args:
        weights: The layer's weights.
        x: The layer's input as a matrix, `(rows, d) float32`.
        leading: The leading axes of the layer's input and output, a vector of integers.
        outputs: The layer's output, `(..., units)`, in the order of the logits.
        training: Whether the sampler chooses the neurons that take part. Otherwise all do.
    """

    def __init__(
        self,
        weights: Weights,
        x: tf.Tensor,
        leading: tf.Tensor,
        outputs: tf.Tensor,
        training: bool,
    ) -> None:
        self._weights = weights
        self._x = x
        self.leading = leading
        self._outputs = outputs
        self._training = training
        self._sampled: tuple[ActiveLogits, ActiveSet] | None = None
        self._top: tf.Tensor | None = None
        self._losses: tuple[Any, tf.Tensor] | None = None

    @property
    def units(self) -> int:
        """Number of classes."""
        return self._weights.units

    def crossentropy(self, labels: Csr, asked_with: Any) -> tf.Tensor:
        """Softmax cross-entropy of each row, `(rows,) float32`.

        Over the active set in training, over all units otherwise. A row without labels has 0.

        Args:
            labels: The rows' labels.
            asked_with: The object that the labels came in. Asked again with the same one, as a
                metric does after the loss, the answer is the same, although the weights may have
                moved.
        """
        if self._losses is None or self._losses[0] is not asked_with:
            self._losses = (asked_with, self._crossentropy(labels))
        return self._losses[1]

    def _crossentropy(self, labels: Csr) -> tf.Tensor:
        weights = self._weights
        if not self._training:
            return self._full_crossentropy(labels)
        # The counter moves first, so that every step has its own random choices.
        weights.step.assign_add(1)
        if weights.selector is not None:
            return self._sampled_crossentropy(labels)
        if not tf.executing_eagerly():
            # The optimizer changes the weights before a metric is asked, so the search has its
            # place in the graph now; it runs only if a metric uses it.
            self._search(_usual_k)
        return self._full_crossentropy(labels)

    def _full_crossentropy(self, labels: Csr) -> tf.Tensor:
        return ops.full_crossentropy(self._x, labels, self._weights.kernel, self._weights.bias)

    def _sampled_crossentropy(self, labels: Csr) -> tf.Tensor:
        logits, selection = self._weights.sampled_logits(self._x, labels)
        active = selection.active
        self._sampled = (ActiveLogits(*map(tf.stop_gradient, logits)), active)
        own_offsets, shared_offsets = selection.offsets
        if own_offsets is not None:
            logits = logits._replace(own=logits.own + own_offsets)
        return ops.softmax_crossentropy(logits, active, labels, shared_offsets)

    def top_k(self, k: int) -> tf.Tensor:
        """The `k` best classes of each row, `(rows, k) int32`, `k <= units`.

        In training after `crossentropy`, the best of the active set (which holds the labels), -1
        where it is smaller than `k`. Otherwise the best of all units.
        """
        if self._sampled is not None:
            return self._best_sampled(k)
        if self._training and (self._top is None or self._top.shape[1] < k):
            # By now the optimizer may have changed the weights. The dense outputs are those from
            # before, and they exist: called eagerly, or some other loss has used them.
            return tf.math.top_k(tf.reshape(self._outputs, [-1, self.units]), k).indices
        if self._top is None or self._top.shape[1] < k:
            self._search(max(k, _usual_k))
        assert self._top is not None
        return self._top[:, :k]

    def _search(self, k: int) -> None:
        self._top = self._best_of_all(min(k, self.units))

    def _best_sampled(self, k: int) -> tf.Tensor:
        assert self._sampled is not None
        return ops.active_top_k(*self._sampled, k=k)[0]

    def _best_of_all(self, k: int) -> tf.Tensor:
        return self._weights.exact_top_k(self._x, k)[0]


def expect_k(k: int) -> None:
    """Says that a metric will ask for the `k` best, so that one search serves all metrics."""
    global _usual_k
    _usual_k = max(_usual_k, k)


def attach(logits: tf.Tensor, lazy: LazyLogits) -> tf.Tensor:
    """Leaves `lazy` on the tensor, where `find` finds it."""
    setattr(logits, _ATTRIBUTE, lazy)
    return logits


def leading_axes(y_pred: tf.Tensor) -> tf.Tensor:
    """All axes but the last of a tensor that may be lazy, as a vector of integers.

    To ask a lazy tensor itself for its shape would bring all its logits back.
    """
    logits = find(y_pred)
    return tf.shape(y_pred)[:-1] if logits is None else logits.leading


def find(y_pred: Any) -> LazyLogits | None:
    """The `LazyLogits` on a tensor, if there is one."""
    return getattr(y_pred, _ATTRIBUTE, None)
