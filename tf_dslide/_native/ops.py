"""One function for each compiled op, and the ops' gradients.

Shapes: `rows` samples, `units` neurons, weights `(units, d)`. In a `Csr` the ids of row `r` are
`ids[row_splits[r]:row_splits[r + 1]]`, ascending and distinct; `nnz` counts them all. `shared`
counts the neurons that all rows of a batch share.
"""

import math
import warnings
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from tensorflow.python.eager import tape
from tensorflow.python.ops import handle_data_util

from tf_dslide._native.loader import load

_ops = load()


class Csr(NamedTuple):
    """Lists of ids, one a row: `row_splits` `(rows + 1,) int64`, `ids` `(nnz,) int32`."""

    row_splits: tf.Tensor
    ids: tf.Tensor

    def row_lengths(self) -> tf.Tensor:
        """`(rows,) int64`."""
        return self.row_splits[1:] - self.row_splits[:-1]


class ActiveSet(NamedTuple):
    """The neurons active in each row: its own, and `shared (shared,) int32` in all rows.

    Both ascend. A shared neuron that is among a row's own counts there once, as its own.
    """

    own: Csr
    shared: tf.Tensor


class ActiveLogits(NamedTuple):
    """A number for each active neuron: `own (nnz,)` and `shared (rows, shared)`, both `float32`."""

    own: tf.Tensor
    shared: tf.Tensor


class CscView(NamedTuple):
    """An active set seen from its neurons.

    Neuron `neurons[u]` is active in the samples `entry_row[e]`, at the places `entry_index[e]` of
    the rows' own ids, for `e` in `[neuron_splits[u], neuron_splits[u + 1])`. The shared neurons
    `neurons[shared_places]` are active in all samples.
    """

    neurons: tf.Tensor
    neuron_splits: tf.Tensor
    entry_row: tf.Tensor
    entry_index: tf.Tensor
    shared_places: tf.Tensor


def handle(variable: Any) -> tf.Tensor:
    """The resource behind a Keras or TensorFlow variable, noted by the gradient tapes."""
    if isinstance(variable, keras.Variable):
        # Its public `value` is a cast copy inside a layer with mixed precision.
        variable = variable._value
    tape.variable_accessed(variable)
    return variable.handle


def value_of(variable: Any) -> tf.Tensor:
    """The value of a Keras or TensorFlow variable as it is kept, whatever the compute dtype."""
    return tf.convert_to_tensor(getattr(variable, "_value", variable))


def _bias(bias: Any) -> list[tf.Tensor]:
    return [] if bias is None else [handle(bias)]


def _generation(number: tf.Tensor | int) -> tf.Tensor:
    return tf.convert_to_tensor(number, tf.int64)


