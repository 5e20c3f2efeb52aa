"""Feeds sparse data to Keras: `tf.data` pipelines of sparse features and ragged label ids.

TensorFlow is imported where it is needed, so that reading and converting data does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from tf_dslide.data.dataset import Dataset

if TYPE_CHECKING:
    import tensorflow as tf


def batches(
    dataset: Dataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    first_pass: int = 0,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> tf.data.Dataset:
    """Make a `tf.data` pipeline of batches for `fit`, `evaluate` and custom loops.

    Each iteration over the result (each epoch of `fit`) is one pass over the data. With `shuffle`
    the passes differ, and the order of pass `e` depends on `seed` and `e` alone: two runs see the
    same batches. A pass counts from its first batch on.

    Rows are gathered a batch at a time by TensorFlow, from one copy of the whole data. The rate is
    about 150,000 samples a second for rows of 76 features in batches of 256, on two cores.

    Args:
        dataset: The data.
        batch_size: Samples a batch. It may exceed the number of samples.
        shuffle: Whether to visit the samples in a new random order at each pass.
        seed: Decides the orders; a non-negative integer.
        first_pass: Number of the first pass, as if so many had gone before: the epochs done of a
            training that is resumed.
        drop_remainder: Whether to leave out a last batch of fewer samples.
        prefetch: How many batches to prepare ahead, in a thread of TensorFlow.

    Returns:
        A finite `tf.data.Dataset` of known cardinality, of pairs

        - features: `tf.SparseTensor` `(batch, num_features)` `float32`, indices in row-major
          order; `num_features` is known statically;
        - labels: `tf.RaggedTensor` `(batch, None)` `int64`, the sorted ids of the true labels.

    Raises:
        ValueError: `batch_size` is below 1, or `seed`, `first_pass` or `prefetch` is negative.

    Example:
    >>> from scipy import sparse
    >>> data = Dataset(sparse.csr_matrix([[0.6, 0.8], [0, 1], [1, 0]]), sparse.eye(3))
    >>> stream = batches(data, batch_size=2)
    >>> int(stream.cardinality())
    2
    >>> for features, labels in stream:
    ...     print(features.dense_shape.numpy(), labels.to_list())
    [2 2] [[0], [1]]
    [1 2] [[2]]
    """
    _require_at_least("batch_size", batch_size, 1)
    _require_at_least("seed", seed, 0)
    _require_at_least("first_pass", first_pass, 0)
    _require_at_least("prefetch", prefetch, 0)
    import tensorflow as tf

    n = dataset.num_samples
    num_batches = n // batch_size if drop_remainder else -(-n // batch_size)
    passes = tf.Variable(first_pass, dtype=tf.int64, trainable=False)
    gather_features, gather_labels = _RowGatherer(dataset.features), _RowGatherer(dataset.labels)

    def assemble(rows: tf.Tensor) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
        columns, values = gather_features(rows)
        places = tf.stack([columns.value_rowids(), columns.values], axis=1)
        shape = tf.stack([tf.size(rows, out_type=tf.int64), dataset.num_features])
        return tf.SparseTensor(places, values, shape), gather_labels(rows)[0]

    def one_pass(_: tf.Tensor) -> tf.data.Dataset:
        epoch = passes.assign_add(1) - 1
        order = tf.range(n, dtype=tf.int64)
        if shuffle:
            key = tf.stack([tf.constant(seed % 2**63, tf.int64), epoch])
            order = tf.random.experimental.stateless_shuffle(order, key)
        begins = tf.data.Dataset.range(0, num_batches * batch_size, batch_size)
        return begins.map(lambda begin: order[begin : begin + batch_size])

    # No Python at all: it would need the interpreter while training does, and TensorFlow's
    # generators make malloc return all large blocks to the system, which costs a tenth of a step.
    rows = tf.data.Dataset.from_tensors(0).flat_map(one_pass)
    return _finished(rows.map(assemble, num_parallel_calls=1), num_batches, prefetch)


class _RowGatherer:
    """Rows of a CSR matrix, picked by TensorFlow."""

    def __init__(self, matrix: sparse.csr_matrix) -> None:
        import tensorflow as tf

        self._splits = tf.constant(matrix.indptr, tf.int64)
        self._columns = tf.constant(matrix.indices, tf.int32)
        self._values = tf.constant(matrix.data, tf.float32)

    def __call__(self, rows: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """The rows' columns `(rows, None) int64` and their values, flat."""
        import tensorflow as tf

        first, last = tf.gather(self._splits, rows), tf.gather(self._splits, rows + 1)
        places = tf.ragged.range(first, last)
        columns = tf.cast(tf.gather(self._columns, places.values), tf.int64)
        return places.with_values(columns), tf.gather(self._values, places.values)


