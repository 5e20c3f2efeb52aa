"""The three Adam ops against NumPy."""

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
    random_active_set,
    values_to_tf,
)
from tests.reference import UNIT_ROUNDOFF, ActiveSet, AdamSettings, AdamState, csr, sum_bound
from tf_dslide._native import ops

SETTINGS = (
    AdamSettings(1, 1e-3),
    AdamSettings(2, 0.1, weight_decay=0.01),
    AdamSettings(1000, 1e-2, 0.1, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
    AdamSettings(10**9, 1e-4),
)
settings_case = pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: f"step{s.step}")


class Variables:
    """A weight and its moments as TensorFlow variables; `last_step` of rows that missed some."""

    def __init__(self, rng, *shape, last_step=None):
        weight, momentum, velocity = floats(rng, *shape), floats(rng, *shape), floats(rng, *shape)
        self.start = AdamState(weight, np.float32(0.1) * momentum, np.square(velocity))
        self.variables = [tf.Variable(a) for a in self.start]
        self.last_step = None if last_step is None else tf.Variable(last_step, dtype=tf.int32)

    def arguments(self, settings, lazy=False):
        if self.last_step is None:
            # All rows took part in the step before.
            rows = self.start.weight.shape[:1]
            self.last_step = tf.Variable(np.full(rows, settings.step - 1, np.int32))
        return ops.AdamArguments(
            *map(ops.handle, (*self.variables, self.last_step)),
            tf.constant(settings.step, tf.int64),
            tf.constant(settings.learning_rate),
            tf.constant(settings.weight_decay),
            settings.beta_1,
            settings.beta_2,
            settings.epsilon,
            lazy,
        )

    def state(self):
        return AdamState(*(v.numpy() for v in self.variables))

    def assert_equals(self, expected, settings, sizes, terms=1):
        """To float32 rounding.

        `sizes` are the absolute values of what makes the gradient, `terms` how many are summed.
        """
        roundings = 4 * UNIT_ROUNDOFF
        error = sum_bound(sizes, terms)
        momentum_error = error + roundings * (np.abs(self.start.momentum) + sizes)
        root = np.sqrt(expected.velocity) + settings.epsilon
        velocity_error = 2 * error * sizes + roundings * (self.start.velocity + sizes**2)
        step_error = momentum_error + np.abs(expected.momentum) * (
            roundings + velocity_error / root**2
        )
        correction = np.sqrt(1 - settings.beta_2**settings.step)
        rate = settings.learning_rate * correction / (1 - settings.beta_1**settings.step)
        change = np.abs(expected.weight - self.start.weight)
        weight_error = UNIT_ROUNDOFF * (2 * np.abs(self.start.weight) + 2 * change)
        bounds = (weight_error + rate * step_error / root, momentum_error, velocity_error)
        for got, wanted, bound in zip(self.state(), expected, bounds, strict=True):
            assert_within(got, wanted, bound)


def bits_equal(actual, expected):
    """Whether two float32 arrays agree in every bit."""
    return np.array_equal(
        np.ascontiguousarray(actual).view(np.int32), np.ascontiguousarray(expected).view(np.int32)
    )


@settings_case
@pytest.mark.parametrize("shape", [(1,), (7,), (8,), (130, 31), (65, 128), (0, 5), (2, 3, 5), ()])
def test_dense_adam(rng, shape, settings):
    variables, gradient = Variables(rng, *shape), floats(rng, *shape)
    ops.dense_adam(variables.arguments(settings), tf.constant(gradient))
    expected = reference.adam(variables.start, gradient, settings)
    variables.assert_equals(expected, settings, np.abs(gradient))


def test_dense_adam_equals_keras(rng):
    import keras

    weight = floats(rng, 31, 9)
    variable = keras.Variable(weight)
    optimizer = keras.optimizers.Adam(0.01, weight_decay=0.004)
    optimizer.build([variable])
    ours = [tf.Variable(a) for a in (weight, np.zeros_like(weight), np.zeros_like(weight))]
    ours.append(tf.Variable(tf.zeros([31], tf.int32)))
    for step in range(1, 51):
        gradient = tf.constant(floats(rng, 31, 9))
        optimizer.apply([gradient])
        arguments = ops.AdamArguments(
            *map(ops.handle, ours),
            tf.constant(step, tf.int64),
            tf.constant(0.01),
            tf.constant(0.004),
            0.9,
            0.999,
            1e-7,
        )
        ops.dense_adam(arguments, gradient)
    # Keras takes 1 - 0.999 as 0.001 in one place and as float32 1 - 0.999 in another: they differ
    # by 1e-5.
    travelled = np.abs(np.asarray(variable) - weight)
    np.testing.assert_array_less(np.abs(ours[0] - np.asarray(variable)), 2e-5 * (1 + travelled))
    assert travelled.mean() > 0.05


