"""What TensorFlow itself can do: sampled softmax with row-sparse gradients, in plain stock ops.

`RowAdamPeer` is the bar that tf_dslide has to beat. Everything that costs was tried in several
ways, and the fastest is here: products with sparse matrices run as CSR over the distinct features
alone (twenty times as fast as `tf.nn.embedding_lookup_sparse`), gradients are written out where
automatic differentiation would pass once more over the logits, and Adam runs as TensorFlow's own
fused kernel on the rows that the batch used.

Each peer has one `step(features, labels)`, to be called inside a `tf.function`: features a
`tf.SparseTensor` `(batch, features)`, labels a `tf.RaggedTensor` of ids `(batch, None)`. It trains
and returns the mean loss.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf


class Shape(NamedTuple):
    """Sizes of a network with one hidden layer, and of its sampled softmax."""

    features: int
    hidden: int
    units: int
    negatives: int


def glorot(rows: int, columns: int, seed: int) -> tf.Tensor:
    limit = (6 / (rows + columns)) ** 0.5
    return tf.random.stateless_uniform([rows, columns], [seed, rows], -limit, limit)


# Sparse products.
class SparseRows(NamedTuple):
    """A sparse matrix over the distinct columns that occur in it."""

    columns: tf.Tensor  # (distinct,) int32
    matrix: tf.Tensor  # CSR (rows, distinct)


def csr(rows: tf.Tensor, columns: tf.Tensor, values: tf.Tensor, shape: list) -> tf.Tensor:
    """A CSR matrix from entries in row-major order; columns need not ascend in a row."""
    return tf.raw_ops.SparseTensorToCSRSparseMatrix(
        indices=tf.stack([tf.cast(rows, tf.int64), tf.cast(columns, tf.int64)], axis=1),
        values=values,
        dense_shape=tf.stack([tf.cast(size, tf.int64) for size in shape]),
    )


def times(matrix: tf.Tensor, dense: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.SparseMatrixMatMul(a=matrix, b=dense)


def transposed_times(matrix: tf.Tensor, dense: tf.Tensor) -> tf.Tensor:
    """Transposing first is four times as fast as the op's own `transpose_a`."""
    return times(tf.raw_ops.SparseMatrixTranspose(input=matrix, type=tf.float32), dense)


def distinct_columns(features: tf.SparseTensor) -> SparseRows:
    columns, places = tf.unique(tf.cast(features.indices[:, 1], tf.int32))
    shape = [features.dense_shape[0], tf.size(columns)]
    return SparseRows(columns, csr(features.indices[:, 0], places, features.values, shape))


# Row-sparse Adam.
class AdamRates(NamedTuple):
    """What a step of Adam needs beside the gradient."""

    beta_1_power: tf.Tensor
    beta_2_power: tf.Tensor
    learning_rate: tf.Tensor | float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8


