"""With all neurons active, DSlideDense is Dense: loss, gradients, twenty steps of training."""

from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras_cases import (
    RowAdam,
    active_rows,
    close,
    dense,
    dense_twin,
    multi_hot,
    padded,
    random_labels,
    sampled_crossentropy,
    softmax_crossentropy,
    targets,
)

import tf_dslide
from tf_dslide import (
    DWTA,
    AllNeurons,
    DSlideDense,
    LogUniformSampler,
    LshSampler,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
    selectors,
)
from tf_dslide.labels import to_csr

SHAPES = [(1, 1, 1), (2, 1, 3), (5, 7, 4), (31, 9, 8), (33, 8, 1), (129, 31, 17), (1000, 130, 33)]


def make_layer(units: int, dim: int, sampler: object, *, use_bias: bool = True) -> DSlideDense:
    layer = DSlideDense(
        units,
        sampler=sampler,
        use_bias=use_bias,
        kernel_initializer=keras.initializers.RandomNormal(seed=1),
        bias_initializer=keras.initializers.RandomNormal(stddev=0.5, seed=2),
    )
    layer.build((None, dim))
    return layer


def loss_and_gradients(
    layer: DSlideDense, x: np.ndarray, y: np.ndarray, *, graph: bool, training: bool = True
) -> tuple[Any, list[np.ndarray]]:
    loss_fn = SlideCrossentropy()
    x = tf.constant(x)

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_fn(y, layer(x, training=training))
        gradients = tape.gradient(loss, [x, *layer.trainable_variables])
        return loss, [tf.convert_to_tensor(g) for g in gradients]

    loss, gradients = (tf.function(step) if graph else step)()
    return loss.numpy(), [g.numpy() for g in gradients]