def sim_hash_parameters(
    seed: int, dim: int, projections: int, nonzeros: int, generation: tf.Tensor | int = 0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Coordinates `(projections, nonzeros) int32` and weights of random sparse projections.

    Others for each `generation` of hash functions, as of those below.
    """
    return _ops.dslide_sim_hash_parameters(
        generation=_generation(generation),
        seed=seed,
        dim=dim,
        projections=projections,
        nonzeros=nonzeros,
    )


def sim_hash_codes(
    x: tf.Tensor, index: tf.Tensor, value: tf.Tensor, bits: int, tables: int
) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** bits)`; an error names a row that is not finite."""
    return _ops.dslide_sim_hash_codes(x=x, index=index, value=value, bits=bits, tables=tables)


def projection_codes(x: tf.Tensor, projections: tf.Tensor, bits: int, tables: int) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** bits)` from signs of `(tables * bits, dim + 1)`.

    The last column of the projections is added to their products with `x`.
    """
    return _ops.dslide_projection_codes(x=x, projections=projections, bits=bits, tables=tables)


def learn_projections(
    queries: tf.Tensor,
    neurons: tf.Tensor,
    bias: tf.Tensor,
    query_projections: tf.Tensor,
    neuron_projections: tf.Tensor,
    centre: tf.Tensor,
    round: tf.Tensor,
    *,
    bits: int,
    tables: int,
    steps: int,
    learning_rate: float,
    seed: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Projections by which queries and the neurons that score high for them share codes.

    Args:
        queries: `(m, dim) float32`.
        neurons: `(c, dim) float32`, a sample of the neurons.
        bias: `(c,) float32`.
        query_projections: Those to begin with, `(tables * bits, dim + 1) float32`, offsets last.
        neuron_projections: The same for the neurons.
        centre: `() bool`: whether to begin with offsets that centre the vectors.
        round: `() int64`: each gives other draws.
        bits: Bits of a code.
        tables: Number of tables.
        steps: Steps of Adam.
        learning_rate: Its rate.
        seed: Fixes the draws.

    Returns:
        Both projections after training; unchanged where there is nothing to learn from.
    """
    return _ops.dslide_learn_projections(
        queries=queries,
        neurons=neurons,
        bias=bias,
        query_projections=query_projections,
        neuron_projections=neuron_projections,
        centre=centre,
        round=round,
        bits=bits,
        tables=tables,
        steps=steps,
        learning_rate=learning_rate,
        seed=seed,
    )


def dwta_parameters(
    seed: int, dim: int, bins: int, bin_size: int, generation: tf.Tensor | int = 0
) -> tf.Tensor:
    """Coordinates of the bins, `(bins, bin_size) int32`."""
    return _ops.dslide_dwta_parameters(
        generation=_generation(generation), seed=seed, dim=dim, bins=bins, bin_size=bin_size
    )


def dwta_codes(x: tf.Tensor, index: tf.Tensor, tables: int, address_bits: int) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** address_bits)`."""
    return _ops.dslide_dwta_codes(x=x, index=index, tables=tables, address_bits=address_bits)


def wta_codes(x: tf.Tensor, index: tf.Tensor, tables: int, address_bits: int) -> tf.Tensor:
    """As `dwta_codes`, but the first coordinate wins where all are 0."""
    return _ops.dslide_dwta_codes(
        x=x, index=index, tables=tables, address_bits=address_bits, densify=False
    )


def min_hash_parameters(
    seed: int, dim: int, permutations: int, generation: tf.Tensor | int = 0
) -> tf.Tensor:
    """Where each of `permutations` random orders puts the coordinates, `(permutations, dim)`."""
    return _ops.dslide_min_hash_parameters(
        generation=_generation(generation), seed=seed, dim=dim, permutations=permutations
    )


def min_hash_codes(
    x: tf.Tensor,
    place: tf.Tensor,
    *,
    top: int,
    bins_per_table: int,
    tables: int,
    bins_per_permutation: int,
    address_bits: int,
) -> tf.Tensor:
    """Codes `(n, tables) int32` in `[0, 2 ** address_bits)` of the `top` largest coordinates."""
    return _ops.dslide_min_hash_codes(
        x=x,
        place=place,
        top=top,
        bins_per_table=bins_per_table,
        tables=tables,
        bins_per_permutation=bins_per_permutation,
        address_bits=address_bits,
    )


def build_tables(codes: tf.Tensor, buckets: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`bucket_ptr (tables, buckets + 1)` and `neuron_ids (tables, units)`, both `int32`."""
    return _ops.dslide_build_tables(codes=codes, buckets=buckets)


def arrange_buckets(
    bucket_ptr: tf.Tensor, neuron_ids: tf.Tensor, step: tf.Tensor, *, policy: str, seed: int
) -> tf.Tensor:
    """The `neuron_ids`, those first in each bucket that it would keep if it were shorter.

    By `policy` any of them with equal probability (`"reservoir"`, others at each `step`), or the
    last ones (`"fifo"`).
    """
    return _ops.dslide_arrange_buckets(
        bucket_ptr=bucket_ptr, neuron_ids=neuron_ids, step=step, policy=policy, seed=seed
    )


