"""Passes over all units: exact best k, exact cross-entropy and its gradients."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import (
    SHAPES,
    WIDTHS,
    active_to_tf,
    assert_within,
    floats,
    random_csr,
    to_tf,
)
from tests.reference import ActiveSet, csr, sum_bound
from tf_dslide._native import ops

CASES = [(rows, units, 31) for rows, units in SHAPES] + [(130, 300, d) for d in WIDTHS]
case = pytest.mark.parametrize(("rows", "units", "d"), CASES)


def grid(rng, *shape):
    """Multiples of 1/8 in [-1, 1]: float32 adds up their products without any rounding."""
    return (rng.integers(-8, 9, size=shape) / 8).astype(np.float32)


# Top k.
@case
def test_top_k_equals_tensorflow(rng, rows, units, d):
    # Logits of few distinct values, exact in float32: ties are many, and order them by id.
    x, kernel, bias = grid(rng, rows, d), np.round(grid(rng, units, d)), grid(rng, units)
    for k in {1, min(5, units), min(200, units)}:
        for given in (None, bias):
            variable = None if given is None else tf.Variable(given)
            ids, scores = ops.top_k(tf.constant(x), tf.Variable(kernel), variable, k)
            logits = reference.dense_logits(x, kernel, given).astype(np.float32)
            expected = tf.math.top_k(logits, k)
            np.testing.assert_array_equal(scores, expected.values)
            np.testing.assert_array_equal(ids, expected.indices)


def test_top_k_of_any_numbers(rng):
    x, kernel, bias = floats(rng, 65, 128), floats(rng, 5000, 128), floats(rng, 5000)
    ids, scores = (a.numpy() for a in ops.top_k(x, tf.Variable(kernel), tf.Variable(bias), 50))
    logits = reference.dense_logits(x, kernel, bias)
    bound = sum_bound(reference.dense_logits(np.abs(x), np.abs(kernel), np.abs(bias)), 129)
    chosen = np.take_along_axis(logits, ids, 1)
    assert_within(scores, chosen, np.take_along_axis(bound, ids, 1))
    assert (np.diff(scores, axis=1) <= 0).all()
    for row in range(65):
        assert len(set(ids[row])) == 50
        # Nothing that was left out is better than the last one, beyond rounding.
        left = np.setdiff1d(np.arange(5000), ids[row])
        assert logits[row, left].max() <= chosen[row].min() + 2 * bound[row].max()


def test_top_k_gives_the_lowest_ids_of_a_constant_layer():
    kernel = tf.Variable(tf.zeros([5000, 7]))
    ids, scores = ops.top_k(tf.ones([3, 7]), kernel, None, 130)
    np.testing.assert_array_equal(ids, np.tile(np.arange(130), (3, 1)))
    np.testing.assert_array_equal(scores, np.zeros((3, 130)))


@pytest.mark.parametrize("units", [3, 70, 5000])
def test_top_k_of_masked_units(units):
    # A bias of -infinity is how one takes units out of a layer.
    bias = np.full(units, -np.inf, np.float32)
    bias[units - 1] = 0
    ids, scores = ops.top_k(tf.ones([2, 7]), tf.Variable(tf.ones([units, 7])), tf.Variable(bias), 3)
    expected = tf.math.top_k(tf.tile((7 + bias)[None], [2, 1]), 3)
    np.testing.assert_array_equal(scores, expected.values)
    np.testing.assert_array_equal(ids, expected.indices)


def test_top_k_of_extreme_logits():
    kernel = tf.Variable([[1e4], [-1e4], [3e38], [-3e38], [0.0]])
    ids, scores = ops.top_k(tf.constant([[1.0], [-1.0], [1e3]]), kernel, None, 3)
    np.testing.assert_array_equal(ids[:2], [[2, 0, 4], [3, 1, 4]])
    np.testing.assert_array_equal(ids[2], [2, 0, 4])
    assert np.isposinf(scores[2, 0])


# Cross-entropy.
def value_and_gradients(x, labels, kernel, bias, upstream):
    """Loss and gradients by x, kernel and bias as the op gives them."""
    x = tf.constant(x)
    variables = [tf.Variable(a) for a in (kernel, bias) if a is not None]
    with tf.GradientTape() as tape:
        tape.watch(x)
        bias_variable = variables[1] if bias is not None else None
        loss = ops.full_crossentropy(x, to_tf(labels), variables[0], bias_variable)
    gradients = tape.gradient(loss, [x, *variables], output_gradients=tf.constant(upstream))
    return loss.numpy(), [tf.convert_to_tensor(g).numpy() for g in gradients]


def dense_value_and_gradients(x, labels, kernel, bias, upstream):
    """The same by TensorFlow's dense softmax."""
    targets = np.zeros((len(x), len(kernel)), np.float32)
    for row in range(len(x)):
        wanted = labels.row(row)
        targets[row, wanted] = 1 / max(1, len(wanted))
    x = tf.constant(x)
    variables = [tf.Variable(a) for a in (kernel, bias) if a is not None]
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = tf.matmul(x, variables[0], transpose_b=True)
        if bias is not None:
            logits += variables[1]
        loss = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
        loss *= tf.cast(np.diff(labels.row_splits) > 0, tf.float32)
    gradients = tape.gradient(loss, [x, *variables], output_gradients=tf.constant(upstream))
    return loss.numpy(), [g.numpy() for g in gradients]


