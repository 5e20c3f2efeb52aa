"""DSlideLinear and SlideBinaryCrossentropy against dense NumPy and Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    DSlideLinear,
    LshSampler,
    PrecisionAtK,
    SlideBinaryCrossentropy,
    SlideCrossentropy,
    SparseAdagrad,
    UniformSampler,
)
from tf_dslide.data import Dataset, batches, make_preset
from tf_dslide.parallel import MPIModelParallel
from tf_dslide.parallel.lone import LoneCommunicator

ROWS, FEATURES, UNITS = 40, 23, 57


@pytest.fixture
def data(rng):
    x = sparse.random(ROWS, FEATURES, 0.2, "csr", np.float32, rng)
    y = sparse.random(ROWS, UNITS, 0.05, "csr", np.float32, rng)
    return Dataset(x, y)


def adapted(data, **arguments):
    layer = DSlideLinear(data.num_labels, **arguments)
    layer.adapt(data)
    return layer


def model_of(layer, features=FEATURES):
    return keras.Sequential([keras.Input((features,), sparse=True), layer])


def dense_kernel(layer):
    """The kernel as a matrix, and where it has connections."""
    splits, neurons = np.asarray(layer.splits), np.asarray(layer.neurons)
    kernel, connected = np.zeros((2, len(splits) - 1, layer.units))
    rows = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    kernel[rows, neurons], connected[rows, neurons] = np.asarray(layer.kernel), 1
    return kernel, connected


@pytest.mark.parametrize(("labels", "active"), [(1, 25), (4, 40)])
def test_many_labels_a_sample_bring_many_active_neurons(labels, active):
    data = Dataset(np.eye(6), np.tile(np.arange(9) < labels, (6, 1)))
    assert adapted(data).active == active
    assert adapted(data, active=7).active == 7


def test_starts_at_the_share_of_samples_that_have_the_label(data):
    layer = adapted(data, scale=4.0, smoothing=2.0)
    model = model_of(layer)
    x, y = data.features.toarray(), data.labels.toarray()
    seen = (x > 0).astype(np.float64)
    wanted = 4.0 * (seen.T @ y) / (seen.sum(0)[:, None] + 2.0)
    np.testing.assert_allclose(dense_kernel(layer)[0], wanted, rtol=1e-6)
    np.testing.assert_allclose(model.predict(data.features, verbose=0), x @ wanted - 5, rtol=1e-5)


@pytest.mark.parametrize(("use_bias", "train_bias"), [(True, True), (True, False), (False, False)])
def test_training_is_that_of_a_dense_layer_with_the_same_connections(data, use_bias, train_bias):
    layer = adapted(
        data, active=UNITS, weights_per_feature=9, use_bias=use_bias, train_bias=train_bias
    )
    model = model_of(layer)
    kernel, connected = dense_kernel(layer)
    bias = np.full(UNITS, -5.0 if use_bias else 0.0)
    model.compile(SparseAdagrad(0.3, 1e-4), SlideBinaryCrossentropy())
    sums = np.full_like(kernel, 1e-4), np.full_like(bias, 1e-4)
    x, y = data.features.toarray().astype(np.float64), data.labels.toarray()
    # Neurons that no feature of a row is connected with are not active, and labels always are.
    voted = ((x != 0) @ connected > 0) | (y > 0)
    stream = tf.data.Dataset.from_tensors((_sparse(data.features), _ragged(data.labels)))
    for _ in range(20):
        z = x @ kernel + bias
        slope = np.where(voted, 1 / (1 + np.exp(-z)) - y, 0) / ROWS
        loss = np.where(voted, np.logaddexp(0, z) - y * z, 0).sum() / ROWS
        assert model.fit(stream, verbose=0).history["loss"][0] == pytest.approx(loss, rel=1e-4)
        for weight, total, gradient in (
            (kernel, sums[0], (x.T @ slope) * connected),
            (bias, sums[1], slope.sum(0) * train_bias),
        ):
            total += gradient**2
            weight -= 0.3 * gradient / (np.sqrt(total) + 1e-7)
    np.testing.assert_allclose(dense_kernel(layer)[0], kernel, atol=1e-4)
    if use_bias:
        np.testing.assert_allclose(layer.bias, bias, atol=1e-4)


def _sparse(matrix):
    matrix = matrix.tocoo()
    return tf.SparseTensor(np.stack([matrix.row, matrix.col], 1), matrix.data, matrix.shape)


def _ragged(matrix):
    return tf.RaggedTensor.from_row_splits(matrix.indices.astype(np.int64), matrix.indptr)


@pytest.mark.parametrize("loss", [SlideBinaryCrossentropy(), SlideCrossentropy()])
def test_evaluation_is_that_of_the_dense_logits(data, loss):
    layer = adapted(data)
    model = model_of(layer)
    model.compile(loss=loss, metrics=[PrecisionAtK(3)])
    stream = batches(data, 16)
    result = model.evaluate(stream, return_dict=True, verbose=0)
    logits, y = model.predict(data.features, verbose=0), data.labels.toarray()
    best = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    hits = np.take_along_axis(y, best, 1).sum() / 3 / ROWS
    assert result["precision_at_3"] == pytest.approx(hits, abs=1e-6)
    assert result["loss"] == pytest.approx(float(loss(y, logits)), rel=1e-4)
    scores, labels = layer.top_k(_sparse(data.features), k=3)
    np.testing.assert_array_equal(labels, best)
    np.testing.assert_allclose(scores, np.take_along_axis(logits, best, 1), rtol=1e-5)


def test_other_losses_train_the_dense_logits(data):
    layer = adapted(data, weights_per_feature=9, train_bias=True)
    model = model_of(layer)
    kernel, connected = dense_kernel(layer)
    model.compile(
        keras.optimizers.SGD(0.5),
        keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    x, y = data.features.toarray(), data.labels.toarray()
    model.train_on_batch(_sparse(data.features), y)
    slope = (1 / (1 + np.exp(-(x @ kernel - 5))) - y) / (ROWS * UNITS)
    np.testing.assert_allclose(
        dense_kernel(layer)[0], kernel - 0.5 * (x.T @ slope) * connected, atol=1e-6
    )
    np.testing.assert_allclose(layer.bias, -5 - 0.5 * slope.sum(0), atol=1e-6)


def test_dense_input_is_as_good_as_sparse(data):
    layer = adapted(data)
    layer.build((None, FEATURES))
    x = data.features.toarray()
    np.testing.assert_array_equal(layer(x), layer(_sparse(data.features)))


@pytest.mark.slow
def test_learns_more_than_it_starts_with():
    train, test = make_preset("small"), make_preset("small", split="test")
    layer = adapted(train)
    model = model_of(layer, train.num_features)
    model.compile(SparseAdagrad(1.0, 1e-6), SlideBinaryCrossentropy(), metrics=[PrecisionAtK(1)])
    before = model.evaluate(batches(test, 256), verbose=0)[1]
    model.fit(batches(train, 256, shuffle=True), epochs=1, verbose=0, shuffle=False)
    assert model.evaluate(batches(test, 256), verbose=0)[1] > max(before, 0.8)


def test_saves_and_loads_with_its_connections(data, tmp_path):
    model = model_of(adapted(data, weights_per_feature=5))
    model.compile(SparseAdagrad(0.5), SlideBinaryCrossentropy())
    model.fit(batches(data, 8), verbose=0, shuffle=False)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(
        loaded.predict(data.features, verbose=0), model.predict(data.features, verbose=0)
    )
    loaded.fit(batches(data, 8), verbose=0, shuffle=False)
    config = model.layers[-1].get_config() | {"format": 99}
    with pytest.raises(ValueError, match="saved in format 99"):
        DSlideLinear.from_config(config)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda data: DSlideLinear(0), "units"),
        (lambda data: DSlideLinear(3, active=0), "active"),
        (lambda data: DSlideLinear(3, weights_per_feature=0), "weights_per_feature"),
        (lambda data: DSlideLinear(3, scale=-1.0), "must not be negative"),
        (lambda data: DSlideLinear(3, smoothing=-1.0), "must not be negative"),
        (lambda data: DSlideLinear(3).build((None, 4)), "call `adapt`"),
        (lambda data: DSlideLinear(3).adapt(data), f"3 units, but the data have {UNITS} labels"),
        (lambda data: adapted(data).build((None, 4)), f"{FEATURES} features"),
        (lambda data: adapted(data, dtype="float16").build((None, FEATURES)), "float32"),
        (lambda data: adapted(data).top_k(data.features), "not built"),
        (lambda data: model_of(adapted(data)).layers[0].adapt(data), "built already"),
        (lambda data: model_of(adapted(data)).layers[0].top_k(np.ones((1, FEATURES)), 58), "58"),
    ],
)
def test_bad_use_is_a_clear_error(data, act, message):
    with pytest.raises(ValueError, match=message):
        act(data)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_features_that_are_not_finite(data, value):
    layer = adapted(data)
    layer.build((None, FEATURES))
    x = np.zeros((2, FEATURES), np.float32)
    x[1, 3] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 1 .* feature 3"):
        layer.top_k(x)


# The binary loss on a DSlideDense.
def dense_model(sampler, rng, **arguments):
    layer = DSlideDense(UNITS, sampler=sampler, **arguments)
    model = keras.Sequential([keras.Input((6,)), layer])
    layer.bias.assign(rng.normal(size=UNITS))
    return model


def binary(logits, y):
    return (np.logaddexp(0, logits) - y * logits).sum(1).mean()


@pytest.mark.parametrize("training", [False, True])
def test_binary_loss_of_all_neurons(rng, training):
    model = dense_model(AllNeurons(), rng)
    x, y = rng.normal(size=(9, 6)).astype(np.float32), rng.integers(0, 2, (9, UNITS))
    loss, wanted = SlideBinaryCrossentropy(), binary(model.predict(x, verbose=0), y)
    given = loss(y.astype(np.float32), model(x, training=training))
    assert float(given) == pytest.approx(wanted, rel=1e-5)


def test_binary_loss_by_blocks(rng, monkeypatch):
    monkeypatch.setattr("tf_dslide.lazy._BLOCK", 4 * UNITS)
    model = dense_model(None, rng)
    model.compile(loss=SlideBinaryCrossentropy())
    for rows in (1, 4, 9):
        x, y = rng.normal(size=(rows, 6)), rng.integers(0, 2, (rows, UNITS)).astype(np.float32)
        y[-1] = 0
        wanted = binary(model.predict(x, verbose=0), y)
        assert model.evaluate(x, y, verbose=0) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    "sampler",
    [
        UniformSampler(20, subtract_log_q=True, seed=1),
        LshSampler(active=30, random=0.7, importance=1.0, seed=1),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_drawn_neurons_stand_for_all_others(rng, sampler):
    model = dense_model(sampler, rng)
    x, y = rng.normal(size=(4, 6)).astype(np.float32), np.zeros((4, UNITS), np.float32)
    y[range(4), range(4)] = 1
    wanted, loss = binary(model.predict(x, verbose=0), y), SlideBinaryCrossentropy()
    step = tf.function(lambda: loss(y, model(x, training=True)))
    given = [float(step()) for _ in range(300)]
    error = np.std(given) / np.sqrt(len(given))
    assert np.std(given) > 0
    assert abs(np.mean(given) - wanted) < 4 * error


def test_binary_loss_trains_a_hashed_layer(rng):
    model = dense_model(LshSampler(active=20), rng)
    model.compile(SparseAdagrad(0.1), SlideBinaryCrossentropy())
    x = rng.normal(size=(64, 6)).astype(np.float32)
    y = rng.integers(0, UNITS, 64)
    # In one order: Keras shuffles by a seed of its own.
    history = model.fit(x, y, epochs=30, verbose=0, shuffle=False).history["loss"]
    assert history[-1] < 0.5 * history[0]


def test_binary_loss_on_ranks_is_refused(rng):
    strategy = MPIModelParallel(LoneCommunicator(), verbose=False)
    model = dense_model(None, rng, strategy=strategy)
    with pytest.raises(ValueError, match="use SlideCrossentropy"):
        SlideBinaryCrossentropy()(np.zeros(2, int), model(np.ones((2, 6)), training=True))
