"""Random inputs, and the way between NumPy and the ops."""

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests import reference
from tf_dslide._native import ops

WIDTHS = (1, 7, 8, 9, 31, 128, 200)
ROW_COUNTS = (0, 1, 63, 64, 65, 130)
UNIT_COUNTS = (1, 63, 64, 65, 1000, 5000)
# (rows, units): every count at least twice, about the blocks of 64 and beyond them.
SHAPES = (
    *((0, 1), (0, 5000), (1, 1), (1, 1000), (63, 64), (63, 5000), (64, 63), (64, 64)),
    *((65, 65), (65, 1000), (130, 63), (130, 65), (130, 5000)),
)
# What `make test` takes of them where there are further dimensions; the others are slow there.
FEW_SHAPES = ((0, 5000), (1, 1), (63, 64), (65, 1000), (130, 65))
THINNED_SHAPES = tuple(
    shape if shape in FEW_SHAPES else pytest.param(*shape, marks=pytest.mark.slow)
    for shape in SHAPES
)
Array = np.ndarray


def floats(rng: np.random.Generator, *shape: int) -> Array:
    """Normal float32 numbers."""
    return rng.normal(size=shape).astype(np.float32)


def random_csr(
    rng: np.random.Generator, rows: int, units: int, most: int, least: int = 0
) -> reference.Csr:
    """Rows of `least` to `most` distinct ascending ids; some rows share their ids."""
    most, least = min(most, units), min(least, units)
    sizes = rng.integers(least, most + 1, size=rows)
    return reference.csr([np.sort(rng.choice(units, size, replace=False)) for size in sizes])


# Numbers of shared neurons: none, one, about the blocks of 64 and beyond; -1 is all units.
SHARED_COUNTS = (0, 1, 63, 64, 65, 130, -1)


def random_active_set(
    rng: np.random.Generator, rows: int, units: int, most: int, shared: int
) -> reference.ActiveSet:
    """Up to `most` own neurons a row, and `shared` ones, half of them own ones of some row."""
    own = random_csr(rng, rows, units, most)
    count = units if shared == -1 else min(shared, units)
    likely = np.unique(own.ids)
    likely = rng.choice(likely, min(count // 2, len(likely)), replace=False)
    rest = rng.permutation(np.setdiff1d(np.arange(units), likely))[: count - len(likely)]
    return reference.ActiveSet(own, np.sort(np.append(likely, rest)).astype(np.int32))


def labels_within(rng: np.random.Generator, active: reference.Csr) -> reference.Csr:
    """Up to 3 labels a row, all of them among its own; every fourth row has none."""
    rows: list[Array] = []
    for number in range(active.rows):
        ids = active.row(number)
        size = 0 if number % 4 == 3 else min(len(ids), int(rng.integers(1, 4)))
        rows.append(np.sort(rng.choice(ids, size, replace=False)) if size else ids[:0])
    return reference.csr(rows)


def to_tf(lists: reference.Csr) -> ops.Csr:
    """The same lists for the ops."""
    splits = tf.constant(lists.row_splits, tf.int64)
    return ops.Csr(splits, tf.constant(lists.ids, tf.int32))


def active_to_tf(active: reference.ActiveSet) -> ops.ActiveSet:
    """The same active set for the ops."""
    return ops.ActiveSet(to_tf(active.own), tf.constant(active.shared, tf.int32))


def values_to_tf(active: reference.ActiveSet, values: Array) -> ops.ActiveLogits:
    """Numbers of an active set for the ops."""
    return ops.ActiveLogits(*(tf.constant(part, tf.float32) for part in active.split(values)))


def values_to_numpy(active: reference.ActiveSet, values: ops.ActiveLogits) -> Array:
    """Numbers that an op gave for an active set, for the reference; with their form checked."""
    own, shared = values
    assert own.dtype == shared.dtype == tf.float32
    assert own.shape == active.own.ids.shape
    assert shared.shape == (active.own.rows, len(active.shared))
    return active.join(own.numpy(), shared.numpy())


def to_numpy(active: ops.Csr) -> reference.Csr:
    """The same lists for the reference, with their dtypes checked."""
    assert active.row_splits.dtype == tf.int64
    assert active.ids.dtype == tf.int32
    return reference.Csr(active.row_splits.numpy(), active.ids.numpy())


def lists(active: ops.Csr) -> list[list[int]]:
    """The rows that an op gave."""
    return reference.to_lists(to_numpy(active))


def assert_within(actual: Array, expected: Array, bound: Array | float) -> None:
    """Fails unless `|actual - expected| <= bound` everywhere, and says where it is worst."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    if actual.size == 0:
        return
    assert np.isfinite(actual).all()
    excess = np.abs(actual - expected) - bound
    worst = np.unravel_index(np.argmax(excess), excess.shape)
    assert excess[worst] <= 0, (
        f"{actual[worst]} at {worst}; expected {expected[worst]}, off by {excess[worst]} too much"
    )


def slices_to_dense(slices: tf.IndexedSlices, shape: Sequence[int]) -> Array:
    """A row-sparse gradient as an array, after checking that its rows ascend and differ."""
    assert isinstance(slices, tf.IndexedSlices)
    rows = slices.indices.numpy()
    assert (np.diff(rows) > 0).all()
    assert tuple(slices.dense_shape.numpy()) == tuple(shape)
    dense = np.zeros(shape, np.float32)
    dense[rows] = slices.values.numpy()
    return dense


def sim_hash_bits(codes: Array, bits: int) -> Array:
    """The bits of codes `(n, tables)` by projection, `(n, tables * bits)`."""
    return (codes[:, :, None] >> np.arange(bits) & 1).reshape(len(codes), -1).astype(bool)


def sim_hash_disagreements(codes: Array, x: Array, index: Array, value: Array, bits: int) -> int:
    """How many bits differ from the reference where rounding cannot be the reason."""
    sums = reference.sim_hash_sums(x, index, value)
    sizes = reference.sim_hash_sums(np.abs(x), index, np.abs(value))
    certain = np.abs(sums) > reference.sum_bound(sizes, index.shape[1])
    assert certain.mean() > 0.999
    expected = reference.sim_hash_codes(x, index, value, bits, codes.shape[1])
    agrees = sim_hash_bits(codes, bits) == sim_hash_bits(expected, bits)
    return int((~agrees[certain]).sum())
