"""Losses and searches over the logits of active sets."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_dslide._native.loader import load
from tf_dslide._native.types import ActiveLogits, ActiveSet, Csr

_ops = load()


class SharedAdjustment(NamedTuple):
    """What a softmax adds to the logits of shared neurons: a row's value times a neuron's.

    Attributes:
        rows: `(rows,) float32`.
        neurons: `(shared,) float32`.
    """

    rows: tf.Tensor
    neurons: tf.Tensor


def no_adjustment(logits: ActiveLogits) -> SharedAdjustment:
    """Those that change nothing."""
    rows, shared = tf.unstack(tf.shape(logits.shared))
    return SharedAdjustment(tf.zeros([rows]), tf.zeros([shared]))


class SoftmaxParts(NamedTuple):
    """What some of a row's units add to its softmax, each `(rows,) float32`.

    Attributes:
        top: Their largest logit; the lowest float if there are none.
        log_sum: The logarithm of the sum of `exp(logit - top)`.
        label_sum: The sum of `logit - top` of the row's labels among them.
    """

    top: tf.Tensor
    log_sum: tf.Tensor
    label_sum: tf.Tensor


class SoftmaxTotals(NamedTuple):
    """The same of all units, and the row's number of labels in all, each `(rows,) float32`."""

    top: tf.Tensor
    log_sum: tf.Tensor
    label_count: tf.Tensor


def _active_sets(logits: ActiveLogits, active: ActiveSet) -> dict[str, tf.Tensor]:
    return {
        "logits": logits.own,
        **active.own._asdict(),
        "shared_logits": logits.shared,
        "shared": active.shared,
    }


def softmax_inputs(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None
) -> dict[str, tf.Tensor]:
    """What the ops of losses take, by name."""
    adjustment = no_adjustment(logits) if adjustment is None else adjustment
    return {
        **_active_sets(logits, active),
        "label_splits": labels.row_splits,
        "label_ids": labels.ids,
        "row_adjustment": adjustment.rows,
        "shared_adjustment": adjustment.neurons,
    }


def softmax_crossentropy(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None = None
) -> tf.Tensor:
    """Cross-entropy of each row over its active set, `(rows,) float32`; 0 without labels.

    The adjustment is a constant and has no gradient.
    """
    loss, _, _ = _ops.dslide_softmax_crossentropy(
        **softmax_inputs(logits, active, labels, adjustment)
    )
    return loss


@tf.RegisterGradient("DslideBinaryCrossentropy")
@tf.RegisterGradient("DslideSoftmaxCrossentropy")
def _gradient_of_loss(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list[Any]:
    _, own, shared = op.outputs
    scaled = scale_rows(ActiveLogits(own, shared), op.inputs[1], upstream)
    others = len(op.inputs) - 4
    return [scaled.own, None, None, scaled.shared, *[None] * others]


def binary_crossentropy(
    logits: ActiveLogits,
    active: ActiveSet,
    labels: Csr,
    own_adjustment: tf.Tensor | None = None,
    adjustment: SharedAdjustment | None = None,
) -> tf.Tensor:
    """The sum of the logistic losses of each row's active neurons, `(rows,) float32`.

    A neuron that is no label counts `exp(adjustment)` times. The adjustments have no gradient.
    """
    if own_adjustment is None:
        own_adjustment = tf.zeros_like(logits.own)
    loss, _, _ = _ops.dslide_binary_crossentropy(
        **softmax_inputs(logits, active, labels, adjustment), own_adjustment=own_adjustment
    )
    return loss


def softmax_parts(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None = None
) -> SoftmaxParts:
    """What active sets add to softmaxes over more units than these. It has no gradient."""
    return SoftmaxParts(
        *_ops.dslide_softmax_parts(**softmax_inputs(logits, active, labels, adjustment))
    )


def softmax_gradient(
    logits: ActiveLogits,
    active: ActiveSet,
    labels: Csr,
    adjustment: SharedAdjustment | None,
    totals: SoftmaxTotals,
    upstream: tf.Tensor,
) -> ActiveLogits:
    """The gradient of cross-entropies by the logits of active sets that are parts of the whole.

    `upstream` is the gradient by each row's loss, `(rows,) float32`.
    """
    inputs = softmax_inputs(logits, active, labels, adjustment)
    return ActiveLogits(
        *_ops.dslide_softmax_gradient(**inputs, **totals._asdict(), upstream=upstream)
    )


def scale_rows(values: ActiveLogits, row_splits: tf.Tensor, scale: tf.Tensor) -> ActiveLogits:
    """Values of a batch's active sets, each times its row's `scale`, `(rows,) float32`."""
    scaled = _ops.dslide_scale_rows(
        values=values.own, row_splits=row_splits, shared_values=values.shared, scale=scale
    )
    return ActiveLogits(*scaled)


def active_top_k(logits: ActiveLogits, active: ActiveSet, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best ids and logits of each row; -1 and -infinity where a row has fewer."""
    return _ops.dslide_active_top_k(**_active_sets(logits, active), k=k)


def sparse_from_active(
    values: ActiveLogits, active: ActiveSet, units: int, keep_zeros: bool = True
) -> tf.SparseTensor:
    """The values of active sets as a sparse matrix `(rows, units)`, in ascending order.

    Without `keep_zeros` exact zeros are left out, and their gradient is 0.
    """
    indices, entries = _ops.dslide_sparse_from_active(
        **_active_sets(values, active), keep_zeros=keep_zeros
    )
    rows = tf.shape(values.shared, tf.int64)[0]
    return tf.SparseTensor(indices, entries, tf.stack([rows, units]))


@tf.RegisterGradient("DslideSparseFromActive")
def _sparse_from_active_gradient(op: tf.Operation, _: Any, upstream: tf.Tensor) -> list[Any]:
    values, row_splits, ids, shared_values, shared = op.inputs
    by_own, by_shared = _ops.dslide_active_from_sparse(
        logits=values,
        row_splits=row_splits,
        ids=ids,
        shared_logits=shared_values,
        shared=shared,
        entries=upstream,
        keep_zeros=op.get_attr("keep_zeros"),
    )
    return [by_own, None, None, by_shared, None]
