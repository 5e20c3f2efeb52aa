"""Logits over active sets, sparse matrix products, and the gradients of both."""

import warnings

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
    labels_within,
    random_active_set,
    slices_to_dense,
    to_tf,
    values_to_numpy,
    values_to_tf,
)
from tests.reference import ActiveSet, csr, sum_bound
from tf_dslide._native import factored_slices, ops


class Problem:
    """A batch, a layer and an active set between them.

    Values and bounds are those of `active.listed()`, where shared neurons stand in each row.
    """

    def __init__(self, rng, rows, units, d, shared=0, most=40):
        self.x = floats(rng, rows, d)
        self.kernel, self.bias = floats(rng, units, d), floats(rng, units)
        self.kernel_variable, self.bias_variable = tf.Variable(self.kernel), tf.Variable(self.bias)
        self.set_active(rng, random_active_set(rng, rows, units, most, shared))

    def set_active(self, rng, active):
        self.active, self.listed = active, active.listed()
        self.coef = floats(rng, len(self.listed.ids))
        self.view = ops.csc_from_csr(active_to_tf(active), len(self.kernel))

    def logits(self, x, bias=None):
        return ops.active_logits(x, self.view, self.kernel_variable, bias)

    def objective(self, logits):
        """The logits' sum weighed by `coef`."""
        products = zip(logits, values_to_tf(self.active, self.coef), strict=True)
        return sum(tf.reduce_sum(logit * coef) for logit, coef in products)

    def logits_bound(self):
        sizes = reference.active_logits(
            np.abs(self.x), self.listed, np.abs(self.kernel), np.abs(self.bias)
        )
        return sum_bound(sizes, self.x.shape[1] + 1)

    def row_bound(self):
        """Error of sums over a row's entries of coef * kernel."""
        sizes = reference.csr_mat_mul(np.abs(self.coef), self.listed, np.abs(self.kernel))
        # 16 more additions: the op may sum in slabs.
        return sum_bound(sizes, 16 + np.diff(self.listed.row_splits)[:, None])

    def neuron_bound(self):
        """Error of sums over a neuron's entries of coef * x."""
        units = len(self.kernel)
        sizes = reference.row_gradient(np.abs(self.x), np.abs(self.coef), self.listed, units)
        counts = np.bincount(self.listed.ids, minlength=units)
        return sum_bound(sizes, counts[:, None])

    def neurons(self):
        """Those whose weights have a gradient: shared ones also of an empty batch."""
        return np.union1d(self.active.own.ids, self.active.shared)


# All units are shared where that is not too many for the reference.
CASES = [
    *((*shape, 31, 0) for shape in SHAPES),
    *((*shape, 31, -1 if shape[0] * shape[1] < 70_000 else 130) for shape in SHAPES),
    *((130, 300, d, shared) for d in WIDTHS for shared in (1, 63, 130)),
    *((65, 1000, 31, shared) for shared in (1, 63, 64, 65, 130)),
]


@pytest.fixture(params=CASES, ids=lambda case: "rows{}-units{}-d{}-shared{}".format(*case))
def problem(request, rng):
    return Problem(rng, *request.param)


def test_active_logits(problem):
    p = problem
    for bias, variable in ((None, None), (p.bias, p.bias_variable)):
        logits = p.logits(tf.constant(p.x), variable)
        expected = reference.active_logits(p.x, p.listed, p.kernel, bias)
        assert_within(values_to_numpy(p.active, logits), expected, p.logits_bound())


