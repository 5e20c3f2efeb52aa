"""Sparse linear classifiers: weights between features and some of the neurons."""

from typing import Any, NamedTuple

import tensorflow as tf

from tf_dslide._native.factored_slices import FactoredSlices
from tf_dslide._native.loader import load
from tf_dslide._native.types import Csr
from tf_dslide._native.variables import bias_handles, handle, shape_of, value_of

_ops = load()


class SparseKernel(NamedTuple):
    """A sparse kernel: feature `f` has weights for `neurons[splits[f]:splits[f + 1]]`.

    Attributes:
        splits: `(features + 1,) int64`.
        neurons: `(weights,) int32`, ascending for each feature.
        weights: Variable `(weights,) float32`.
        bias: Variable `(units,) float32` or `None`.
        units: Number of neurons.
    """

    splits: tf.Tensor
    neurons: tf.Tensor
    weights: Any
    bias: Any
    units: int


class Features(NamedTuple):
    """A batch of sparse samples: distinct ascending features with `values (nnz,) float32`."""

    rows: Csr
    values: tf.Tensor


def cooccurrences(
    features: Csr,
    columns: int,
    labels: Csr,
    units: int,
    max_weights_per_feature: int,
    smoothing: float,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """For each feature the labels that it occurs together with, if it says much about them.

    Returns:
        `splits (columns + 1,) int64`, `neurons (weights,) int32`, and the number of rows that
        have both, `(weights,) float32`.
    """
    return _ops.dslide_cooccurrences(
        **features._asdict(),
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        features=columns,
        units=units,
        max_weights_per_feature=max_weights_per_feature,
        smoothing=smoothing,
    )


def _inputs(x: Features, kernel: SparseKernel) -> dict[str, Any]:
    return {
        "values": x.values,
        **x.rows._asdict(),
        "weight_splits": kernel.splits,
        "weight_neurons": kernel.neurons,
        "weights": handle(kernel.weights),
        "bias": bias_handles(kernel.bias),
        "units": kernel.units,
    }


def sparse_linear_select(
    x: Features, kernel: SparseKernel, labels: Csr, count: int
) -> tuple[Csr, tf.Tensor]:
    """Each row's labels and the `count` best others that its features have weights for.

    Returns:
        The active sets, and their logits `(nnz,) float32`.
    """
    splits, ids, logits, *_ = _ops.dslide_sparse_linear_select(
        **_inputs(x, kernel),
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        count=count,
    )
    return Csr(splits, ids), logits


@tf.RegisterGradient("DslideSparseLinearSelect")
def _sparse_linear_select_gradient(op: tf.Operation, *upstreams: tf.Tensor) -> list[Any]:
    values, _, _, _, neurons, weights, *others = op.inputs
    bias = others[: op.get_attr("use_bias")]  # the labels follow
    active_splits, active_ids, _, match_splits, position, entry, place = op.outputs
    ids, gradient, bias_ids, bias_gradient = _ops.dslide_sparse_linear_gradient(
        values=values,
        active_splits=active_splits,
        active_ids=active_ids,
        upstream=upstreams[2],
        match_splits=match_splits,
        match_position=position,
        match_entry=entry,
        match_place=place,
        weight_count=neurons.shape[0],
        units=op.get_attr("units"),
    )
    slices = [FactoredSlices(gradient, ids, shape_of(weights))]
    slices += [FactoredSlices(bias_gradient, bias_ids, shape_of(b)) for b in bias]
    return [*[None] * 5, *slices, None, None]


def sparse_linear_logits(x: Features, kernel: SparseKernel) -> tf.Tensor:
    """All logits, `(rows, units) float32`.

    A node of a graph that nobody uses, unlike those of the ops that read variables themselves.
    """
    given = _inputs(x, kernel)
    given["weights"] = value_of(kernel.weights)
    given["bias"] = [] if kernel.bias is None else [value_of(kernel.bias)]
    return _ops.dslide_sparse_linear_logits(**given)


@tf.RegisterGradient("DslideSparseLinearLogits")
def _sparse_linear_logits_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    values, row_splits, ids, splits, neurons, weights, *bias = op.inputs
    lengths = row_splits[1:] - row_splits[:-1]
    rows = tf.repeat(tf.range(tf.size(lengths)), lengths)
    # One number for each feature of each row and each of its weights.
    reached = tf.ragged.range(tf.gather(splits, ids), tf.gather(splits, ids + 1))
    entries, positions = reached.value_rowids(), reached.values
    places = tf.stack([tf.gather(rows, entries), tf.gather(neurons, positions)], axis=1)
    terms = tf.gather(values, entries) * tf.gather_nd(upstream, places)
    by_weight = tf.math.unsorted_segment_sum(terms, positions, tf.size(weights))
    return [*[None] * 5, by_weight, *[tf.reduce_sum(upstream, axis=0) for _ in bias]]


def sparse_linear_top_k(x: Features, kernel: SparseKernel, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best neurons of each row: ids `(rows, k) int32` and logits, falling."""
    return _ops.dslide_sparse_linear_top_k(**_inputs(x, kernel), k=k)


def sparse_linear_losses(
    x: Features, kernel: SparseKernel, labels: Csr
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each row's losses over all units, of the softmax and one-vs-rest. No gradient."""
    return _ops.dslide_sparse_linear_losses(
        **_inputs(x, kernel), label_splits=labels.row_splits, label_ids=labels.ids
    )
