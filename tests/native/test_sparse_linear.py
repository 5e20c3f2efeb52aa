"""Ops over sparse kernels, against dense NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import assert_within, floats, lists, random_csr, slices_to_dense, to_tf
from tests.reference import UNIT_ROUNDOFF, csr
from tf_dslide._native import ops

# Rows, features, units, weights a feature at most.
CASES = [
    (0, 1, 1, 1),
    (1, 1, 1, 1),
    (5, 7, 3, 3),
    (64, 30, 200, 9),
    (33, 200, 65, 65),
    (9, 40, 3001, 300),
]
cases = pytest.mark.parametrize(("rows", "features", "units", "most"), CASES)


class Problem:
    """A random batch and layer, sparse for the ops and dense for NumPy."""

    def __init__(self, rng, rows, features, units, most, use_bias=True):
        self.ids = random_csr(rng, rows, features, 6)
        self.values = floats(rng, len(self.ids.ids))
        self.labels = random_csr(rng, rows, units, 3)
        self.neurons = random_csr(rng, features, units, most)
        self.weights = floats(rng, len(self.neurons.ids))
        self.bias = floats(rng, units) if use_bias else np.zeros(units, np.float32)
        self.units, self.features = units, features
        self.x = ops.Features(to_tf(self.ids), tf.constant(self.values))
        splits, ids = to_tf(self.neurons)
        self.variables = [tf.Variable(self.weights)]
        if use_bias:
            self.variables.append(tf.Variable(self.bias))
        self.kernel = ops.SparseKernel(
            splits, ids, self.variables[0], self.variables[1] if use_bias else None, units
        )

    def dense_x(self):
        dense = np.zeros((self.ids.rows, self.features))
        dense[self.ids.entry_rows(), self.ids.ids] = self.values
        return dense

    def logits(self):
        kernel = np.zeros((self.features, self.units))
        kernel[self.neurons.entry_rows(), self.neurons.ids] = self.weights
        return self.dense_x() @ kernel + self.bias

    def reached(self):
        """Which neurons each row's features have weights for."""
        there = np.zeros((self.features, self.units))
        there[self.neurons.entry_rows(), self.neurons.ids] = 1
        seen = np.zeros((self.ids.rows, self.features))
        seen[self.ids.entry_rows(), self.ids.ids] = 1
        return seen @ there > 0

    def kernel_gradient(self, by_logit):
        """The gradient by each weight, given the dense one by the logits."""
        dense = self.dense_x().T @ by_logit
        return dense[self.neurons.entry_rows(), self.neurons.ids]


CLOSE = 64 * UNIT_ROUNDOFF


@cases
@pytest.mark.parametrize("use_bias", [True, False])
def test_all_logits_and_their_gradient(rng, rows, features, units, most, use_bias):
    p = Problem(rng, rows, features, units, most, use_bias)
    upstream = floats(rng, rows, units)
    with tf.GradientTape() as tape:
        logits = ops.sparse_linear_logits(p.x, p.kernel)
    assert_within(logits, p.logits(), CLOSE * 10)
    gradients = tape.gradient(logits, p.variables, output_gradients=tf.constant(upstream))
    assert_within(gradients[0], p.kernel_gradient(upstream), CLOSE * 100)
    if use_bias:
        assert_within(gradients[1], upstream.sum(0, dtype=np.float64), CLOSE * 100)


@cases
@pytest.mark.parametrize("count", [0, 1, 4, 1000])
def test_the_best_neurons_are_active(rng, rows, features, units, most, count):
    p = Problem(rng, rows, features, units, most)
    active, logits = ops.sparse_linear_select(p.x, p.kernel, to_tf(p.labels), count)
    exact, reached = ops.sparse_linear_logits(p.x, p.kernel).numpy(), p.reached()
    expected = []
    for row in range(rows):
        wanted = set(p.labels.row(row).tolist())
        others = [n for n in range(units) if reached[row, n] and n not in wanted]
        best = sorted(others, key=lambda n, row=row: (-exact[row, n], n))[:count]
        expected.append(sorted(wanted | set(best)))
    assert lists(active) == expected
    rows_of = np.repeat(np.arange(rows), [len(row) for row in expected])
    assert_within(logits, p.logits()[rows_of, active.ids.numpy()], CLOSE * 10)


@cases
def test_gradient_of_active_logits(rng, rows, features, units, most):
    p = Problem(rng, rows, features, units, most)
    with tf.GradientTape() as tape:
        active, logits = ops.sparse_linear_select(p.x, p.kernel, to_tf(p.labels), 5)
    upstream = floats(rng, *logits.shape)
    gradients = tape.gradient(logits, p.variables, output_gradients=tf.constant(upstream))
    dense = np.zeros((rows, units))
    rows_of = np.repeat(np.arange(rows), np.diff(active.row_splits.numpy()))
    dense[rows_of, active.ids.numpy()] = upstream
    by_kernel = slices_to_dense(gradients[0], p.weights.shape)
    assert_within(by_kernel, p.kernel_gradient(dense), CLOSE * 100)
    by_bias = slices_to_dense(gradients[1], p.bias.shape)
    assert_within(by_bias, dense.sum(0), CLOSE * 100)


