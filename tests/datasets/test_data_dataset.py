"""Dataset: canonical form, checks, slicing."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from tf_dslide.data import Dataset


def small(**changes):
    fields = {
        "features": sparse.csr_matrix([[0.0, 1.5], [2.0, 0.0], [0.0, 0.0]]),
        "labels": sparse.csr_matrix([[1, 0, 1], [0, 0, 0], [0, 1, 0]]),
    }
    return Dataset(**(fields | changes))


def test_sizes_and_dtypes():
    data = small()
    assert (data.num_samples, len(data), data.num_features, data.num_labels) == (3, 3, 2, 3)
    assert data.features.dtype == data.labels.dtype == np.float32
    assert data.label_counts.tolist() == [1, 1, 1]
    assert data.label_counts.dtype == np.int64
    assert repr(data) == "Dataset('data': 3 samples, 2 features, 3 labels)"


def test_labels_become_sorted_unique_ones_and_the_argument_stays_as_it_was():
    ids = np.array([2, 0, 2, 1], np.int32)
    values = np.array([7.0, 1.0, 7.0, 0.0], np.float32)
    labels = sparse.csr_matrix((values, ids, np.array([0, 4])), (1, 3))
    data = Dataset(sparse.csr_matrix((1, 1)), labels)
    assert data.labels.indices.tolist() == [0, 2]
    assert data.labels.data.tolist() == [1, 1]
    assert ids.tolist() == [2, 0, 2, 1]
    assert values.tolist() == [7, 1, 7, 0]


def test_repeated_features_add_up():
    features = sparse.csr_matrix(([1.0, 2.0, 4.0], [1, 0, 1], [0, 3]), (1, 2))
    data = Dataset(features, sparse.csr_matrix((1, 1)))
    assert data.features.toarray().tolist() == [[2, 5]]
    assert data.features.indices.tolist() == [0, 1]


def test_a_canonical_matrix_is_not_copied():
    features = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    assert np.shares_memory(small(features=features).features.data, features.data)


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().name = "other"


def test_rows_must_agree():
    with pytest.raises(ValueError, match="features has 3 rows and labels has 2"):
        small(labels=sparse.csr_matrix((2, 3)))


def test_names_must_agree():
    with pytest.raises(ValueError, match="2 names for 3 labels"):
        small(label_names=["a", "b"])


@pytest.mark.parametrize(("value", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e39, "inf")])
def test_features_must_be_finite(value, shown):
    features = sparse.csr_matrix([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [3.0, value, value]])
    with pytest.raises(ValueError, match=rf"features\[2, 1\] is {shown} as float32"):
        small(features=features)


@pytest.mark.parametrize("rows", [[2, 0, 0], np.array([True, False, True]), slice(1, None), []])
def test_take_is_row_indexing(rows):
    data = small(label_names=["a", "b", "c"], name="n")
    part = data.take(rows)
    index = np.arange(3)[np.array(rows, int) if isinstance(rows, list) else rows]
    np.testing.assert_array_equal(part.features.toarray(), data.features.toarray()[index])
    np.testing.assert_array_equal(part.labels.toarray(), data.labels.toarray()[index])
    assert (part.label_names, part.name) == (("a", "b", "c"), "n")


def test_take_outside_is_an_index_error():
    with pytest.raises(IndexError):
        small().take([3])


@given(st.integers(0, 6), st.integers(1, 5), st.data())
def test_any_triplets_equal_their_dense_sum(rows, columns, data):
    cells = st.tuples(
        st.integers(0, max(rows - 1, 0)), st.integers(0, columns - 1), st.integers(-3, 3)
    )
    entries = data.draw(st.lists(cells, max_size=12 if rows else 0))
    dense = np.zeros((rows, columns), np.float32)
    for row, column, value in entries:
        dense[row, column] += value
    made = sparse.coo_matrix(
        (
            [value for _, _, value in entries],
            ([row for row, _, _ in entries], [column for _, column, _ in entries]),
        ),
        (rows, columns),
        dtype=np.float32,
    )
    dataset = Dataset(made, made)
    np.testing.assert_array_equal(dataset.features.toarray(), dense)
    np.testing.assert_array_equal(dataset.labels.toarray(), dense != 0)
    np.testing.assert_array_equal(dataset.label_counts, (dense != 0).sum(axis=0))
