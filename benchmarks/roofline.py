"""What a training step must move and compute, and the time that the machine allows for it.

One function for a group of phases gives their work from the counts of a batch: what must be done,
however it is programmed. Each operand is read once and each result written once; what a phase uses
again stays in the cache. A phase takes at least as long as its memory traffic and at least as long
as its arithmetic.
"""

from dataclasses import dataclass
from typing import NamedTuple

from limits import Limits


@dataclass(frozen=True)
class Counts:
    """Numbers of a batch that decide the work of a step.

    Attributes:
        rows: Samples of the batch.
        dim: Width of the hidden layer, d.
        units: Neurons of the output layer.
        features: Width of the input.
        nonzeros: Non-zero features of all samples.
        features_seen: Distinct features among them.
        labels: Labels of all samples.
        entries: (sample, neuron) pairs of the samples' own neurons.
        own_neurons: Distinct neurons among them.
        shared: Neurons that all samples share.
        neurons: Distinct neurons, own or shared.
        tables: Hash tables, L.
        buckets: Buckets of a table.
        products: Multiplications to hash one vector.
        votes: Neurons found in the samples' buckets, those found twice counted twice.
    """

    rows: int
    dim: int
    units: int
    features: int
    nonzeros: int
    features_seen: int
    labels: int
    entries: int
    own_neurons: int
    shared: int
    neurons: int
    tables: int
    buckets: int
    products: int
    votes: int

    @property
    def logits(self) -> int:
        return self.entries + self.rows * self.shared


class Rows(NamedTuple):
    """So many distinct rows, of length d, of a matrix with `of` rows; `times` such matrices."""

    number: int = 0
    of: int = 0
    times: int = 1


class Work(NamedTuple):
    """Bytes that a phase must move and operations that it must do.

    Attributes:
        handed: Bytes of what phases hand to each other, read or written.
        streamed: Bytes of variables and tables read in order.
        scattered: Bytes of tables and data read in short pieces at random places.
        read: Rows of weights read.
        updated: Rows of weights or moments read and written.
        flops: Floating-point operations; a multiply-add is two.
    """

    handed: float = 0
    streamed: float = 0
    scattered: float = 0
    read: Rows = Rows()
    updated: Rows = Rows()
    flops: float = 0

    def bytes(self, dim: int) -> float:
        rows = self.read.number * self.read.times + 2 * self.updated.number * self.updated.times
        return self.handed + self.streamed + self.scattered + rows * 4 * dim

    def memory_seconds(self, dim: int, at_best: Limits) -> float:
        """Rows cost what random rows do, or what the whole matrix in order does if that is less."""

        def seconds(rows: Rows, row_ns: float, matrix_bytes: float, rate: float) -> float:
            at_random = rows.number * row_ns * 1e-9 * 4 * dim / at_best.row_bytes
            return rows.times * min(at_random, matrix_bytes / (rate * 1e9))

        read, update = at_best.read_gb_per_second, at_best.update_gb_per_second
        return (
            self.handed / (update * 1e9)
            + self.streamed / (read * 1e9)
            + self.scattered / at_best.row_bytes * at_best.row_read_ns * 1e-9
            + seconds(self.read, at_best.row_read_ns, 4 * dim * self.read.of, read)
            + seconds(self.updated, at_best.row_update_ns, 8 * dim * self.updated.of, update)
        )

    def arithmetic_seconds(self, at_best: Limits) -> float:
        return self.flops / (at_best.gflop_per_second * 1e9)


# Operations of the softmax for a logit: offset, maximum, difference, e^x (about 20), sum, division,
# and the scale of the gradient.
SOFTMAX_FLOPS = 26
# Operations of Adam for a weight: 3 for the momentum, 4 for the velocity, 7 for the weight, its
# decay, the root and the division among them.
ADAM_FLOPS = 14
# float32 and int32 take 4 bytes, int64 takes 8; the memory moves lines of 64.
LINE = 64


def input_work(c: Counts) -> dict[str, Work]:
    hidden = 4 * c.rows * c.dim
    # A sparse tensor holds two int64 and one float32 a non-zero.
    sparse, ragged = 20 * c.nonzeros, 8 * (c.labels + c.rows)
    return {
        # Columns and values are read from rows in random order; a batch is written.
        "pipeline": Work(handed=sparse + ragged, scattered=8 * c.nonzeros + 4 * c.labels),
        # The batch and a row of weights for each feature seen, to a row a sample.
        "input forward": Work(
            handed=sparse + hidden,
            read=Rows(c.features_seen, c.features),
            flops=2 * c.nonzeros * c.dim,
        ),
        # The hidden gradient and where the output was positive, the batch again; weights and both
        # moments of the features seen.
        "input update": Work(
            handed=2 * hidden + 8 * c.nonzeros,
            updated=Rows(c.features_seen, c.features, 3),
            flops=(2 * c.nonzeros + ADAM_FLOPS * c.features_seen) * c.dim,
        ),
    }


