"""The private names of other packages do what `_compat.py` says, in the versions that it names."""

import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_dslide import SparseAdam, _compat

SEEN = {"TensorFlow": tf.__version__, "Keras": keras.__version__}


@pytest.mark.parametrize(
    "function",
    [
        function
        for _, function in inspect.getmembers(_compat, inspect.isfunction)
        if function.__module__ == _compat.__name__
    ],
)
def test_versions_are_those_in_use(function):
    found = re.findall(r"\((TensorFlow|Keras) (\d+\.\d+)\)", function.__doc__)
    assert found, f"{function.__name__} names no version"
    for package, version in found:
        assert SEEN[package].startswith(f"{version}."), "look whether it still holds, then say so"


def test_note_access():
    variable = tf.Variable(2.0)
    for noted in (True, False):
        with tf.GradientTape() as tape:
            if noted:
                _compat.note_access(variable)
        assert [v is variable for v in tape.watched_variables()] == [True] * noted


@pytest.mark.parametrize("shape", [(), (3,), (3, 4)])
def test_shape_behind(shape):
    variable = tf.Variable(tf.ones(shape))
    assert _compat.shape_behind(variable.handle) == shape
    seen = []
    tf.function(lambda: seen.append(_compat.shape_behind(variable.handle))).get_concrete_function()
    assert seen == [shape]


def test_shape_behind_what_is_not_known():
    variable = tf.Variable(tf.ones([3, 4]), shape=[None, 4])
    assert _compat.shape_behind(variable.handle) is None


def test_register_reading_op():
    from tf_dslide._native import loader

    variable, columns = tf.Variable(tf.ones([3, 4])), {"columns": 3}
    coef, splits, ids = tf.ones([2]), tf.constant([0, 2], tf.int64), tf.constant([0, 2])

    @tf.function
    def graph():
        for _ in range(2):
            loader.load().dslide_csr_mat_mul(coef, splits, ids, variable.handle, **columns)

    nodes = [n for n in graph.get_concrete_function().graph.as_graph_def().node if "Csr" in n.op]
    assert len(nodes) == 2
    for node in nodes:  # else the second would wait for the first
        assert not [name for name in node.input if name.startswith("^")]


def test_stored():
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 3))
    with keras.src.backend.common.variables.AutocastScope("bfloat16"):
        assert layer.kernel.value.dtype == tf.bfloat16
        assert _compat.stored(layer.kernel).dtype == tf.float32
    plain = tf.Variable(1.0)
    assert _compat.stored(plain) is plain
    np.testing.assert_array_equal(_compat.stored(np.ones(2)), np.ones(2))


def test_a_tape_is_seen():
    assert not _compat.gradient_is_recorded()
    with tf.GradientTape():
        assert _compat.gradient_is_recorded()

        @tf.function
        def within():
            return tf.constant(_compat.gradient_is_recorded())

    @tf.function
    def around():
        with tf.GradientTape():
            return tf.constant(_compat.gradient_is_recorded())

    assert bool(around())
    assert not _compat.gradient_is_recorded()


def test_the_mask_of_a_tensor_is_found():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(np.array([[1, 0]]))
    mask = _compat.get_keras_mask(embedded)
    assert np.asarray(mask).tolist() == [[True, False]]


def test_losses_are_reduced_as_keras_does():
    losses = tf.constant([1.0, 3.0])
    total = _compat.reduce_weighted_values(losses, sample_weight=[1.0, 0.0], reduction="sum")
    assert float(total) == 1.0


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
    assert isinstance(get("a_name_of_ours"), Mine)


@pytest.mark.parametrize(
    "name",
    [
        *("_backend_update_step", "_apply_weight_decay", "_clip_gradients"),
        *("_use_weight_decay", "_get_variable_index"),
    ],
)
def test_keras_has_the_methods_that_the_optimizers_rely_on(name):
    assert callable(getattr(keras.optimizers.Optimizer, name))
    assert callable(getattr(SparseAdam, name))