def some_labels(rng, rows, units):
    """Up to 4 labels a row; the last row has none."""
    labels = random_csr(rng, rows, units, 4)
    return csr([*(labels.row(row) for row in range(rows - 1)), []] if rows else [])


@case
def test_full_crossentropy(rng, rows, units, d):
    x, kernel, bias = grid(rng, rows, d), grid(rng, units, d), grid(rng, units)
    labels, upstream = some_labels(rng, rows, units), floats(rng, rows)
    for given in (None, bias):
        loss, gradients = value_and_gradients(x, labels, kernel, given, upstream)
        expected, exact = reference.full_crossentropy(x, labels, kernel, given, upstream)
        assert_within(loss, expected, 1e-6 * (1 + np.abs(expected)))
        if rows:
            assert loss[-1] == 0
            assert not gradients[0][-1].any()
        # 1e-5 of what is added up: probabilities and targets with their factors.
        by_logit = probability_and_target(x, labels, kernel, given) * np.abs(upstream)[:, None]
        sizes = (by_logit @ np.abs(kernel), by_logit.T @ np.abs(x), by_logit.sum(0))
        for got, wanted, size in zip(gradients, exact, sizes, strict=False):
            assert_within(got, wanted, 1e-5 * size)
        assert len(gradients) == (2 if given is None else 3)


def probability_and_target(x, labels, kernel, bias):
    """Sizes of the two parts of a gradient by logit, `(rows, units)`."""
    logits = reference.dense_logits(x, kernel, bias)
    parts = np.exp(logits - logits.max(1, keepdims=True, initial=0))
    parts /= parts.sum(1, keepdims=True)
    for row in range(len(x)):
        parts[row, labels.row(row)] += 1 / max(1, len(labels.row(row)))
    return parts


@pytest.mark.parametrize(("rows", "units", "d"), [(130, 1000, 128), (65, 65, 7), (64, 5000, 31)])
def test_full_crossentropy_equals_tensorflow(rng, rows, units, d):
    x, kernel = floats(rng, rows, d), floats(rng, units, d) / np.float32(np.sqrt(d))
    bias, upstream = floats(rng, units), floats(rng, rows)
    labels = some_labels(rng, rows, units)
    loss, gradients = value_and_gradients(x, labels, kernel, bias, upstream)
    expected, dense = dense_value_and_gradients(x, labels, kernel, bias, upstream)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for got, wanted in zip(gradients, dense, strict=True):
        assert np.linalg.norm(got - wanted) <= 1e-5 * np.linalg.norm(wanted)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("shift", [0, 100, -1000, 10_000, -10_000])
def test_a_shift_of_all_logits_changes_nothing(rng, shift):
    # All sums are exact in float32, so TensorFlow's dense softmax is right to 1e-6 here.
    units = 200
    x, kernel = np.ones((3, 1), np.float32), 4 * grid(rng, units, 1)
    bias = np.full(units, shift, np.float32)
    labels, upstream = csr([[0], [5, 6], [199]]), np.ones(3, np.float32)
    loss, gradients = value_and_gradients(x, labels, kernel, bias, upstream)
    expected, exact = reference.full_crossentropy(x, labels, kernel, bias, upstream)
    dense, _ = dense_value_and_gradients(x, labels, kernel, bias, upstream)
    np.testing.assert_allclose(dense, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients[1], exact.kernel, rtol=1e-5, atol=1e-7)