def test_active_logits_gradients(problem):
    p = problem
    x = tf.constant(p.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        objective = p.objective(p.logits(x, p.bias_variable))
    by_x, by_kernel, by_bias = tape.gradient(objective, [x, p.kernel_variable, p.bias_variable])

    units = len(p.kernel)
    assert_within(by_x, reference.csr_mat_mul(p.coef, p.listed, p.kernel), p.row_bound())
    expected = reference.row_gradient(p.x, p.coef, p.listed, units)
    assert_within(slices_to_dense(by_kernel, p.kernel.shape), expected, p.neuron_bound())
    np.testing.assert_array_equal(by_kernel.indices, p.neurons())
    sizes = reference.entry_sums(np.abs(p.coef), p.listed, units)
    bound = sum_bound(sizes, np.bincount(p.listed.ids, minlength=units))
    expected = reference.entry_sums(p.coef, p.listed, units)
    assert_within(slices_to_dense(by_bias, p.bias.shape), expected, bound)
    np.testing.assert_array_equal(by_bias.indices, p.neurons())


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("part", ["own", "shared"])
def test_gradients_of_one_part_of_the_logits(rng, part, in_graph):
    # TensorFlow fills in the gradient of what nobody used.
    p = Problem(rng, 20, 90, 9, shared=30)
    parts = values_to_tf(p.active, p.coef)
    coef = getattr(parts, part)
    nothing = ops.ActiveLogits(*map(tf.zeros_like, parts))
    p.coef = values_to_numpy(p.active, nothing._replace(**{part: coef}))

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            objective = tf.reduce_sum(getattr(p.logits(x, p.bias_variable), part) * coef)
        return tape.gradient(objective, [x, p.kernel_variable, p.bias_variable])

    by_x, by_kernel, by_bias = (tf.function(gradients) if in_graph else gradients)(tf.constant(p.x))
    assert_within(by_x, reference.csr_mat_mul(p.coef, p.listed, p.kernel), p.row_bound())
    expected = reference.row_gradient(p.x, p.coef, p.listed, 90)
    assert_within(slices_to_dense(by_kernel, (90, 9)), expected, p.neuron_bound())
    expected = reference.entry_sums(p.coef, p.listed, 90)
    np.testing.assert_allclose(slices_to_dense(by_bias, (90,)), expected, rtol=1e-5, atol=1e-5)


def test_csr_mat_mul_and_its_gradients(problem):
    p = problem
    rows = p.active.own
    # The bounds of the own neurons alone.
    p.coef, _ = p.active.split(p.coef)
    p.listed = rows
    coef, upstream = tf.constant(p.coef), p.x
    with tf.GradientTape() as tape:
        tape.watch(coef)
        y = ops.csr_mat_mul(coef, to_tf(rows), p.kernel_variable)
        objective = tf.reduce_sum(y * upstream)
    assert y.shape == p.x.shape
    assert_within(y, reference.csr_mat_mul(p.coef, rows, p.kernel), p.row_bound())

    by_coef, by_kernel = tape.gradient(objective, [coef, p.kernel_variable])
    expected = reference.active_logits(upstream, rows, p.kernel)
    assert_within(by_coef, expected, p.logits_bound())
    expected = reference.row_gradient(upstream, p.coef, rows, len(p.kernel))
    assert_within(slices_to_dense(by_kernel, p.kernel.shape), expected, p.neuron_bound())


def test_csr_mat_mul_adds_repeated_ids(rng):
    rows, kernel = csr([[1, 1, 2], [], [0, 0]]), floats(rng, 3, 9)
    coef = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])
    variable = tf.Variable(kernel)
    with tf.GradientTape() as tape:
        tape.watch(coef)
        y = ops.csr_mat_mul(coef, to_tf(rows), variable)
    expected = np.stack([3 * kernel[1] + 3 * kernel[2], np.zeros(9), 9 * kernel[0]])
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)
    by_coef, by_kernel = tape.gradient(y, [coef, variable])
    np.testing.assert_allclose(by_coef, kernel.sum(1)[rows.ids], rtol=1e-6, atol=1e-6)
    dense = slices_to_dense(by_kernel, (3, 9))
    np.testing.assert_allclose(dense, np.outer([9, 3, 3], np.ones(9)), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_nobodys_input(rng, value):
    # A loss that overflows must show as such, not as an error about the layer's input.
    rows, variable = csr([[0, 2], [1]]), tf.Variable(floats(rng, 3, 9))
    coef, upstream = tf.ones([3]), np.ones((2, 9), np.float32)
    upstream[1, 4] = value
    with tf.GradientTape() as tape:
        tape.watch(coef)
        y = ops.csr_mat_mul(coef, to_tf(rows), variable)
    by_coef, by_kernel = tape.gradient(y, [coef, variable], output_gradients=tf.constant(upstream))
    np.testing.assert_array_equal(np.isfinite(by_coef), [True, True, False])
    np.testing.assert_array_equal(np.isfinite(by_kernel.values).all(1), [True, False, True])


@pytest.mark.parametrize("shared", [[], [0], [0, 5, 199]])
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_one_neuron_may_hold_most_entries(rng, share, shared):
    # The sums by neuron are cut into slabs of about equal work; here one neuron fills several.
    p = Problem(rng, 130, 200, 9)
    rest = [np.flatnonzero(rng.random(199) < share) + 1 for _ in range(130)]
    own = csr([np.concatenate([[0], ids[:3]]) for ids in rest])
    p.set_active(rng, ActiveSet(own, np.asarray(shared)))
    x = tf.constant(p.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        objective = p.objective(p.logits(x))
    by_x = tape.gradient(objective, x)
    assert_within(by_x, reference.csr_mat_mul(p.coef, p.listed, p.kernel), p.row_bound())


@pytest.mark.parametrize("shared", [[], [3], range(70), range(200)])
def test_rows_may_have_no_own_neurons(rng, shared):
    p = Problem(rng, 65, 200, 9)
    p.set_active(rng, ActiveSet(csr([[]] * 65), np.asarray(shared, np.int32)))
    x = tf.constant(p.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = p.logits(x, p.bias_variable)
        objective = p.objective(logits)
    expected = reference.active_logits(p.x, p.listed, p.kernel, p.bias)
    assert_within(values_to_numpy(p.active, logits), expected, p.logits_bound())
    by_x, by_kernel = tape.gradient(objective, [x, p.kernel_variable])
    assert_within(by_x, reference.csr_mat_mul(p.coef, p.listed, p.kernel), p.row_bound())
    expected = reference.row_gradient(p.x, p.coef, p.listed, 200)
    assert_within(slices_to_dense(by_kernel, (200, 9)), expected, p.neuron_bound())


@pytest.mark.parametrize("shared", [0, 12])
def test_row_gradient_remembers_its_parts(rng, shared):
    p = Problem(rng, 20, 30, 9, shared)
    with tf.GradientTape() as tape:
        objective = p.objective(p.logits(tf.constant(p.x)))
    slices = tape.gradient(objective, p.kernel_variable)
    parts = ops.factors_of(slices)
    assert ops.factors_of(tf.IndexedSlices(slices.values, slices.indices)) is None
    np.testing.assert_array_equal(parts.x, p.x)
    coef = values_to_numpy(p.active, ops.ActiveLogits(parts.coef, parts.shared_coef))
    np.testing.assert_array_equal(coef, p.coef)
    again = ops.row_gradient(parts, ops.handle(p.kernel_variable))
    np.testing.assert_array_equal(again.values, slices.values)
    # So does the gradient of a loss that was scaled up against underflow.
    quarter = slices / 4.0
    np.testing.assert_array_equal(quarter.values, slices.values / 4)
    again = ops.row_gradient(ops.factors_of(quarter), ops.handle(p.kernel_variable))
    np.testing.assert_array_equal(again.values, quarter.values)


@pytest.mark.parametrize("shared", [0, 1, 7, -1])
def test_gradients_equal_finite_differences_with_the_active_set_held(rng, shared):
    """The loss over an active set, by central differences of the float64 reference."""
    p = Problem(rng, 6, 12, 5, shared, most=8)
    labels = labels_within(rng, p.active.own)
    upstream = floats(rng, 6)
    x = tf.constant(p.x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = p.logits(x, p.bias_variable)
        loss = ops.softmax_crossentropy(logits, active_to_tf(p.active), to_tf(labels))
        objective = tf.reduce_sum(loss * upstream)
    by_x, by_kernel, by_bias = tape.gradient(objective, [x, p.kernel_variable, p.bias_variable])
    got = (by_x, slices_to_dense(by_kernel, (12, 5)), slices_to_dense(by_bias, (12,)))

    def value(arrays):
        logits = reference.active_logits(arrays[0], p.listed, arrays[1], arrays[2])
        return reference.active_crossentropy(logits, p.active, labels)[0] @ upstream

    arrays = [a.astype(np.float64) for a in (p.x, p.kernel, p.bias)]
    np.testing.assert_allclose(objective, value(arrays), rtol=1e-5)
    for array, gradient in zip(arrays, got, strict=True):
        slopes = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-5
            above = value(arrays)
            array[place] = before - 1e-5
            slopes[place] = (above - value(arrays)) / 2e-5
            array[place] = before
        # 1e-9 for the differences; float32 rounding of sums of about 10 terms of size 1.
        assert_within(gradient, slopes, 1e-9 + sum_bound(10, 20))


@pytest.mark.parametrize("size", [1e-20, 1e4, 1e18])
def test_products_of_very_small_and_large_numbers(rng, size):
    p = Problem(rng, 65, 64, 31, shared=20)
    p.x *= np.float32(size)
    logits = p.logits(tf.constant(p.x), p.bias_variable)
    expected = reference.active_logits(p.x, p.listed, p.kernel, p.bias)
    assert_within(values_to_numpy(p.active, logits), expected, p.logits_bound())


def test_logits_of_a_sample_do_not_depend_on_its_batch(rng):
    # Ranks, batches and threads must see the same number for one sample and one neuron.
    p = Problem(rng, 131, 300, 31, shared=130)
    own, shared = p.logits(tf.constant(p.x), p.bias_variable)
    for row in (0, 1, 40, 64, 129, 130):
        active = ActiveSet(csr([p.active.own.row(row)]), p.active.shared)
        view = ops.csc_from_csr(active_to_tf(active), 300)
        x = tf.constant(p.x[row : row + 1])
        alone = ops.active_logits(x, view, p.kernel_variable, p.bias_variable)
        entries = slice(*p.active.own.row_splits[row : row + 2])
        np.testing.assert_array_equal(alone.own, own[entries])
        np.testing.assert_array_equal(alone.shared[0], shared[row])


def test_products_inside_a_graph_of_unknown_sizes(rng):
    p = Problem(rng, 20, 30, 9, shared=12)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 9]),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None]),
            tf.TensorSpec([None, None]),
        ]
    )
    def gradients(x, splits, ids, shared, coef, shared_coef):
        active = ops.ActiveSet(ops.Csr(splits, ids), shared)
        with tf.GradientTape() as tape:
            tape.watch([x, coef])
            view = ops.csc_from_csr(active, 30)
            logits = ops.active_logits(x, view, p.kernel_variable, p.bias_variable)
            assert (logits.own.shape.rank, logits.shared.shape.rank) == (1, 2)
            y = ops.csr_mat_mul(coef, active.own, p.kernel_variable)
            assert y.shape.as_list() == [None, 9]
            objective = tf.reduce_sum(logits.own * coef) + tf.reduce_sum(y * x)
            objective += tf.reduce_sum(logits.shared * shared_coef)
        return tape.gradient(objective, [x, p.kernel_variable, p.bias_variable])

    own, shared = active_to_tf(p.active)
    by_x, by_kernel, by_bias = gradients(p.x, *own, shared, *values_to_tf(p.active, p.coef))
    # The own neurons' entries are in both products.
    twice = p.active.join(np.full(len(p.active.own.ids), 2), np.ones((20, 12))) * p.coef
    assert_within(by_x, reference.csr_mat_mul(twice, p.listed, p.kernel), 2 * p.row_bound())
    kernel = tf.convert_to_tensor(by_kernel)
    expected = reference.row_gradient(p.x, twice, p.listed, 30)
    assert_within(kernel, expected, 3 * p.neuron_bound())
    np.testing.assert_allclose(
        slices_to_dense(by_bias, (30,)),
        reference.entry_sums(p.coef, p.listed, 30),
        rtol=1e-5,
        atol=1e-5,
    )


