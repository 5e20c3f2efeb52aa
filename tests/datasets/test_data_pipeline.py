"""tf.data pipelines: contents, order, shapes, and use by Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from tf_dslide.data import Dataset, batches, to_ragged, to_sparse_tensor
from tf_dslide.data.pipeline import stream


def numbered(num_samples, num_features=5, num_labels=4):
    """A data set whose row `i` has the feature value `i + 1`, and some rows no label or two."""
    rows = np.arange(num_samples)
    features = sparse.csr_matrix(
        (rows + 1.0, (rows, rows % num_features)), (num_samples, num_features)
    )
    bits = (rows[:, None] >> np.arange(num_labels)) & 1
    return Dataset(features, sparse.csr_matrix(bits.reshape(num_samples, num_labels)))


def visited(stream):
    """The numbers of the rows of one pass over `numbered` data, in order."""
    return [int(value) - 1 for features, _ in stream for value in features.values.numpy()]


def collected(stream, dataset):
    """One pass as dense arrays; checks each batch's own consistency on the way."""
    features, labels = [np.zeros((0, dataset.num_features))], []
    for x, y in stream:
        assert x.dtype == tf.float32
        assert y.dtype == y.row_splits.dtype == tf.int64
        assert x.shape.as_list() == [y.nrows(), dataset.num_features]
        indices = x.indices.numpy()
        assert indices.tolist() == sorted(indices.tolist()), "not in row-major order"
        features.append(tf.sparse.to_dense(x).numpy())  # checks the order too
        labels.extend(y.to_list())
    return np.concatenate(features), labels


def label_lists(dataset):
    return [np.flatnonzero(row).tolist() for row in dataset.labels.toarray()]


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "sizes"),
    [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (1, 1, [1]), (0, 4, [])],
)
def test_a_pass_is_the_data_in_order(num_samples, batch_size, sizes):
    data = numbered(num_samples)
    stream = batches(data, batch_size)
    features, labels = collected(stream, data)
    np.testing.assert_array_equal(features, data.features.toarray())
    assert labels == label_lists(data)
    assert [y.nrows().numpy() for _, y in stream] == sizes
    assert stream.cardinality().numpy() == len(sizes)


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "sizes"), [(7, 3, [3, 3]), (6, 3, [3, 3]), (2, 5, [])]
)
def test_the_remainder_can_be_dropped(num_samples, batch_size, sizes):
    stream = batches(numbered(num_samples), batch_size, drop_remainder=True, shuffle=True)
    assert [y.nrows().numpy() for _, y in stream] == sizes
    assert stream.cardinality().numpy() == len(sizes)


def test_shapes_are_known_to_the_graph():
    features, labels = batches(numbered(7), 3).element_spec
    assert features == tf.SparseTensorSpec([None, 5], tf.float32)
    assert labels == tf.RaggedTensorSpec([None, None], tf.int64, ragged_rank=1)


def test_shuffling_visits_every_row_once_and_keeps_rows_whole():
    data = numbered(50)
    stream = batches(data, 8, shuffle=True, seed=3)
    for _ in range(2):
        seen = []
        for x, y in stream:
            dense = tf.sparse.to_dense(x).numpy()
            rows = dense.max(axis=1).astype(int) - 1
            np.testing.assert_array_equal(dense, data.features.toarray()[rows])
            assert y.to_list() == [label_lists(data)[row] for row in rows]
            seen.extend(rows)
        assert sorted(seen) == list(range(50))


def test_passes_differ_and_depend_on_the_seed_alone():
    def passes(seed):
        stream = batches(numbered(50), 8, shuffle=True, seed=seed)
        return [visited(stream) for _ in range(3)]

    first, second, third = passes(3)
    assert first != second != third != first
    assert first != list(range(50))
    assert passes(3) == [first, second, third]
    assert all(ours != theirs for ours, theirs in zip(passes(4), passes(3), strict=True))


def test_a_later_first_pass_goes_on_where_earlier_passes_ended():
    whole = batches(numbered(50), 8, shuffle=True, seed=3)
    passes = [visited(whole) for _ in range(4)]
    resumed = batches(numbered(50), 8, shuffle=True, seed=3, first_pass=2)
    assert [visited(resumed) for _ in range(2)] == passes[2:]


def test_the_order_does_not_depend_on_the_batch_size():
    orders = [visited(batches(numbered(50), size, shuffle=True, seed=1)) for size in (1, 7, 64)]
    assert orders[0] == orders[1] == orders[2]


