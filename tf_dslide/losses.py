"""Cross-entropies over active sets: of the softmax, and one-vs-rest."""

from abc import abstractmethod
from typing import Any

import keras
import tensorflow as tf

from tf_dslide import labels as label_forms
from tf_dslide import lazy
from tf_dslide._compat import get_keras_mask, reduce_weighted_values, register_loss


class _ActiveLoss(keras.losses.Loss):
    """What the losses share: labels of all forms, lazy and dense logits, reduction."""

    _binary = False

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """The reduced loss. Labels keep their integers: Keras would cast them to floats."""
        mask = get_keras_mask(y_pred)
        with tf.name_scope(self.name):
            losses = self.call(y_true, y_pred)
        return reduce_weighted_values(
            losses,
            sample_weight=sample_weight,
            mask=mask,
            reduction=self.reduction,
            dtype=self.dtype,
        )

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """The loss of each row, with the leading axes of `y_pred`."""
        logits = lazy.find(y_pred)
        if logits is None:
            y_pred = tf.convert_to_tensor(y_pred)
        positions, units = len(y_pred.shape) - 1, y_pred.shape[-1]
        labels = label_forms.to_csr(y_true, units, positions)
        leading = lazy.leading_axes(y_pred)
        labels = label_forms.expect_rows(labels, y_pred.shape, leading)
        if logits is not None:
            losses = logits.loss(labels, y_true, self._binary)
        else:
            losses = self._of_dense(labels, tf.reshape(y_pred, [-1, units]))
        return tf.reshape(losses, leading)

    @staticmethod
    @abstractmethod
    def _of_dense(labels: label_forms.Csr, logits: tf.Tensor) -> tf.Tensor:
        """The loss of each row of logits that all exist."""


@keras.saving.register_keras_serializable(package="tf_dslide")
class SlideCrossentropy(_ActiveLoss):
    """Softmax cross-entropy against the uniform distribution over a row's distinct labels.

    On the output of a `DSlideDense` in training, the softmax runs over the row's active set: its
    labels and the neurons that the layer's sampler picked. In `evaluate` it runs over all units,
    exactly, block by block. On any other logits it is the ordinary softmax cross-entropy.

    A row without labels has loss 0 and no gradient, and counts as a row of the batch.

    Args:
        reduction: As in Keras; by default the mean over the batch.
        name: Name of the loss.
        dtype: As in Keras.

    Call it on `y_true` and `y_pred`, the logits `(batch, ..., units)`. `y_true` may be integer ids
    `(batch,)` or `(batch, 1)`; integer ids `(batch, k)` padded with -1; a `tf.RaggedTensor` of ids;
    a sparse multi-hot matrix (`tf.SparseTensor`, or SciPy CSR through `fit`); a dense float or bool
    multi-hot matrix. `sample_weight` counts as in Keras.

    Raises:
        ValueError: The labels have none of these forms.
        tf.errors.InvalidArgumentError: A label is outside `[0, units)` (names row and label), or
        the
            layer's input is not finite.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import SlideCrossentropy
    >>> loss = SlideCrossentropy()
    >>> round(float(loss(np.array([2, 0]), np.zeros((2, 4), "float32"))), 4)
    1.3863
    """

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "slide_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    @staticmethod
    def _of_dense(labels: label_forms.Csr, logits: tf.Tensor) -> tf.Tensor:
        return lazy.dense_crossentropy(labels, logits)


@keras.saving.register_keras_serializable(package="tf_dslide")
class SlideBinaryCrossentropy(_ActiveLoss):
    """Each neuron's own yes or no: the sum over neurons of the binary cross-entropy.

    One classifier for each class against all others, which suits samples with several labels: they
    do not compete. On the output of a `DSlideDense` or `DSlideLinear` in training the sum runs over
    the row's active set: its labels and the neurons that the layer picked. One that was drawn by
    chance counts for all that it stands for (with the LSH samplers, and with `UniformSampler` and
    `LogUniformSampler` if `subtract_log_q=True`). In `evaluate` it runs over all units. On other
    logits it is the ordinary sum.

    A row without labels has all its active neurons as negatives.

    Args:
        reduction: As in Keras; by default the mean over the batch.
        name: Name of the loss.
        dtype: As in Keras.

    Call it on `y_true` and `y_pred` in the forms that `SlideCrossentropy` takes.

    Raises:
        ValueError: The labels have none of these forms, or the layer is split over ranks.
        tf.errors.InvalidArgumentError: A label is outside `[0, units)` (names row and label), or
        the
            layer's input is not finite.

    Memory: in training with `AllNeurons` the dense logits; otherwise never `(batch, units)`.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import SlideBinaryCrossentropy
    >>> loss = SlideBinaryCrossentropy()
    >>> round(float(loss(np.array([2, 0]), np.zeros((2, 4), "float32"))), 4)
    2.7726
    """

    _binary = True

    def __init__(
        self,
        reduction: str | None = "sum_over_batch_size",
        name: str = "slide_binary_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)

    @staticmethod
    def _of_dense(labels: label_forms.Csr, logits: tf.Tensor) -> tf.Tensor:
        return lazy.dense_binary_crossentropy(labels, logits)


register_loss("slide_crossentropy", SlideCrossentropy)
register_loss("slide_binary_crossentropy", SlideBinaryCrossentropy)