ROW_CASES = [(rows, units, 31) for rows, units in SHAPES] + [(130, 300, d) for d in WIDTHS]


@settings_case
@pytest.mark.parametrize("order", ["ascending", "shuffled", "repeated"])
@pytest.mark.parametrize(("count", "units", "d"), ROW_CASES)
def test_row_adam(rng, count, units, d, order, settings):
    variables = Variables(rng, units, d)
    if order == "repeated":
        rows = rng.integers(0, units, count)
    else:
        rows = rng.choice(units, min(count, units), replace=False)
        rows = np.sort(rows) if order == "ascending" else rows
    gradient = floats(rng, len(rows), d)
    ops.row_adam(variables.arguments(settings), tf.constant(rows, tf.int32), tf.constant(gradient))

    expected = reference.row_adam(variables.start, rows, gradient, settings)
    sizes = np.zeros((units, d))
    np.add.at(sizes, rows, np.abs(gradient))
    variables.assert_equals(expected, settings, sizes, np.bincount(rows, minlength=units)[:, None])
    untouched = np.setdiff1d(np.arange(units), rows)
    for got, old in zip(variables.state(), variables.start, strict=True):
        assert bits_equal(got[untouched], old[untouched])


@settings_case
def test_row_adam_on_a_vector(rng, settings):
    # A bias: rows of length 1.
    variables, rows = Variables(rng, 40), np.array([39, 0, 7, 0])
    gradient = floats(rng, 4)
    ops.row_adam(variables.arguments(settings), tf.constant(rows, tf.int32), tf.constant(gradient))
    expected = reference.row_adam(variables.start, rows, gradient, settings)
    sizes = np.zeros(40)
    np.add.at(sizes, rows, np.abs(gradient))
    variables.assert_equals(expected, settings, sizes, np.bincount(rows, minlength=40))


@pytest.mark.parametrize("shared", [0, 1, 63, 300])
@pytest.mark.parametrize(("rows", "units", "d"), ROW_CASES)
def test_fused_adam_equals_gradient_and_adam(rng, rows, units, d, shared):
    settings = AdamSettings(3, 0.05, 0.01)
    # Shared neurons count as entries of all rows.
    active = random_active_set(rng, rows, units, 20, shared)
    lists = active.listed()
    x, coef = floats(rng, rows, d), floats(rng, len(lists.ids))
    view = ops.csc_from_csr(active_to_tf(active), units)
    parts = ops.GradientFactors(tf.constant(x), *values_to_tf(active, coef), view)

    fused, apart = Variables(rng, units, d), Variables(rng, units, d)
    for variable, value in zip(apart.variables, fused.start, strict=True):
        variable.assign(value)
    ops.row_gradient_adam(fused.arguments(settings), parts)
    slices = ops.row_gradient(parts, ops.handle(apart.variables[0]))
    ops.row_adam(apart.arguments(settings), slices.indices, slices.values)
    for one, two in zip(fused.state(), apart.state(), strict=True):
        assert bits_equal(one, two)

    dense = reference.row_gradient(x, coef, lists, units)
    touched = np.union1d(active.own.ids, active.shared)
    expected = reference.row_adam(fused.start, touched, dense[touched], settings)
    sizes = reference.row_gradient(np.abs(x), np.abs(coef), lists, units)
    terms = np.bincount(lists.ids, minlength=units)[:, None]
    fused.assert_equals(expected, settings, sizes, terms)
    untouched = np.setdiff1d(np.arange(units), touched)
    for got, old in zip(fused.state(), fused.start, strict=True):
        assert bits_equal(got[untouched], old[untouched])