@cases
@pytest.mark.parametrize("use_bias", [True, False])
def test_top_k(rng, rows, features, units, most, use_bias):
    p = Problem(rng, rows, features, units, most, use_bias)
    exact = ops.sparse_linear_logits(p.x, p.kernel).numpy()
    for k in {1, (units + 1) // 2, units}:
        ids, scores = ops.sparse_linear_top_k(p.x, p.kernel, k)
        order = np.lexsort((np.broadcast_to(np.arange(units), exact.shape), -exact))[:, :k]
        assert_within(scores, np.take_along_axis(exact, order, 1), CLOSE * 10)
        # Sums in another order may swap neurons that are equal to rounding.
        assert_within(np.take_along_axis(exact, ids.numpy(), 1), scores.numpy(), CLOSE * 10)
        assert all(len(set(row)) == k for row in ids.numpy().tolist())


@cases
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_losses_over_all_units(rng, rows, features, units, most, size):
    p = Problem(rng, rows, features, units, most)
    p.bias = p.bias * np.float32(size)
    p.variables[1].assign(p.bias)
    z = p.logits()
    softmax, binary = ops.sparse_linear_losses(p.x, p.kernel, to_tf(p.labels))
    for row in range(rows):
        labels = p.labels.row(row)
        top = z[row].max()
        log_sum = top + np.log(np.exp(z[row] - top).sum())
        wanted = log_sum - z[row, labels].mean() if len(labels) else 0.0
        assert softmax.numpy()[row] == pytest.approx(wanted, rel=1e-5, abs=1e-4)
        wanted = np.logaddexp(0, z[row]).sum() - z[row, labels].sum()
        assert binary.numpy()[row] == pytest.approx(wanted, rel=1e-5, abs=1e-4)


@cases
def test_features_get_weights_for_the_labels_they_meet(rng, rows, features, units, most):
    ids, labels = random_csr(rng, rows, features, 6), random_csr(rng, rows, units, 3)
    x, y = np.zeros((rows, features)), np.zeros((rows, units))
    x[ids.entry_rows(), ids.ids] = 1
    y[labels.entry_rows(), labels.ids] = 1
    together, of_labels = x.T @ y, y.sum(0)
    splits, neurons, counts = ops.cooccurrences(
        to_tf(ids), features, to_tf(labels), units, most, 2.0
    )
    found = lists(ops.Csr(splits, neurons))
    assert len(found) == features
    counts = np.split(counts.numpy(), splits.numpy()[1:-1])
    for feature in range(features):
        met = np.flatnonzero(together[feature])
        assert set(found[feature]) <= set(met.tolist())
        assert len(found[feature]) == min(most, len(met))
        assert (counts[feature] == together[feature, found[feature]]).all()
        says = together[feature] * np.log1p(together[feature] * rows / (of_labels + 2.0))
        left = np.setdiff1d(met, found[feature])
        if len(left):
            assert says[left].max() <= says[found[feature]].min() * (1 + 1e-6)


def test_weights_that_are_not_numbers_are_chosen_last():
    kernel = ops.SparseKernel(
        tf.constant([0, 3], tf.int64), tf.constant([0, 1, 2]),
        tf.Variable([np.nan, 1.0, 2.0]), None, 4,
    )  # fmt: skip
    x = ops.Features(to_tf(csr([[0]])), tf.constant([1.0]))
    active, _ = ops.sparse_linear_select(x, kernel, to_tf(csr([[]])), 2)
    assert lists(active) == [[1, 2]]
    ids, _ = ops.sparse_linear_top_k(x, kernel, 3)
    assert ids.numpy().tolist() == [[2, 1, 3]]


@pytest.mark.parametrize("shared", [0, 1, 65])
@pytest.mark.parametrize("size", [0.1, 30.0])
def test_binary_crossentropy(rng, shared, size):
    from tests.native.common import active_to_tf, labels_within, random_active_set, values_to_tf

    rows, units = 33, 200
    active = random_active_set(rng, rows, units, 20, shared)
    labels = labels_within(rng, active.own)
    own = np.float32(size) * floats(rng, len(active.own.ids))
    common = np.float32(size) * floats(rng, rows, len(active.shared))
    own_adjustment, of_rows, of_shared = (
        floats(rng, len(own)),
        floats(rng, rows),
        rng.integers(0, 2, len(active.shared)).astype(np.float32),
    )
    logits = values_to_tf(active, active.join(own, common))
    upstream = floats(rng, rows)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = ops.binary_crossentropy(
            logits, active_to_tf(active), to_tf(labels), tf.constant(own_adjustment),
            ops.SharedAdjustment(tf.constant(of_rows), tf.constant(of_shared)),
        )  # fmt: skip
    gradient = tape.gradient(loss, logits, output_gradients=tf.constant(upstream))
    expected, by_own, by_shared = np.zeros(rows), np.zeros(len(own)), np.zeros(common.shape)
    sigmoid = lambda z: 1 / (1 + np.exp(-np.float64(z)))  # noqa: E731
    for row in range(rows):
        first, last = active.own.row_splits[row : row + 2]
        for e in range(first, last):
            hit = active.own.ids[e] in labels.row(row)
            weight = 1.0 if hit else np.exp(np.float64(own_adjustment[e]))
            expected[row] += weight * np.logaddexp(0, own[e]) - hit * own[e]
            by_own[e] = weight * sigmoid(own[e]) - hit
        for s, neuron in enumerate(active.shared):
            if neuron in active.own.row(row):
                continue
            weight = np.exp(np.float64(of_rows[row] * of_shared[s]))
            expected[row] += weight * np.logaddexp(0, common[row, s])
            by_shared[row, s] = weight * sigmoid(common[row, s])
        by_own[first:last] *= upstream[row]
        by_shared[row] *= upstream[row]
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(gradient.own, by_own, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient.shared, by_shared, rtol=1e-5, atol=1e-5)


def test_a_label_that_is_not_active_is_an_error():
    active = reference.ActiveSet(csr([[1, 3]]), np.zeros(0, np.int32))
    logits = ops.ActiveLogits(tf.zeros([2]), tf.zeros([1, 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 0 has a label"):
        ops.binary_crossentropy(
            logits, ops.ActiveSet(to_tf(active.own), ops.no_neurons()), to_tf(csr([[2]]))
        )
