"""Softmax cross-entropy over active sets, and the best of a row."""

from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import (
    SHARED_COUNTS,
    THINNED_SHAPES,
    active_to_tf,
    assert_within,
    floats,
    labels_within,
    random_active_set,
    to_tf,
    values_to_numpy,
    values_to_tf,
)
from tests.reference import UNIT_ROUNDOFF, ActiveSet, csr
from tf_dslide._native import ops

NOTHING_SHARED = np.zeros(0, np.int32)


def only_own(*rows):
    """An active set without shared neurons."""
    return ActiveSet(csr(rows), NOTHING_SHARED)


# Logits and gradients are those of `active.listed()`, where shared neurons stand in each row.
def loss_and_gradient(logits, active, labels, upstream=None):
    logits = values_to_tf(active, np.asarray(logits, np.float32))
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = ops.softmax_crossentropy(logits, active_to_tf(active), to_tf(labels))
    gradient = tape.gradient(loss, logits, output_gradients=upstream)
    return loss.numpy(), values_to_numpy(active, gradient)


def gradient_bound(active):
    """Error of a softmax probability: exp is good to 2 roundings, n terms are summed."""
    lists = active.listed()
    return (np.diff(lists.row_splits) + 8)[lists.entry_rows()] * UNIT_ROUNDOFF


shared_case = pytest.mark.parametrize("shared", SHARED_COUNTS)


@shared_case
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
@pytest.mark.parametrize("size", [0.1, 3.0, 1e4])
def test_softmax_crossentropy(rng, rows, units, size, shared):
    active = random_active_set(rng, rows, units, 200, shared)
    lists, labels = active.listed(), labels_within(rng, active.own)
    logits = np.float32(size) * floats(rng, len(lists.ids))
    upstream = floats(rng, rows)
    loss, gradient = loss_and_gradient(logits, active, labels, tf.constant(upstream))
    expected, by_logit = reference.active_crossentropy(logits, active, labels)
    # The sum of exponentials is float32: its relative error is an absolute one of its logarithm.
    bound = (np.diff(lists.row_splits) + 8) * UNIT_ROUNDOFF + 2 * UNIT_ROUNDOFF * expected
    assert_within(loss, expected, bound)
    upstream = upstream[lists.entry_rows()]
    assert_within(gradient, by_logit * upstream, gradient_bound(active) * np.abs(upstream))
    assert not gradient[~active.counted()].any()


@pytest.mark.parametrize("shared", [[], range(0, 100_003, 3), range(100_003)])
def test_softmax_over_many_neurons(rng, shared):
    own = csr([np.arange(100_003), np.arange(0, 100_003, 2)])
    active = ActiveSet(own, np.asarray(shared, np.int32))
    labels = csr([[5, 99_999, 100_002], [0, 2]])
    logits = floats(rng, len(active.listed().ids))
    loss, gradient = loss_and_gradient(logits, active, labels)
    expected, by_logit = reference.active_crossentropy(logits, active, labels)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, by_logit, rtol=2e-5, atol=1e-12)


@pytest.mark.parametrize("own", [999, 500, 1])
def test_small_probabilities_keep_their_relative_precision(own):
    # 60 below the top: about 1e-26. Relative error, since a gradient row may hold nothing else.
    gaps = np.linspace(0, 80, 999, dtype=np.float32)
    active, labels = ActiveSet(csr([np.arange(own)]), np.arange(own, 999)), csr([[0]])
    _, gradient = loss_and_gradient(-gaps, active, labels)
    _, expected = reference.active_crossentropy(-gaps, active, labels)
    np.testing.assert_allclose(gradient[1:], expected[1:], rtol=1e-6)


@pytest.mark.parametrize("shared", SHARED_COUNTS)
@pytest.mark.parametrize("rows", [1, 7])
def test_offsets_count_as_part_of_the_shared_logits(rng, rows, shared):
    active = random_active_set(rng, rows, 300, 20, shared)
    labels = labels_within(rng, active.own)
    logits = values_to_tf(active, floats(rng, len(active.listed().ids)))
    offsets = ops.SharedAdjustment(
        tf.constant(floats(rng, rows)), tf.constant(floats(rng, len(active.shared)))
    )
    moved = logits._replace(shared=logits.shared + offsets.rows[:, None] * offsets.neurons[None, :])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([logits, moved])
        one = ops.softmax_crossentropy(logits, active_to_tf(active), to_tf(labels), offsets)
        other = ops.softmax_crossentropy(moved, active_to_tf(active), to_tf(labels))
    np.testing.assert_allclose(one, other, rtol=1e-6)
    for got, wanted in zip(tape.gradient(one, logits), tape.gradient(other, moved), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-8)