def test_products_of_keras_variables(rng):
    import keras

    p = Problem(rng, 20, 30, 9, shared=12)
    kernel, bias = keras.Variable(p.kernel), keras.Variable(p.bias)
    with tf.GradientTape() as tape:
        logits = ops.active_logits(tf.constant(p.x), p.view, kernel, bias)
        objective = p.objective(logits)
    expected = reference.active_logits(p.x, p.listed, p.kernel, p.bias)
    assert_within(values_to_numpy(p.active, logits), expected, p.logits_bound())
    by_kernel = tape.gradient(objective, kernel.value)
    expected = reference.row_gradient(p.x, p.coef, p.listed, 30)
    assert_within(slices_to_dense(by_kernel, (30, 9)), expected, p.neuron_bound())


@pytest.mark.parametrize("in_graph", [True, False])
def test_a_large_gradient_that_is_made_dense_is_told_once(rng, in_graph, monkeypatch):
    monkeypatch.setattr(factored_slices, "_warned_of_dense_gradient", False)
    active = random_active_set(rng, 3, 70_000, 20, 5)
    view = ops.csc_from_csr(active_to_tf(active), 70_000)

    def sums(width):
        kernel = tf.Variable(tf.ones([70_000, width]))

        def call():
            with tf.GradientTape() as tape:
                logits = ops.active_logits(tf.ones([3, width]), view, kernel)
            slices = tape.gradient(logits.own, kernel)
            # What Keras casts keeps its rows, but not its class.
            cast = tf.IndexedSlices(slices.values, slices.indices, slices.dense_shape)
            return tf.reduce_sum(tf.convert_to_tensor(cast))

        return (tf.function(call) if in_graph else call)()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = sums(1)
    with pytest.warns(UserWarning, match="all 4,480,000 weights"):
        large = sums(64)
    assert large == 64 * small
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sums(64)


def test_reading_and_writing_keep_their_order_inside_a_graph(rng):
    p = Problem(rng, 4, 5, 3, shared=3, most=5)

    @tf.function
    def before_and_after():
        before = p.logits(p.x)
        p.kernel_variable.assign(2 * p.kernel)
        return before, p.logits(p.x)

    for before, after in zip(*before_and_after(), strict=True):
        np.testing.assert_array_equal(2 * before, after)
