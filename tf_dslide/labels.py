"""Brings labels of every accepted form into one: sorted distinct ids of each row."""

from typing import Any

import tensorflow as tf

from tf_dslide._native import ops
from tf_dslide._native.ops import Csr

_FORMS = (
    "integer ids (batch,) or (batch, 1); integer ids (batch, k) padded with -1; a tf.RaggedTensor "
    "of ids; a sparse multi-hot matrix (batch, units); a dense float or bool multi-hot matrix "
    "(batch, units)"
)


def to_csr(y_true: Any, units: int, positions: int = 1) -> Csr:
    """Brings labels into CSR.

    Args:
        y_true: Labels for outputs with `positions` leading axes: integer ids with as many axes, or
            with one more that is 1 long or padded with -1; `tf.RaggedTensor` of ids;
            `tf.SparseTensor` multi-hot, explicit zeros ignored; float or bool multi-hot `(...,
            units)`.
        units: Number of classes.
        positions: Leading axes of the output: 1 for `(batch, units)`, 2 for `(batch, time, units)`.

    Returns:
        `Csr` with one row for each output vector, in order; ids ascending and distinct.

    Raises:
        ValueError: The form is none of these.
        tf.errors.InvalidArgumentError: A label lies outside `[0, units)`; names row and label.

    Example:
    >>> import numpy as np
    >>> to_csr(np.array([[3, 1], [2, -1]]), units=5).ids.numpy().tolist()
    [1, 3, 2]
    """
    if isinstance(y_true, tf.RaggedTensor):
        return _from_ragged(y_true, units, positions)
    if isinstance(y_true, tf.SparseTensor):
        return _from_sparse(y_true, units)
    return _from_dense(tf.convert_to_tensor(y_true), units, positions)


def _from_ragged(y_true: tf.RaggedTensor, units: int, positions: int) -> Csr:
    if y_true.shape.rank != positions + 1:
        raise ValueError(
            f"Ragged labels of shape {y_true.shape} do not belong to outputs with {positions} "
            f"leading axes. Accepted: {_FORMS}."
        )
    for _ in range(positions - 1):
        merged = y_true.merge_dims(0, 1)
        if not isinstance(merged, tf.RaggedTensor):
            return _from_dense(merged, units, 1)
        y_true = merged
    ids = _as_ids(y_true.values, units)
    return ops.canonical_labels(tf.cast(y_true.row_splits, tf.int64), ids, units)


def _as_ids(values: tf.Tensor, units: int) -> tf.Tensor:
    if values.dtype.is_integer:
        return tf.cast(values, tf.int64)
    raise ValueError(
        f"Labels that are lists of ids must be integers; received dtype {values.dtype.name} for "
        f"{units} units. Accepted: {_FORMS}."
    )


def _from_sparse(y_true: tf.SparseTensor, units: int) -> Csr:
    width = y_true.shape[-1]
    if y_true.shape.rank not in (None, 2) or width not in (None, units):
        raise ValueError(
            f"Sparse labels must be a multi-hot matrix (batch, {units}); received shape "
            f"{y_true.shape}. Accepted: {_FORMS}."
        )
    present = tf.not_equal(y_true.values, tf.zeros((), y_true.values.dtype))
    indices = tf.boolean_mask(y_true.indices, present)
    ragged = tf.RaggedTensor.from_value_rowids(
        indices[:, 1], indices[:, 0], nrows=y_true.dense_shape[0]
    )
    return ops.canonical_labels(ragged.row_splits, ragged.values, units)


def _from_dense(y_true: tf.Tensor, units: int, positions: int) -> Csr:
    if not (y_true.dtype.is_integer or y_true.dtype.is_floating or y_true.dtype == tf.bool):
        raise ValueError(
            f"Labels of dtype {y_true.dtype.name} are not numbers. Accepted: {_FORMS}."
        )
    if y_true.shape.rank is None:
        return _from_unknown_rank(y_true, units, positions)
    rank, width = y_true.shape.rank, y_true.shape[-1] if y_true.shape.rank else None
    if rank not in (positions, positions + 1):
        raise ValueError(
            f"Labels of shape {y_true.shape} do not belong to outputs with {positions} leading "
            f"axes and {units} units. Accepted: {_FORMS}."
        )
    if rank == positions or (width == 1 and units != 1):
        return _one_each(tf.reshape(y_true, [-1]), units)
    is_number = y_true.dtype.is_integer
    if not is_number and width in (None, units):
        hot = tf.reshape(y_true, [-1, units])
        places = tf.where(tf.not_equal(hot, tf.zeros((), hot.dtype)))
        ragged = tf.RaggedTensor.from_value_rowids(
            places[:, 1], places[:, 0], nrows=tf.shape(hot, tf.int64)[0]
        )
        return ops.canonical_labels(ragged.row_splits, ragged.values, units)
    if is_number and width == units and units > 1:
        raise ValueError(
            f"Integer labels of shape {y_true.shape} for {units} units could be ids or a multi-hot "
            "matrix: cast a multi-hot matrix to float or bool, or pass ids as a tf.RaggedTensor."
        )
    if not is_number:
        raise ValueError(
            f"Labels of dtype {y_true.dtype.name} and shape {y_true.shape} do not fit {units} "
            f"units. Accepted: {_FORMS}."
        )
    return _padded(tf.reshape(y_true, [-1, tf.shape(y_true)[-1]]), units)