def test_a_shared_neuron_that_is_a_rows_own_counts_once():
    # Whatever its logit among the shared ones, infinite ones too: the sampler may shift it.
    active, labels = ActiveSet(csr([[1, 3], [0]]), np.array([1, 2])), csr([[1], [0]])
    wanted, slopes = loss_and_gradient([1, 2, 9, 3, 4, 5, 6], active, labels)
    np.testing.assert_allclose(wanted[0], np.log(1 + np.exp(1) + np.exp(2)), rtol=1e-6)
    assert slopes[2] == 0
    for shared_logit in (-1e30, 3e38, np.inf, -np.inf, np.nan):
        loss, gradient = loss_and_gradient([1, 2, shared_logit, 3, 4, 5, 6], active, labels)
        np.testing.assert_array_equal(loss, wanted)
        np.testing.assert_array_equal(gradient, slopes)


def test_shared_neurons_count_as_own_ones_do(rng):
    # The same neurons, once as own ones and once shared.
    ids, logits = np.arange(3, 203, 2), floats(rng, 100)
    split = ActiveSet(csr([ids[:30]]), ids[30:])
    for labels in (csr([ids[:1]]), csr([ids[10:30]])):
        loss, gradient = loss_and_gradient(logits, only_own(ids), labels)
        other_loss, other_gradient = loss_and_gradient(logits, split, labels)
        np.testing.assert_allclose(other_loss, loss, rtol=1e-6)
        np.testing.assert_allclose(other_gradient, gradient, rtol=1e-5, atol=1e-8)


def test_rows_without_labels_have_no_loss_and_no_gradient(rng):
    labels = csr([[], [2], []])
    for shared in ([], [3, 5]):
        active = ActiveSet(csr([[0, 3], [1, 2], []]), np.asarray(shared, np.int32))
        loss, gradient = loss_and_gradient(floats(rng, 4 + 3 * len(shared)), active, labels)
        assert loss[0] == loss[2] == 0
        assert loss[1] > 0
        rows = active.listed().entry_rows()
        assert not gradient[rows != 1].any()
        assert (gradient[rows == 1] != 0).all()


def test_nan_without_a_label_is_nobodys_loss():
    active, labels = ActiveSet(csr([[0], [0]]), np.array([1])), csr([[], [0]])
    loss, gradient = loss_and_gradient([np.nan, np.nan, 1, 1], active, labels)
    np.testing.assert_allclose(loss, [0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0, 0, -0.5, 0.5], rtol=1e-6)


@pytest.mark.parametrize("shared", [[], [7]])
def test_one_neuron_has_probability_one(shared):
    active = ActiveSet(csr([[7]]), np.asarray(shared, np.int32))
    loss, gradient = loss_and_gradient([-123.25] * (1 + len(shared)), active, csr([[7]]))
    np.testing.assert_array_equal(loss, [0])
    np.testing.assert_array_equal(gradient, np.zeros(1 + len(shared)))


@pytest.mark.parametrize("own", [3, 2])
def test_extreme_logits_stay_finite(own):
    # Neurons 0 to 2, all of them a row's own or the last one shared.
    top = np.finfo(np.float32).max
    logits = [1e4, -1e4, 0, top, -top, 3, 5, 5, -np.inf]
    labels = csr([[0], [0], [0, 1]])
    active = ActiveSet(csr([range(own)] * 3), np.arange(own, 3))
    loss, gradient = loss_and_gradient(logits, active, labels)
    np.testing.assert_allclose(loss, [0, 0, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0] * 9, atol=1e-7)
    alone = ActiveSet(csr([range(own)]), np.arange(own, 3))
    loss, gradient = loss_and_gradient([1e4, -1e4, 0], alone, csr([[1]]))
    np.testing.assert_allclose(loss, [2e4], rtol=1e-6)
    np.testing.assert_allclose(gradient, [1, -1, 0], atol=1e-7)
    # The largest logit may be a shared one.
    loss, gradient = loss_and_gradient([0, -1e4, 1e4], alone, csr([[1]]))
    np.testing.assert_allclose(loss, [2e4], rtol=1e-6)
    np.testing.assert_allclose(gradient, [0, -1, 1], atol=1e-7)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001])
@pytest.mark.parametrize("place", [0, 5, 60, 100])
@pytest.mark.parametrize("own", [101, 50])
def test_nan_logits_give_nan(bits, place, own):
    # Also with a payload: the exponential works on bits.
    logits = np.zeros(101, np.float32)
    logits.view(np.uint32)[place] = bits
    active = ActiveSet(csr([np.arange(own)]), np.arange(own, 101))
    loss, gradient = loss_and_gradient(logits, active, csr([[3]]))
    assert np.isnan(loss).all()
    assert np.isnan(gradient).any()


@pytest.mark.parametrize("shared", [[], [2, 9]])
@pytest.mark.parametrize("labels", [[[], [2], [0, 4]], [[], [0, 1, 3, 4], [0]], [[1], [9], [5]]])
def test_softmax_names_the_first_row_whose_label_is_not_its_own(labels, shared):
    # Nor is a label that is only among the shared neurons.
    active = ActiveSet(csr([[], [0, 1, 3], [0, 4]]), np.asarray(shared, np.int32))
    own = [active.own.row(row) for row in range(3)]
    bad = next(row for row in range(3) if not np.isin(csr(labels).row(row), own[row]).all())
    for logit in (0.0, np.nan):
        logits = np.full(5 + 3 * len(shared), logit)
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"row {bad} has a label"):
            loss_and_gradient(logits, active, csr(labels))


