"""Logits that nobody has to materialise.

`DSlideDense` and `DSlideLinear` return ordinary dense logits and leave a `LazyLogits` on the
tensor. A loss or a metric that finds it computes what it needs from the layer's input and weights.
The dense logits are then an unused pure node, and TensorFlow leaves it out of the graph.
"""

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveLogits, ActiveSet, Csr, Features, SparseKernel
from tf_dslide.selectors import Selection, Selector

_ATTRIBUTE = "_dslide"

# The largest k that metrics asked for: one search serves them all.
_usual_k = 1


class SampledWeights:
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
        """Logits of the active set only, without the sampler's adjustment, and the set.

        Without labels, the neurons that are likely to score high.
        """
        if self.selector is None:
            raise RuntimeError("there is nothing to sample: every neuron is active")
        selection = self.selector.select(x, labels, self.kernel, self.bias, self.step)
        # A part of a layer may have no neurons.
        view = ops.csc_from_csr(selection.active, max(1, self.units))
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


class LazyLogits(ABC):
    """What is needed to compute with a layer's logits without having them.

    Args:
        leading: The leading axes of the layer's input and output, a vector of integers.
        outputs: The layer's output, `(..., units)`, in the order of the logits.
        training: Whether only the active neurons take part. Otherwise all do.
    """

    def __init__(self, leading: tf.Tensor, outputs: tf.Tensor, training: bool) -> None:
        self.leading = leading
        self._outputs = outputs
        self._training = training
        # The active sets of the training step with their logits, once the loss was computed.
        self._sampled: tuple[ActiveLogits, ActiveSet] | None = None
        self._top: tf.Tensor | None = None
        self._losses: tuple[Any, bool, tf.Tensor] | None = None

    @property
    @abstractmethod
    def units(self) -> int:
        """Number of classes."""

    @abstractmethod
    def _loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        """Each row's loss."""

    @abstractmethod
    def _best_of_all(self, k: int) -> tf.Tensor:
        """The `k` best of all units."""

    def loss(self, labels: Csr, asked_with: Any, binary: bool = False) -> tf.Tensor:
        """Cross-entropy of each row, `(rows,) float32`.

        Over the active set in training, over all units otherwise.

        Args:
            labels: The rows' labels.
            asked_with: The object that the labels came in. Asked again with the same one, as a
                metric does after the loss, the answer is the same, although the weights may have
                moved.
            binary: The sum of each neuron's logistic loss; otherwise that of the softmax, in which
                a row without labels has 0.
        """
        known = self._losses
        if known is None or known[0] is not asked_with or known[1] != binary:
            self._losses = known = (asked_with, binary, self._loss(labels, binary))
        return known[2]

    def top_k(self, k: int) -> tf.Tensor:
        """The `k` best classes of each row, `(rows, k) int32`, `k <= units`.

        In training after the loss, the best of the active set (which holds the labels), -1 where it
        is smaller than `k`. Otherwise the best of all units.
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


class DenseLogits(LazyLogits):
    """Lazy logits of a `DSlideDense`.

    Args:
        weights: The layer's weights.
        x: The layer's input as a matrix, `(rows, d) float32`.
        leading: As in `LazyLogits`, as are the others.
    """

    def __init__(
        self,
        weights: SampledWeights,
        x: tf.Tensor,
        leading: tf.Tensor,
        outputs: tf.Tensor,
        training: bool,
    ) -> None:
        super().__init__(leading, outputs, training)
        self._weights = weights
        self._x = x

    @property
    def units(self) -> int:
        """Number of classes."""
        return self._weights.units

    def _loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        weights = self._weights
        if not self._training:
            return self._full_loss(labels, binary)
        # The counter moves first, so that every step has its own random choices.
        weights.step.assign_add(1)
        if weights.selector is not None:
            return self._sampled_loss(labels, binary)
        if not tf.executing_eagerly():
            # The optimizer changes the weights before a metric is asked, so the search has its
            # place in the graph now; it runs only if a metric uses it.
            self._search(_usual_k)
        return self._full_loss(labels, binary)

    def _full_loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        if not binary:
            return self._full_crossentropy(labels)
        if self._training:
            return dense_binary_crossentropy(labels, tf.reshape(self._outputs, [-1, self.units]))
        return _binary_by_blocks(self._x, labels, self._weights)

    def _full_crossentropy(self, labels: Csr) -> tf.Tensor:
        return ops.full_crossentropy(self._x, labels, self._weights.kernel, self._weights.bias)

    def _sampled_loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        logits, selection = self._weights.sampled_logits(self._x, labels)
        active = selection.active
        self._sampled = (ActiveLogits(*map(tf.stop_gradient, logits)), active)
        own_adjustment, shared_adjustment = selection.logit_adjustment
        if binary:
            return ops.binary_crossentropy(
                logits, active, labels, own_adjustment, shared_adjustment
            )
        if own_adjustment is not None:
            logits = logits._replace(own=logits.own + own_adjustment)
        return ops.softmax_crossentropy(logits, active, labels, shared_adjustment)

    def _best_of_all(self, k: int) -> tf.Tensor:
        return self._weights.exact_top_k(self._x, k)[0]


class SparseLinearLogits(LazyLogits):
    """Lazy logits of a `DSlideLinear`.

    Args:
        connections: The layer's connections.
        x: The layer's input.
        active: How many neurons beside its labels are active in a row, at most.
        leading: As in `LazyLogits`, as are the others.
    """

    def __init__(
        self,
        connections: SparseKernel,
        x: Features,
        active: int,
        leading: tf.Tensor,
        outputs: tf.Tensor,
        training: bool,
    ) -> None:
        super().__init__(leading, outputs, training)
        self._connections = connections
        self._x = x
        self._active = active

    @property
    def units(self) -> int:
        """Number of classes."""
        return self._connections.units

    def _loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        if not self._training:
            return ops.sparse_linear_losses(self._x, self._connections, labels)[int(binary)]
        own, logits = ops.sparse_linear_select(self._x, self._connections, labels, self._active)
        given = ActiveLogits(logits, tf.zeros([tf.size(own.row_splits) - 1, 0]))
        active = ActiveSet(own, ops.no_neurons())
        self._sampled = (ActiveLogits(*map(tf.stop_gradient, given)), active)
        if binary:
            return ops.binary_crossentropy(given, active, labels)
        return ops.softmax_crossentropy(given, active, labels)

    def _best_of_all(self, k: int) -> tf.Tensor:
        return ops.sparse_linear_top_k(self._x, self._connections, k)[0]


def dense_binary_crossentropy(labels: Csr, logits: tf.Tensor) -> tf.Tensor:
    """The sum of the logistic losses of each row of dense logits `(rows, units)`."""
    logits = tf.cast(logits, tf.float32)
    return tf.reduce_sum(tf.nn.softplus(logits), axis=1) - sums_of_labels(labels, logits)


def sums_of_labels(labels: Csr, logits: tf.Tensor) -> tf.Tensor:
    """The sum of the logits of each row's labels, `(rows,)`, from dense logits `(rows, units)`."""
    ragged = tf.RaggedTensor.from_row_splits(labels.ids, labels.row_splits, validate=False)
    rows = ragged.value_rowids()
    picked = tf.gather_nd(logits, tf.stack([rows, tf.cast(labels.ids, tf.int64)], axis=1))
    return tf.math.unsorted_segment_sum(picked, rows, tf.size(labels.row_splits) - 1)


# So many logits exist at once when all are looked at: 64 MB.
_BLOCK = 1 << 24


def _binary_by_blocks(x: tf.Tensor, labels: Csr, weights: SampledWeights) -> tf.Tensor:
    """The binary loss over all units, some rows at a time. It has no gradient."""
    rows, height = tf.shape(x)[0], max(1, _BLOCK // weights.units)
    bias = 0.0 if weights.bias is None else tf.convert_to_tensor(weights.bias)
    kernel = tf.convert_to_tensor(weights.kernel)

    def block(first: tf.Tensor, done: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        last = tf.minimum(first + height, rows)
        splits = labels.row_splits[first : last + 1]
        mine = Csr(splits - splits[0], labels.ids[splits[0] : splits[-1]])
        logits = tf.matmul(x[first:last], kernel, transpose_b=True) + bias
        losses = dense_binary_crossentropy(mine, logits)
        return last, done.write(done.size(), losses)

    losses = tf.TensorArray(tf.float32, 0, dynamic_size=True, infer_shape=False)
    loop = tf.while_loop(lambda first, _: first < rows, block, [0, losses], parallel_iterations=1)
    return tf.stop_gradient(tf.ensure_shape(loop[1].concat(), [None]))


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
