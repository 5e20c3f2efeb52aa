"""Constraints that cost no more than the rows that a step moves."""

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="tf_dslide")
class UnitRows(keras.constraints.Constraint):
    """Keeps each row of a kernel at length 1, as `keras.constraints.UnitNorm(axis=1)` does.

    `SparseAdam` and `SparseAdagrad` bring a row back to length 1 in the sweep that updates it, at
    no cost. With any other optimizer Keras applies the constraint to all rows at each step. A row
    of zeros stays. As `kernel_constraint` of a `DSlideDense` whose input has length 1 too it makes
    logits scaled cosines, which keep frequent classes from growing at the cost of rare ones.

    Example:
    >>> from tf_dslide import UnitRows
    >>> UnitRows()([[3.0, 4.0], [0.0, 0.0]]).numpy().tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """

    def __call__(self, w: Any) -> tf.Tensor:
        """All rows `(rows, d)` of length 1."""
        w = tf.convert_to_tensor(w)
        return tf.math.divide_no_nan(w, tf.norm(w, axis=1, keepdims=True))