# The best of each row.
def top_k(logits, active, k):
    ids, scores = ops.active_top_k(values_to_tf(active, logits), active_to_tf(active), k)
    assert (ids.dtype, scores.dtype) == (tf.int32, tf.float32)
    return ids.numpy(), scores.numpy()


@shared_case
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
@pytest.mark.parametrize("k", [1, 5, 70])
def test_active_top_k(rng, rows, units, k, shared):
    active = random_active_set(rng, rows, units, 60, shared)
    # Few distinct values: many ties.
    logits = rng.integers(-3, 4, len(active.listed().ids)).astype(np.float32)
    for got, expected in zip(
        top_k(logits, active, k), reference.active_top_k(logits, active, k), strict=True
    ):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("own", [5, 3, 0])
def test_active_top_k_orders_infinities_and_zeros(own):
    logits = np.asarray([-np.inf, 0.0, np.inf, -0.0, -np.inf], np.float32)
    neurons = np.array([1, 2, 4, 6, 9])
    active = ActiveSet(csr([neurons[:own]]), neurons[own:])
    ids, scores = top_k(logits, active, 5)
    np.testing.assert_array_equal(ids, [[4, 2, 6, 1, 9]])
    np.testing.assert_array_equal(scores, [[np.inf, 0, 0, -np.inf, -np.inf]])


@pytest.mark.parametrize("own", [300, 100, 0])
def test_active_top_k_survives_nan(rng, own):
    logits = floats(rng, 300)
    logits[::7] = np.nan
    ids, _ = top_k(logits, ActiveSet(csr([np.arange(own)]), np.arange(own, 300)), 300)
    np.testing.assert_array_equal(np.sort(ids[0]), np.arange(300))


def restricted(rows, begin, end):
    """The ids of a range, counted from its beginning."""
    return [[i - begin for i in ids if begin <= i < end] for ids in rows]


@pytest.mark.parametrize("borders", [(0, 40, 97), (0, 1, 2, 50, 97), (0, 97, 97)])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_parts_of_the_units_make_up_the_whole(rng, borders, size):
    units, rows = 97, 9
    labels = [sorted({*rng.integers(0, units, 3)}) for _ in range(rows - 1)] + [[]]
    own = [sorted({*ids, *rng.integers(0, units, 10)}) for ids in labels]
    shared = np.unique(rng.integers(0, units, 20))
    logits = (size * floats(rng, rows * units)).reshape(rows, units)
    upstream = floats(rng, rows)
    counts = np.array([len(ids) for ids in labels], np.float32)

    def part(begin, end):
        mine = shared[(shared >= begin) & (shared < end)]
        active = ActiveSet(csr(restricted(own, begin, end)), (mine - begin).astype(np.int32))
        splits = active.own.row_splits
        given = np.repeat(np.arange(rows), np.diff(splits))
        own_logits = logits[given, active.own.ids + begin]
        values = ops.ActiveLogits(tf.constant(own_logits), tf.constant(logits[:, mine]))
        return values, active_to_tf(active), to_tf(csr(restricted(labels, begin, end)))

    parts = [part(*edge) for edge in pairwise(borders)]
    sums = [[x.numpy().astype(float) for x in ops.softmax_parts(*p)] for p in parts]
    top = np.max([s[0] for s in sums], axis=0)
    log_sum = np.log(sum(np.exp(s[0] - top + s[1]) for s in sums))
    label_sum = sum(
        s[2] + p[2].row_lengths().numpy() * (s[0] - top) for s, p in zip(sums, parts, strict=True)
    )
    loss = log_sum - label_sum / np.maximum(counts, 1)

    whole, active, given = part(0, units)
    wanted, slopes = [], []
    totals = [tf.constant(x.astype(np.float32)) for x in (top, log_sum, counts)]
    with tf.GradientTape() as tape:
        tape.watch(whole)
        wanted = ops.softmax_crossentropy(whole, active, given)
    slopes = tape.gradient(wanted, whole, output_gradients=tf.constant(upstream))
    np.testing.assert_allclose(np.where(counts > 0, loss, 0), wanted, rtol=1e-5, atol=1e-5)
    got = [
        ops.softmax_gradient(*p, None, ops.SoftmaxTotals(*totals), tf.constant(upstream))
        for p in parts
    ]
    shared_got = np.concatenate([g.shared for g in got], axis=1)
    np.testing.assert_allclose(shared_got, slopes.shared, rtol=1e-5, atol=1e-6)
    for row in range(rows):
        mine = [
            g.own[slice(*p[1].own.row_splits[row : row + 2])]
            for g, p in zip(got, parts, strict=True)
        ]
        expected = slopes.own[slice(*active.own.row_splits[row : row + 2])]
        np.testing.assert_allclose(np.concatenate(mine), expected, rtol=1e-5, atol=1e-6)
