"""A view is a variant: what TensorFlow does with those that are inputs of functions and loops."""

import numpy as np
import pytest
import tensorflow as tf

from tf_dslide._native import ops

ROWS, UNITS, D = 2, 6, 3
ACTIVE = ops.ActiveSet(
    ops.Csr(tf.constant([0, 2, 3], tf.int64), tf.constant([1, 4, 2])), tf.constant([0, 2])
)


@pytest.fixture
def variables(rng):
    x, kernel, bias = (
        rng.normal(size=(ROWS, D)),
        rng.normal(size=(UNITS, D)),
        rng.normal(size=UNITS),
    )
    return [tf.Variable(v, dtype=tf.float32) for v in (x, kernel, bias)]


def loss(variables, view):
    x, kernel, bias = variables
    logits = ops.active_logits(x.read_value(), view, kernel, bias)
    return tf.reduce_sum(logits.own**2) + tf.reduce_sum(logits.shared**2)


def whole(variables):
    return loss(variables, ops.csc_from_csr(ACTIVE, UNITS))


def in_branch(variables, view):
    return tf.cond(tf.size(view.neurons) > 0, lambda: loss(variables, view), lambda: tf.zeros([]))


def in_loop(variables, view):
    total = tf.zeros([])
    for _ in tf.range(3):
        total += loss(variables, view) / 3
    return total


def recomputed(variables):
    return tf.recompute_grad(lambda: whole(variables))()


@pytest.mark.parametrize("given", [in_branch, in_loop, loss])
@pytest.mark.parametrize("captured", [True, False])
def test_views_given_to_functions(variables, given, captured):
    view = ops.csc_from_csr(ACTIVE, UNITS)
    if captured:
        function = tf.function(lambda: given(variables, view))
        assert_same_gradients(variables, function)
    else:
        function = tf.function(lambda v: given(variables, v))
        assert_same_gradients(variables, lambda: function(view))


@pytest.mark.parametrize("made", [whole, recomputed])
def test_views_made_in_functions(variables, made):
    assert_same_gradients(variables, tf.function(lambda: made(variables)))


def test_views_of_constants(variables):
    # TensorFlow computes these once and keeps them in the graph.
    def make():
        ids = tf.constant([1, 4, 2]) + 0
        return ops.csc_from_csr(
            ops.ActiveSet(ops.Csr(ACTIVE.own.row_splits + 0, ids), ACTIVE.shared), UNITS
        )

    assert_same_gradients(variables, tf.function(lambda: loss(variables, make())))


def assert_same_gradients(variables, function):
    def gradients(call):
        with tf.GradientTape() as tape:
            result = call()
        return [result, *map(tf.convert_to_tensor, tape.gradient(result, variables))]

    for expected, outside in zip(
        gradients(lambda: whole(variables)), gradients(function), strict=True
    ):
        np.testing.assert_allclose(outside, expected, rtol=1e-5, atol=1e-6)


def test_saved_functions_make_views(variables, tmp_path):
    module = tf.Module()
    module.variables_used = variables
    module.loss = tf.function(lambda: whole(variables), input_signature=[])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(loaded.loss(), whole(variables))