def test_rows_of_all_units_equal_dense_adam(rng):
    settings = AdamSettings(3, 0.05, 0.01)
    by_row, dense = Variables(rng, 64, 32), Variables(rng, 64, 32)
    for variable, value in zip(dense.variables, by_row.start, strict=True):
        variable.assign(value)
    gradient = tf.constant(floats(rng, 64, 32))
    ops.row_adam(by_row.arguments(settings), tf.range(64), gradient)
    ops.dense_adam(dense.arguments(settings), gradient)
    for one, two in zip(by_row.state(), dense.state(), strict=True):
        assert bits_equal(one, two)


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1e4, 1e15])
def test_adam_takes_gradients_of_any_size(rng, size):
    variables = Variables(rng, 50)
    variables.start = AdamState(variables.start.weight, np.zeros(50), np.zeros(50))
    for variable, value in zip(variables.variables, variables.start, strict=True):
        variable.assign(value)
    gradient = np.float32(size) * floats(rng, 50)
    settings = AdamSettings(1, 0.1)
    ops.dense_adam(variables.arguments(settings), tf.constant(gradient))
    expected = reference.adam(variables.start, gradient, settings)
    np.testing.assert_allclose(variables.state().weight, expected.weight, rtol=1e-5, atol=1e-7)


def test_values_read_before_an_update_stay(rng):
    # An update in place must not show in a tensor that somebody still holds.
    variables = Variables(rng, 30, 7)
    settings = AdamSettings(1, 0.1)
    held = [v.read_value() for v in variables.variables]
    arguments = variables.arguments(settings)
    ops.row_adam(arguments, tf.constant([3, 5]), tf.ones([2, 7]))
    ops.dense_adam(arguments, tf.ones([30, 7]))
    for tensor, old in zip(held, variables.start, strict=True):
        assert bits_equal(tensor.numpy(), old)
    assert (variables.state().weight != variables.start.weight).all()


def test_gradient_may_be_the_variable_itself(rng):
    variables = Variables(rng, 30, 7)
    settings = AdamSettings(1, 0.1)
    ops.dense_adam(variables.arguments(settings), variables.variables[0].read_value())
    expected = reference.adam(variables.start, variables.start.weight, settings)
    variables.assert_equals(expected, settings, np.abs(variables.start.weight))


@pytest.mark.parametrize("shared", [[], [4, 17]])
def test_adam_inside_a_graph_runs_once_and_in_order(rng, shared):
    variables = Variables(rng, 30, 7)
    x = tf.constant(floats(rng, 2, 7))
    active = ActiveSet(csr([[0, 4], [4, 9]]), np.asarray(shared, np.int32))
    given = active_to_tf(active)

    @tf.function
    def train(step):
        with tf.GradientTape() as tape:
            before = ops.active_logits(x, ops.csc_from_csr(given, 30), variables.variables[0])
        slices = tape.gradient(before, variables.variables[0])
        arguments = variables.arguments(AdamSettings(1, 0.1))._replace(step=step)
        ops.row_gradient_adam(arguments, ops.factors_of(slices))
        after = ops.active_logits(x, ops.csc_from_csr(given, 30), variables.variables[0])
        return before, after

    before, after = train(tf.constant(1, tf.int64))
    for got, state in ((before, variables.start), (after, variables.state())):
        expected = reference.active_logits(x.numpy(), active.listed(), state.weight)
        np.testing.assert_allclose(active.join(*map(np.array, got)), expected, rtol=1e-4, atol=1e-5)
    for one, two in zip(before, after, strict=True):
        assert (np.abs(one - two) > 1e-4).all()
    changed = np.flatnonzero((variables.state().weight != variables.start.weight).any(1))
    np.testing.assert_array_equal(changed, np.union1d([0, 4, 9], shared))


# Rows that catch up.
LATE = (
    AdamSettings(200, 1e-2, epsilon=1e-7),
    AdamSettings(151, 1e-2, 0.1, epsilon=1e-3),
    AdamSettings(40, 0.1, beta_1=0.5, beta_2=0.9),
    AdamSettings(60, 0.1, beta_1=0.0),
    AdamSettings(1500, 1e-3, 0.01),
)
late_case = pytest.mark.parametrize("settings", LATE, ids=lambda s: f"step{s.step}")


def late_variables(rng, units, d, step):
    """Rows that missed nothing, all, or anything between."""
    last_step = rng.integers(0, step, units)
    last_step[:2] = step - 1, 1
    return Variables(rng, units, d, last_step=last_step)