def test_an_abandoned_pass_counts_and_an_unused_iterator_does_not():
    reference = batches(numbered(50), 8, shuffle=True)
    expected = [visited(reference) for _ in range(2)]
    stream = batches(numbered(50), 8, shuffle=True)
    iter(stream)
    next(iter(stream))
    assert visited(stream) == expected[1]


def test_repeat_goes_on_to_the_next_pass():
    reference = batches(numbered(20), 8, shuffle=True)
    expected = visited(reference) + visited(reference)
    repeated = batches(numbered(20), 8, shuffle=True).repeat(2)
    assert visited(repeated) == expected
    assert repeated.cardinality().numpy() == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": -3}, "batch_size is -3"),
        ({"batch_size": 1, "seed": -1}, "seed is -1"),
        ({"batch_size": 1, "first_pass": -1}, "first_pass is -1"),
        ({"batch_size": 1, "prefetch": -1}, "prefetch is -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        batches(numbered(3), **arguments)


class RaggedLossModel(keras.Model):
    """A linear model with a loss on ragged labels, built from stock Keras alone."""

    def __init__(self, num_labels):
        super().__init__()
        self.dense = keras.layers.Dense(num_labels, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        targets = tf.reduce_sum(tf.one_hot(y, y_pred.shape[1]), axis=1)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(targets, y_pred))


class Steps(keras.callbacks.Callback):
    """Notes what Keras believes of the number of steps, and how many it takes."""

    def __init__(self):
        super().__init__()
        self.taken = 0

    def on_train_batch_end(self, batch, logs=None):
        self.taken += 1


def test_fit():
    data = numbered(40, num_features=40)
    stream = batches(data, 16, shuffle=True)
    model, steps = RaggedLossModel(4), Steps()
    model.compile(optimizer=keras.optimizers.Adam(0.1))
    history = model.fit(stream, epochs=3, verbose=0, shuffle=False, callbacks=[steps])
    assert steps.params["steps"] == 3
    assert steps.taken == 9
    losses = history.history["loss"]
    assert losses[0] > losses[1] > losses[2]
    # Each epoch of fit was one pass, neither more nor fewer.
    reference = batches(data, 16, shuffle=True)
    for _ in range(3):
        visited(reference)
    assert visited(stream) == visited(reference)
    assert model.predict(batches(data, 16), verbose=0).shape == (40, 4)


def test_batches_without_any_entry():
    data = Dataset(sparse.csr_matrix((5, 3)), sparse.csr_matrix((5, 2)))
    features, labels = collected(batches(data, 2), data)
    assert features.tolist() == np.zeros((5, 3)).tolist()
    assert labels == [[]] * 5


MATRICES = st.tuples(st.integers(0, 7), st.integers(1, 6)).flatmap(
    lambda shape: st.lists(
        st.lists(st.sampled_from([0, 0, 1, 2.5, -1]), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    ).map(lambda rows: np.array(rows, np.float32).reshape(shape))
)


@pytest.mark.slow
@given(MATRICES, st.integers(1, 9))
@settings(max_examples=20, deadline=None)
def test_any_matrix_passes_through(matrix, batch_size):
    data = Dataset(matrix, matrix)
    features, labels = collected(batches(data, batch_size), data)
    np.testing.assert_array_equal(features, matrix)
    assert labels == label_lists(data)


@given(MATRICES)
def test_conversions(matrix):
    csr = sparse.csr_matrix(matrix)
    tensor, ragged = to_sparse_tensor(csr), to_ragged(csr)
    assert tensor.dtype == tf.float32
    assert tensor.shape.as_list() == list(matrix.shape)
    np.testing.assert_array_equal(tf.sparse.to_dense(tensor).numpy(), matrix)
    assert ragged.dtype == tf.int64
    assert ragged.to_list() == [np.flatnonzero(row).tolist() for row in matrix]


def test_conversions_of_unsorted_csr():
    csr = sparse.csr_matrix(([3.0, 1.0, 2.0], [2, 0, 2], [0, 3]), (1, 3))
    assert to_sparse_tensor(csr).indices.numpy().tolist() == [[0, 0], [0, 2]]
    assert to_sparse_tensor(csr).values.numpy().tolist() == [1, 5]
    assert to_ragged(csr).to_list() == [[0, 2]]
    assert csr.indices.tolist() == [2, 0, 2]


def test_nothing_is_left_to_tune():
    """With the tuner a pass often ends at the tuner's next round, long after the last batch."""
    data = numbered(20)
    pair = data.features, data.labels
    for pipeline in (batches(data, 4), stream(lambda: iter([pair]), data.num_features, 1)):
        assert pipeline.options().autotune.enabled is False
        assert sum(1 for _ in pipeline) == pipeline.cardinality()