def stream(
    one_pass: Callable[[], Iterator[tuple[sparse.csr_matrix, sparse.csr_matrix]]],
    num_features: int,
    num_batches: int,
    *,
    prefetch: int = 2,
) -> tf.data.Dataset:
    """Turn an iterator of CSR batches into the pipeline that `batches` describes.

    Args:
        one_pass: Called once for each iteration; yields pairs of features
            `(batch, num_features)` and labels `(batch, num_labels)`, columns sorted in each row.
        num_features: Width of the features.
        num_batches: How many pairs `one_pass` yields.
        prefetch: How many batches to prepare ahead.

    Returns:
        A `tf.data.Dataset` as that of `batches`.

    Raises:
        ValueError: `prefetch` is negative.

    Example:
    >>> from scipy import sparse
    >>> pair = sparse.csr_matrix([[0.0, 2.0]]), sparse.csr_matrix([[1, 0, 1]])
    >>> features, labels = next(iter(stream(lambda: iter([pair, pair]), 2, 2)))
    >>> labels.to_list()
    [[0, 2]]
    """
    import tensorflow as tf

    _require_at_least("prefetch", prefetch, 0)

    def flat_pass() -> Iterator[tuple[np.ndarray, ...]]:
        for features, labels in one_pass():
            yield (
                features.indptr.astype(np.int64),
                features.indices.astype(np.int64),
                features.data.astype(np.float32, copy=False),
                labels.indptr.astype(np.int64),
                labels.indices.astype(np.int64),
            )

    def assemble(splits, columns, values, label_splits, label_ids):
        rows = tf.ragged.row_splits_to_segment_ids(splits, out_type=tf.int64)
        shape = tf.stack([tf.size(splits, out_type=tf.int64) - 1, num_features])
        features = tf.SparseTensor(tf.stack([rows, columns], axis=1), values, shape)
        return features, tf.RaggedTensor.from_row_splits(label_ids, label_splits, validate=False)

    # Flat arrays cross from Python to TensorFlow several times as fast as composite tensors do.
    vector = tf.TensorSpec((None,), tf.int64)
    signature = (vector, vector, tf.TensorSpec((None,), tf.float32), vector, vector)
    flat = tf.data.Dataset.from_generator(flat_pass, output_signature=signature)
    return _finished(flat.map(assemble, num_parallel_calls=1), num_batches, prefetch)


def _finished(pipeline: tf.data.Dataset, num_batches: int, prefetch: int) -> tf.data.Dataset:
    """The pipeline with a length and batches ahead.

    Nothing here is left to TensorFlow to tune. Its tuner also often misses that an iterator is
    given up, which then waits for the tuner's next round: as long as the whole pass took.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    counted = pipeline.apply(tf.data.experimental.assert_cardinality(num_batches))
    return counted.prefetch(prefetch).with_options(options)


def to_sparse_tensor(matrix: sparse.csr_matrix) -> tf.SparseTensor:
    """Convert a sparse matrix to a `tf.SparseTensor`.

    Args:
        matrix: `(rows, columns)`, as `Dataset.features`.

    Returns:
        A `tf.SparseTensor` of that shape, `float32`, with indices in row-major order.

    Example:
    >>> from scipy import sparse
    >>> to_sparse_tensor(sparse.csr_matrix([[0, 3], [4, 0]])).indices.numpy().tolist()
    [[0, 1], [1, 0]]
    """
    import tensorflow as tf

    csr = sparse.csr_matrix(matrix)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    rows = np.repeat(np.arange(csr.shape[0], dtype=np.int64), np.diff(csr.indptr))
    indices = np.stack([rows, csr.indices.astype(np.int64)], axis=1)
    return tf.SparseTensor(indices, csr.data.astype(np.float32, copy=False), csr.shape)


def to_ragged(labels: sparse.csr_matrix) -> tf.RaggedTensor:
    """Convert a label matrix to the ids of the true labels of each row.

    Args:
        labels: `(rows, num_labels)`, as `Dataset.labels`; the non-zero entries are the labels.

    Returns:
        A `tf.RaggedTensor` `(rows, None)` of sorted `int64` ids.

    Example:
    >>> from scipy import sparse
    >>> to_ragged(sparse.csr_matrix([[1, 0, 1], [0, 0, 0]])).to_list()
    [[0, 2], []]
    """
    import tensorflow as tf

    csr = sparse.csr_matrix(labels, copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return tf.RaggedTensor.from_row_splits(
        csr.indices.astype(np.int64), csr.indptr.astype(np.int64), validate=False
    )


def _require_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