def choice_work(c: Counts) -> dict[str, Work]:
    hidden, codes = 4 * c.rows * c.dim, 4 * c.rows * c.tables
    # By neuron an entry is a row and a place, a neuron is its id and its place.
    by_neuron = 8 * c.entries + 12 * c.neurons
    return {
        "labels": Work(handed=16 * c.labels + 16 * c.rows),
        # Inputs and projections (a coordinate and a weight each) to codes.
        "hash": Work(handed=hidden + codes, streamed=8 * c.products, flops=2 * c.rows * c.products),
        # A code gives a place in the bucket's table (a line) and the ids of its window; own ids are
        # written. The votes themselves are counted in the cache: integers, no flops.
        "select": Work(
            handed=codes + 4 * c.entries, scattered=LINE * c.rows * c.tables + 4 * c.votes
        ),
        # A bit a neuron; ids and whether by chance; own ids once more for the share of each row.
        "sample": Work(handed=c.units / 8 + 8 * c.shared + 4 * c.entries + 4 * c.rows),
        "transpose": Work(handed=4 * c.entries + 4 * c.shared + by_neuron),
    }


def output_work(c: Counts) -> dict[str, Work]:
    hidden, own, shared = 4 * c.rows * c.dim, 4 * c.entries, 4 * c.rows * c.shared
    entries = 8 * c.entries
    return {
        # Inputs, entries by neuron and a bias each; a row of weights a neuron; logits are written.
        "forward own": Work(
            handed=hidden + entries + own + 16 * c.own_neurons,
            read=Rows(c.own_neurons, c.units),
            flops=2 * c.entries * c.dim,
        ),
        "forward shared": Work(
            handed=hidden + shared + 8 * c.shared,
            read=Rows(c.shared, c.units),
            flops=2 * c.rows * c.shared * c.dim,
        ),
        # Logits are read and gradients written; own ids tell which shared neurons count as own.
        "softmax": Work(handed=3 * own + 2 * shared, flops=SOFTMAX_FLOPS * c.logits),
        # Gradients by logit, entries by neuron and a row of weights a neuron, to a row a sample.
        "hidden gradient": Work(
            handed=own + shared + entries + 12 * c.neurons + hidden,
            read=Rows(c.neurons, c.units),
            flops=2 * c.logits * c.dim,
        ),
        # The same gradients and the inputs; weights and both moments.
        "output update": Work(
            handed=own + shared + entries + 12 * c.neurons + hidden,
            updated=Rows(c.neurons, c.units, 3),
            flops=(2 * c.logits + ADAM_FLOPS * c.neurons) * c.dim,
        ),
        # The same gradients; a bias and two moments a neuron, read and written.
        "bias update": Work(
            handed=own + shared + 4 * c.entries + 36 * c.neurons,
            flops=c.logits + ADAM_FLOPS * c.neurons,
        ),
    }


def rebuild_work(c: Counts) -> dict[str, Work]:
    codes = 4 * c.units * c.tables
    return {
        "hash weights": Work(
            handed=codes, streamed=4 * c.units * c.dim, flops=2 * c.units * c.products
        ),
        # Codes are read, ids and the buckets' places written.
        "build tables": Work(handed=2 * codes + 4 * c.tables * c.buckets),
    }


class Share(NamedTuple):
    """A phase beside its limit.

    Attributes:
        seconds: What it takes.
        bytes: What it must move.
        flops: What it must compute.
        limit_seconds: What the machine allows for the longer of the two.
        bound: Which one that is: `"memory"` or `"arithmetic"`.
        strict_seconds: The limit if what phases hand to each other never left the cache.
        share: `limit_seconds / seconds`.
    """

    seconds: float
    bytes: float
    flops: float
    limit_seconds: float
    bound: str
    strict_seconds: float
    share: float


def share(seconds: float, work: Work, dim: int, at_best: Limits) -> Share:
    memory = work.memory_seconds(dim, at_best)
    arithmetic = work.arithmetic_seconds(at_best)
    strict = work._replace(handed=0).memory_seconds(dim, at_best)
    limit = max(memory, arithmetic)
    return Share(
        seconds=seconds,
        bytes=work.bytes(dim),
        flops=work.flops,
        limit_seconds=limit,
        bound="memory" if memory >= arithmetic else "arithmetic",
        strict_seconds=max(strict, arithmetic),
        share=limit / seconds,
    )
