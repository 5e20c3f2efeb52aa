"""What is said, once, where an option or a stock part of Keras brings dense cost."""

import warnings
from typing import Any

import tensorflow as tf

# From so many units on, dense cost is worth a word.
_LARGE = 10_000


class DenseCostWarning(UserWarning):
    """A step costs as much as with `keras.layers.Dense`, or nearly; the message says why.

    Where it is meant, silence it by its class.

    Example:
    >>> import warnings
    >>> from tf_dslide import DenseCostWarning
    >>> warnings.filterwarnings("ignore", category=DenseCostWarning)
    """


def warn_of_dense_cost(message: str) -> None:
    """Warns in one place's name."""
    warnings.warn(message, DenseCostWarning, stacklevel=3)


class DenseLogitsNotice:
    """Warns once when the dense logits of a layer are computed in training.

    Args:
        name: The layer's name.
        units: Its units; layers with few are not worth a word.
    """

    def __init__(self, name: str, units: int) -> None:
        self._name = name
        self._units = units
        self._silent = units < _LARGE

    def attach(self, logits: tf.Tensor) -> tf.Tensor:
        """The same logits, which tell when a graph computes them.

        What tells has no state, and is pruned when they are. It gives them their shape: a mere
        control dependency TensorFlow would drop.
        """
        if self._silent or tf.executing_eagerly():
            return logits

        def tell(_: Any, shape: Any) -> Any:
            self._tell()
            return shape

        # One value of the logits, so that it waits for them.
        inputs = [tf.reshape(logits, [-1])[:1], tf.shape(logits)]
        shape = tf.numpy_function(tell, inputs, tf.int32, stateful=False)
        told = tf.reshape(logits, shape)
        # Not `ensure_shape`: TensorFlow would see that nothing is reshaped, and leave it out.
        told.set_shape(logits.shape)
        return told

    def _tell(self) -> None:
        if self._silent:
            return
        self._silent = True
        warn_of_dense_cost(
            f"training computes all {self._units:,} logits of each row of {self._name}, at the "
            "cost of Dense: a loss, metric or regularizer that is not of tf_dslide reads them, or "
            "a layer behind it. Write loss='slide_crossentropy' (or 'slide_binary_crossentropy') "
            "and metrics=['precision_at_1'] in `compile`, and let this layer be the last. Where it "
            "is meant, ignore tf_dslide.DenseCostWarning or use sampler='all'."
        )

    def eager(self, outputs: tf.Tensor) -> None:
        """Warns once that a call outside `tf.function` has computed large outputs."""
        if self._silent or not tf.executing_eagerly():
            return
        if outputs.shape.num_elements() < 1 << 22:
            return
        self._silent = True
        warn_of_dense_cost(
            f"{self._name} was called eagerly and computed all {outputs.shape} dense logits. "
            "Inside tf.function (so in fit and evaluate without run_eagerly) they are left out if "
            "nobody uses them."
        )