def assert_caught_up(variables, expected, settings):
    """What is simplified, the part of epsilon, is a hundredth of a step or of a long way."""
    state = variables.state()
    np.testing.assert_allclose(state.momentum, expected.momentum, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(state.velocity, expected.velocity, rtol=1e-4, atol=1e-9)
    moved = np.abs(expected.weight - variables.start.weight)
    error = np.abs(state.weight - expected.weight)
    np.testing.assert_array_less(error, 3e-3 * moved + 1e-2 * settings.learning_rate)
    assert settings.beta_1 == 0 or moved.max() > settings.learning_rate


@late_case
@pytest.mark.parametrize("d", [1, 7, 33])
def test_rows_make_up_for_the_steps_that_they_missed(rng, settings, d):
    """Against one step of dense Adam after the other."""
    units = 40
    dense, by_row, brought = (
        late_variables(np.random.default_rng(3), units, d, settings.step) for _ in range(3)
    )
    gradient = floats(rng, units, d)
    last_step = dense.last_step.numpy()
    late = reference.missed_adam(dense.start, last_step, settings)

    ops.dense_adam(dense.arguments(settings), tf.constant(gradient))
    expected = reference.adam(late, gradient, settings)
    assert_caught_up(dense, expected, settings)
    assert (dense.last_step.numpy() == settings.step).all()

    rows = np.sort(rng.choice(units, 25, replace=False))
    ops.row_adam(by_row.arguments(settings), tf.constant(rows, tf.int32), gradient[rows])
    for all_rows, some in zip(dense.state(), by_row.state(), strict=True):
        np.testing.assert_allclose(some[rows], all_rows[rows], rtol=1e-6, atol=1e-7)
    others = np.setdiff1d(np.arange(units), rows)
    for got, old in zip(by_row.state(), by_row.start, strict=True):
        assert bits_equal(got[others], old[others])
    expected_last = np.where(np.isin(np.arange(units), rows), settings.step, last_step)
    np.testing.assert_array_equal(by_row.last_step, expected_last)

    ops.catch_up_adam(brought.arguments(settings))
    assert_caught_up(brought, late, settings)
    assert (brought.last_step.numpy() == settings.step - 1).all()
    # Whether before the step or within it.
    ops.dense_adam(brought.arguments(settings), tf.constant(gradient))
    for one, two in zip(brought.state(), dense.state(), strict=True):
        assert bits_equal(one, two)


def test_long_gaps_follow_on_short_ones(rng):
    """From 512 missed steps on a closed form takes the place of the sum."""
    settings = AdamSettings(5000, 1e-2)
    last_step = 4999 - np.array([510, 511, 512, 513, 514, 600, 2000, 4900])
    variables = Variables(rng, len(last_step), 5, last_step=last_step)
    late = reference.missed_adam(variables.start, last_step, settings)
    ops.catch_up_adam(variables.arguments(settings))
    assert_caught_up(variables, late, settings)


def test_rows_that_never_moved_stay(rng):
    settings = AdamSettings(700, 0.1, epsilon=0.0)
    variables = Variables(rng, 9, 20, last_step=np.arange(9) * 80)
    variables.start = AdamState(variables.start.weight, *np.zeros((2, 9, 20), np.float32))
    for variable, value in zip(variables.variables, variables.start, strict=True):
        variable.assign(value)
    ops.catch_up_adam(variables.arguments(settings))
    for got, old in zip(variables.state(), variables.start, strict=True):
        np.testing.assert_array_equal(got, old)


def test_fused_adam_catches_up_as_row_adam_does(rng):
    settings = AdamSettings(90, 0.05, 0.01)
    active = random_active_set(rng, 30, 60, 20, 9)
    x, coef = floats(rng, 30, 17), floats(rng, len(active.listed().ids))
    view = ops.csc_from_csr(active_to_tf(active), 60)
    factors = ops.GradientFactors(tf.constant(x), *values_to_tf(active, coef), view)
    fused, apart = (late_variables(np.random.default_rng(3), 60, 17, 90) for _ in range(2))
    ops.row_gradient_adam(fused.arguments(settings), factors)
    slices = ops.row_gradient(factors, ops.handle(apart.variables[0]))
    ops.row_adam(apart.arguments(settings), slices.indices, slices.values)
    for one, two in zip(fused.state(), apart.state(), strict=True):
        assert bits_equal(one, two)
    np.testing.assert_array_equal(fused.last_step, apart.last_step)


def test_lazy_rows_miss_nothing(rng):
    settings = AdamSettings(200, 0.1, 0.01)
    variables = late_variables(rng, 20, 6, 200)
    before = variables.last_step.numpy()
    gradient = floats(rng, 20, 6)
    ops.catch_up_adam(variables.arguments(settings, lazy=True))
    ops.row_adam(variables.arguments(settings, lazy=True), tf.range(20), tf.constant(gradient))
    expected = reference.adam(variables.start, gradient, settings)
    variables.assert_equals(expected, settings, np.abs(gradient))
    np.testing.assert_array_equal(variables.last_step, before)