@pytest.mark.parametrize(
    "graph", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("kind", ["single", "multi"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_dense(shape, kind, use_bias, graph):
    units, dim, batch = shape
    rng = np.random.default_rng(units)
    layer = make_layer(units, dim, AllNeurons(), use_bias=use_bias)
    x = rng.normal(size=(batch, dim)).astype("float32")
    least, most = (1, 1) if kind == "single" else (0, 5)
    labels = random_labels(rng, batch, units, most, least)
    loss, (gx, gw, *gb) = loss_and_gradients(layer, x, padded(labels, 6), graph=graph)

    twin = dense_twin(layer)
    wanted = tf.constant(targets(labels, units), tf.float32)
    xs = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(xs)
        losses = tf.nn.softmax_cross_entropy_with_logits(wanted, twin(xs))
        # TensorFlow gives a row without labels a gradient.
        twin_loss = tf.reduce_mean(tf.where(tf.reduce_sum(wanted, axis=1) > 0, losses, 0.0))
    tx, tw, *tb = tape.gradient(twin_loss, [xs, *twin.trainable_variables])
    close(loss, twin_loss)
    close(gx, tx)
    close(gw, tf.transpose(tw))
    for found, expected in zip(gb, tb, strict=True):
        close(found, expected)

    kernel = layer.kernel.numpy().astype("float64")
    logits = x @ kernel.T + (layer.bias.numpy() if use_bias else 0)
    losses64, by_logit = softmax_crossentropy(logits, targets(labels, units))
    close(loss, losses64.mean())
    close(gx, by_logit @ kernel / batch)
    close(gw, by_logit.T @ x / batch)
    if use_bias:
        close(gb[0], by_logit.sum(0) / batch)


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize(
    "sampler",
    [
        LshSampler(active=97, random=1.0, head=0.0),
        LshSampler(hash=DWTA(), active=10**6, random=1.0, head=0.0),
        LshSampler(active=97, random=0.0, head=1.0),
        LshSampler(active=97, random=0.6, head=0.4),
        LshSampler(active=97, random=0.9, head=0.1, importance=1.0),
        UniformSampler(97),
        UniformSampler(500, subtract_log_q=True),
        LogUniformSampler(97),
        LogUniformSampler(10**6, subtract_log_q=True),
    ],
    ids=[
        *("lsh", "dwta", "head", "head_and_random", "weighted"),
        *("uniform", "uniform_corrected", "log_uniform", "log_uniform_corrected"),
    ],
)
def test_sampler_that_takes_all_neurons_equals_all_neurons(sampler):
    units, dim, batch = 97, 12, 9
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, dim)).astype("float32")
    y = padded(random_labels(rng, batch, units))
    exact = loss_and_gradients(make_layer(units, dim, AllNeurons()), x, y, graph=True)
    found = loss_and_gradients(make_layer(units, dim, sampler), x, y, graph=True)
    close(found[0], exact[0])
    for a, b in zip(found[1], exact[1], strict=True):
        close(a, b)


@pytest.mark.parametrize(
    "sampler",
    [
        LshSampler(active=40),
        LshSampler(hash=SimHash(bits=5, tables=4), active=300, random=0.0, head=0.0),
        LshSampler(active=40, random=0.0),
        LshSampler(active=40, random=0.8, head=0.0),
        LshSampler(hash=DWTA(tables=7), active=3),
        LshSampler(active=40, importance=0.5),
        LshSampler(active=40, random=0.2, head=0.2, importance=1.0, batch_labels=False),
        UniformSampler(17),
        LogUniformSampler(17, subtract_log_q=True),
    ],
    ids=[
        *("lsh", "hashed", "no_random", "no_head", "fewer_than_labels"),
        *("half_weighted", "own_labels"),
        *("uniform", "log_uniform_corrected"),
    ],
)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_loss_and_gradients_over_the_active_set_that_was_chosen(sampler, graph):
    units, dim, batch = 301, 11, 10
    rng = np.random.default_rng(4)
    layer = make_layer(units, dim, sampler)
    x = rng.normal(size=(batch, dim)).astype("float32")
    labels = random_labels(rng, batch, units, most=6)
    xs, y = tf.constant(x), tf.constant(padded(labels))

    def step():
        with tf.GradientTape() as tape:
            tape.watch(xs)
            losses = SlideCrossentropy(reduction=None)(y, layer(xs, training=True))
            total = tf.reduce_sum(losses)
        gradients = tape.gradient(total, [xs, layer.kernel.value, layer.bias.value])
        return losses, [tf.convert_to_tensor(g) for g in gradients], gradients[1].indices

    losses, gradients, rows = (tf.function(step) if graph else step)()
    # The same step's choice again: it depends on the seed and the step's number alone.
    sampled = layer._sampled_weights
    selection = sampled.selector.select(
        xs, to_csr(y, units), layer.kernel, layer.bias, sampled.step.value()
    )
    sets, added = active_rows(selection)
    for ids, row in zip(labels, sets, strict=True):
        assert set(ids) <= set(row)
    assert any(len(row) < units for row in sets)

    kernel = layer.kernel.numpy().astype("float64")
    logits = x @ kernel.T + layer.bias.numpy()
    for row, ids in enumerate(sets):
        logits[row, ids] += added[row]
    losses64, by_logit = sampled_crossentropy(logits, targets(labels, units), sets)
    close(losses, losses64)
    close(gradients[0], by_logit @ kernel)
    close(gradients[1], by_logit.T @ x)
    close(gradients[2], by_logit.sum(0))
    named = rows.numpy().tolist()
    assert named == sorted(set(named)), "rows of the gradient must be distinct"
    assert set(named) <= {i for row in sets for i in row}


class FrozenSet(tf_dslide.Sampler):
    """Always the same neurons for all rows, and each row's labels."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def selector(self, units, dim):
        ids = self.ids

        class Frozen(selectors.Selector):
            def select(self, x, labels, kernel, bias, step, labels_per_row=None):
                active = selectors.ActiveSet(labels, tf.constant(ids, tf.int32))
                return selectors.Selection(active)

        return Frozen()


def test_gradients_equal_finite_differences_with_a_frozen_active_set():
    units, dim, batch = 40, 6, 5
    rng = np.random.default_rng(2)
    layer = make_layer(units, dim, FrozenSet([0, 3, 7, 8, 20, 39]))
    layer.kernel.assign(rng.normal(size=(units, dim)))
    x = rng.normal(size=(batch, dim)).astype("float32")
    y = padded(random_labels(rng, batch, units, most=3))
    _, gradients = loss_and_gradients(layer, x, y, graph=False)
    variables = [tf.Variable(x), layer.kernel, layer.bias]

    def loss() -> float:
        return float(SlideCrossentropy()(y, layer(variables[0], training=True)))

    step = 1e-2
    for variable, gradient in zip(variables, gradients, strict=True):
        start = variable.numpy()
        for _ in range(4):
            direction = rng.normal(size=start.shape)
            direction /= np.linalg.norm(direction)
            variable.assign((start + step * direction).astype("float32"))
            ahead = loss()
            variable.assign((start - step * direction).astype("float32"))
            slope = (ahead - loss()) / (2 * step)
            variable.assign(start)
            close(slope, (gradient * direction).sum(), relative=2e-3, floor=1e-4)


def test_a_neuron_outside_every_active_set_has_no_gradient():
    layer = make_layer(50, 4, FrozenSet([1, 2]))
    x = np.ones((2, 4), "float32")
    _, (_, kernel, bias) = loss_and_gradients(layer, x, np.array([5, 1]), graph=True)
    untouched = sorted(set(range(50)) - {1, 2, 5})
    assert not kernel[untouched].any()
    assert not bias[untouched].any()
    assert kernel[[1, 2, 5]].any(axis=1).all()


def sparse_batches(rng, steps, batch, features, units):
    """Batches in which most features are missing, each time others."""
    out = []
    for _ in range(steps):
        x = rng.normal(size=(batch, features)) * (rng.random((batch, features)) < 0.1)
        x[0], x[:, -5:] = 0, 0
        out.append((x.astype("float32"), random_labels(rng, batch, units, most=3)))
    return out


class NumpyModel:
    """Features, ReLU layer, softmax: trained by row-sparse Adam in float64."""

    def __init__(self, model: keras.Model, rate: float, decay: float = 0.0) -> None:
        self.weights = [w.astype("float64") for w in model.get_weights()]
        self.adams = [RowAdam(w.shape, rate, decay) for w in self.weights]

    def step(self, x: np.ndarray, labels: list[list[int]]) -> float:
        w1, b1, w2, b2 = self.weights
        before = x @ w1 + b1
        hidden = np.maximum(before, 0)
        losses, by_logit = softmax_crossentropy(hidden @ w2.T + b2, targets(labels, b2.size))
        by_logit /= len(x)
        by_hidden = (by_logit @ w2) * (before > 0)
        gradients = [x.T @ by_hidden, by_hidden.sum(0), by_logit.T @ hidden, by_logit.sum(0)]
        present = np.flatnonzero((x != 0).any(axis=0))
        rows = [present, *(np.arange(len(g)) for g in gradients[1:])]
        for adam, weight, gradient, named in zip(
            self.adams, self.weights, gradients, rows, strict=True
        ):
            adam.update(weight, gradient, named)
        return losses.mean()


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("decay", [None, 0.1], ids=["plain", "weight_decay"])
@pytest.mark.parametrize("how", ["fit", "train_on_batch"])
def test_twenty_steps_equal_a_dense_run_in_numpy(how, decay):
    features, width, units, batch, steps = 60, 9, 37, 8, 20
    rng = np.random.default_rng(3)
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((features,), sparse=True),
            SparseDense(width, activation="relu", bias_initializer="random_normal"),
            DSlideDense(units, sampler=AllNeurons()),
        ]
    )
    model.compile(SparseAdam(1e-2, weight_decay=decay), SlideCrossentropy())
    reference = NumpyModel(model, 1e-2, decay or 0.0)
    batches = sparse_batches(rng, steps, batch, features, units)
    expected = [reference.step(x, labels) for x, labels in batches]

    if how == "fit":
        x = scipy.sparse.csr_matrix(np.concatenate([x for x, _ in batches]))
        y = padded([ids for _, labels in batches for ids in labels], 4)
        history = model.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        close(history.history["loss"][0], np.mean(expected))
        for adam, weight in zip(reference.adams, reference.weights, strict=True):
            adam.catch_up(weight, np.arange(len(weight)))
    else:
        for (x, labels), wanted in zip(batches, expected, strict=True):
            found = model.train_on_batch(tf.sparse.from_dense(x), padded(labels, 4))
            close(found, wanted, relative=3e-5)
    for found, wanted in zip(model.get_weights(), reference.weights, strict=True):
        close(found, wanted, relative=1e-4)
    momentums, velocities = model.optimizer._momentums, model.optimizer._velocities
    for found, adam in zip(momentums, reference.adams, strict=True):
        close(found.numpy(), adam.m, relative=1e-4)
    for found, adam in zip(velocities, reference.adams, strict=True):
        close(found.numpy(), adam.v, relative=1e-4, floor=1e-9)
    seen = np.any([(x != 0).any(axis=0) for x, _ in batches], axis=0)
    assert not seen.all(), "the test wants features that never occur"
    assert not momentums[0].numpy()[~seen].any()


def test_rows_outside_the_active_sets_do_not_move():
    units, dim = 200, 8
    model = keras.Sequential([keras.Input((dim,)), DSlideDense(units, sampler=UniformSampler(20))])
    model.compile(SparseAdam(0.1), SlideCrossentropy())
    x = np.ones((4, dim), "float32")
    start = model.layers[0].kernel.numpy().copy()
    model.train_on_batch(x, np.array([3, 3, 7, 199]))
    first = model.layers[0].kernel.numpy().copy()
    moved = set(np.flatnonzero((first != start).any(axis=1)).tolist())
    assert {3, 7, 199} <= moved
    assert len(moved) <= 23
    model.train_on_batch(x, np.array([50, 51, 52, 53]))
    second = model.layers[0].kernel.numpy()
    again = set(np.flatnonzero((second != first).any(axis=1)).tolist())
    # Adam proper would go on moving every row of the first step.
    assert not moved <= again
    assert {50, 51, 52, 53} <= again


def test_multi_hot_reference_counts_each_label_once():
    hot = multi_hot([[2, 0], []], 3)
    assert hot.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert dense(tf.IndexedSlices(tf.ones((1, 2)), [1], [3, 2])).tolist() == [
        [0, 0],
        [1, 1],
        [0, 0],
    ]
