"""The NumPy reference against loops over single numbers."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from tests import reference
from tests.reference import ActiveSet, AdamSettings, AdamState, Csr, csr, to_lists

ACTIVE = csr([[0, 2, 3], [], [1], [0, 1, 2, 3, 4]])
UNITS, D = 5, 3


@pytest.fixture
def arrays(rng):
    """x (rows, d), kernel (units, d), bias (units), coef (nnz)."""
    shapes = [(ACTIVE.rows, D), (UNITS, D), (UNITS,), (len(ACTIVE.ids),)]
    return [rng.normal(size=shape) for shape in shapes]


def entries(active: Csr) -> Iterator[tuple[int, int, int]]:
    """(place, row, id) of all entries."""
    for row in range(active.rows):
        for place in range(active.row_splits[row], active.row_splits[row + 1]):
            yield place, row, int(active.ids[place])


def test_csr_keeps_rows():
    assert to_lists(ACTIVE) == [[0, 2, 3], [], [1], [0, 1, 2, 3, 4]]
    assert to_lists(csr([])) == []
    assert ACTIVE.entry_rows().tolist() == [row for _, row, _ in entries(ACTIVE)]


# 3 is an own neuron of two rows, 1 of two, 6 of none.
MIXED = ActiveSet(ACTIVE, np.array([1, 3, 6]))


def test_active_sets_list_own_and_shared_neurons():
    assert to_lists(MIXED.listed()) == [
        [0, 2, 3, 1, 3, 6],
        [1, 3, 6],
        [1, 1, 3, 6],
        [0, 1, 2, 3, 4, 1, 3, 6],
    ]
    assert to_lists(MIXED.distinct()) == [
        [0, 2, 3, 1, 6],
        [1, 3, 6],
        [1, 3, 6],
        [0, 1, 2, 3, 4, 6],
    ]
    own, shared = np.arange(len(ACTIVE.ids)), 100 + np.arange(12).reshape(4, 3)
    values = MIXED.join(own, shared)
    assert values.tolist() == [
        *[0, 1, 2, 100, 101, 102],
        *[103, 104, 105],
        *[3, 106, 107, 108],
        *[4, 5, 6, 7, 8, 109, 110, 111],
    ]
    for part, again in zip((own, shared), MIXED.split(values), strict=True):
        np.testing.assert_array_equal(again, part)
    np.testing.assert_array_equal(MIXED.listed().ids[MIXED.counted()], MIXED.distinct().ids)


@pytest.mark.parametrize("rows", [0, 3])
def test_active_sets_without_shared_or_own_neurons(rows):
    lists = csr([[1, 2], [], [0]][:rows])
    nothing = np.zeros(0, np.int32)
    for active in (ActiveSet(lists, nothing), ActiveSet(csr([[]] * rows), np.array([2, 4]))):
        values = np.arange(len(active.listed().ids))
        own, shared = active.split(values)
        assert own.shape == active.own.ids.shape
        assert shared.shape == (rows, len(active.shared))
        np.testing.assert_array_equal(active.join(own, shared), values)
        assert active.counted().all()
        assert to_lists(active.listed()) == to_lists(active.distinct())


def test_sum_bound_holds_for_float32_sums(rng):
    for n in (1, 3, 50, 1000):
        a, b = rng.normal(size=(2, n)).astype(np.float32)
        total = np.float32(0)
        for p, q in zip(a, b, strict=True):
            total = np.float32(total + np.float32(p * q))
        exact = math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True))
        assert abs(total - exact) <= reference.sum_bound(np.abs(a * b).sum(), n)


def test_sim_hash(rng):
    x = rng.normal(size=(6, 4))
    index = np.array([[0, 2], [1, 3], [0, 1], [2, 3], [0, 3], [1, 2]])
    value = rng.normal(size=(6, 2))
    codes = reference.sim_hash_codes(x, index, value, bits=3, tables=2)
    for n, table in itertools.product(range(6), range(2)):
        code = 0
        for bit in range(3):
            p = table * 3 + bit
            total = sum(value[p, j] * x[n, index[p, j]] for j in range(2))
            code += 2**bit if total > 0 else 0
        assert codes[n, table] == code


def test_mix_is_splitmix64():
    # The first outputs of splitmix64 with seed 0, as published with the algorithm.
    state, outputs = 0, []
    for _ in range(3):
        outputs.append(reference.mix(state))
        state += 0x9E3779B97F4A7C15
    assert outputs == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_borrowing_order_asks_everybody():
    for bins in (1, 2, 7):
        for bin_ in range(bins):
            order = reference.borrowing_order(bin_, bins)
            assert order[0] == bin_
            assert set(order) == set(range(bins))


def test_dwta():
    index = np.array([[0, 1], [2, 3], [4, 5], [1, 4]])
    x = np.array([[1, 2, 4, 3, 0, 5], [0, 0, 0, 0, 0, 7], [0, 0, 0, 0, 0, 0], [-1, 0, 0, -2, 0, 0]])
    codes = reference.dwta_bin_codes(x, index)
    assert codes[0].tolist() == [1, 0, 1, 0]
    assert codes[1].tolist() == [1, 1, 1, 1]  # only bin 2 has a winner, and its code is 1
    assert codes[2].tolist() == [0, 0, 0, 0]
    assert codes[3, :2].tolist() == [1, 0]  # a 0 beats a negative value
    joined = reference.dwta_joined_codes(x, index, tables=2)
    assert joined[0].tolist() == [0b10, 0b10]
    assert joined[3, 0] == 0b10


def test_min_hash():
    assert reference.top_set(np.array([3, -1, 5, 3, 0, 4]), 3).tolist() == [0, 2, 5]
    assert reference.top_set(np.array([3, -1, 5, 3, 0, 4]), 9).tolist() == [0, 2, 3, 5]
    assert reference.top_set(np.array([-3, 0]), 2).tolist() == []
    place = np.array([[2, 3, 0, 1, 5, 4], [0, 1, 2, 3, 4, 5]])
    # Two bins each: places 0..2 and 3..5.
    hashes = reference.min_hashes(np.array([0, 1, 5]), place, 2, 4)
    assert hashes.tolist() == [2, 3, 0, 5]
    # Only the first bin of the second permutation has a member, and lends it.
    assert reference.min_hashes(np.array([2]), place, 2, 4)[2:].tolist() == [2, 2]
    assert reference.min_hash_codes(np.zeros(6), place, 2, 2, 2, 5).tolist() == [0, 0]


def test_build_tables(rng):
    codes = rng.integers(0, 4, size=(9, 3))
    ptr, ids = reference.build_tables(codes, 5)
    for table, bucket in itertools.product(range(3), range(5)):
        content = ids[table, ptr[table, bucket] : ptr[table, bucket + 1]].tolist()
        assert content == [n for n in range(9) if codes[n, table] == bucket]


def test_labels():
    labels = reference.canonical_labels([[3, -1, 0, 3], [], [-1, -1], [4]], 5)
    assert to_lists(labels) == [[0, 3], [], [], [4]]
    for bad in (5, -2):
        with pytest.raises(ValueError, match=f"row 1 has label {bad}"):
            reference.canonical_labels([[0], [1, bad]], 5)


def test_bucket_collisions(rng):
    neuron_codes, codes = rng.integers(0, 3, size=(8, 4)), rng.integers(0, 3, size=(5, 4))
    ptr, ids = reference.build_tables(neuron_codes, 3)
    collisions = reference.bucket_collisions(codes, ptr, ids)
    for row, neuron in itertools.product(range(5), range(8)):
        assert collisions[row, neuron] == sum(codes[row] == neuron_codes[neuron])


def test_selection_faults():
    collisions, labels = np.array([[0, 3, 1, 1, 2, 0]]), csr([[0]])

    def faults(ids, hashed=3, excluded=()):
        return reference.selection_faults(csr([ids]), collisions, labels, excluded, hashed)

    # 0 is the label, 1 and 4 have the most collisions.
    assert faults([0, 1, 4]) == []
    # Ties: one of 2 and 3.
    assert faults([0, 1, 2, 4], hashed=4) == []
    assert faults([0, 1, 3, 4], hashed=4) == []
    # More than there are; and labels alone.
    assert faults([0, 1, 2, 3, 4], hashed=9) == []
    assert faults([0], hashed=0) == []

    # Excluded neurons are passed over unless they are labels.
    assert faults([0, 3, 4], excluded=[0, 1, 2]) == []
    assert faults([0, 3], excluded=[1, 2, 4, 5]) == []

    assert "more collisions" in faults([0, 1, 4], excluded=[1])[0]
    assert "3 neurons, not 2" in faults([0, 3, 4], excluded=[1, 2, 4])[0]
    assert "a label is missing" in faults([1, 2, 4])[0]
    assert "3 neurons, not 5" in faults([0, 1, 4], hashed=5)[0]
    assert "4 neurons, not 3" in faults([0, 1, 4, 5])[0]
    assert "not ascending" in faults([0, 4, 1])[0]
    assert "not ascending" in faults([0, 1, 1])[0]
    assert "not ascending" in faults([0, 1, 6])[0]
    assert "more collisions" in faults([0, 1, 2])[0]
    assert "more collisions" in faults([0, 1, 5])[0]


def test_log_shares():
    own = csr([[0, 1], [], [1, 2, 5], [1, 5], [0, 1, 2, 3, 4, 5]])
    shared, drawn = np.array([1, 2, 5]), np.array([1, 0, 1])
    # 5 stands for 3, 4 and 5; 1 and 5 for all but 2.
    expected = [math.log(3), math.log(5 / 2), 0, 0, 0]
    got = reference.log_importance_weights(ActiveSet(own, shared), drawn, 6)
    assert got.tolist() == pytest.approx(expected)
    # Each set as a whole has the weight of all units.
    for row in range(2):
        active = ActiveSet(csr([own.row(row)]), shared)
        factors = np.where(drawn == 1, np.exp(got[row]), 1.0)[None]
        weights = active.join(np.ones(len(active.own.ids)), factors)[active.counted()]
        assert weights.sum() == pytest.approx(6)
    nothing = ActiveSet(own, np.zeros(0, np.int32))
    assert not reference.log_importance_weights(nothing, np.zeros(0), 6).any()


def test_log_uniform_probabilities_add_up():
    p = reference.log_uniform_probabilities(1000)
    assert p.sum() == pytest.approx(1)
    assert p[0] / p[9] == pytest.approx(math.log(2) / math.log(1.1))


def test_transpose():
    view = reference.csc_from_csr(MIXED)
    seen = []
    for u, neuron in enumerate(view.neurons):
        for e in range(view.neuron_splits[u], view.neuron_splits[u + 1]):
            seen.append((int(view.entry_index[e]), int(view.entry_row[e]), int(neuron)))
    assert sorted(seen) == list(entries(ACTIVE))
    assert [neuron for _, _, neuron in seen] == sorted(neuron for _, _, neuron in seen)
    assert (np.diff(view.neurons) > 0).all()
    assert set(view.neurons) == {*ACTIVE.ids, *MIXED.shared}
    np.testing.assert_array_equal(view.neurons[view.shared_places], MIXED.shared)
    assert np.diff(view.neuron_splits).tolist() == [2, 2, 2, 2, 1, 0]


def test_products_count_repeated_ids_each_time():
    rows, kernel = csr([[1, 2, 1], []]), np.array([[1.0], [10], [100]])
    coef, x = np.array([1.0, 2, 3]), np.array([[7.0], [5]])
    assert reference.active_logits(x, rows, kernel).tolist() == [70, 700, 70]
    assert reference.csr_mat_mul(coef, rows, kernel).tolist() == [[240], [0]]
    assert reference.row_gradient(x, coef, rows, 3).tolist() == [[0], [28], [14]]
    assert reference.entry_sums(coef, rows, 3).tolist() == [0, 4, 2]


def test_products(arrays):
    x, kernel, bias, coef = arrays
    logits = reference.active_logits(x, ACTIVE, kernel, bias)
    y, gradient = np.zeros((ACTIVE.rows, D)), np.zeros((UNITS, D))
    sums = np.zeros(UNITS)
    for place, row, neuron in entries(ACTIVE):
        exact = math.fsum(x[row, i] * kernel[neuron, i] for i in range(D)) + bias[neuron]
        assert logits[place] == pytest.approx(exact)
        sums[neuron] += coef[place]
        for i in range(D):
            y[row, i] += coef[place] * kernel[neuron, i]
            gradient[neuron, i] += coef[place] * x[row, i]
    np.testing.assert_allclose(reference.csr_mat_mul(coef, ACTIVE, kernel), y, atol=1e-12)
    np.testing.assert_allclose(reference.row_gradient(x, coef, ACTIVE, UNITS), gradient, atol=1e-12)
    np.testing.assert_allclose(reference.entry_sums(coef, ACTIVE, UNITS), sums, atol=1e-12)


LABELS = csr([[0, 3], [], [1], [2, 3, 4]])


def test_softmax_crossentropy(arrays):
    logits = 3 * arrays[3]
    loss, gradient = reference.softmax_crossentropy(logits, ACTIVE, LABELS)
    for row in range(ACTIVE.rows):
        places = [place for place, r, _ in entries(ACTIVE) if r == row]
        total = math.fsum(math.exp(logits[place]) for place in places)
        wanted = LABELS.row(row).tolist()
        terms = [
            -math.log(math.exp(logits[p]) / total) / len(wanted)
            for p in places
            if ACTIVE.ids[p] in wanted
        ]
        assert loss[row] == pytest.approx(math.fsum(terms))
    step = 1e-6
    for place in range(len(logits)):
        change = np.zeros_like(logits)
        change[place] = step
        above, _ = reference.softmax_crossentropy(logits + change, ACTIVE, LABELS)
        below, _ = reference.softmax_crossentropy(logits - change, ACTIVE, LABELS)
        slope = (above - below).sum() / (2 * step)
        assert gradient[place] == pytest.approx(slope, abs=1e-8)
    with pytest.raises(ValueError, match="row 2"):
        reference.softmax_crossentropy(logits, ACTIVE, csr([[], [], [0], []]))


def test_active_crossentropy_counts_each_neuron_once(rng):
    listed = MIXED.listed()
    logits = rng.normal(size=len(listed.ids))
    loss, gradient = reference.active_crossentropy(logits, MIXED, LABELS)
    for row in range(listed.rows):
        places = slice(*listed.row_splits[row : row + 2])
        # The first of two equal ids is the row's own.
        first = dict(reversed([*zip(listed.row(row).tolist(), logits[places], strict=True)]))
        total = math.fsum(map(math.exp, first.values()))
        wanted = LABELS.row(row).tolist()
        slopes = {id: math.exp(logit) / total for id, logit in first.items()} if wanted else {}
        for label in wanted:
            slopes[label] -= 1 / len(wanted)
        got = gradient[places]
        exact = math.log(total) - math.fsum(first[i] for i in wanted) / len(wanted) if wanted else 0
        assert loss[row] == pytest.approx(exact)
        for place, id in enumerate(listed.row(row).tolist()):
            assert got[place] == pytest.approx(slopes.pop(id, 0), abs=1e-15)


def test_active_top_k():
    active = ActiveSet(csr([[2, 4, 7], [], [1, 5], [0, 3, 6, 8]]), np.zeros(0, np.int32))
    logits = np.array([1, 3, 1, 5, 5, 2, 2, 9, 2], np.float32)
    ids, scores = reference.active_top_k(logits, active, 3)
    assert ids.tolist() == [[4, 2, 7], [-1, -1, -1], [1, 5, -1], [6, 0, 3]]
    assert scores.tolist()[3] == [9, 2, 2]
    assert scores[2, 2] == -np.inf


def test_active_top_k_counts_each_neuron_once():
    active = ActiveSet(csr([[2, 4], []]), np.array([1, 4, 6]))
    logits = active.join(np.array([3, 1]), np.array([[3, 9, 2], [7, 8, 7]])).astype(np.float32)
    ids, scores = reference.active_top_k(logits, active, 5)
    assert ids.tolist() == [[1, 2, 6, 4, -1], [4, 1, 6, -1, -1]]
    assert scores.tolist() == [[3, 3, 2, 1, -np.inf], [8, 7, 7, -np.inf, -np.inf]]


def test_full_crossentropy(arrays):
    x, kernel, bias, _ = arrays
    upstream = np.array([1.0, 2.0, -0.5, 3.0])
    loss, gradients = reference.full_crossentropy(x, LABELS, kernel, bias, upstream)
    for row in range(4):
        logits = [sum(x[row, i] * kernel[u, i] for i in range(D)) + bias[u] for u in range(UNITS)]
        wanted = LABELS.row(row)
        log_total = math.log(sum(map(math.exp, logits)))
        exact = log_total - np.mean([logits[u] for u in wanted]) if len(wanted) else 0.0
        assert loss[row] == pytest.approx(exact)

    def objective():
        return reference.full_crossentropy(x, LABELS, kernel, bias, upstream)[0] @ upstream

    for array, gradient in zip((x, kernel, bias), gradients, strict=True):
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-6
            above = objective()
            array[place] = before - 1e-6
            slope = (above - objective()) / 2e-6
            array[place] = before
            assert gradient[place] == pytest.approx(slope, abs=1e-7)


def test_adam_is_the_published_algorithm(rng):
    weight = momentum = velocity = 0.0
    state = AdamState(np.zeros(1), np.zeros(1), np.zeros(1))
    for step, gradient in enumerate(rng.normal(size=5), start=1):
        # beta values that float32 holds exactly, and an epsilon too small to tell its two forms.
        settings = AdamSettings(step, 0.01, 0.0, 0.875, 0.96875, 1e-12)
        state = reference.adam(state, np.array([gradient]), settings)
        momentum = 0.875 * momentum + 0.125 * gradient
        velocity = 0.96875 * velocity + 0.03125 * gradient**2
        mean, spread = momentum / (1 - 0.875**step), velocity / (1 - 0.96875**step)
        weight -= 0.01 * mean / (math.sqrt(spread) + 1e-12)
        assert state.weight[0] == pytest.approx(weight)


def test_adam_decays_weights_apart_from_the_gradient():
    state = AdamState(np.array([2.0]), np.zeros(1), np.zeros(1))
    new = reference.adam(state, np.zeros(1), AdamSettings(1, 0.1, 0.5))
    assert new.weight[0] == pytest.approx(2.0 * (1 - 0.1 * 0.5))


def test_row_adam_adds_gradients_of_one_row(rng):
    state = AdamState(*rng.random((3, 4, 2)))
    gradient = rng.normal(size=(3, 2))
    settings = AdamSettings(2, 0.1)
    new = reference.row_adam(state, np.array([3, 1, 3]), gradient, settings)
    total = np.stack([gradient[1], gradient[0] + gradient[2]])
    expected = reference.adam(AdamState(*(a[[1, 3]] for a in state)), total, settings)
    for got, part, old in zip(new, expected, state, strict=True):
        np.testing.assert_array_equal(got[[1, 3]], part)
        np.testing.assert_array_equal(got[[0, 2]], old[[0, 2]])
