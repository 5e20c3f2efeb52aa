"""Random small problems, edge cases among them: no rows, empty rows, one unit, zeros, NaN."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tests import reference
from tests.native.common import (
    active_to_tf,
    assert_within,
    lists,
    slices_to_dense,
    to_numpy,
    to_tf,
    values_to_numpy,
)
from tests.reference import ActiveSet, AdamSettings, AdamState, csr, sum_bound
from tf_dslide._native import ops

# No deadline: the first call of an op pays for its set-up.
settings = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def id_lists(draw, units, most_rows=5):
    """Rows of distinct ascending ids."""
    row = st.sets(st.integers(0, units - 1), max_size=min(units, 12)).map(sorted)
    return draw(st.lists(row, max_size=most_rows))


@st.composite
def arrays(draw, *shape):
    """Multiples of 1/8, whose products float32 adds up exactly; often sparse or all 0."""
    share = draw(st.sampled_from((0.0, 0.1, 1.0)))
    # From a seed: hypothesis need not shrink each number.
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    values = rng.integers(-8, 9, shape) / 8 * (rng.random(shape) < share)
    return values.astype(np.float32)


@st.composite
def shared_neurons(draw, own, units):
    """None, any, only own neurons of some row, or all units."""
    some = st.sets(st.integers(0, units - 1), max_size=20).map(sorted)
    owned = st.just(np.unique(own.ids)[::2])
    shared = draw(st.one_of(st.just([]), some, some, owned, st.just(range(units))))
    return np.asarray(shared, np.int32)


@st.composite
def problems(draw):
    """x, kernel, bias, an active set and labels within it."""
    units, d = draw(st.integers(1, 80)), draw(st.integers(1, 10))
    own = csr(draw(id_lists(units)))
    labels = [
        sorted(draw(st.sets(st.sampled_from(row), max_size=4))) if row else []
        for row in reference.to_lists(own)
    ]
    active = ActiveSet(own, draw(shared_neurons(own, units)))
    x, kernel = draw(arrays(own.rows, d)), draw(arrays(units, d))
    return x, kernel, draw(arrays(units)), active, csr(labels)


@settings
@hypothesis.given(
    st.integers(1, 9).flatmap(
        lambda units: st.tuples(
            st.just(units), st.lists(st.lists(st.integers(-1, units - 1), max_size=9), max_size=5)
        )
    )
)
def test_labels_with_padding_and_repetition(case):
    units, rows = case
    splits = np.cumsum([0, *map(len, rows)])
    values = np.asarray([label for row in rows for label in row], np.int64)
    got = ops.canonical_labels(tf.constant(splits, tf.int64), tf.constant(values), units)
    assert lists(got) == reference.to_lists(reference.canonical_labels(rows, units))


@settings
@hypothesis.given(problems())
def test_transposing_twice_changes_nothing(problem):
    _, kernel, _, active, _ = problem
    tensors = ops.csc_from_csr(active_to_tf(active), len(kernel)).tensors()
    for got, expected in zip(tensors, reference.csc_from_csr(active), strict=True):
        np.testing.assert_array_equal(got, expected)
    # Rows of neurons, seen from the samples, are the rows' own neurons again.
    by_neuron = ops.ActiveSet(ops.Csr(tensors.neuron_splits, tensors.entry_row), ops.no_neurons())
    backwards = ops.csc_from_csr(by_neuron, max(1, active.own.rows)).tensors()
    neurons = np.repeat(tensors.neurons, np.diff(tensors.neuron_splits))
    np.testing.assert_array_equal(neurons[backwards.entry_index], active.own.ids)


@settings
@hypothesis.given(problems())
def test_training_pass(problem):
    x, kernel, bias, active, labels = problem
    units, d = kernel.shape
    kernel_variable, bias_variable, inputs = tf.Variable(kernel), tf.Variable(bias), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        view = ops.csc_from_csr(active_to_tf(active), units)
        logits = ops.active_logits(inputs, view, kernel_variable, bias_variable)
        loss = ops.softmax_crossentropy(logits, active_to_tf(active), to_tf(labels))
    by_x, by_kernel, by_bias = tape.gradient(loss, [inputs, kernel_variable, bias_variable])

    listed = active.listed()
    expected_logits = reference.active_logits(x, listed, kernel, bias)
    np.testing.assert_array_equal(values_to_numpy(active, logits), expected_logits)
    expected, by_logit = reference.active_crossentropy(expected_logits, active, labels)
    np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
    bound = sum_bound(4, d + len(listed.ids))
    assert_within(by_x, reference.csr_mat_mul(by_logit, listed, kernel), bound)
    expected = reference.row_gradient(x, by_logit, listed, units)
    assert_within(slices_to_dense(by_kernel, (units, d)), expected, bound)
    expected = reference.entry_sums(by_logit, listed, units)
    assert_within(slices_to_dense(by_bias, (units,)), expected, bound)


@settings
@hypothesis.given(problems(), st.integers(1, 80))
def test_evaluation_pass(problem, k):
    x, kernel, bias, _, labels = problem
    k = min(k, len(kernel))
    variables = tf.Variable(kernel), tf.Variable(bias)
    upstream = np.ones(len(x), np.float32)
    expected, _ = reference.full_crossentropy(x, labels, kernel, bias, upstream)
    loss = ops.full_crossentropy(tf.constant(x), to_tf(labels), *variables)
    np.testing.assert_allclose(loss, expected, rtol=1e-6, atol=1e-6)
    ids, scores = ops.top_k(tf.constant(x), *variables, k)
    logits = reference.dense_logits(x, kernel, bias)
    wanted = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(scores, np.take_along_axis(logits, wanted, 1))


@settings
@hypothesis.given(problems(), st.data())
def test_hash_tables(problem, data):
    x, kernel, _, (_, excluded), labels = problem
    units, d = kernel.shape
    bits, tables = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    nonzeros = data.draw(st.integers(1, d))
    parameters = ops.sim_hash_parameters(data.draw(st.integers(-9, 9)), d, bits * tables, nonzeros)
    neuron_codes = ops.sim_hash_codes(kernel, *parameters, bits, tables).numpy()
    codes = ops.sim_hash_codes(x, *parameters, bits, tables).numpy()
    assert codes.shape == (len(x), tables)
    np.testing.assert_array_equal(codes[~x.any(1)], 0)
    ptr, ids = ops.build_tables(neuron_codes, 2**bits)
    expected = reference.build_tables(neuron_codes, 2**bits)
    np.testing.assert_array_equal(ptr, expected[0])
    np.testing.assert_array_equal(ids, expected[1])

    hashed = data.draw(st.integers(0, units + 2))
    own = ops.select_from_tables(
        codes,
        ptr,
        ids,
        to_tf(labels),
        tf.constant(excluded),
        tf.constant(1, tf.int64),
        hashed=hashed,
        bucket_size=1000,
        seed=1,
    )
    collisions = reference.bucket_collisions(codes, *expected)
    assert reference.selection_faults(to_numpy(own), collisions, labels, excluded, hashed) == []


@settings
@hypothesis.given(problems(), st.data())
def test_shares_of_sampled_neurons(problem, data):
    _, kernel, _, (own, fixed), _ = problem
    units = len(kernel)
    count = data.draw(st.integers(0, units + 2))
    shared, drawn = ops.sample_neurons(
        tf.constant(data.draw(st.integers(-9, 9)), tf.int64),
        units=units,
        count=count,
        distribution=data.draw(st.sampled_from(("uniform", "log_uniform"))),
        seed=1,
        fixed=tf.constant(fixed),
    )
    assert len(shared) == min(units, len(fixed) + count)
    np.testing.assert_array_equal(shared[drawn == 0], fixed)
    active = ActiveSet(own, shared.numpy())
    shares = ops.log_importance_weights(active_to_tf(active), drawn, units)
    expected = reference.log_importance_weights(active, drawn.numpy(), units)
    np.testing.assert_allclose(shares, expected, rtol=1e-6)
    # The neurons of a row that has any that came by chance have the weight of all units.
    factors = active.join(np.ones(len(own.ids)), np.exp(expected[:, None] * drawn.numpy()))
    weights = np.bincount(
        active.distinct().entry_rows(), factors[active.counted()], minlength=own.rows
    )
    by_chance = np.asarray(
        [np.setdiff1d(shared[drawn == 1], own.row(row)).size for row in range(own.rows)]
    )
    np.testing.assert_allclose(weights[by_chance > 0], units)


@settings
@hypothesis.given(problems(), st.data())
def test_dwta_of_sparse_vectors(problem, data):
    x, _, _, _, _ = problem
    bin_size = data.draw(st.sampled_from([size for size in (1, 2, 4, 8) if size <= x.shape[1]]))
    bins, tables = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    index = ops.dwta_parameters(3, x.shape[1], bins * tables, bin_size)
    codes = ops.dwta_codes(x, index, tables, 12)
    expected = reference.dwta_joined_codes(x, index.numpy(), tables)
    np.testing.assert_array_equal(codes, expected)


@settings
@hypothesis.given(problems(), st.data())
def test_nan_is_named(problem, data):
    x, kernel, bias, active, labels = problem
    hypothesis.assume(x.size)
    row = data.draw(st.integers(0, len(x) - 1))
    x[row, data.draw(st.integers(0, x.shape[1] - 1))] = np.nan
    variables = tf.Variable(kernel), tf.Variable(bias)
    view = ops.csc_from_csr(active_to_tf(active), len(kernel))
    index, value = ops.sim_hash_parameters(1, x.shape[1], 4, 1)
    for call in (
        lambda: ops.active_logits(tf.constant(x), view, *variables),
        lambda: ops.full_crossentropy(tf.constant(x), to_tf(labels), *variables),
        lambda: ops.top_k(tf.constant(x), *variables, 1),
        lambda: ops.sim_hash_codes(x, index, value, 2, 2),
        lambda: ops.dwta_codes(x, ops.dwta_parameters(1, x.shape[1], 4, 1), 2, 2),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"row {row} holds nan"):
            call()


@settings
@hypothesis.given(problems(), st.data())
def test_nan_weights_show_in_their_rows_and_no_other(problem, data):
    x, kernel, bias, active, labels = problem
    unit = data.draw(st.integers(0, len(kernel) - 1))
    bias[unit] = np.nan
    given = active_to_tf(active)
    view = ops.csc_from_csr(given, len(kernel))
    logits = ops.active_logits(tf.constant(x), view, tf.Variable(kernel), tf.Variable(bias))
    listed = active.listed()
    np.testing.assert_array_equal(np.isnan(values_to_numpy(active, logits)), listed.ids == unit)
    loss = ops.softmax_crossentropy(logits, given, to_tf(labels)).numpy()
    has_unit = np.asarray([unit in listed.row(row) for row in range(len(x))], bool)
    np.testing.assert_array_equal(np.isnan(loss), has_unit & (np.diff(labels.row_splits) > 0))


@settings
@hypothesis.given(st.data())
def test_adam_with_repeated_rows(data):
    units, d = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 10))
    rows = np.asarray(data.draw(st.lists(st.integers(0, units - 1), max_size=9)), np.int32)
    gradient = data.draw(arrays(len(rows), d))
    start = AdamState(data.draw(arrays(units, d)), *np.zeros((2, units, d), np.float32))
    variables = [tf.Variable(a) for a in start]
    step = AdamSettings(1, 0.5)
    arguments = ops.AdamArguments(
        *map(ops.handle, (*variables, tf.Variable(tf.zeros([units], tf.int32)))),
        tf.constant(step.step, tf.int64),
        tf.constant(step.learning_rate),
        tf.constant(step.weight_decay),
        step.beta_1,
        step.beta_2,
        step.epsilon,
    )
    ops.row_adam(arguments, tf.constant(rows), tf.constant(gradient))
    expected = reference.row_adam(start, rows, gradient, step)
    for got, wanted in zip(variables, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
