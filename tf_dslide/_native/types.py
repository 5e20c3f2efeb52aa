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


def no_neurons() -> tf.Tensor:
    """An empty list of ids."""
    return tf.zeros([0], tf.int32)
