"""Logits that nobody has to materialise.

`DSlideDense` and `DSlideLinear` return ordinary dense logits and leave a `LazyLogits` on the
tensor. A loss or a metric that finds it computes what it needs from the layer's input and weights.
The dense logits are then an unused pure node, and TensorFlow leaves it out of the graph.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import tensorflow as tf

from tf_dslide import labels as label_forms
from tf_dslide._checks import require_positive
from tf_dslide._compat import gradient_is_recorded
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveLogits, ActiveSet, Csr, Features, SparseKernel
from tf_dslide.selectors import Selection, Selector

_ATTRIBUTE = "_dslide"

# One search serves all metrics of a usual `k`; a larger one has a search of its own.
_USUAL_K = 16


class SampledWeights:
    """A layer's kernel and bias with the selector of its active sets.

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

    def advance(self) -> None:
        """Begins a training step, so that each has random choices of its own."""
        self.step.assign_add(1)

    def sampled_logits(
        self, x: tf.Tensor, labels: Csr | None, labels_per_row: tf.Tensor | None = None
    ) -> tuple[ActiveLogits, Selection]:
        """Logits of the active set only, without the sampler's adjustment, and the set.

        Without labels, the neurons that are likely to score high. Arguments of `Selector.select`.
        """
        if self.selector is None:
            raise RuntimeError("there is nothing to sample: every neuron is active")
        selection = self.selector.select(
            x, labels, self.kernel, self.bias, self.step, labels_per_row
        )
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
        outputs: The layer's logits, `(..., units)`; `None` where there is only a search.
        training: Whether only the active neurons take part. Otherwise all do.
    """

    #: Which losses over all units have gradients: the softmax's, the binary one.
    _differentiable = (True, True)

    def __init__(self, leading: tf.Tensor, outputs: tf.Tensor | None, training: bool) -> None:
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
    def _search(self, k: int, exact: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and logits of the `k` best of all units, `(rows, k)` each."""

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
            self._losses = known = (asked_with, binary, self._new_loss(labels, binary))
        return known[2]

    def _new_loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        exact = not self._training and gradient_is_recorded()
        if exact and not self._differentiable[int(binary)]:
            # A gradient outside training, as by the input: the dense logits have one.
            loss = dense_binary_crossentropy if binary else dense_crossentropy
            return loss(labels, self._dense())
        return self._loss(labels, binary)

    def _dense(self) -> tf.Tensor:
        return tf.reshape(self._outputs, [-1, self.units])

    def top_k(self, k: int) -> tf.Tensor:
        """The `k` best classes of each row, `(rows, k) int32`, `k <= units`.

        In training after the loss, the best of the active set (which holds the labels), -1 where it
        is smaller than `k`. Otherwise the best of all units.
        """
        if self._sampled is not None:
            return self._best_sampled(k)
        if self._top is None or self._top.shape[1] < k:
            if self._training:
                # By now the optimizer may have changed the weights. The dense outputs are those
                # from before, and they exist: called eagerly, or some other loss has used them.
                return tf.math.top_k(self._dense(), k).indices
            self._search_for_metrics(k)
        assert self._top is not None
        return self._top[:, :k]

    def _search_for_metrics(self, k: int) -> None:
        self._top = self._search(min(max(k, _USUAL_K), self.units), exact=True)[0]

    def _best_sampled(self, k: int) -> tf.Tensor:
        assert self._sampled is not None
        return ops.active_top_k(*self._sampled, k=k)[0]

    def best(self, k: int, exclude: Any, exact: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits and labels of the `k` best classes, `(..., k)` each, without excluded ones.

        Args:
            k: How many.
            exclude: `None`; ids `(n,)` that no row is given; or for each row its own, in a form
                that labels have.
            exact: Whether to look at all units.

        Raises:
            ValueError: `k` is not in `1..units`, or the ids have no known number in a graph.
        """
        if require_positive("k", k) > self.units:
            raise ValueError(f"`k` is {k} but the layer has only {self.units} units")
        if exclude is None:
            ids, scores = self._search(k, exact)
        else:
            ids, scores = self._best_without(k, exclude, exact)
        shape = tf.concat([self.leading, [k]], axis=0)
        return tf.reshape(scores, shape), tf.reshape(ids, shape)

    def _best_without(self, k: int, exclude: Any, exact: bool) -> tuple[tf.Tensor, tf.Tensor]:
        excluded, most = label_forms.to_excluded(exclude, self.units, self.leading)
        # So many more that k are left whatever is excluded.
        ids, scores = self._search(min(k + most, self.units), exact)
        bad = label_forms.contains(excluded, ids) | (ids < 0)
        order = tf.argsort(tf.cast(bad, tf.int8), axis=1, stable=True)[:, :k]
        ids, scores, bad = (tf.gather(t, order, batch_dims=1) for t in (ids, scores, bad))
        return tf.where(bad, -1, ids), tf.where(bad, -float("inf"), scores)


class Searching(Protocol):
    """What `DenseLogits` needs of a layer's sharding."""

    def top_k(
        self, weights: SampledWeights, x: tf.Tensor, k: int, exact: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Ids and logits of the best `k` of all units for each row of `x`."""
        ...


class DenseLogits(LazyLogits):
    """Lazy logits of a `DSlideDense`.

    Args:
        sharding: Where the layer's units are.
        weights: The layer's weights.
        x: The layer's input as a matrix, `(rows, d) float32`.
        leading: As in `LazyLogits`, as are the others.
    """

    _differentiable = (True, False)

    def __init__(
        self,
        sharding: Searching,
        weights: SampledWeights,
        x: tf.Tensor,
        leading: tf.Tensor,
        outputs: tf.Tensor | None,
        training: bool,
    ) -> None:
        super().__init__(leading, outputs, training)
        self._sharding = sharding
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
        weights.advance()
        if weights.selector is not None:
            return self._sampled_loss(labels, binary)
        if not tf.executing_eagerly():
            # The optimizer changes the weights before a metric is asked, so the search has its
            # place in the graph now; it runs only if a metric uses it.
            self._search_for_metrics(1)
        return self._full_loss(labels, binary)

    def _full_loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        if not binary:
            return self._full_crossentropy(labels)
        if self._training:
            return dense_binary_crossentropy(labels, self._dense())
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

    def _search(self, k: int, exact: bool) -> tuple[tf.Tensor, tf.Tensor]:
        if not exact and self._weights.selector is None:
            raise ValueError(
                "`exact=False` needs a sampler that picks neurons; this layer has AllNeurons"
            )
        return self._sharding.top_k(self._weights, self._x, k, exact)


class SparseLinearLogits(LazyLogits):
    """Lazy logits of a `DSlideLinear`.

    Args:
        kernel: The layer's weights.
        x: The layer's input.
        active: How many neurons beside its labels are active in a row, at most.
        leading: As in `LazyLogits`, as are the others.
    """

    _differentiable = (False, False)

    def __init__(
        self,
        kernel: SparseKernel,
        x: Features,
        active: int,
        leading: tf.Tensor,
        outputs: tf.Tensor | None,
        training: bool,
    ) -> None:
        super().__init__(leading, outputs, training)
        self._kernel = kernel
        self._x = x
        self._active = active

    @property
    def units(self) -> int:
        """Number of classes."""
        return self._kernel.units

    def _loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        if not self._training:
            return ops.sparse_linear_losses(self._x, self._kernel, labels)[int(binary)]
        own, logits = ops.sparse_linear_select(self._x, self._kernel, labels, self._active)
        given = ActiveLogits(logits, tf.zeros([tf.size(own.row_splits) - 1, 0]))
        active = ActiveSet(own, ops.no_neurons())
        self._sampled = (ActiveLogits(*map(tf.stop_gradient, given)), active)
        if binary:
            return ops.binary_crossentropy(given, active, labels)
        return ops.softmax_crossentropy(given, active, labels)

    def _search(self, k: int, exact: bool) -> tuple[tf.Tensor, tf.Tensor]:
        if not exact:
            raise ValueError("a DSlideLinear is always searched exactly; leave `exact=False` out")
        return ops.sparse_linear_top_k(self._x, self._kernel, k)


def dense_crossentropy(labels: Csr, logits: tf.Tensor) -> tf.Tensor:
    """The softmax cross-entropy of each row of dense logits `(rows, units)`; 0 without labels."""
    logits = tf.cast(logits, tf.float32)
    lengths = labels.row_lengths()
    sums = _sums_of_labels(labels, logits)
    count = tf.cast(lengths, tf.float32)
    losses = tf.reduce_logsumexp(logits, axis=1) - tf.math.divide_no_nan(sums, count)
    return tf.where(lengths > 0, losses, tf.zeros_like(losses))


def dense_binary_crossentropy(labels: Csr, logits: tf.Tensor) -> tf.Tensor:
    """The sum of the logistic losses of each row of dense logits `(rows, units)`."""
    logits = tf.cast(logits, tf.float32)
    return tf.reduce_sum(tf.nn.softplus(logits), axis=1) - _sums_of_labels(labels, logits)


def _sums_of_labels(labels: Csr, logits: tf.Tensor) -> tf.Tensor:
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