def _from_unknown_rank(y_true: tf.Tensor, units: int, positions: int) -> Csr:
    """Keras forgets the rank when one model is given labels of different shapes in turn."""
    if not y_true.dtype.is_integer or positions != 1:
        raise ValueError(
            f"Labels of dtype {y_true.dtype.name} arrived without a known rank, so that ids and "
            "multi-hot cannot be told apart: give the data set a static shape."
        )
    rows = tf.shape(y_true)[0]
    columns = tf.size(y_true) // tf.maximum(rows, 1)
    return _padded(tf.reshape(y_true, tf.stack([rows, columns])), units)


def _padded(y_true: tf.Tensor, units: int) -> Csr:
    ids = tf.cast(y_true, tf.int64)
    rows, k = tf.unstack(tf.shape(ids, tf.int64))
    return ops.canonical_labels(tf.range(rows + 1) * k, tf.reshape(ids, [-1]), units)


def _one_each(ids: tf.Tensor, units: int) -> Csr:
    if ids.dtype == tf.bool:
        ids = tf.cast(ids, tf.int64)
    if ids.dtype.is_floating:
        whole = tf.cast(ids, tf.int64)
        check = tf.debugging.assert_equal(
            tf.cast(whole, ids.dtype), ids, "Labels given as floats must be whole numbers."
        )
        with tf.control_dependencies([check] if check is not None else []):
            ids = tf.identity(whole)
    ids = tf.cast(ids, tf.int64)
    return ops.canonical_labels(tf.range(tf.size(ids, tf.int64) + 1), ids, units)


def expect_rows(labels: Csr, static: tf.TensorShape, leading: tf.Tensor) -> Csr:
    """Checks that there is one row of labels for each output vector.

    Args:
        labels: The labels.
        static: What the graph knows of the outputs' shape.
        leading: All axes of the outputs but the last.

    Raises:
        ValueError: The numbers differ, as the static shapes tell.
        tf.errors.InvalidArgumentError: The numbers differ.
    """
    known, expected = labels.row_splits.shape[0], static[:-1].num_elements()
    if known is not None and expected is not None and known - 1 != expected:
        raise ValueError(
            "Labels and outputs must have the same number of rows; received "
            f"{known - 1} and {expected}."
        )
    check = tf.debugging.assert_equal(
        tf.size(labels.row_splits) - 1,
        tf.reduce_prod(leading),
        "Labels and outputs must have the same number of rows.",
    )
    with tf.control_dependencies([check] if check is not None else []):
        return Csr(tf.identity(labels.row_splits), labels.ids)


def contains(labels: Csr, ids: tf.Tensor) -> tf.Tensor:
    """Which of `ids` `(rows, k) int32` are among a row's labels, `(rows, k) bool`; -1 is not."""
    # Row and id in one number; the labels' numbers ascend over the whole batch.
    width = tf.constant(1 << 32, tf.int64)
    ragged = tf.RaggedTensor.from_row_splits(labels.ids, labels.row_splits, validate=False)
    keys = ragged.value_rowids() * width + tf.cast(labels.ids, tf.int64)
    rows = tf.range(tf.shape(ids, tf.int64)[0])[:, None]
    wanted = tf.where(ids >= 0, rows * width + tf.cast(ids, tf.int64), -1)
    # A last key that matches nothing keeps every place within the list.
    keys = tf.concat([keys, [tf.int64.max]], axis=0)
    places = tf.searchsorted(keys, tf.reshape(wanted, [-1]))
    found = tf.equal(tf.gather(keys, places), tf.reshape(wanted, [-1]))
    return tf.reshape(found, tf.shape(ids))


def to_excluded(exclude: Any, units: int, leading: tf.Tensor) -> tuple[Csr, int]:
    """Labels that a search leaves out.

    Args:
        exclude: Ids `(n,)` for all rows, or each row's own as `to_csr` takes labels; integers are
            always ids.
        units: Number of classes.
        leading: All axes of the outputs but the last; how many must be known.

    Returns:
        Each row's labels, and how many a row has at most.

    Raises:
        ValueError: The form is none that labels have, or a graph does not know how many there are.
    """
    positions = leading.shape[0]
    if not isinstance(exclude, (tf.RaggedTensor, tf.SparseTensor)):
        exclude = tf.convert_to_tensor(exclude)
        if exclude.shape.rank == 1:
            exclude = tf.broadcast_to(exclude, tf.concat([leading, tf.shape(exclude)], axis=0))
        if exclude.shape.rank != positions + 1:
            raise ValueError(
                f"`exclude` of shape {exclude.shape} does not belong to outputs with {positions} "
                "leading axes: give ids (n,) for all rows, or (batch, ..., n) padded with -1"
            )
    if isinstance(exclude, tf.Tensor) and exclude.dtype.is_integer:
        excluded = _padded(tf.reshape(exclude, [-1, tf.shape(exclude)[-1]]), units)
    else:
        excluded = to_csr(exclude, units, positions)
    excluded = expect_rows(excluded, tf.TensorShape([None] * (positions + 1)), leading)
    if tf.executing_eagerly():
        return excluded, int(tf.reduce_max(tf.concat([[0], excluded.row_lengths()], axis=0)))
    if not isinstance(exclude, tf.Tensor) or exclude.shape[-1] is None:
        raise ValueError(
            "within tf.function `exclude` must be a tensor of ids whose last axis is known; "
            f"received {exclude!r}"
        )
    return excluded, exclude.shape[-1]
