"""Names of Keras 3.15 and TensorFlow 2.21 that are not public: each is there and does its work.

When one fails after an update, `tf_dslide/_compat.py` is the one place to mend.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_dslide import DSlideDense, SparseAdam, _compat

VERSIONS = f"with TensorFlow {tf.__version__} and Keras {keras.__version__}"


def test_a_tape_is_seen():
    assert not _compat.gradient_is_recorded(), VERSIONS
    with tf.GradientTape():
        assert _compat.gradient_is_recorded(), VERSIONS

        @tf.function
        def within():
            return tf.constant(_compat.gradient_is_recorded())

    @tf.function
    def around():
        with tf.GradientTape():
            return tf.constant(_compat.gradient_is_recorded())

    assert bool(around()), VERSIONS
    assert not _compat.gradient_is_recorded(), VERSIONS


def test_the_mask_of_a_tensor_is_found():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0]]))
    mask = _compat.get_keras_mask(embedded)
    assert np.asarray(mask).tolist() == [[True, False]], VERSIONS


def test_losses_are_reduced_as_keras_does():
    losses = tf.constant([1.0, 3.0])
    total = _compat.reduce_weighted_values(losses, sample_weight=[1.0, 0.0], reduction="sum")
    assert float(total) == 1.0, VERSIONS


@pytest.mark.parametrize(
    ("register", "get"),
    [
        (_compat.register_loss, keras.losses.get),
        (_compat.register_metric, keras.metrics.get),
    ],
)
def test_names_are_registered(register, get):
    class Mine:
        def __call__(self):
            return 0

    register("a_name_of_ours", Mine)
    assert isinstance(get("a_name_of_ours"), Mine), VERSIONS


def test_an_access_is_noted_and_its_gradient_found():
    variable = tf.Variable([2.0, 3.0])
    with tf.GradientTape() as tape:
        _compat.note_access(variable)
        assert tape.watched_variables() == (variable,), VERSIONS


def test_the_shape_behind_a_resource_is_known():
    variable = tf.Variable(tf.zeros((3, 2)))
    assert _compat.shape_behind(variable.handle) == (3, 2), VERSIONS
    seen = []

    @tf.function
    def in_graph():
        seen.append(_compat.shape_behind(variable.handle))

    in_graph()
    assert seen == [(3, 2)], VERSIONS


def test_the_variable_behind_a_cast_copy():
    layer = DSlideDense(4, dtype="mixed_bfloat16")
    layer.build((None, 3))
    with tf.init_scope():
        assert _compat.stored(layer.kernel).dtype == tf.float32, VERSIONS
    plain = tf.Variable(1.0)
    assert _compat.stored(plain) is plain


@pytest.mark.parametrize(
    "name",
    [
        *("_backend_update_step", "_apply_weight_decay", "_clip_gradients"),
        *("_use_weight_decay", "_get_variable_index"),
    ],
)
def test_keras_has_the_methods_that_the_optimizers_rely_on(name):
    assert callable(getattr(keras.optimizers.Optimizer, name)), VERSIONS
    assert callable(getattr(SparseAdam, name))


def test_an_op_that_reads_is_registered():
    """Else the logits that nobody uses would stay in a graph (see test_keras_memory.py)."""
    _compat.register_reading_op("DslideActiveLogits")
