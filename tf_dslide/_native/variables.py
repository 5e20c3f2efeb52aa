"""Variables as the ops want them: by their resources."""

from typing import Any

import tensorflow as tf

from tf_dslide import _compat


def handle(variable: Any) -> tf.Tensor:
    """The resource behind a Keras or TensorFlow variable, noted by the gradient tapes."""
    variable = _compat.stored(variable)
    _compat.note_access(variable)
    return variable.handle


def value_of(variable: Any) -> tf.Tensor:
    """The value of a Keras or TensorFlow variable as it is kept, whatever the compute dtype."""
    return tf.convert_to_tensor(_compat.stored(variable))


def bias_handles(bias: Any) -> list[tf.Tensor]:
    """A list of one or none, which is how ops take a bias."""
    return [] if bias is None else [handle(bias)]


def shape_of(resource: tf.Tensor) -> tf.Tensor:
    """The shape of the variable behind a resource; a constant where it is known."""
    shape = _compat.shape_behind(resource)
    return tf.raw_ops.VariableShape(input=resource) if shape is None else tf.constant(shape)
