"""Active sets: how they are chosen, and how they are seen from their neurons."""

from typing import NamedTuple

import tensorflow as tf

from tf_dslide._native.loader import load
from tf_dslide._native.types import ActiveSet, Csr, no_neurons

_ops = load()


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


def union(one: tf.Tensor, other: tf.Tensor, units: int) -> tf.Tensor:
    """The neurons in either of two lists `int32`: ascending and distinct."""
    both = tf.cast(tf.concat([one, other], axis=0), tf.int64)
    return canonical_labels(tf.stack([0, tf.size(both, tf.int64)]), both, units).ids


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


class CscTensors(NamedTuple):
    """What a view holds.

    Neuron `neurons[u]` is active in the samples `entry_row[e]`, at the places `entry_index[e]` of
    the rows' own ids, for `e` in `[neuron_splits[u], neuron_splits[u + 1])`. The shared neurons
    `neurons[shared_places]` are active in all samples.
    """

    neurons: tf.Tensor
    neuron_splits: tf.Tensor
    entry_row: tf.Tensor
    entry_index: tf.Tensor
    shared_places: tf.Tensor


class CscView(NamedTuple):
    """An active set seen from its neurons, as one scalar `view` of type `tf.variant`.

    The op that makes it checks the active set, and those that read it need not.
    """

    view: tf.Tensor

    def tensors(self) -> CscTensors:
        """What it holds, without a copy."""
        return CscTensors(*_ops.dslide_csc_tensors(view=self.view))

    @property
    def neurons(self) -> tf.Tensor:
        """The distinct neurons, ascending."""
        return self.tensors().neurons


def csc_from_csr(active: ActiveSet, units: int) -> CscView:
    """The same active set seen from its neurons."""
    return CscView(
        _ops.dslide_csc_from_csr(**active.own._asdict(), shared=active.shared, units=units)
    )
