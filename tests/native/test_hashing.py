"""The hash families and the hash tables."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tests.native.common import WIDTHS, floats, sim_hash_bits, sim_hash_disagreements
from tf_dslide._native import ops


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("share", [1 / 3, 1.0])
def test_sim_hash_codes(rng, d, share):
    bits, tables, nonzeros = 5, 6, max(1, int(d * share))
    index, value = ops.sim_hash_parameters(7, d, bits * tables, nonzeros)
    x = floats(rng, 70, d)
    codes = ops.sim_hash_codes(x, index, value, bits, tables).numpy()
    assert codes.shape == (70, tables)
    assert ((codes >= 0) & (codes < 2**bits)).all()

    assert sim_hash_disagreements(codes, x, index.numpy(), value.numpy(), bits) == 0


@pytest.mark.parametrize(("d", "nonzeros"), [(2, 1), (9, 3), (200, 66), (200, 200)])
def test_sim_hash_parameters(d, nonzeros):
    index, value = (a.numpy() for a in ops.sim_hash_parameters(3, d, 400, nonzeros))
    assert index.shape == value.shape == (400, nonzeros)
    assert ((index >= 0) & (index < d)).all()
    assert (np.diff(index, axis=1) > 0).all()
    # Every coordinate takes part equally often, and the weights have mean 0 and variance 1.
    uses = np.bincount(index.ravel(), minlength=d)
    share = nonzeros / d
    assert np.abs(uses - 400 * share).max() <= 5 * np.sqrt(400 * share * (1 - share)) + 1e-9
    assert abs(value.mean()) < 5 / np.sqrt(value.size)
    assert abs(value.var() - 1) < 5 * np.sqrt(2 / value.size)
    assert len(np.unique(value, axis=0)) == 400


def test_hash_parameters_depend_on_the_seed_alone():
    for make in (
        lambda seed: ops.sim_hash_parameters(seed, 31, 40, 10)[1],
        lambda seed: ops.sim_hash_parameters(seed, 31, 40, 10)[0],
        lambda seed: ops.dwta_parameters(seed, 31, 40, 4),
        lambda seed: ops.min_hash_parameters(seed, 31, 4),
    ):
        np.testing.assert_array_equal(make(-5), make(-5))
        assert (make(-5).numpy() != make(-4).numpy()).any()


def test_each_generation_has_parameters_of_its_own():
    for make in (
        lambda *generation: ops.sim_hash_parameters(3, 31, 40, 10, *generation)[1],
        lambda *generation: ops.dwta_parameters(3, 31, 40, 4, *generation),
        lambda *generation: ops.min_hash_parameters(3, 31, 4, *generation),
    ):
        first = [make(generation).numpy() for generation in range(4)]
        np.testing.assert_array_equal(make(), first[0])
        np.testing.assert_array_equal(make(tf.constant(2, tf.int64)), first[2])
        assert len({numbers.tobytes() for numbers in first}) == 4


def planted_pair(rng, d, angle):
    """Two unit vectors with the given angle between them."""
    a, b = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    return np.stack([a, np.cos(angle) * a + np.sin(angle) * b]).astype(np.float32)


@pytest.mark.parametrize("share", [1 / 3, 1.0])
@pytest.mark.parametrize("angle", [0.05, 0.2, 0.5, 0.8, 0.95])
def test_sim_hash_collides_as_theory_says(rng, share, angle):
    # P(one bit agrees) = 1 - angle / pi, over 60 pairs of vectors and 4,000 projections.
    d, pairs, projections = 192, 60, 4000
    index, value = ops.sim_hash_parameters(11, d, projections, int(d * share))
    x = np.concatenate([planted_pair(rng, d, angle * np.pi) for _ in range(pairs)])
    bits = sim_hash_bits(ops.sim_hash_codes(x, index, value, 1, projections).numpy(), 1)
    agreement = (bits[::2] == bits[1::2]).mean(1)
    # The pairs share their projections, and a sparse projection sees an angle of its own: the
    # spread over the pairs measures both.
    error = np.sqrt(angle * (1 - angle) / projections) + agreement.std() / np.sqrt(pairs)
    assert abs(agreement.mean() - (1 - angle)) < 4 * error
    assert error < 0.01


def test_sim_hash_of_few_coordinates_still_follows_the_angle():
    # Two coordinates only: the projections' weights must be near-normal themselves.
    projections = 30_000
    index, value = ops.sim_hash_parameters(12, 8, projections, 8)
    for angle in (0.1, 0.25, 0.4):
        x = np.zeros((2, 8), np.float32)
        x[:, 1:3] = [[1, 0], [np.cos(angle * np.pi), np.sin(angle * np.pi)]]
        bits = sim_hash_bits(ops.sim_hash_codes(x, index, value, 1, projections).numpy(), 1)
        error = np.sqrt(angle * (1 - angle) / projections)
        # 0.003 for the difference between a sum of twelve uniform numbers and a normal one.
        assert abs((bits[0] == bits[1]).mean() - (1 - angle)) < 4 * error + 0.003


def test_sim_hash_sees_directions_only(rng):
    index, value = ops.sim_hash_parameters(2, 31, 60, 10)
    x = floats(rng, 40, 31)
    codes = ops.sim_hash_codes(x, index, value, 6, 10).numpy()
    for scale in (2.0**60, 2.0**-60):
        scaled = ops.sim_hash_codes(x * np.float32(scale), index, value, 6, 10)
        np.testing.assert_array_equal(scaled, codes)
    opposite = ops.sim_hash_codes(-x, index, value, 6, 10).numpy()
    np.testing.assert_array_equal(opposite, 63 - codes)
    zero = ops.sim_hash_codes(np.zeros((1, 31), np.float32), index, value, 6, 10)
    np.testing.assert_array_equal(zero, np.zeros((1, 10)))


def bin_size_for(d):
    """The largest power of two up to 8 that `d` coordinates fill."""
    return next(size for size in (8, 4, 2, 1) if size <= d)


def sparse_non_negative(rng, rows, d, share):
    """What a ReLU leaves."""
    x = np.abs(floats(rng, rows, d)) * (rng.random((rows, d)) < share)
    return x.astype(np.float32)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("kind", ["dense", "sparse", "one coordinate"])
def test_dwta_codes(rng, d, kind):
    bin_size, bins_per_table, tables = bin_size_for(d), 3, 5
    index = ops.dwta_parameters(9, d, bins_per_table * tables, bin_size)
    if kind == "dense":
        x = floats(rng, 70, d)
    elif kind == "sparse":
        x = sparse_non_negative(rng, 70, d, 0.1)
    else:
        x = np.zeros((70, d), np.float32)
        x[np.arange(70), rng.integers(0, d, 70)] = rng.choice([-1.0, 1.0], 70)
    codes = ops.dwta_codes(x, index, tables, 9).numpy()
    np.testing.assert_array_equal(codes, reference.dwta_joined_codes(x, index.numpy(), tables))


@pytest.mark.parametrize("d", WIDTHS)
def test_dwta_parameters(d):
    bin_size = bin_size_for(d)
    bins = 200
    index = ops.dwta_parameters(4, d, bins, bin_size).numpy()
    assert index.shape == (bins, bin_size)
    assert ((index >= 0) & (index < d)).all()
    # Bins cut from one permutation share no coordinate, so coordinates are used equally often.
    each = d // bin_size
    for first in range(0, bins - each + 1, each):
        together = index[first : first + each].ravel()
        assert len(np.unique(together)) == len(together)


def test_dwta_ties_go_to_the_first():
    index = ops.dwta_parameters(4, 8, 5, 8)
    codes = ops.dwta_codes(np.ones((1, 8), np.float32), index, 5, 3).numpy()
    np.testing.assert_array_equal(codes, np.zeros((1, 5)))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(
    ("bins_per_table", "bin_size", "bits"),
    [(2, 8, 6), (4, 4, 8), (8, 2, 8), (3, 8, 8), (3, 8, 7), (8, 8, 8), (20, 8, 9)],
)
def test_dwta_uses_all_addresses(rng, kind, bins_per_table, bin_size, bits):
    tables, rows, d = 10, 20_000, 128
    index = ops.dwta_parameters(21, d, tables * bins_per_table, bin_size)
    x = floats(rng, rows, d) if kind == "dense" else sparse_non_negative(rng, rows, d, 0.2)
    codes = ops.dwta_codes(x, index, tables, bits).numpy()
    for table in range(tables):
        counts = np.bincount(codes[:, table], minlength=2**bits)
        assert len(counts) == 2**bits
        missing = int((counts == 0).sum())
        assert missing == 0, f"{missing} of {2**bits} addresses never occur"


def test_dwta_folds_equal_codes_to_equal_addresses(rng):
    bins_per_table, bin_size, bits = 4, 4, 5
    index = ops.dwta_parameters(21, 64, bins_per_table, bin_size)
    x = floats(rng, 20_000, 64)
    joined = reference.dwta_joined_codes(x, index.numpy(), 1)[:, 0]
    folded = ops.dwta_codes(x, index, 1, bits).numpy()[:, 0]
    assert ((folded >= 0) & (folded < 2**bits)).all()
    pairs = np.unique(np.stack([joined, folded]), axis=1)
    assert pairs.shape[1] == len(np.unique(joined)) == 256
    # Each of the 32 addresses stands for about 8 of the 256 codes.
    assert np.bincount(pairs[1], minlength=2**bits).max() <= 24
    no_bits = ops.dwta_codes(x[:3], index, 1, 0)
    np.testing.assert_array_equal(no_bits, np.zeros((3, 1)))


def test_dwta_gives_zero_vectors_a_valid_code():
    index = ops.dwta_parameters(1, 31, 30, 8)
    x = np.zeros((33, 31), np.float32)
    np.testing.assert_array_equal(ops.dwta_codes(x, index, 10, 9), np.zeros((33, 10)))
    folded = ops.dwta_codes(x, index, 10, 5).numpy()
    assert ((folded >= 0) & (folded < 32)).all()


def test_dwta_of_similar_vectors_collides_more_often(rng):
    index = ops.dwta_parameters(1, 128, 400, 8)
    x = np.abs(floats(rng, 50, 128))
    codes = ops.dwta_codes(x, index, 200, 6).numpy()
    near = ops.dwta_codes(x + 0.1 * floats(rng, 50, 128), index, 200, 6).numpy()
    assert (codes == near).mean() > 0.5
    assert (codes == np.roll(codes, 1, axis=0)).mean() < 0.05


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_wta_codes(rng, d, share):
    bin_size, bins_per_table, tables = bin_size_for(d), 3, 5
    index = ops.dwta_parameters(9, d, bins_per_table * tables, bin_size)
    # Rounded, so that bins have ties besides those of zeros.
    x = np.round(2 * floats(rng, 70, d)) * (rng.random((70, d)) < share)
    codes = ops.wta_codes(x.astype(np.float32), index, tables, 9).numpy()
    winners = x[:, index].argmax(-1).reshape(70, tables, bins_per_table)
    joined = winners @ bin_size ** np.arange(bins_per_table)[::-1]
    np.testing.assert_array_equal(codes, joined)


def test_wta_is_dwta_where_no_bin_is_empty(rng):
    index = ops.dwta_parameters(9, 31, 40, 4)
    x = floats(rng, 70, 31)
    for bits in (4, 5):
        np.testing.assert_array_equal(
            ops.wta_codes(x, index, 20, bits), ops.dwta_codes(x, index, 20, bits)
        )


def wta_agreement(a, b, bin_size):
    """P(one bin agrees): some coordinate of a random bin is the largest of it in both vectors.

    Coordinate i is if the others come from those that are below it in both (Yagnik et al., eq. 7).
    """
    below = ((a[:, None] > a) & (b[:, None] > b)).sum(1)
    wins = sum(math.comb(int(count), bin_size - 1) for count in below)
    return wins / math.comb(len(a), bin_size)


@pytest.mark.parametrize("bin_size", [2, 4, 8])
@pytest.mark.parametrize("correlation", [-0.8, 0.0, 0.5, 0.9, 0.99])
def test_wta_collides_as_order_statistics_say(rng, bin_size, correlation):
    d, bins = 64, 30_000
    a, noise = rng.normal(size=(2, d))
    b = correlation * a + np.sqrt(1 - correlation**2) * noise
    index = ops.dwta_parameters(11, d, bins, bin_size)
    codes = ops.wta_codes(np.stack([a, b]).astype(np.float32), index, bins, 3).numpy()
    wanted = wta_agreement(a, b, bin_size)
    error = np.sqrt(wanted * (1 - wanted) / bins)
    assert abs((codes[0] == codes[1]).mean() - wanted) < 4 * error


@pytest.mark.parametrize("correlation", [-0.5, 0.3, 0.9])
def test_wta_of_two_coordinates_follows_the_rank_correlation(rng, correlation):
    # Normal vectors put a pair in the same order with probability 1 - arccos(correlation) / pi,
    # which is (1 + Kendall's tau) / 2.
    d, pairs, bins = 200, 60, 500
    a, noise = rng.normal(size=(2, pairs, d))
    b = correlation * a + np.sqrt(1 - correlation**2) * noise
    index = ops.dwta_parameters(13, d, bins, 2)
    x = np.concatenate([a, b]).astype(np.float32)
    codes = ops.wta_codes(x, index, bins, 1).numpy()
    agreement = (codes[:pairs] == codes[pairs:]).mean(1)
    wanted = 1 - np.arccos(correlation) / np.pi
    assert abs(agreement.mean() - wanted) < 4 * agreement.std() / np.sqrt(pairs)


def min_hash(x, place, top, bins_per_table=1, per_permutation=None, bits=24):
    """Codes of as many tables as the permutations have room for."""
    per_permutation = per_permutation or bins_per_table
    return ops.min_hash_codes(
        x,
        place,
        top=top,
        bins_per_table=bins_per_table,
        tables=len(place) * per_permutation // bins_per_table,
        bins_per_permutation=per_permutation,
        address_bits=bits,
    ).numpy()


@pytest.mark.parametrize("d", [*WIDTHS, 33])
@pytest.mark.parametrize("kind", ["dense", "sparse", "ties", "one coordinate"])
def test_min_hash_codes(rng, d, kind):
    x = {
        "dense": floats(rng, 20, d),
        "sparse": sparse_non_negative(rng, 20, d, 0.1),
        "ties": np.round(floats(rng, 20, d)),
        "one coordinate": np.eye(20, d, dtype=np.float32),
    }[kind]
    x[7] = -np.abs(x[7])  # The empty set.
    # More bins than members in some cases: most of them borrow.
    for top, k, bins, bits in ((1, 1, 3, 24), (5, 3, 6, 7), (1000, 2, 8, 0)):
        place = ops.min_hash_parameters(9, d, 4).numpy()
        codes = min_hash(x, place, top, k, bins, bits)
        wanted = [reference.min_hash_codes(row, place, top, k, bins, bits) for row in x]
        np.testing.assert_array_equal(codes, wanted)
        assert (codes[7] == 0).all()


@pytest.mark.parametrize("d", [1, 2, 9, 200])
def test_min_hash_parameters(d):
    place = ops.min_hash_parameters(4, d, 300).numpy()
    assert (np.sort(place, axis=1) == np.arange(d)).all()
    # Each coordinate comes first equally often: chi-square with d - 1 degrees of freedom.
    counts = np.bincount(place.argmin(1), minlength=d)
    chi_square = ((counts - 300 / d) ** 2 / (300 / d)).sum()
    assert abs(chi_square - (d - 1)) <= 5 * np.sqrt(2 * (d - 1))


def vectors_of_sets(rng, d, common, each):
    """Two vectors with `common` members in common and `each` of their own, and noise below 0."""
    members = rng.permutation(d)[: common + 2 * each]
    x = -np.abs(rng.normal(size=(2, d)))
    x[:, members[:common]] = 1 + rng.random((2, common))
    x[0, members[common : common + each]] = 2.0
    x[1, members[common + each :]] = 2.0
    return x.astype(np.float32)


@pytest.mark.parametrize("bins", [1, 4, 16, 64], ids=lambda bins: f"{bins} bins")
@pytest.mark.parametrize(("common", "each"), [(1, 4), (5, 5), (12, 2), (1, 0), (0, 3)])
def test_min_hash_collides_as_the_jaccard_similarity(rng, bins, common, each):
    # With 64 bins and at most 15 members most bins are empty, and densification fills them.
    d, permutations = 128, 4000
    place = ops.min_hash_parameters(17, d, permutations)
    codes = min_hash(vectors_of_sets(rng, d, common, each), place, 64, 1, bins)
    agreement = (codes[0] == codes[1]).reshape(permutations, bins).mean(1)
    wanted = common / (common + 2 * each)
    # The permutations are independent, the bins of one are not. Codes of 24 bits agree by chance
    # once in 16 million.
    error = agreement.std() / np.sqrt(permutations)
    assert abs(agreement.mean() - wanted) <= 4 * error
    assert error < 0.009


def test_min_hash_tables_of_several_bins_collide_with_the_power(rng):
    d, permutations, k = 256, 20_000, 3
    place = ops.min_hash_parameters(19, d, permutations)
    codes = min_hash(vectors_of_sets(rng, d, 60, 20), place, 256, k)
    wanted = 0.6**k
    error = np.sqrt(wanted * (1 - wanted) / permutations)
    # Bins of one permutation draw their members without replacement: a little less often.
    assert abs((codes[0] == codes[1]).mean() - wanted) < 4 * error + 0.005


def test_min_hash_fills_empty_bins_from_all_others(rng):
    # A single member: every bin ends up with it, whichever bin it lies in.
    place = ops.min_hash_parameters(23, 64, 50)
    codes = min_hash(np.eye(64, dtype=np.float32)[[5]], place, 3, 1, 32).reshape(50, 32)
    assert (codes == codes[:, :1]).all()
    # Two members in different bins lend to about half of the others each.
    x = np.zeros((1, 64), np.float32)
    x[0, [5, 40]] = 1
    codes = min_hash(x, place, 3, 1, 32).reshape(50, 32)
    shares = [np.unique(row, return_counts=True)[1].max() / 32 for row in codes]
    assert 0.5 <= np.mean(shares) < 0.7


def test_min_hash_uses_all_addresses(rng):
    x = sparse_non_negative(rng, 20_000, 128, 0.5)
    place = ops.min_hash_parameters(21, 128, 2)
    for code in min_hash(x, place, 32, 4, 10, 8).T:
        assert np.bincount(code, minlength=256).min() > 0


def test_min_hash_sees_only_which_are_the_largest(rng):
    x = floats(rng, 30, 64)
    place = ops.min_hash_parameters(3, 64, 20)
    codes = min_hash(x, place, 16)
    np.testing.assert_array_equal(min_hash(np.exp(x) * (x > 0), place, 16), codes)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 65])
def test_codes_of_any_number_of_vectors(rng, n):
    x = floats(rng, n, 9)
    index, value = ops.sim_hash_parameters(5, 9, 12, 4)
    codes = ops.sim_hash_codes(x, index, value, 4, 3)
    assert codes.shape == (n, 3)
    # A vector's code does not depend on its neighbours.
    for row in range(0, n, 7):
        alone = ops.sim_hash_codes(x[row : row + 1], index, value, 4, 3)
        np.testing.assert_array_equal(alone[0], codes[row])
    bins = ops.dwta_parameters(5, 9, 6, 4)
    codes = ops.dwta_codes(x, bins, 3, 4)
    assert codes.shape == (n, 3)
    for row in range(0, n, 7):
        np.testing.assert_array_equal(ops.dwta_codes(x[row : row + 1], bins, 3, 4)[0], codes[row])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 33, 69])
def test_hashing_names_the_first_row_that_is_not_finite(rng, value, row):
    x = floats(rng, 70, 31)
    x[row, 30] = value
    x[row + 1 :, 5] = np.nan
    index, weights = ops.sim_hash_parameters(5, 31, 12, 4)
    for codes in (
        lambda: ops.sim_hash_codes(x, index, weights, 4, 3),
        lambda: ops.dwta_codes(x, ops.dwta_parameters(5, 31, 6, 4), 3, 4),
        lambda: min_hash(x, ops.min_hash_parameters(5, 31, 6), 9),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            codes()
        assert f"row {row} holds {value} at column 30" in str(error.value)


@pytest.mark.parametrize(
    ("n", "tables", "buckets"), [(0, 3, 4), (1, 1, 1), (100, 1, 7), (1000, 9, 64), (65, 17, 300)]
)
def test_build_tables(rng, n, tables, buckets):
    codes = rng.integers(0, buckets, size=(n, tables)).astype(np.int32)
    ptr, ids = ops.build_tables(codes, buckets)
    expected_ptr, expected_ids = reference.build_tables(codes, buckets)
    np.testing.assert_array_equal(ptr, expected_ptr)
    np.testing.assert_array_equal(ids, expected_ids)
    assert ptr.dtype == ids.dtype == tf.int32


@pytest.mark.parametrize("code", [-1, 4, 2**31 - 1, -(2**31)])
def test_build_tables_names_the_first_code_out_of_range(rng, code):
    codes = rng.integers(0, 4, size=(50, 20)).astype(np.int32)
    codes[30, 2] = code
    codes[40:, :] = 9
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"neuron 30 has code {code} in table 2"
    ):
        ops.build_tables(codes, 4)


@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("n", [0, 1, 70])
def test_projection_codes(rng, d, n):
    bits, tables = 5, 6
    projections = floats(rng, bits * tables, d + 1)
    x = floats(rng, n, d)
    codes = ops.projection_codes(x, projections, bits, tables).numpy()
    assert codes.shape == (n, tables)
    if n == 0:
        return
    sums = x.astype(np.float64) @ projections[:, :d].T.astype(np.float64) + projections[:, d]
    sizes = np.abs(x) @ np.abs(projections[:, :d]).T + np.abs(projections[:, d])
    certain = np.abs(sums) > reference.sum_bound(sizes, d + 1)
    agrees = sim_hash_bits(codes, bits) == (sums > 0)
    assert agrees[certain].all()
    assert certain.mean() > 0.99


def learn(queries, neurons, bias, first, steps, rate=0.05, bits=3, tables=4, seed=1):
    return [
        a.numpy()
        for a in ops.learn_projections(
            *(queries, neurons, bias, *first, True, 0),
            bits=bits,
            tables=tables,
            steps=steps,
            learning_rate=rate,
            seed=seed,
        )
    ]


def test_learning_by_no_steps_only_centres(rng):
    queries, neurons, bias = floats(rng, 40, 9) + 2, 3 * floats(rng, 300, 9) - 1, floats(rng, 300)
    first = [floats(rng, 12, 10) for _ in range(2)]
    for x, before, after in zip(
        (queries, neurons), first, learn(queries, neurons, bias, first, 0), strict=True
    ):
        # The mean lies on each border, and directions are as before.
        np.testing.assert_allclose(after[:, :9] @ x.mean(0) + after[:, 9], 0, atol=1e-4)
        cosines = (after[:, :9] * before[:, :9]).sum(1) / (
            np.linalg.norm(after[:, :9], axis=1) * np.linalg.norm(before[:, :9], axis=1)
        )
        np.testing.assert_allclose(cosines, 1, atol=1e-5)


def test_learning_makes_the_best_agree_and_others_not(rng):
    """The loss that it is trained by, over all neurons, by brute force."""
    bits, tables, d = 3, 4, 12
    queries, neurons, bias = floats(rng, 64, d), floats(rng, 600, d), floats(rng, 600) / 2
    first = [floats(rng, bits * tables, d + 1)] * 2
    logits = queries @ neurons.T + bias
    best = logits >= np.sort(logits, axis=1)[:, -4:-3]

    def loss(steps):
        q, p = learn(queries, neurons, bias, first, steps)
        q, p = (
            np.sign(x @ w[:, :d].T + w[:, d]).reshape(len(x), tables, bits)
            for x, w in ((queries, q), (neurons, p))
        )
        likeness = np.einsum("mtk,ctk->tmc", q, p)
        share = np.exp(likeness) / np.exp(likeness).sum(2, keepdims=True)
        return -np.log(share[:, best]).mean()

    assert loss(60) < loss(0) - 0.3


def test_learning_leaves_what_it_cannot_learn_from(rng):
    first = [floats(rng, 12, 10) for _ in range(2)]
    nan = np.full((3, 9), np.nan, np.float32)
    ones = np.ones((5, 9), np.float32)
    for queries, neurons in (
        (floats(rng, 0, 9), floats(rng, 5, 9)),
        (floats(rng, 3, 9), floats(rng, 1, 9)),
        (floats(rng, 3, 9), floats(rng, 0, 9)),
        (nan, floats(rng, 5, 9)),
        (floats(rng, 3, 9), ones),
        (ones, floats(rng, 5, 9)),
    ):
        after = learn(queries, neurons, np.zeros(len(neurons), np.float32), first, 3)
        for a, b in zip(after, first, strict=True):
            np.testing.assert_array_equal(a, b)
