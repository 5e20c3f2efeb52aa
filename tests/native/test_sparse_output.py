"""The values of active sets as a sparse matrix, and the way back."""

import numpy as np
import pytest
import tensorflow as tf

from tests.native.common import (
    SHAPES,
    SHARED_COUNTS,
    active_to_tf,
    floats,
    random_active_set,
    values_to_tf,
)
from tests.reference import ActiveSet, csr
from tf_dslide._native import ops

CASES = [(*shape, shared) for shape in SHAPES for shared in SHARED_COUNTS if shape[1] < 5000]


def dense_of(active, values, units):
    """The values as a matrix, and which of its places are active."""
    listed, counts = active.listed(), active.counted()
    dense, known = np.zeros((listed.rows, units), np.float32), np.zeros((listed.rows, units), bool)
    places = listed.entry_rows()[counts], listed.ids[counts]
    dense[places], known[places] = values[counts], True
    return dense, known


@pytest.mark.parametrize("keep_zeros", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize(("rows", "units", "shared"), CASES)
def test_entries_and_their_gradient(rng, rows, units, shared, keep_zeros):
    active = random_active_set(rng, rows, units, 40, shared)
    values = floats(rng, len(active.listed().ids))
    values[rng.random(len(values)) < 0.4] = 0
    given = values_to_tf(active, values)
    upstream = floats(rng, rows, units)
    with tf.GradientTape() as tape:
        tape.watch(given)
        sparse = ops.sparse_from_active(given, active_to_tf(active), units, keep_zeros=keep_zeros)
        assert isinstance(sparse, tf.SparseTensor)
        objective = tf.reduce_sum(sparse.values * tf.gather_nd(upstream, sparse.indices))
    by_own, by_shared = tape.gradient(objective, given)

    dense, stays = dense_of(active, values, units)
    if not keep_zeros:
        stays &= dense != 0
    np.testing.assert_array_equal(sparse.dense_shape, [rows, units])
    np.testing.assert_array_equal(sparse.indices, np.argwhere(stays))
    np.testing.assert_array_equal(sparse.values, dense[stays])
    listed, counts = active.listed(), active.counted()
    places = listed.entry_rows(), listed.ids
    expected = upstream[places] * counts * stays[places]
    np.testing.assert_array_equal(active.join(by_own.numpy(), by_shared.numpy()), expected)


@pytest.mark.parametrize("keep_zeros", [True, False])
def test_what_is_not_finite_is_not_left_out(keep_zeros):
    active = ActiveSet(csr([[1, 3], [0]]), np.array([2], np.int32))
    given = ops.ActiveLogits(tf.constant([np.nan, -0.0, np.inf]), tf.constant([[-np.inf], [0.0]]))
    sparse = ops.sparse_from_active(given, active_to_tf(active), 4, keep_zeros=keep_zeros)
    finite = sparse.values.numpy()[np.isfinite(sparse.values)]
    assert len(sparse.values) - len(finite) == 3
    assert len(finite) == (2 if keep_zeros else 0)


def test_inside_a_graph_of_unknown_sizes():
    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None]),
            tf.TensorSpec([None, None]),
        ]
    )
    def entries(splits, ids, shared, own_values, shared_values):
        active = ops.ActiveSet(ops.Csr(splits, ids), shared)
        given = ops.ActiveLogits(own_values, shared_values)
        sparse = ops.sparse_from_active(given, active, 9)
        assert sparse.shape.as_list() == [None, 9]
        by_own, by_shared = tf.gradients(sparse.values, [own_values, shared_values])
        assert (by_own.shape.rank, by_shared.shape.rank) == (1, 2)
        return sparse, by_own, by_shared

    sparse, by_own, by_shared = entries([0, 1, 1], [4], [4, 8], [2.0], [[7.0, 3.0], [1.0, 5.0]])
    expected = [[0, 0, 0, 0, 2, 0, 0, 0, 3], [0, 0, 0, 0, 1, 0, 0, 0, 5]]
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), expected)
    np.testing.assert_array_equal(by_own, [1])
    np.testing.assert_array_equal(by_shared, [[0, 1], [1, 1]])
