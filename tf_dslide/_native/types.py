"""What the ops take and give.

Shapes: `rows` samples, `units` neurons, weights `(units, d)`. In a `Csr` the ids of row `r` are
`ids[row_splits[r]:row_splits[r + 1]]`, ascending and distinct; `nnz` counts them all. `shared`
counts the neurons that all rows of a batch share.
"""

from typing import NamedTuple

import tensorflow as tf


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


def no_neurons() -> tf.Tensor:
    """An empty list of ids."""
    return tf.zeros([0], tf.int32)
