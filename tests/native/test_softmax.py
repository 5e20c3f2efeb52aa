"""Softmax cross-entropy over active sets, and the best of a row."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import SHAPES, assert_within, floats, labels_within, random_csr, to_tf
from tests.reference import UNIT_ROUNDOFF, csr
from tf_dslide._native import ops


def loss_and_gradient(logits, active, labels, upstream=None):
    logits = tf.constant(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = ops.softmax_crossentropy(logits, to_tf(active), to_tf(labels))
    return loss.numpy(), tape.gradient(loss, logits, output_gradients=upstream).numpy()


def gradient_bound(active):
    """Error of a softmax probability: exp is good to 2 roundings, n terms are summed."""
    return (np.diff(active.row_splits) + 8)[active.entry_rows()] * UNIT_ROUNDOFF


@pytest.mark.parametrize(("rows", "units"), SHAPES)
@pytest.mark.parametrize("size", [0.1, 3.0, 1e4])
def test_softmax_crossentropy(rng, rows, units, size):
    active = random_csr(rng, rows, units, 200)
    labels = labels_within(rng, active)
    logits = np.float32(size) * floats(rng, len(active.ids))
    upstream = floats(rng, rows)
    loss, gradient = loss_and_gradient(logits, active, labels, tf.constant(upstream))
    expected, by_logit = reference.softmax_crossentropy(logits, active, labels)
    # The sum of exponentials is float32: its relative error is an absolute one of its logarithm.
    bound = (np.diff(active.row_splits) + 8) * UNIT_ROUNDOFF + 2 * UNIT_ROUNDOFF * expected
    assert_within(loss, expected, bound)
    upstream = upstream[active.entry_rows()]
    assert_within(gradient, by_logit * upstream, gradient_bound(active) * np.abs(upstream))


def test_softmax_over_many_neurons(rng):
    active = csr([np.arange(100_003), np.arange(0, 100_003, 2)])
    labels = csr([[5, 99_999, 100_002], [0, 2]])
    logits = floats(rng, len(active.ids))
    loss, gradient = loss_and_gradient(logits, active, labels)
    expected, by_logit = reference.softmax_crossentropy(logits, active, labels)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, by_logit, rtol=2e-5, atol=1e-12)


def test_small_probabilities_keep_their_relative_precision(rng):
    # 60 below the top: about 1e-26. Relative error, since a gradient row may hold nothing else.
    gaps = np.linspace(0, 80, 999, dtype=np.float32)
    active, labels = csr([np.arange(999)]), csr([[0]])
    _, gradient = loss_and_gradient(-gaps, active, labels)
    _, expected = reference.softmax_crossentropy(-gaps, active, labels)
    np.testing.assert_allclose(gradient[1:], expected[1:], rtol=1e-6)


def test_rows_without_labels_have_no_loss_and_no_gradient(rng):
    active, labels = csr([[0, 3], [1, 2], []]), csr([[], [2], []])
    loss, gradient = loss_and_gradient(floats(rng, 4), active, labels)
    assert loss[0] == loss[2] == 0
    assert loss[1] > 0
    np.testing.assert_array_equal(gradient[:2], [0, 0])
    assert (gradient[2:] != 0).all()


def test_one_neuron_has_probability_one():
    loss, gradient = loss_and_gradient([-123.25], csr([[7]]), csr([[7]]))
    np.testing.assert_array_equal(loss, [0])
    np.testing.assert_array_equal(gradient, [0])


def test_extreme_logits_stay_finite():
    top = np.finfo(np.float32).max
    logits = [1e4, -1e4, 0, top, -top, 3, -np.inf, 5, 5]
    active, labels = csr([[0, 1, 2], [0, 1, 2], [0, 1, 2]]), csr([[0], [0], [1, 2]])
    loss, gradient = loss_and_gradient(logits, active, labels)
    np.testing.assert_allclose(loss, [0, 0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0] * 7 + [0, 0], atol=1e-7)
    loss, gradient = loss_and_gradient([1e4, -1e4, 0], csr([[0, 1, 2]]), csr([[1]]))
    np.testing.assert_allclose(loss, [2e4], rtol=1e-6)
    np.testing.assert_allclose(gradient, [1, -1, 0], atol=1e-7)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001])
@pytest.mark.parametrize("place", [0, 5, 100])
def test_nan_logits_give_nan(bits, place):
    # Also with a payload: the exponential works on bits.
    logits = np.zeros(101, np.float32)
    logits.view(np.uint32)[place] = bits
    loss, gradient = loss_and_gradient(logits, csr([np.arange(101)]), csr([[3]]))
    assert np.isnan(loss).all()
    assert np.isnan(gradient).any()


@pytest.mark.parametrize("labels", [[[], [2], [0, 4]], [[], [0, 1, 3, 4], [0]], [[1], [9], [5]]])
def test_softmax_names_the_first_row_whose_label_is_not_active(labels):
    active = csr([[], [0, 1, 3], [0, 4]])
    bad = next(row for row in range(3) if not np.isin(csr(labels).row(row), active.row(row)).all())
    for logits in (np.zeros(5), np.full(5, np.nan)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"row {bad} has a label"):
            loss_and_gradient(logits, active, csr(labels))


@pytest.mark.parametrize(("rows", "units"), SHAPES)
@pytest.mark.parametrize("k", [1, 5, 70])
def test_csr_top_k(rng, rows, units, k):
    active = random_csr(rng, rows, units, 60)
    # Few distinct values: many ties.
    logits = rng.integers(-3, 4, len(active.ids)).astype(np.float32)
    ids, scores = ops.csr_top_k(tf.constant(logits), to_tf(active), k)
    expected_ids, expected_scores = reference.csr_top_k(logits, active, k)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(scores, expected_scores)


def test_csr_top_k_orders_infinities_and_zeros():
    logits = tf.constant([-np.inf, 0.0, np.inf, -0.0, -np.inf])
    ids, scores = ops.csr_top_k(logits, to_tf(csr([[1, 2, 4, 6, 9]])), 5)
    np.testing.assert_array_equal(ids, [[4, 2, 6, 1, 9]])
    np.testing.assert_array_equal(scores, [[np.inf, 0, 0, -np.inf, -np.inf]])


def test_csr_top_k_survives_nan(rng):
    logits = floats(rng, 300)
    logits[::7] = np.nan
    ids, _ = ops.csr_top_k(tf.constant(logits), to_tf(csr([np.arange(300)])), 300)
    np.testing.assert_array_equal(np.sort(ids[0]), np.arange(300))