def select_from_tables(
    codes: tf.Tensor,
    bucket_ptr: tf.Tensor,
    neuron_ids: tf.Tensor,
    labels: Csr,
    excluded: tf.Tensor,
    step: tf.Tensor,
    *,
    hashed: int,
    bucket_size: int,
    seed: int,
    from_start: bool = False,
    min_collisions: int = 0,
    by_code: bool = False,
) -> Csr:
    """Labels and the neurons most often found in the buckets, `hashed` in all.

    `excluded` are ids that only a label can bring in. A bucket of more than `bucket_size` neurons
    gives a window of them at a random place, or `from_start`. With `min_collisions`, neurons in
    so many tables are taken as they come, the tables in a random order. With `by_code` rows of
    equal codes and labels get equal neurons; otherwise each row has its own windows of long
    buckets.
    """
    return Csr(
        *_ops.dslide_select_from_tables(
            codes=codes,
            bucket_ptr=bucket_ptr,
            neuron_ids=neuron_ids,
            label_splits=labels.row_splits,
            label_ids=labels.ids,
            excluded=excluded,
            step=step,
            hashed=hashed,
            bucket_size=bucket_size,
            seed=seed,
            from_start=from_start,
            min_collisions=min_collisions,
            by_code=by_code,
        )
    )


def select_for_batch(
    codes: tf.Tensor,
    bucket_ptr: tf.Tensor,
    neuron_ids: tf.Tensor,
    excluded: tf.Tensor,
    step: tf.Tensor,
    *,
    hashed: int,
    bucket_size: int,
    seed: int,
    from_start: bool = False,
    min_collisions: int = 0,
) -> tf.Tensor:
    """The `excluded` neurons and the `hashed` others that the buckets of all rows hold most often.

    Ascending distinct ids `int32`. With `min_collisions`, any that the buckets hold so often.
    """
    return _ops.dslide_select_for_batch(
        codes=codes,
        bucket_ptr=bucket_ptr,
        neuron_ids=neuron_ids,
        excluded=excluded,
        step=step,
        hashed=hashed,
        bucket_size=bucket_size,
        seed=seed,
        from_start=from_start,
        min_collisions=min_collisions,
    )


