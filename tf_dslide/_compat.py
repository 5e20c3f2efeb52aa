"""Every name of Keras and TensorFlow that is not public and that this package relies on.

Each says what it is for and the version it was seen in; `tests/test_compat.py` tries each. Methods
that classes of ours override although Keras 3.15 does not publish them: `Optimizer`'s
`_backend_update_step`, `_apply_weight_decay`, `_clip_gradients`, `_use_weight_decay` and
`_get_variable_index`.
"""

from typing import Any

import keras
import tensorflow as tf
from keras.src import losses as _losses
from keras.src import metrics as _metrics
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import reduce_weighted_values
from tensorflow.python.eager import record, tape
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import handle_data_util

__all__ = [
    "get_keras_mask",
    "gradient_is_recorded",
    "note_access",
    "reduce_weighted_values",
    "register_loss",
    "register_metric",
    "register_reading_op",
    "shape_behind",
    "stored",
]


def gradient_is_recorded() -> bool:
    """Whether a `tf.GradientTape` is open here, so gradients may follow (TensorFlow 2.21)."""
    return bool(record.could_possibly_record())


def register_loss(name: str, loss: Any) -> None:
    """Lets `compile(loss=name)` find a class: Keras looks at its own table alone (Keras 3.15)."""
    _losses.ALL_OBJECTS_DICT[name] = loss


def register_metric(name: str, metric: Any) -> None:
    """Lets `compile(metrics=[name])` find a class of metrics (Keras 3.15)."""
    _metrics.ALL_OBJECTS_DICT[name] = metric


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