class AdamSchedule:
    """Counts the steps. A rate that changes is a function of the number of steps done."""

    def __init__(self, learning_rate: float | Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._learning_rate = learning_rate
        self._step = tf.Variable(0.0, trainable=False)

    def next(self) -> AdamRates:
        step = self._step.assign_add(1.0)
        rate = self._learning_rate
        return AdamRates(0.9**step, 0.999**step, rate(step - 1.0) if callable(rate) else rate)


class Table:
    """A variable whose rows are read and trained by number, with Adam's two moments.

    The rows in use stand in scratch variables while `ResourceApplyAdam` updates them: a kernel that
    reads and writes each number once, where Adam written in TensorFlow's elementwise ops takes
    twice as long.
    """

    def __init__(self, initial: tf.Tensor) -> None:
        self.weight = tf.Variable(initial)
        zeros = tf.zeros_like(initial)
        self.momentum, self.velocity = tf.Variable(zeros), tf.Variable(zeros)
        any_rows = [None, *initial.shape[1:]]
        self._scratch = [tf.Variable(initial[:0], shape=any_rows) for _ in range(3)]

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.gather(self.weight, ids)

    def train(
        self, ids: tf.Tensor, weight: tf.Tensor, gradient: tf.Tensor, rates: AdamRates
    ) -> None:
        """One step of Adam on the rows `ids`, all distinct, whose weights are `weight` now."""
        moments = (self.momentum, self.velocity)
        now = (weight, *(tf.gather(moment, ids) for moment in moments))
        for scratch, value in zip(self._scratch, now, strict=True):
            scratch.assign(value)
        apply_adam(self._scratch, gradient, rates)
        for variable, scratch in zip((self.weight, *moments), self._scratch, strict=True):
            variable.scatter_update(tf.IndexedSlices(scratch.read_value(), ids))


class Rows(NamedTuple):
    """Some rows of a table: their numbers, all distinct, their weights now, and the gradient."""

    ids: tf.Tensor
    weight: tf.Tensor
    gradient: tf.Tensor


def apply_adam(variables: list[tf.Variable], gradient: tf.Tensor, rates: AdamRates) -> None:
    weight, momentum, velocity = variables
    tf.raw_ops.ResourceApplyAdam(
        var=weight.handle,
        m=momentum.handle,
        v=velocity.handle,
        beta1_power=rates.beta_1_power,
        beta2_power=rates.beta_2_power,
        lr=rates.learning_rate,
        beta1=rates.beta_1,
        beta2=rates.beta_2,
        epsilon=rates.epsilon,
        grad=gradient,
    )


# Softmax over shared negatives.
class Labels(NamedTuple):
    """The batch's labels, entry by entry; `places` says where they are in a list of neurons."""

    rows: tf.Tensor
    places: tf.Tensor
    counts: tf.Tensor  # (batch,) float


class Candidates(NamedTuple):
    """Distinct neurons, the negatives first, and the labels' places among them."""

    ids: tf.Tensor
    labels: Labels


class Gradients(NamedTuple):
    """Mean loss, and its gradients by the hidden vectors and by the candidates' weights."""

    loss: tf.Tensor
    hidden: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor


def draw(count: int, units: int) -> tf.Tensor:
    """Distinct neurons, uniformly."""
    unused = tf.zeros([1, 1], tf.int64)
    drawn = tf.random.uniform_candidate_sampler(unused, 1, count, unique=True, range_max=units)
    return tf.cast(drawn.sampled_candidates, tf.int32)


def candidates(negatives: tf.Tensor, labels: tf.RaggedTensor) -> Candidates:
    ids, places = tf.unique(tf.concat([negatives, tf.cast(labels.values, tf.int32)], axis=0))
    counts = tf.cast(labels.row_lengths(), tf.float32)
    return Candidates(ids, Labels(labels.value_rowids(), places[tf.size(negatives) :], counts))


def softmax_of_own_labels(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: Labels, negatives: int
) -> Gradients:
    """Each row's softmax runs over the negatives and its own labels.

    `kernel` and `bias` are those of the candidates, of which the first `negatives` are shared. A
    negative that is among a row's labels counts once, as its label.
    """
    rows, places, counts = labels
    batch = tf.shape(hidden)[0]
    shared = Output(kernel[:negatives], bias[:negatives])
    logits = _without_labels(shared.logits(hidden), labels, negatives)
    products = tf.gather(hidden, rows) * tf.gather(kernel, places)
    own_logits = tf.reduce_sum(products, axis=1) + tf.gather(bias, places)

    own_largest = tf.math.unsorted_segment_max(own_logits, rows, batch)
    largest = tf.maximum(tf.reduce_max(logits, axis=1), own_largest)
    exps = tf.exp(logits - largest[:, None])
    own_exps = tf.exp(own_logits - tf.gather(largest, rows))
    sums = tf.reduce_sum(exps, axis=1) + tf.math.unsorted_segment_sum(own_exps, rows, batch)
    picked = tf.math.unsorted_segment_sum(own_logits, rows, batch)
    loss, share = _mean_loss(largest + tf.math.log(sums), picked, counts)

    by_own = own_exps * tf.gather(share / sums, rows)
    by_own -= tf.gather(tf.math.divide_no_nan(share, counts), rows)
    part = shared.gradients(hidden, exps, share / sums)
    own = Output(kernel, bias).gradients_of_entries(hidden, labels, by_own)
    rest = [0, tf.size(bias) - negatives]
    return Gradients(
        loss,
        own.hidden + part.hidden,
        own.kernel + tf.pad(part.kernel, [rest, [0, 0]]),
        own.bias + tf.pad(part.bias, [rest]),
    )


def softmax_of_all_candidates(
    hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, labels: Labels, negatives: int
) -> Gradients:
    """The softmax of every row runs over the negatives and the labels of the whole batch."""
    del negatives
    rows, places, counts = labels
    output = Output(kernel, bias)
    logits = output.logits(hidden)
    picked = tf.gather_nd(logits, tf.stack([rows, tf.cast(places, tf.int64)], axis=1))
    picked = tf.math.unsorted_segment_sum(picked, rows, tf.shape(hidden)[0])
    largest = tf.reduce_max(logits, axis=1)
    exps = tf.exp(logits - largest[:, None])
    sums = tf.reduce_sum(exps, axis=1)
    loss, share = _mean_loss(largest + tf.math.log(sums), picked, counts)
    wanted = tf.gather(tf.math.divide_no_nan(share, counts), rows)
    part = output.gradients(hidden, exps, share / sums)
    own = output.gradients_of_entries(hidden, labels, -wanted)
    return Gradients(loss, own.hidden + part.hidden, own.kernel + part.kernel, own.bias + part.bias)


class OutputGradients(NamedTuple):
    """Gradients by the hidden vectors, the kernel and the bias."""

    hidden: tf.Tensor
    kernel: tf.Tensor
    bias: tf.Tensor


class Output(NamedTuple):
    """Weights of some neurons."""

    kernel: tf.Tensor
    bias: tf.Tensor

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(tf.matmul(hidden, self.kernel, transpose_b=True), self.bias)

    def gradients(self, hidden: tf.Tensor, exps: tf.Tensor, scale: tf.Tensor) -> OutputGradients:
        """For the logits' gradient `scale[:, None] * exps`, which is never made."""
        column = scale[:, None]
        return OutputGradients(
            column * tf.matmul(exps, self.kernel),
            tf.matmul(exps, column * hidden, transpose_a=True),
            tf.linalg.matvec(exps, scale, transpose_a=True),
        )

    def gradients_of_entries(
        self, hidden: tf.Tensor, labels: Labels, by_entry: tf.Tensor
    ) -> OutputGradients:
        """For a gradient of the labels' logits alone."""
        neurons = tf.size(self.bias)
        matrix = csr(labels.rows, labels.places, by_entry, [tf.shape(hidden)[0], neurons])
        return OutputGradients(
            times(matrix, self.kernel),
            transposed_times(matrix, hidden),
            tf.math.unsorted_segment_sum(by_entry, labels.places, neurons),
        )


def _without_labels(logits: tf.Tensor, labels: Labels, negatives: int) -> tf.Tensor:
    """Masks the negatives that are among the row's own labels."""
    hits = tf.where(labels.places < negatives)[:, 0]
    rows, places = tf.gather(labels.rows, hits), tf.gather(labels.places, hits)
    indices = tf.stack([rows, tf.cast(places, tf.int64)], axis=1)
    return tf.tensor_scatter_nd_update(logits, indices, tf.fill([tf.size(hits)], -1e30))


def _mean_loss(
    log_sums: tf.Tensor, picked: tf.Tensor, counts: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean, and what each row's loss counts in it: nothing in a row without labels."""
    batch = tf.cast(tf.size(counts), tf.float32)
    share = tf.cast(counts > 0, tf.float32) / batch
    return tf.reduce_sum(share * (log_sums - tf.math.divide_no_nan(picked, counts))), share


class RowAdamPeer:
    """Shared uniform negatives and a row-sparse Adam for both layers: the bar.

    `softmax` is one of the two functions above. `draw_negatives` is there for tests, and for
    processes that must draw alike. The bias starts from `prior`, `(units,)`, if it is given.
    """

    def __init__(
        self,
        shape: Shape,
        softmax: Callable[..., Gradients] = softmax_of_own_labels,
        learning_rate: float | Callable[[tf.Tensor], tf.Tensor] = 1e-3,
        seed: int = 0,
        draw_negatives: Callable[[int, int], tf.Tensor] = draw,
        prior: tf.Tensor | None = None,
    ) -> None:
        self._shape = shape
        self._softmax = softmax
        self._draw = draw_negatives
        self._schedule = AdamSchedule(learning_rate)
        self.input_kernel = Table(glorot(shape.features, shape.hidden, seed))
        self.input_bias = [tf.Variable(tf.zeros([shape.hidden])) for _ in range(3)]
        self.kernel = Table(glorot(shape.units, shape.hidden, seed))
        self.bias = Table(tf.zeros([shape.units]) if prior is None else prior)

    def step(self, features: tf.SparseTensor, labels: tf.RaggedTensor) -> tf.Tensor:
        seen = distinct_columns(features)
        input_rows = self.input_kernel.rows(seen.columns)
        hidden = tf.nn.relu(tf.nn.bias_add(times(seen.matrix, input_rows), self.input_bias[0]))
        chosen = candidates(self._draw(self._shape.negatives, self._shape.units), labels)
        kernel, bias = self.kernel.rows(chosen.ids), self.bias.rows(chosen.ids)
        found = self._softmax(hidden, kernel, bias, chosen.labels, self._shape.negatives)
        by_sum = tf.where(hidden > 0, found.hidden, 0.0)

        rates = self._schedule.next()
        by_rows = transposed_times(seen.matrix, by_sum)
        updates = [
            (self.kernel, Rows(chosen.ids, kernel, found.kernel)),
            (self.bias, Rows(chosen.ids, bias, found.bias)),
            (self.input_kernel, Rows(seen.columns, input_rows, by_rows)),
        ]
        updates, by_input_bias = self._joined(updates, tf.reduce_sum(by_sum, axis=0))
        for table, rows in updates:
            table.train(*rows, rates)
        apply_adam(self.input_bias, by_input_bias, rates)
        return found.loss

    def _joined(
        self, updates: list[tuple[Table, Rows]], dense: tf.Tensor
    ) -> tuple[list[tuple[Table, Rows]], tf.Tensor]:
        """The gradients of all processes together; there is but one here."""
        return updates, dense

    def hidden(self, features: tf.SparseTensor) -> tf.Tensor:
        """The hidden vectors, `(batch, hidden)`."""
        seen = distinct_columns(features)
        sums = times(seen.matrix, self.input_kernel.rows(seen.columns))
        return tf.nn.relu(tf.nn.bias_add(sums, self.input_bias[0]))


# TensorFlow's own sampled softmax.
@tf.custom_gradient
def _product(matrix: tf.Tensor, dense: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    def gradient(upstream: tf.Tensor) -> tuple[None, tf.Tensor]:
        return None, transposed_times(matrix, upstream)

    return times(matrix, dense), gradient


class SampledSoftmaxPeer:
    """`tf.nn.sampled_softmax_loss` with sparse SGD.

    One of a row's labels is drawn at random in each step: the function wants equally many for all
    rows, and one is cheapest. Gradients are `tf.IndexedSlices`. The optimizer is that of
    `tf.compat.v1`, which updates rows alone; those of Keras turn such gradients dense.
    """

    def __init__(self, shape: Shape, learning_rate: float = 0.1, seed: int = 0) -> None:
        self._shape = shape
        self._optimizer = tf.compat.v1.train.GradientDescentOptimizer(learning_rate)
        self.input_kernel = tf.Variable(glorot(shape.features, shape.hidden, seed))
        self.input_bias = tf.Variable(tf.zeros([shape.hidden]))
        self.kernel = tf.Variable(glorot(shape.units, shape.hidden, seed))
        self.bias = tf.Variable(tf.zeros([shape.units]))

    def step(self, features: tf.SparseTensor, labels: tf.RaggedTensor) -> tf.Tensor:
        seen = distinct_columns(features)
        variables = [self.input_kernel, self.input_bias, self.kernel, self.bias]
        with tf.GradientTape() as tape:
            sums = _product(seen.matrix, tf.gather(self.input_kernel, seen.columns))
            hidden = tf.nn.relu(tf.nn.bias_add(sums, self.input_bias))
            losses = tf.nn.sampled_softmax_loss(
                self.kernel,
                self.bias,
                _one_label(labels)[:, None],
                hidden,
                num_sampled=self._shape.negatives,
                num_classes=self._shape.units,
                sampled_values=self._sampled(labels),
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def _sampled(self, labels: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The negatives, uniform as in the other peers; the default is log-uniform."""
        true = tf.zeros([labels.nrows(), 1], tf.int64)
        return tuple(
            tf.random.uniform_candidate_sampler(
                true, 1, self._shape.negatives, unique=True, range_max=self._shape.units
            )
        )


def _one_label(labels: tf.RaggedTensor) -> tf.Tensor:
    """A random one of each row's labels; all rows must have some."""
    lengths = tf.cast(labels.row_lengths(), tf.float32)
    which = tf.cast(tf.floor(tf.random.uniform(tf.shape(lengths)) * lengths), tf.int64)
    # The product may round up to the length itself.
    which = tf.minimum(which, labels.row_lengths() - 1)
    return tf.gather(labels.values, labels.row_starts() + which)