def sample_neurons(
    step: tf.Tensor,
    *,
    units: int,
    count: int,
    distribution: str,
    seed: int,
    fixed: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The `fixed` neurons and `count` others by chance, another draw for each step.

    Returns distinct ascending ids `int32`, at most `units`, and `float32` 1 for those drawn by
    chance and 0 for the fixed ones.
    """
    return _ops.dslide_sample_neurons(
        step=step,
        fixed=no_neurons() if fixed is None else fixed,
        units=units,
        count=count,
        distribution=distribution,
        seed=seed,
    )


def log_importance_weights(active: ActiveSet, drawn: tf.Tensor, units: int) -> tf.Tensor:
    """The logarithm of how many left out neurons each one drawn stands for, `(rows,) float32`."""
    return _ops.dslide_log_importance_weights(
        **active.own._asdict(), shared=active.shared, drawn=drawn, units=units
    )


def canonical_labels(row_splits: tf.Tensor, values: tf.Tensor, units: int) -> Csr:
    """Sorts labels `values (nnz,) int64`, drops repeated ones and -1; checks their range."""
    return Csr(*_ops.dslide_canonical_labels(row_splits=row_splits, values=values, units=units))


def csr_from_sparse(sparse: tf.SparseTensor, columns: int) -> Csr:
    """The rows of a sparse matrix; checks order, range and that all values are finite."""
    return Csr(
        *_ops.dslide_csr_from_sparse(
            indices=sparse.indices,
            values=sparse.values,
            dense_shape=sparse.dense_shape,
            columns=columns,
        )
    )


def no_neurons() -> tf.Tensor:
    """An empty list of ids."""
    return tf.zeros([0], tf.int32)


def csc_from_csr(active: ActiveSet, units: int) -> CscView:
    """The same active set seen from its neurons."""
    return CscView(
        *_ops.dslide_csc_from_csr(**active.own._asdict(), shared=active.shared, units=units)
    )


def active_logits(x: tf.Tensor, view: CscView, kernel: Any, bias: Any = None) -> ActiveLogits:
    """`<x[row], kernel[id]> + bias[id]` of each row's own and shared neurons."""
    return ActiveLogits(
        *_ops.dslide_active_logits(
            x=x,
            **view._asdict(),
            kernel=handle(kernel),
            bias=_bias(bias),
        )
    )


def csr_mat_mul(coef: tf.Tensor, rows: Csr, kernel: Any) -> tf.Tensor:
    """The sum of `coef * kernel[id]` over each row's ids, `(rows, d) float32`."""
    return _ops.dslide_csr_mat_mul(
        coef=coef,
        row_splits=rows.row_splits,
        ids=rows.ids,
        kernel=handle(kernel),
        columns=kernel.shape[0],
    )


def _active_sets(logits: ActiveLogits, active: ActiveSet) -> dict[str, tf.Tensor]:
    return {
        "logits": logits.own,
        **active.own._asdict(),
        "shared_logits": logits.shared,
        "shared": active.shared,
    }


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


def softmax_crossentropy(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None = None
) -> tf.Tensor:
    """Cross-entropy of each row over its active set, `(rows,) float32`; 0 without labels.

    The adjustment is a constant: nothing is derived by them.
    """
    loss, _, _ = _ops.dslide_softmax_crossentropy(
        **_softmax_inputs(logits, active, labels, adjustment)
    )
    return loss


def binary_crossentropy(
    logits: ActiveLogits,
    active: ActiveSet,
    labels: Csr,
    own_adjustment: tf.Tensor | None = None,
    adjustment: SharedAdjustment | None = None,
) -> tf.Tensor:
    """The sum of the logistic losses of each row's active neurons, `(rows,) float32`.

    A neuron that is no label counts `exp(adjustment)` times. The adjustment is a constant.
    """
    if own_adjustment is None:
        own_adjustment = tf.zeros_like(logits.own)
    loss, _, _ = _ops.dslide_binary_crossentropy(
        **_softmax_inputs(logits, active, labels, adjustment), own_adjustment=own_adjustment
    )
    return loss


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


def _softmax_inputs(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None
) -> dict[str, tf.Tensor]:
    adjustment = no_adjustment(logits) if adjustment is None else adjustment
    return {
        **_active_sets(logits, active),
        "label_splits": labels.row_splits,
        "label_ids": labels.ids,
        "row_adjustment": adjustment.rows,
        "shared_adjustment": adjustment.neurons,
    }


def softmax_parts(
    logits: ActiveLogits, active: ActiveSet, labels: Csr, adjustment: SharedAdjustment | None = None
) -> SoftmaxParts:
    """What active sets add to softmaxes over more units than these. It has no gradient."""
    return SoftmaxParts(
        *_ops.dslide_softmax_parts(**_softmax_inputs(logits, active, labels, adjustment))
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
    inputs = _softmax_inputs(logits, active, labels, adjustment)
    return ActiveLogits(
        *_ops.dslide_softmax_gradient(**inputs, **totals._asdict(), upstream=upstream)
    )


def scale_rows(values: ActiveLogits, row_splits: tf.Tensor, scale: tf.Tensor) -> ActiveLogits:
    """Values of a batch's active sets, each times its row's `scale`, `(rows,) float32`."""
    scaled = _ops.dslide_scale_rows(
        values=values.own, row_splits=row_splits, shared_values=values.shared, scale=scale
    )
    return ActiveLogits(*scaled)


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


def active_top_k(logits: ActiveLogits, active: ActiveSet, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best ids and logits of each row; -1 and -infinity where a row has fewer."""
    return _ops.dslide_active_top_k(**_active_sets(logits, active), k=k)


def top_k(x: tf.Tensor, kernel: Any, bias: Any, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best of all units for each row of `x`: ids `int32` and logits, `(rows, k)`."""
    return _ops.dslide_top_k(x=x, kernel=handle(kernel), bias=_bias(bias), k=k)


def full_crossentropy(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> tf.Tensor:
    """Cross-entropy of each row over all units, `(rows,) float32`, block by block."""
    return _full_crossentropy(x, labels, kernel, bias)[0]


def full_softmax_parts(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> SoftmaxParts:
    """What a layer's units add to softmaxes over more units than these, block by block.

    It has no gradient; `full_crossentropy_gradient` is that of the whole.
    """
    return SoftmaxParts(*map(tf.stop_gradient, _full_crossentropy(x, labels, kernel, bias)[1:]))


def _full_crossentropy(x: tf.Tensor, labels: Csr, kernel: Any, bias: Any) -> Any:
    return _ops.dslide_full_crossentropy(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        kernel=handle(kernel),
        bias=_bias(bias),
    )


def crossentropy_of_parts(
    losses: tf.Tensor, x: tf.Tensor, labels: Csr, kernel: Any, bias: Any, totals: SoftmaxTotals
) -> tf.Tensor:
    """The given losses, with their gradient by the part of the units that a layer has."""
    return _ops.dslide_crossentropy_of_parts(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        losses=losses,
        **totals._asdict(),
        kernel=handle(kernel),
        bias=_bias(bias),
    )


def full_crossentropy_gradient(
    x: tf.Tensor,
    labels: Csr,
    kernel: tf.Tensor,
    bias: list[tf.Tensor],
    totals: SoftmaxTotals,
    upstream: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Gradients of cross-entropies by `x`, the kernel and the bias (both given by handle)."""
    return _ops.dslide_full_crossentropy_gradient(
        x=x,
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        **totals._asdict(),
        upstream=upstream,
        kernel=kernel,
        bias=bias,
    )


class SparseKernel(NamedTuple):
    """A sparse kernel: feature `f` is connected with `neurons[splits[f]:splits[f + 1]]`.

    Attributes:
        splits: `(features + 1,) int64`.
        neurons: `(connections,) int32`, ascending for each feature.
        weights: Variable `(connections,) float32`.
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
    features: Csr, columns: int, labels: Csr, units: int, most: int, smoothing: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Connects features with the labels that they occur together with, at most `most` each.

    Returns:
        `splits (columns + 1,) int64`, `neurons (connections,) int32`, and the number of rows that
        have both, `(connections,) float32`.
    """
    return _ops.dslide_cooccurrences(
        **features._asdict(),
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        features=columns,
        units=units,
        most=most,
        smoothing=smoothing,
    )


def _connected(x: Features, connections: SparseKernel) -> dict[str, Any]:
    return {
        "values": x.values,
        **x.rows._asdict(),
        "connection_splits": connections.splits,
        "connection_neurons": connections.neurons,
        "weights": handle(connections.weights),
        "bias": _bias(connections.bias),
        "units": connections.units,
    }


def sparse_linear_select(
    x: Features, connections: SparseKernel, labels: Csr, count: int
) -> tuple[Csr, tf.Tensor]:
    """Each row's labels and the `count` best others of the neurons that it is connected with.

    Returns:
        The active sets, and their logits `(nnz,) float32`.
    """
    splits, ids, logits, *_ = _ops.dslide_sparse_linear_select(
        **_connected(x, connections),
        label_splits=labels.row_splits,
        label_ids=labels.ids,
        count=count,
    )
    return Csr(splits, ids), logits


def sparse_linear_logits(x: Features, connections: SparseKernel) -> tf.Tensor:
    """All logits, `(rows, units) float32`.

    A node of a graph that nobody uses, unlike those of the ops that read variables themselves.
    """
    given = _connected(x, connections)
    given["weights"] = value_of(connections.weights)
    given["bias"] = [] if connections.bias is None else [value_of(connections.bias)]
    return _ops.dslide_sparse_linear_logits(**given)


def sparse_linear_top_k(
    x: Features, connections: SparseKernel, k: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """The `k` best neurons of each row: ids `(rows, k) int32` and logits, falling."""
    return _ops.dslide_sparse_linear_top_k(**_connected(x, connections), k=k)


def sparse_linear_losses(
    x: Features, connections: SparseKernel, labels: Csr
) -> tuple[tf.Tensor, tf.Tensor]:
    """Each row's losses over all units, of the softmax and one-vs-rest. No gradient."""
    return _ops.dslide_sparse_linear_losses(
        **_connected(x, connections), label_splits=labels.row_splits, label_ids=labels.ids
    )


class AdamArguments(NamedTuple):
    """What the three Adam ops share; with `unit_rows` rows that move get length 1."""

    weight: tf.Tensor
    momentum: tf.Tensor
    velocity: tf.Tensor
    step: tf.Tensor
    learning_rate: tf.Tensor
    weight_decay: tf.Tensor
    beta_1: float
    beta_2: float
    epsilon: float
    unit_rows: bool = False


class AdagradArguments(NamedTuple):
    """What the three Adagrad ops share; with `unit_rows` rows that move get length 1."""

    weight: tf.Tensor
    accumulator: tf.Tensor
    learning_rate: tf.Tensor
    weight_decay: tf.Tensor
    epsilon: float
    unit_rows: bool = False


def dense_adam(arguments: AdamArguments, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adam on all weights."""
    return _ops.dslide_dense_adam(**arguments._asdict(), gradient=gradient)


def row_adam(arguments: AdamArguments, rows: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adam on the rows named; gradients of a row named twice add up."""
    return _ops.dslide_row_adam(**arguments._asdict(), rows=rows, gradient=gradient)


class GradientFactors(NamedTuple):
    """What a row-sparse gradient is computed from: `sum of coef[entry] * x[row]` by neuron.

    `shared_coef (rows, shared)` are the coefficients of the neurons that all rows share.
    """

    x: tf.Tensor
    coef: tf.Tensor
    shared_coef: tf.Tensor
    view: CscView

    def inputs(self) -> dict[str, tf.Tensor]:
        """What the ops call them."""
        return {
            "x": self.x,
            "coef": self.coef,
            "shared_coef": self.shared_coef,
            **self.view._asdict(),
        }


def row_gradient_adam(arguments: AdamArguments, parts: GradientFactors) -> tf.Operation:
    """One step of Adam on the rows of `parts`, whose gradients never reach memory."""
    return _ops.dslide_row_gradient_adam(**arguments._asdict(), **parts.inputs())


def dense_adagrad(arguments: AdagradArguments, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adagrad on all weights."""
    return _ops.dslide_dense_adagrad(**arguments._asdict(), gradient=gradient)


def row_adagrad(arguments: AdagradArguments, rows: tf.Tensor, gradient: tf.Tensor) -> tf.Operation:
    """One step of Adagrad on the rows named; gradients of a row named twice add up."""
    return _ops.dslide_row_adagrad(**arguments._asdict(), rows=rows, gradient=gradient)


def row_gradient_adagrad(arguments: AdagradArguments, parts: GradientFactors) -> tf.Operation:
    """One step of Adagrad on the rows of `parts`, whose gradients never reach memory."""
    return _ops.dslide_row_gradient_adagrad(**arguments._asdict(), **parts.inputs())


class FactoredSlices(tf.IndexedSlices):
    """A gradient with ascending distinct rows that may remember what it is computed from.

    An optimizer that knows `parts` can sweep gradient and update in one; the values are then an
    unused pure node and never computed.
    """

    parts: GradientFactors | None = None

    def __truediv__(self, scale: Any) -> "FactoredSlices":
        """The gradient of a loss that was multiplied by `scale`."""
        result = FactoredSlices(self.values / scale, self.indices, self.dense_shape)
        if self.parts is not None:
            result.parts = self.parts._replace(
                coef=self.parts.coef / scale, shared_coef=self.parts.shared_coef / scale
            )
        return result


def row_gradient(parts: GradientFactors, variable: tf.Tensor) -> FactoredSlices:
    """The gradient of the weights behind a resource."""
    values = _ops.dslide_row_gradient(**parts.inputs())
    slices = FactoredSlices(values, parts.view.neurons, _variable_shape(variable))
    slices.parts = parts
    # Keras casts gradients before it makes them dense, which keeps the rows but not the class.
    parts.view.neurons._dslide_weights = _number_of_weights(variable)
    return slices


def _number_of_weights(resource: tf.Tensor) -> int:
    if tf.is_symbolic_tensor(resource):
        data = handle_data_util.get_resource_handle_data(resource)
    else:
        data = resource._handle_data
    if data is None or not data.is_set or not data.shape_and_type:
        return 0
    return math.prod(dim.size for dim in data.shape_and_type[0].shape.dim)


_DEAR = 1 << 22
_warned_of_dense_gradient = False


def _notice_dense_gradient(
    value: Any, dtype: Any = None, name: Any = None, as_ref: Any = False
) -> Any:
    """Warns once when somebody makes a large row-sparse gradient dense, and lets it happen."""
    global _warned_of_dense_gradient
    weights = getattr(value.indices, "_dslide_weights", 0)
    if weights >= _DEAR and not _warned_of_dense_gradient:
        _warned_of_dense_gradient = True
        warnings.warn(
            f"the optimizer (or a regularizer) makes a row-sparse gradient dense: each step costs "
            f"as much as all {weights:,} weights. tf_dslide.SparseAdam updates only the rows that "
            "a batch used.",
            stacklevel=2,
        )
    return NotImplemented


tf.register_tensor_conversion_function(tf.IndexedSlices, _notice_dense_gradient, priority=50)


def factors_of(gradient: Any) -> GradientFactors | None:
    """What a gradient is computed from, if it remembers."""
    return gradient.parts if isinstance(gradient, FactoredSlices) else None


def _variable_shape(resource: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.VariableShape(input=resource)


@tf.RegisterGradient("DslideActiveLogits")
def _active_logits_gradient(
    op: tf.Operation, upstream: tf.Tensor, shared_upstream: tf.Tensor
) -> list[Any]:
    x, *view_tensors, kernel = op.inputs[:7]
    view = CscView(*view_tensors)
    x_gradient = _ops.dslide_active_mat_mul(
        coef=upstream, shared_coef=shared_upstream, **view._asdict(), like=x, kernel=kernel
    )
    parts = GradientFactors(x, upstream, shared_upstream, view)
    gradients = [x_gradient, None, None, None, None, None, row_gradient(parts, kernel)]
    if len(op.inputs) > 7:
        sums = _ops.dslide_entry_sums(**parts.inputs())
        gradients.append(FactoredSlices(sums, view.neurons, _variable_shape(op.inputs[7])))
    return gradients


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


@tf.RegisterGradient("DslideCsrMatMul")
def _csr_mat_mul_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    coef, row_splits, ids, kernel = op.inputs
    active = ActiveSet(Csr(row_splits, ids), no_neurons())
    view = csc_from_csr(active, op.get_attr("columns"))
    # `upstream` is nobody's input: what is not finite in it is for the optimizer to see.
    coef_gradient, nothing_shared = _ops.dslide_active_logits(
        x=upstream, **view._asdict(), kernel=kernel, bias=[], check_input=False
    )
    parts = GradientFactors(upstream, coef, nothing_shared, view)
    return [coef_gradient, None, None, row_gradient(parts, kernel)]


@tf.RegisterGradient("DslideSoftmaxCrossentropy")
def _softmax_crossentropy_gradient(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list[Any]:
    _, own, shared = op.outputs
    scaled = scale_rows(ActiveLogits(own, shared), op.inputs[1], upstream)
    return [scaled.own, None, None, scaled.shared, None, None, None, None, None]


@tf.RegisterGradient("DslideCrossentropyOfParts")
def _crossentropy_of_parts_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    x, label_splits, label_ids, _, *totals = op.inputs[:7]
    kernel, *bias = op.inputs[7:]
    x_gradient, kernel_gradient, bias_gradient = full_crossentropy_gradient(
        x, Csr(label_splits, label_ids), kernel, bias, SoftmaxTotals(*totals), upstream
    )
    nothing = [None] * (3 + len(totals))
    return [x_gradient, *nothing, kernel_gradient, *bias_gradient]


@tf.RegisterGradient("DslideFullCrossentropy")
def _full_crossentropy_gradient(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list[Any]:
    x, label_splits, label_ids, *variables = op.inputs
    labels = Csr(label_splits, label_ids)
    label_count = tf.cast(labels.row_lengths(), tf.float32)
    totals = SoftmaxTotals(op.outputs[1], op.outputs[2], label_count)
    x_gradient, kernel_gradient, bias_gradient = full_crossentropy_gradient(
        x, labels, variables[0], variables[1:], totals, upstream
    )
    return [x_gradient, None, None, kernel_gradient, *bias_gradient]


@tf.RegisterGradient("DslideBinaryCrossentropy")
def _binary_crossentropy_gradient(op: tf.Operation, upstream: tf.Tensor, *_: Any) -> list[Any]:
    return [*_softmax_crossentropy_gradient(op, upstream), None]


@tf.RegisterGradient("DslideSparseLinearSelect")
def _activate_connected_gradient(op: tf.Operation, *upstreams: tf.Tensor) -> list[Any]:
    gradients = _connection_gradients(op, op.outputs, upstreams[2])
    return [*gradients, None, None]


@tf.RegisterGradient("DslideSparseLinearLogits")
def _connected_logits_gradient(op: tf.Operation, upstream: tf.Tensor) -> list[Any]:
    values, row_splits, ids, splits, neurons, weights, *bias = op.inputs
    lengths = row_splits[1:] - row_splits[:-1]
    rows = tf.repeat(tf.range(tf.size(lengths)), lengths)
    # One number for each feature of each row and each of its connections.
    reached = tf.ragged.range(tf.gather(splits, ids), tf.gather(splits, ids + 1))
    entries, connections = reached.value_rowids(), reached.values
    places = tf.stack([tf.gather(rows, entries), tf.gather(neurons, connections)], axis=1)
    terms = tf.gather(values, entries) * tf.gather_nd(upstream, places)
    by_weight = tf.math.unsorted_segment_sum(terms, connections, tf.size(weights))
    return [*[None] * 5, by_weight, *[tf.reduce_sum(upstream, axis=0) for _ in bias]]


def _connection_gradients(op: tf.Operation, outputs: Any, upstream: tf.Tensor) -> list[Any]:
    """The gradients by the inputs that all ops over connections have, given that by logits."""
    values, _, _, _, neurons, weights = op.inputs[:6]
    bias = op.inputs[6 : 6 + op.get_attr("use_bias")]
    active_splits, active_ids, _, match_splits, position, entry, place = outputs
    ids, gradient, bias_ids, bias_gradient = _ops.dslide_sparse_linear_gradient(
        values=values,
        active_splits=active_splits,
        active_ids=active_ids,
        upstream=upstream,
        match_splits=match_splits,
        match_position=position,
        match_entry=entry,
        match_place=place,
        connections=neurons.shape[0],
        units=op.get_attr("units"),
    )
    slices = [FactoredSlices(gradient, ids, _variable_shape(weights))]
    slices += [FactoredSlices(bias_gradient, bias_ids, _variable_shape(b)) for b in bias]
    return [None] * 5 + slices
