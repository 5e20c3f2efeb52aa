"""Labels, samplers and the view by neuron."""

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import (
    ROW_COUNTS,
    SHARED_COUNTS,
    THINNED_SHAPES,
    UNIT_COUNTS,
    active_to_tf,
    lists,
    random_active_set,
    random_csr,
    to_numpy,
    to_tf,
)
from tests.reference import ActiveSet, csr, to_lists
from tf_dslide._native import ops


def int64(value):
    return tf.constant(value, tf.int64)


# Labels and features.
def canonical(rows, units):
    splits = np.cumsum([0, *map(len, rows)])
    return ops.canonical_labels(int64(splits), int64([i for row in rows for i in row]), units)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_canonical_labels(rng, rows):
    # Repeated, unsorted and padded.
    given = [rng.integers(-1, 6, size=rng.integers(0, 9)).tolist() for _ in range(rows)]
    assert lists(canonical(given, 6)) == to_lists(reference.canonical_labels(given, 6))


@pytest.mark.parametrize("label", [5, -2, 2**31, 2**32 + 1, -(2**63), 2**63 - 1])
def test_canonical_labels_name_row_and_label(label):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        canonical([[0], [1, 4, -1, label], [99]], 5)
    assert f"row 1 has label {label}, which is outside [0, 5)" in str(error.value)


def sparse(entries, shape, values=None):
    values = np.ones(len(entries)) if values is None else values
    indices = np.asarray(entries, np.int64).reshape(-1, 2)
    return tf.SparseTensor(indices, np.asarray(values, np.float32), shape)


@pytest.mark.parametrize("rows", ROW_COUNTS)
def test_csr_from_sparse(rng, rows):
    expected = random_csr(rng, rows, 40, 7)
    entries = np.stack([expected.entry_rows(), expected.ids], axis=1)
    got = ops.csr_from_sparse(sparse(entries, [rows, 40]), 40)
    assert lists(got) == to_lists(expected)


def test_csr_from_sparse_keeps_repeated_features():
    # A sum over features does not mind; a sparse tensor may hold an index twice.
    got = ops.csr_from_sparse(sparse([[0, 2], [0, 2], [2, 0]], [3, 4]), 4)
    assert lists(got) == [[2, 2], [], [0]]