def test_extreme_logits_stay_finite():
    x = np.array([[1.0], [-1.0], [0.0]], np.float32)
    kernel = np.array([[1e4], [-1e4], [0], [1e4]], np.float32)
    labels, upstream = csr([[0], [0], [2]]), np.ones(3, np.float32)
    loss, gradients = value_and_gradients(x, labels, kernel, np.zeros(4, np.float32), upstream)
    np.testing.assert_allclose(loss, [np.log(2), 2e4, np.log(4)], rtol=1e-5)
    expected = reference.full_crossentropy(x, labels, kernel, None, upstream)[1]
    for got, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_masked_units_have_no_probability(rng):
    bias = np.where(np.arange(70) % 2, -np.inf, 0).astype(np.float32)
    x, kernel = grid(rng, 5, 7), grid(rng, 70, 7)
    labels, upstream = csr([[0], [2], [4], [6, 8], []]), np.ones(5, np.float32)
    loss, gradients = value_and_gradients(x, labels, kernel, bias, upstream)
    half = csr([[0], [1], [2], [3, 4], []])
    expected, exact = reference.full_crossentropy(x, half, kernel[::2], bias[::2], upstream)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradients[1][::2], exact.kernel, rtol=1e-5, atol=1e-6)
    assert not gradients[1][1::2].any()
    assert not gradients[2][1::2].any()


@pytest.mark.parametrize("size", [1.0, 30.0])
def test_loss_is_not_negative(rng, size):
    # One label holds nearly all probability: loss is the difference of two equal numbers.
    x, kernel = floats(rng, 130, 128), np.float32(size) * floats(rng, 1, 128)
    labels = csr([[0]] * 130)
    loss, gradients = value_and_gradients(x, labels, kernel, None, np.ones(130, np.float32))
    np.testing.assert_array_equal(loss, np.zeros(130))
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_nan_weights_give_a_nan_loss():
    kernel = np.ones((300, 7), np.float32)
    kernel[200, 3] = np.nan
    loss, _ = value_and_gradients(
        np.ones((65, 7), np.float32), csr([[0]] * 65), kernel, None, np.ones(65, np.float32)
    )
    assert np.isnan(loss).all()


@pytest.mark.parametrize("all_own", [True, False])
def test_full_equals_active_with_all_units(rng, all_own):
    # All units as each row's own neurons, or as shared ones besides the labels.
    x, kernel, bias = floats(rng, 65, 31), floats(rng, 300, 31), floats(rng, 300)
    labels = some_labels(rng, 65, 300)
    active = (
        ActiveSet(reference.all_units(65, 300), np.zeros(0, np.int32))
        if all_own
        else ActiveSet(labels, np.arange(300))
    )
    given = active_to_tf(active)
    variables, inputs = [tf.Variable(kernel), tf.Variable(bias)], tf.constant(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(inputs)
        logits = ops.active_logits(inputs, ops.csc_from_csr(given, 300), *variables)
        by_active = ops.softmax_crossentropy(logits, given, to_tf(labels))
        loss = ops.full_crossentropy(inputs, to_tf(labels), *variables)
    np.testing.assert_allclose(loss, by_active, rtol=1e-5, atol=1e-5)
    for wanted in (inputs, *variables):
        full, part = (tf.convert_to_tensor(tape.gradient(y, wanted)) for y in (loss, by_active))
        np.testing.assert_allclose(part, full, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scans_name_the_first_row_that_is_not_finite(rng, value):
    x, kernel = floats(rng, 70, 9), tf.Variable(floats(rng, 20, 9))
    x[33, 4] = value
    x[50] = np.nan
    for scan in (
        lambda: ops.top_k(x, kernel, None, 3),
        lambda: ops.full_crossentropy(x, to_tf(csr([[0]] * 70)), kernel, None),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            scan()
        assert f"row 33 holds {value} at column 4" in str(error.value)


def test_scans_inside_a_graph_of_unknown_sizes(rng):
    x, kernel, bias = (
        floats(rng, 20, 9),
        tf.Variable(floats(rng, 30, 9)),
        tf.Variable(floats(rng, 30)),
    )
    labels = to_tf(some_labels(rng, 20, 30))
    spec = tf.TensorSpec

    @tf.function(input_signature=[spec([None, 9]), spec([None], tf.int64), spec([None], tf.int32)])
    def in_graph(x, splits, ids):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = ops.full_crossentropy(x, ops.Csr(splits, ids), kernel, bias)
        assert loss.shape.as_list() == [None]
        best, _ = ops.top_k(x, kernel, bias, 4)
        assert best.shape.as_list() == [None, 4]
        return loss, best, *tape.gradient(loss, [x, kernel, bias])

    got = in_graph(x, *labels)
    with tf.GradientTape() as tape:
        x = tf.constant(x)
        tape.watch(x)
        loss = ops.full_crossentropy(x, labels, kernel, bias)
    expected = [loss, ops.top_k(x, kernel, bias, 4)[0], *tape.gradient(loss, [x, kernel, bias])]
    for actual, wanted in zip(got, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
