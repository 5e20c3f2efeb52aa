"""Every name of Keras and TensorFlow that is not public and that this package relies on.

Seen in Keras 3.15.1 and TensorFlow 2.21.0; `tests/test_compat.py` looks at each. Methods that a
class of ours overrides although Keras does not publish them: `Optimizer._backend_update_step`,
`_apply_weight_decay`, `_clip_gradients`, `_use_weight_decay`, `_get_variable_index`; and
`Variable._value`, the variable behind a cast copy.
"""

from typing import Any

from keras.src import losses as _losses
from keras.src import metrics as _metrics
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import reduce_weighted_values
from tensorflow.python.eager import record as _record

__all__ = [
    "get_keras_mask",
    "gradient_is_recorded",
    "reduce_weighted_values",
    "register_loss",
    "register_metric",
]


def gradient_is_recorded() -> bool:
    """Whether some `tf.GradientTape` is open here, so that a gradient may be asked for."""
    return bool(_record.could_possibly_record())


def register_loss(name: str, loss: Any) -> None:
    """Lets `compile(loss=name)` find a class of losses: Keras looks at its own table alone."""
    _losses.ALL_OBJECTS_DICT[name] = loss


def register_metric(name: str, metric: Any) -> None:
    """Lets `compile(metrics=[name])` find a class of metrics."""
    _metrics.ALL_OBJECTS_DICT[name] = metric
