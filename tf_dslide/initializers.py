"""Starting values that know the labels."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide._packing import pack_counts, unpack_counts


@keras.saving.register_keras_serializable(package="tf_dslide")
class LabelPrior(keras.initializers.Initializer):
    """A bias that starts from the labels' frequencies, so that training need not learn them.

    The bias of label `l` is `log(count_l + smoothing)`, shifted so that the largest is 0: the
    softmax of the biases is the labels' smoothed distribution. With many classes and few steps this
    is worth several points of precision, above all where a step sees a part of the classes.

    Args:
        label_counts: Training samples of each label, `(units,)`.
        smoothing: Added to each count; positive.

    Raises:
        ValueError: A count is negative, `smoothing` is not positive, or there are not as many
            counts as units when the layer is built.

    Memory: 8 bytes a label. A saved model holds the counts, compressed.

    Example:

    >>> from tf_dslide import DSlideDense, LabelPrior
    >>> layer = DSlideDense(3, bias_initializer=LabelPrior([9, 0, 4]))
    >>> layer.build((None, 8))
    >>> [round(float(value), 2) for value in layer.bias.numpy()]
    [0.0, -2.3, -0.69]
    """

    def __init__(self, label_counts: Any, smoothing: float = 1.0) -> None:
        self.label_counts = unpack_counts(label_counts)
        self.smoothing = float(smoothing)
        if self.label_counts.ndim != 1 or (self.label_counts < 0).any():
            raise ValueError(
                "`label_counts` must be a vector of numbers from 0 on; received shape "
                f"{self.label_counts.shape}"
            )
        if not self.smoothing > 0:
            raise ValueError(f"`smoothing` must be positive; received {smoothing!r}")

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        """The biases, `(units,)`."""
        if tuple(shape) != self.label_counts.shape:
            raise ValueError(
                f"`label_counts` holds {self.label_counts.size} labels but the variable has shape "
                f"{tuple(shape)}"
            )
        logs = np.log(self.label_counts + self.smoothing)
        return tf.constant(logs - logs.max(initial=-np.inf), keras.backend.standardize_dtype(dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this initializer again."""
        return {"label_counts": pack_counts(self.label_counts), "smoothing": self.smoothing}