@pytest.mark.parametrize(
    ("entries", "values", "message"),
    [
        ([[0, 1], [1, 4]], None, r"row 1 has feature 4, which is outside \[0, 4\)"),
        ([[0, 1], [1, -1]], None, r"row 1 has feature -1, which is outside \[0, 4\)"),
        ([[0, 1], [1, 2**32 + 1]], None, r"row 1 has feature 4294967297"),
        ([[0, 1], [3, 1]], None, r"row 3, which is outside \[0, 3\)"),
        ([[-1, 1], [0, 1]], None, r"row -1, which is outside \[0, 3\)"),
        ([[0, 1], [1, 3], [1, 2]], None, r"entry 2 does not; call tf.sparse.reorder"),
        ([[1, 0], [0, 3]], None, r"entry 1 does not; call tf.sparse.reorder"),
        ([[0, 1], [2, 3]], [1, np.nan], r"row 2 has the value nan for feature 3"),
        ([[0, 1], [2, 3]], [1, -np.inf], r"row 2 has the value -inf for feature 3"),
    ],
)
def test_csr_from_sparse_says_what_is_wrong(entries, values, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.csr_from_sparse(sparse(entries, [3, 4], values), 4)


def assert_transposed(active, units):
    got = ops.csc_from_csr(active_to_tf(active), units).tensors()
    for actual, expected in zip(got, reference.csc_from_csr(active), strict=True):
        np.testing.assert_array_equal(actual, expected)
        assert actual.dtype == expected.dtype


@pytest.mark.parametrize("shared", SHARED_COUNTS)
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
def test_transpose(rng, rows, units, shared):
    assert_transposed(random_active_set(rng, rows, units, 30, shared), units)


def test_transpose_of_rows_without_own_neurons(rng):
    for shared in ([], [0], [7, 4999]):
        for rows in (0, 5):
            assert_transposed(ActiveSet(csr([[]] * rows), np.asarray(shared)), 5000)


def test_transpose_of_large_layers(rng):
    # Above 4,096 * 256 neurons a slab of neurons is longer.
    units = 3_000_001
    own = random_csr(rng, 70, units, 500, 400)
    own.ids[own.row_splits[1:] - 1] = units - 1
    shared = np.unique(rng.integers(0, units, 3000))
    for ids in (shared, np.append(shared[:-1], units - 1), np.union1d(shared, own.ids[:99])):
        assert_transposed(ActiveSet(own, ids), units)


def test_transpose_keeps_repeated_ids_apart():
    for shared in ([], [0, 1]):
        assert_transposed(ActiveSet(csr([[1, 1, 2], [], [1]]), np.asarray(shared)), 3)


@pytest.mark.parametrize("shared", [[3, 3], [3, 2], [-1], [20], [-1, 3], [3, 20]])
def test_transpose_refuses_shared_neurons_that_are_no_set(shared):
    with pytest.raises(tf.errors.InvalidArgumentError):
        ops.csc_from_csr(active_to_tf(ActiveSet(csr([[1]]), np.asarray(shared))), 20)


# Selection by hash tables.
def select(tables, labels, excluded=(), step=1, *, hashed, bucket_size=10**6, seed=3, **more):
    return to_numpy(
        ops.select_from_tables(
            *(tf.constant(a, tf.int32) for a in tables),
            to_tf(labels),
            tf.constant(excluded, tf.int32),
            int64(step),
            hashed=hashed,
            bucket_size=bucket_size,
            seed=seed,
            **more,
        )
    )


def select_lists(*args, **kwargs):
    return to_lists(select(*args, **kwargs))


def random_tables(rng, rows, units, tables, buckets):
    """Codes of the rows, and the tables of neurons with random codes."""
    neurons = rng.integers(0, buckets, size=(units, tables))
    codes = rng.integers(0, buckets, size=(rows, tables))
    return codes, *reference.build_tables(neurons, buckets)


@pytest.mark.parametrize("excluded_share", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
def test_select_takes_labels_and_those_of_most_collisions(rng, rows, units, excluded_share):
    tables = random_tables(rng, rows, units, 9, 5)
    collisions = reference.bucket_collisions(*tables)
    labels = random_csr(rng, rows, units, 4)
    excluded = np.flatnonzero(rng.random(units) < excluded_share)
    for hashed in (0, 3, 60, 10**9):
        got = select(tables, labels, excluded, hashed=hashed)
        assert reference.selection_faults(got, collisions, labels, excluded, hashed) == []


@pytest.mark.parametrize(
    "tables",
    [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(7, marks=pytest.mark.slow), 40],
)
def test_select_finds_any_distribution_of_collisions(rng, tables):
    # From neurons that are in all of a row's buckets to rows whose buckets are empty.
    near = rng.random((60, 1)) < rng.random((60, tables))
    neurons = np.where(near, 0, rng.integers(0, 4, (60, tables)))
    codes = np.concatenate([np.zeros((20, tables), int), rng.integers(0, 5, (45, tables))])
    asked = (codes, *reference.build_tables(neurons, 5))
    collisions = reference.bucket_collisions(*asked)
    labels = random_csr(rng, 65, 60, 6)
    for hashed in range(0, 61, 3):
        for excluded in ([], [1, 59], range(20, 60)):
            got = select(asked, labels, [*excluded], hashed=hashed)
            assert reference.selection_faults(got, collisions, labels, excluded, hashed) == []


@pytest.mark.parametrize("tables", [1, 254, 255, 256, 300])
def test_select_counts_the_collisions_of_any_number_of_tables(rng, tables):
    # Neuron 7 is in all buckets that are asked: as many collisions as there are tables.
    neurons = rng.integers(0, 2, size=(40, tables))
    neurons[7] = 0
    asked = (np.zeros((3, tables), np.int32), *reference.build_tables(neurons, 2))
    collisions = reference.bucket_collisions(*asked)
    assert collisions[0, 7] == tables
    labels = csr([[], [0, 1, 2], [7]])
    for hashed in (1, 4, 20):
        for excluded in ([], [7], [2, 7, 30]):
            got = select(asked, labels, excluded, hashed=hashed)
            assert reference.selection_faults(got, collisions, labels, excluded, hashed) == []


def test_select_keeps_all_labels_of_a_row_with_more_than_hashed(rng):
    tables = random_tables(rng, 2, 100, 5, 3)
    labels = csr([range(0, 100, 2), [5]])
    got = select_lists(tables, labels, hashed=10)
    assert got[0] == list(range(0, 100, 2))
    assert len(got[1]) == 10
    assert 5 in got[1]


def test_select_from_no_tables_gives_labels():
    asked = (np.zeros((3, 0)), np.zeros((0, 5)), np.zeros((0, 20)))
    labels = csr([[], [3, 4], [7]])
    assert select_lists(asked, labels, hashed=10) == to_lists(labels)


def test_select_cuts_long_buckets_to_a_window():
    # One table, one bucket: the choice is `bucket_size` neurons that lie side by side in it.
    units, size, rows = 50, 12, 400
    tables = (np.zeros((rows, 1), np.int32), np.array([[0, units]]), np.arange(units)[None])
    starts = []
    for row in select_lists(tables, csr([[]] * rows), hashed=1000, bucket_size=size):
        assert len(row) == size
        gap = np.flatnonzero(np.diff(row) != 1)
        start = row[gap[0] + 1] if len(gap) else row[0]
        assert sorted((start + np.arange(size)) % units) == row
        starts.append(start)
    # The windows begin anywhere, equally often: chi-square with units - 1 degrees of freedom.
    expected = rows / units
    chi_square = ((np.bincount(starts, minlength=units) - expected) ** 2 / expected).sum()
    assert abs(chi_square - (units - 1)) < 5 * np.sqrt(2 * (units - 1))


def test_select_from_cut_buckets_takes_candidates_only(rng):
    tables = random_tables(rng, 60, 500, 7, 3)
    collisions = reference.bucket_collisions(*tables)
    labels = random_csr(rng, 60, 500, 3)
    for row, got in enumerate(select_lists(tables, labels, hashed=10**6, bucket_size=20)):
        added = np.setdiff1d(got, labels.row(row))
        assert (collisions[row, added] > 0).all()
        # Seven buckets give 20 each, some of them the same.
        assert 20 <= len(got) <= 7 * 20 + 3


def test_select_is_a_function_of_seed_and_step(rng):
    tables = random_tables(rng, 40, 500, 7, 3)
    labels = random_csr(rng, 40, 500, 3)

    def ids(step, seed):
        return select_lists(tables, labels, (4, 5), step, hashed=80, bucket_size=9, seed=seed)

    first = ids(4, 3)
    assert first == ids(4, 3)
    for other in (ids(5, 3), ids(4, 2), ids(-1, -1)):
        assert sum(a != b for a, b in zip(first, other, strict=True)) >= 39


@pytest.mark.parametrize("excluded", [[3, 3], [3, 2], [-1], [20]])
def test_select_refuses_excluded_neurons_that_are_no_set(rng, excluded):
    tables = random_tables(rng, 4, 20, 2, 3)
    with pytest.raises(tf.errors.InvalidArgumentError):
        select(tables, csr([[]] * 4), excluded, hashed=5)


@pytest.mark.parametrize("code", [-1, 3, 2**31 - 1])
def test_select_names_a_code_out_of_range(rng, code):
    tables = random_tables(rng, 4, 20, 2, 3)
    tables[0][2, 1] = code
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"code {code} is outside"):
        select(tables, csr([[]] * 4), hashed=5)


# Neurons with enough collisions, as they come.
def enough_collisions(collisions, labels, excluded, least, row):
    """The neurons besides its labels that a row may take."""
    candidates = np.flatnonzero(collisions[row] >= least)
    return np.setdiff1d(candidates, np.append(excluded, labels.row(row)))


@pytest.mark.parametrize("least", [1, 2, 4, 9, 10])
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
def test_select_takes_any_with_enough_collisions(rng, rows, units, least):
    tables = random_tables(rng, rows, units, 9, 5)
    collisions = reference.bucket_collisions(*tables)
    labels = random_csr(rng, rows, units, 4)
    excluded = np.flatnonzero(rng.random(units) < 0.1)
    for hashed in (0, 3, 60, 10**9):
        got = select(tables, labels, excluded, hashed=hashed, min_collisions=least)
        for row in range(rows):
            allowed = enough_collisions(collisions, labels, excluded, least, row)
            added = np.setdiff1d(got.row(row), labels.row(row))
            assert np.isin(labels.row(row), got.row(row)).all()
            assert np.isin(added, allowed).all()
            assert len(added) == min(len(allowed), max(0, hashed - len(labels.row(row))))
            assert (np.diff(got.row(row)) > 0).all()


def in_order(tables, row, key, least):
    """Neurons in the order in which they are found in `least` of a row's shuffled buckets."""
    codes, ptr, ids = tables
    order = list(range(len(ptr)))
    for j in range(len(order)):
        other = j + (reference.mix(reference.mix(~key % 2**64, row) ^ j) * (len(order) - j) >> 64)
        order[j], order[other] = order[other], order[j]
    collisions, found = np.zeros(ids.shape[1], int), []
    for table in order:
        begin, end = ptr[table, codes[row, table] :][:2]
        for neuron in ids[table, begin:end]:
            collisions[neuron] += 1
            if collisions[neuron] == least:
                found.append(int(neuron))
    return found


@pytest.mark.parametrize("least", [1, 2, 3])
def test_select_fills_a_row_from_one_table_after_the_other(rng, least):
    tables = random_tables(rng, 30, 500, 7, 6)
    labels = random_csr(rng, 30, 500, 3)
    excluded = [4, 70, 71, 300]
    key = reference.mix(3, 8)  # of the seed and the step
    for hashed in (1, 40, 100, 200, 400):
        got = select(
            tables, labels, excluded, 8, hashed=hashed, min_collisions=least, from_start=True
        )
        for row in range(30):
            own = labels.row(row).tolist()
            found = [n for n in in_order(tables, row, key, least) if n not in excluded + own]
            assert got.row(row).tolist() == sorted(own + found[: max(0, hashed - len(own))])


def test_the_first_table_of_a_union_is_any_equally_often():
    # Each of 8 tables holds ten neurons of its own; a row has room for those of one.
    rows, count, each = 2000, 8, 10
    neurons = np.repeat(np.arange(count), each)[:, None] != np.arange(count)
    tables = (np.zeros((rows, count), np.int32), *reference.build_tables(neurons.astype(int), 2))
    first = []
    for row in select_lists(tables, csr([[]] * rows), hashed=each, min_collisions=1):
        assert row == list(range(row[0], row[0] + each))
        first.append(row[0] // each)
    counts = np.bincount(first, minlength=count)
    chi_square = ((counts - rows / count) ** 2 / (rows / count)).sum()
    assert abs(chi_square - (count - 1)) < 5 * np.sqrt(2 * (count - 1))


# What long buckets keep.
def arrange(tables, policy, step=1, seed=3):
    _, ptr, ids = tables
    arguments = (tf.constant(ptr), tf.constant(ids), int64(step))
    arranged = ops.arrange_buckets(*arguments, policy=policy, seed=seed).numpy()
    np.testing.assert_array_equal(arguments[1], ids)  # the input is left alone
    return tables[0], ptr, arranged


@pytest.mark.parametrize("policy", ["reservoir", "fifo"])
@pytest.mark.parametrize(("units", "count", "buckets"), [(0, 2, 3), (1, 1, 1), (300, 9, 7)])
def test_arranged_buckets_hold_the_same_neurons(rng, policy, units, count, buckets):
    tables = random_tables(rng, 4, units, count, buckets)
    _, ptr, arranged = arrange(tables, policy)
    for table in range(count):
        for begin, end in zip(ptr[table, :-1], ptr[table, 1:], strict=True):
            before, after = tables[2][table, begin:end], arranged[table, begin:end]
            if policy == "fifo":
                assert after.tolist() == before[::-1].tolist()
            else:
                assert sorted(after) == before.tolist()


@pytest.mark.parametrize("size", [1, 5, 40, 10**6])
def test_fifo_buckets_give_those_that_came_last(rng, size):
    codes, ptr, ids = tables = random_tables(rng, 20, 200, 6, 3)
    got = select_lists(
        arrange(tables, "fifo"),
        csr([[]] * 20),
        hashed=10**6,
        bucket_size=size,
        from_start=True,
    )
    for row in range(20):
        wanted = set()
        for table in range(6):
            bucket = ids[table, slice(*ptr[table, codes[row, table] :][:2])]
            wanted |= set(bucket[-size:].tolist())
        assert set(got[row]) == wanted


def test_reservoir_buckets_keep_each_neuron_with_equal_probability():
    # One bucket of 30 neurons that has 7 places, filled at 1,000 rebuilds.
    units, size, draws = 30, 7, 1000
    tables = (np.zeros((1, 1), np.int32), np.array([[0, units]], np.int32))
    tables = (*tables, np.arange(units, dtype=np.int32)[None])
    kept = np.zeros((draws, units))
    for step in range(draws):
        asked = arrange(tables, "reservoir", step)
        (row,) = select_lists(asked, csr([[]]), hashed=1000, bucket_size=size, from_start=True)
        kept[step, row] = 1
    assert (kept.sum(1) == size).all()
    share = size / units
    assert np.abs(kept.mean(0) - share).max() < 5 * np.sqrt(share * (1 - share) / draws)
    # Any two are kept together as often as any others: it is not a window.
    together = (kept.T @ kept / draws)[np.triu_indices(units, 1)]
    share *= (size - 1) / (units - 1)
    assert np.abs(together - share).max() < 5 * np.sqrt(share * (1 - share) / draws)


def test_reservoirs_are_a_function_of_seed_and_step_and_differ_by_table():
    ids = np.tile(np.arange(50, dtype=np.int32), (3, 1))
    tables = (np.zeros((1, 3), np.int32), np.tile(np.array([[0, 50]], np.int32), (3, 1)), ids)
    first = arrange(tables, "reservoir")[2]
    assert (arrange(tables, "reservoir")[2] == first).all()
    assert (first[0] != first[1]).any()
    for other in ({"step": 2}, {"seed": 4}):
        assert (arrange(tables, "reservoir", **other)[2] != first).any(axis=1).all()


# Shared neurons.
def sample(step, *, units, count, distribution, seed=5, fixed=None):
    """Ids, and whether they came by chance."""
    fixed = None if fixed is None else tf.constant(fixed, tf.int32)
    ids, drawn = ops.sample_neurons(
        int64(step), units=units, count=count, distribution=distribution, seed=seed, fixed=fixed
    )
    assert (ids.dtype, drawn.dtype) == (tf.int32, tf.float32)
    return ids.numpy(), drawn.numpy()


@pytest.mark.parametrize("distribution", ["uniform", "log_uniform"])
@pytest.mark.parametrize("units", UNIT_COUNTS)
def test_sample_neurons_are_distinct_and_ascend(units, distribution):
    for count in (0, 1, 20, units // 2, units - 1, units, units + 1, 10**9):
        for step in range(5):
            ids, drawn = sample(step, units=units, count=count, distribution=distribution)
            assert len(ids) == min(count, units)
            assert (np.diff(ids) > 0).all()
            assert ((ids >= 0) & (ids < units)).all()
            np.testing.assert_array_equal(drawn, np.ones(len(ids)))


@pytest.mark.parametrize("distribution", ["uniform", "log_uniform"])
@pytest.mark.parametrize("units", UNIT_COUNTS)
def test_fixed_neurons_are_among_the_shared(rng, units, distribution):
    for fixed in ([], [0], [units - 1], range(0, units, 3), range(units)):
        for count in (0, 1, 40, units // 2, units - 1, units, 10**9):
            ids, drawn = sample(
                2, units=units, count=count, distribution=distribution, fixed=[*fixed]
            )
            assert len(ids) == len(drawn) == min(units, len(fixed) + count)
            assert (np.diff(ids) > 0).all()
            assert ((ids >= 0) & (ids < units)).all()
            np.testing.assert_array_equal(ids[drawn == 0], fixed)
            np.testing.assert_array_equal(ids[drawn == 1], np.setdiff1d(ids, fixed))


@pytest.mark.parametrize("fixed", [[3, 3], [3, 2], [-1], [20], [-1, 3], [3, 20]])
def test_fixed_neurons_that_are_no_set(fixed):
    with pytest.raises(tf.errors.InvalidArgumentError):
        sample(1, units=20, count=5, distribution="uniform", fixed=fixed)


def test_sample_neurons_is_a_function_of_seed_and_step():
    for distribution in ("uniform", "log_uniform"):
        settings = {"units": 1000, "count": 50, "distribution": distribution}
        first, _ = sample(3, **settings)
        np.testing.assert_array_equal(first, sample(3, **settings)[0])
        assert (first != sample(4, **settings)[0]).any()
        assert (first != sample(3, **settings, seed=6)[0]).any()


def sample_counts(steps, *, units, count, distribution, fixed=()):
    """How often each neuron is drawn in many steps."""

    @tf.function
    def draw_all():
        return tf.map_fn(
            lambda step: ops.sample_neurons(
                step,
                units=units,
                count=count,
                distribution=distribution,
                seed=8,
                fixed=tf.constant(fixed, tf.int32),
            )[0],
            tf.range(steps, dtype=tf.int64),
            fn_output_signature=tf.int32,
        )

    return np.bincount(draw_all().numpy().ravel(), minlength=units)


@pytest.mark.parametrize("count", [1, 30, 90])
def test_uniform_samples_are_uniform(count):
    units, steps = 100, 3000
    counts = sample_counts(steps, units=units, count=count, distribution="uniform")
    share = count / units
    # Draws without replacement: the counts' covariance makes this chi-square with units - 1
    # degrees of freedom, times units / (units - 1).
    chi_square = ((counts - steps * share) ** 2).sum() / (steps * share * (1 - share))
    assert abs(chi_square - units) < 5 * np.sqrt(2 * units)


@pytest.mark.parametrize("fixed", [[0, 1, 2, 50, 99], range(60)])
def test_uniform_samples_are_uniform_beside_fixed_ones(fixed):
    units, steps, drawn = 100, 3000, 20
    counts = sample_counts(steps, units=units, count=drawn, distribution="uniform", fixed=[*fixed])
    assert (counts[[*fixed]] == steps).all()
    rest = np.delete(counts, [*fixed])
    share = drawn / len(rest)
    chi_square = ((rest - steps * share) ** 2).sum() / (steps * share * (1 - share))
    assert abs(chi_square - len(rest)) < 5 * np.sqrt(2 * len(rest))


def test_log_uniform_samples_follow_their_probabilities():
    units, steps = 50, 30_000
    counts = sample_counts(steps, units=units, count=1, distribution="log_uniform")
    expected = steps * reference.log_uniform_probabilities(units)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - (units - 1)) < 5 * np.sqrt(2 * (units - 1))


def test_log_uniform_samples_without_replacement(rng):
    # NumPy draws one by one without replacement too: the same chances of being among 12 of 50.
    units, count, steps = 50, 12, 3000
    counts = sample_counts(steps, units=units, count=count, distribution="log_uniform")
    p = reference.log_uniform_probabilities(units)
    drawn = [rng.choice(units, count, replace=False, p=p / p.sum()) for _ in range(steps)]
    expected = np.bincount(np.concatenate(drawn), minlength=units)
    share = (counts + expected) / (2 * steps)
    z = (counts - expected) / np.sqrt(2 * steps * share * (1 - share) + 1e-9)
    assert np.abs(z).max() < 5
    assert abs((z**2).sum() - units) < 6 * np.sqrt(2 * units)


# What the neurons drawn by chance stand for.
@pytest.mark.parametrize("shared", SHARED_COUNTS)
@pytest.mark.parametrize(("rows", "units"), THINNED_SHAPES)
def test_log_shares(rng, rows, units, shared):
    active = random_active_set(rng, rows, units, 30, shared)
    for share in (0.0, 0.5, 1.0):
        drawn = (rng.random(len(active.shared)) < share).astype(np.float32)
        got = ops.log_importance_weights(active_to_tf(active), tf.constant(drawn), units)
        assert got.dtype == tf.float32
        expected = reference.log_importance_weights(active, drawn, units)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [[], [1, 3, 90], range(0, 200, 4)])
def test_log_shares_make_the_sum_of_exponentials_unbiased(rng, fixed):
    # Of the shared neurons a part is a uniform sample of all that is not fixed; each of them stands
    # for its share of what the row lacks.
    units, steps = 200, 2000
    tables = random_tables(rng, 3, units, 4, 8)
    labels = csr([[1], [], [7, 8, 9]])
    weight = np.exp(rng.uniform(-2, 2, size=(3, units)))
    sums = np.zeros((steps, 3))
    for step in range(steps):
        count = len(fixed) + 20
        shared, drawn = sample(
            step, units=units, count=count, distribution="uniform", fixed=[*fixed]
        )
        own = select(tables, labels, [*fixed], step, hashed=40, bucket_size=20)
        active = ActiveSet(own, shared)
        shares = ops.log_importance_weights(active_to_tf(active), tf.constant(drawn), units)
        factors = active.join(np.ones(len(own.ids)), np.exp(shares[:, None] * drawn))
        rows = active.distinct().entry_rows()
        sizes = weight[rows, active.distinct().ids] * factors[active.counted()]
        sums[step] = np.bincount(rows, sizes, 3)
    error = sums.std(0) / np.sqrt(steps)
    assert (error < 0.02 * weight.sum(1)).all()
    assert (np.abs(sums.mean(0) - weight.sum(1)) < 4 * error).all()
