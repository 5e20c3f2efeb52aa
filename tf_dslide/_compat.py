"""The names of other packages that are not part of their public interface, all in one place.

Each function says what it is for, and in which version its name was seen; `tests/test_compat.py`
tries each.
"""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import tape
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import handle_data_util


def note_access(variable: Any) -> None:
    """Tells the gradient tapes that an op reads a variable by its resource (TensorFlow 2.21)."""
    tape.variable_accessed(variable)


def shape_behind(resource: tf.Tensor) -> tuple[int, ...] | None:
    """The shape of the variable behind a resource, if it is known in full (TensorFlow 2.21)."""
    if tf.is_symbolic_tensor(resource):
        data = handle_data_util.get_resource_handle_data(resource)
    else:
        data = resource._handle_data
    if data is None or not data.is_set or not data.shape_and_type:
        return None
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    return tuple(shape) if shape.is_fully_defined() else None


def register_reading_op(name: str) -> None:
    """Lets ops that read variables run side by side, and be pruned (TensorFlow 2.21)."""
    auto_control_deps_utils.register_read_only_resource_op(name)


def stored(variable: Any) -> Any:
    """The TensorFlow variable in a Keras variable, and any other as it is (Keras 3.15).

    Its public `value` is a cast copy inside a layer with mixed precision.
    """
    return variable._value if isinstance(variable, keras.Variable) else variable
