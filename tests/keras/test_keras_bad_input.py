"""Bad input gives one clear error that names the value; odd but legal input gives none."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras_cases import close, dense_twin, padded, wide_model

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    LshSampler,
    NDCGAtK,
    PrecisionAtK,
    PropensityScoredPrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
)

UNITS, DIM, ROWS = 33, 6, 8
SAMPLERS = {
    "all": AllNeurons(),
    "lsh": LshSampler(active=10),
    "uniform": UniformSampler(10),
}
Refused = tf.errors.InvalidArgumentError


def sparse_model(**kwargs: object) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((20,), sparse=True),
            SparseDense(DIM, activation="relu"),
            DSlideDense(UNITS, **kwargs),
        ]
    )
    model.compile(SparseAdam(0.01), SlideCrossentropy(), metrics=every_metric())
    return model


def every_metric() -> list[keras.metrics.Metric]:
    counts = np.arange(UNITS)
    return [
        PrecisionAtK(1),
        NDCGAtK(3),
        PropensityScoredPrecisionAtK(3, label_counts=counts, num_samples=999),
    ]


def compiled(sampler: str, measured: bool = False) -> keras.Model:
    model = wide_model(UNITS, DIM, sampler=SAMPLERS[sampler])
    metrics = every_metric() if measured else None
    model.compile(SparseAdam(0.01), SlideCrossentropy(), metrics=metrics)
    return model


def unchanged(model: keras.Model, weights: list[np.ndarray]) -> None:
    for found, wanted in zip(model.get_weights(), weights, strict=True):
        assert (found == wanted).all()


@pytest.mark.parametrize(
    ("sampler", "value"),
    [("all", np.nan), ("lsh", -np.inf), ("uniform", np.nan), ("uniform", np.inf)],
)
def test_a_hidden_vector_that_is_not_finite(sampler, value):
    model = compiled(sampler)
    x, y = np.ones((ROWS, DIM), "float32"), np.arange(ROWS)
    model.train_on_batch(x, y)
    weights = model.get_weights()
    bad = x.copy()
    bad[3, 2] = value
    name = str(value).lstrip("-")
    for run in (model.train_on_batch, model.test_on_batch):
        with pytest.raises(Refused, match=f"(?i)row 3.*{name}"):
            run(bad, y)
        unchanged(model, weights)
    with pytest.raises(Refused, match=f"(?i)row 3.*{name}"):
        model.layers[0].top_k(bad, k=2)
    assert np.isfinite(model.train_on_batch(x, y))


@pytest.mark.parametrize(
    ("run", "value"), [("fit", np.nan), ("evaluate", np.inf), ("predict", np.nan)]
)
def test_a_sparse_feature_that_is_not_finite(run, value):
    model = sparse_model(sampler=LshSampler(active=10))
    x = np.zeros((ROWS, 20), "float32")
    x[:, 4] = 1
    x[5, 7] = value
    csr = scipy.sparse.csr_matrix(x)
    weights = model.get_weights()
    arguments = (csr,) if run == "predict" else (csr, np.arange(ROWS))
    kwargs = {"shuffle": False} if run == "fit" else {}
    with pytest.raises(Refused, match=f"(?i)row 5.*{value}"):
        getattr(model, run)(*arguments, verbose=0, **kwargs)
    unchanged(model, weights)


@pytest.mark.parametrize(
    "feature", [20, *(pytest.param(feature, marks=pytest.mark.slow) for feature in (10**6, -1))]
)
def test_a_feature_index_out_of_range(feature):
    model = sparse_model(sampler=LshSampler(active=10))
    x = tf.SparseTensor([[0, 3], [2, feature]], [1.0, 1.0], (4, 20))
    for run in (model, tf.function(model), lambda x: model.train_on_batch(x, np.arange(4))):
        with pytest.raises((Refused, ValueError), match=str(feature)):
            run(x)


def test_another_number_of_features():
    model = sparse_model()
    for width in (19, 21):
        with pytest.raises(ValueError, match=f"20.*{width}|{width}.*20"):
            model(tf.sparse.from_dense(np.ones((2, width), "float32")))
    layer = DSlideDense(3)
    layer.build((None, 5))
    with pytest.raises(ValueError, match="5"):
        layer(np.ones((2, 4), "float32"))


@pytest.mark.parametrize("layer", [DSlideDense, SparseDense])
@pytest.mark.parametrize("units", [0, -3, 2.5, "7", None])
def test_units_must_be_positive(layer, units):
    with pytest.raises(ValueError, match=f"`units`.*{units!r}"):
        layer(units)


@pytest.mark.parametrize("layer", [DSlideDense, SparseDense])
def test_the_last_axis_must_be_known_and_not_empty(layer):
    for shape in ((None, 0), (None, None)):
        with pytest.raises(ValueError, match="last axis.*None"):
            layer(3).build(shape)
    with pytest.raises(ValueError, match="min_ndim=2"):
        layer(3)(np.ones(4, "float32"))
    with pytest.raises(ValueError, match="last axis"):
        layer(3)(np.ones((4, 0), "float32"))


@pytest.mark.parametrize("where", ["rebuild", "train"])
def test_a_kernel_with_nan_names_the_neuron_at_rebuild(where):
    model = compiled("lsh")
    layer = model.layers[0]
    x, y = np.ones((ROWS, DIM), "float32"), np.arange(ROWS)
    model.train_on_batch(x, y)
    kernel = layer.kernel.numpy().copy()
    kernel[17, 2] = np.nan
    layer.kernel.assign(kernel)
    with pytest.raises(Refused, match="(?i)(neuron|row) 17.*nan"):
        if where == "rebuild":
            layer.rebuild()
        else:
            layer.set_weights([kernel, layer.bias.numpy()])
            model.train_on_batch(x, y)
    kernel[17, 2] = 0
    layer.set_weights([kernel, layer.bias.numpy()])
    assert np.isfinite(model.train_on_batch(x, y))


@pytest.mark.parametrize(
    "sampler",
    [s if s == "lsh" else pytest.param(s, marks=pytest.mark.slow) for s in SAMPLERS],
)
def test_an_empty_batch(sampler):
    model = compiled(sampler, measured=True)
    x, y = np.zeros((0, DIM), "float32"), np.zeros(0, "int64")
    weights = model.get_weights()
    loss = model.train_on_batch(x, y)
    assert float(np.asarray(loss[0]).sum()) == 0
    unchanged(model, weights)
    assert float(np.asarray(model.test_on_batch(x, y)[0]).sum()) == 0
    assert model.predict_on_batch(x).shape == (0, UNITS)
    for training in (False, True):
        assert model(x, training=training).shape == (0, UNITS)
        each = SlideCrossentropy(reduction=None)(y, model(x, training=training))
        assert each.shape == (0,)
    with tf.GradientTape() as tape:
        total = SlideCrossentropy(reduction="sum")(y, model(x, training=True))
    gradient = tape.gradient(total, model.layers[0].kernel.value)
    assert not tf.convert_to_tensor(gradient).numpy().any()


@pytest.mark.slow
def test_an_empty_sparse_batch():
    model = sparse_model(sampler=LshSampler(active=10))
    x = tf.SparseTensor(np.zeros((0, 2), "int64"), np.zeros(0, "float32"), (0, 20))
    weights = model.get_weights()
    model.train_on_batch(x, np.zeros(0, "int64"))
    unchanged(model, weights)


@pytest.mark.slow
def test_rows_without_features():
    model = sparse_model(sampler=LshSampler(active=10))
    dense = np.zeros((ROWS, 20), "float32")
    dense[1, 3] = 2
    model.layers[0].bias.assign(np.linspace(-1, 1, DIM))
    hidden = model.layers[0](tf.sparse.from_dense(dense)).numpy()
    close(hidden[0], np.maximum(np.linspace(-1, 1, DIM), 0))
    assert np.isfinite(model.train_on_batch(tf.sparse.from_dense(dense), np.arange(ROWS))[0])
    none = scipy.sparse.csr_matrix((ROWS, 20), dtype="float32")
    history = model.fit(none, np.arange(ROWS), batch_size=3, verbose=0).history
    assert np.isfinite(history["loss"][0])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_rows_without_labels_have_loss_0_and_no_gradient(sampler):
    layer = wide_model(UNITS, DIM, sampler=SAMPLERS[sampler]).layers[0]
    x = tf.constant(np.random.default_rng(0).normal(size=(4, DIM)), tf.float32)
    y = padded([[], [3], [], [3, 4]], 3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        losses = SlideCrossentropy(reduction=None)(y, layer(x, training=True))
    by_x = tape.gradient(losses, x).numpy()
    assert (losses.numpy() > 0).tolist() == [False, True, False, True]
    assert by_x.any(axis=1).tolist() == [False, True, False, True]
    nothing = np.full((4, 2), -1)
    with tf.GradientTape() as tape:
        loss = SlideCrossentropy()(nothing, layer(x, training=True))
    gradients = tape.gradient(loss, [v.value for v in layer.trainable_variables])
    assert float(loss) == 0
    assert not any(tf.convert_to_tensor(g).numpy().any() for g in gradients)
    # A row without labels counts as a row of the batch.
    half = SlideCrossentropy()(y, layer(x, training=False))
    close(half, SlideCrossentropy(reduction="sum")(y, layer(x, training=False)) / 4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_duplicate_labels_count_once(sampler):
    losses = []
    for y in (padded([[3, 5], [7]], 4), padded([[5, 3, 3, 5], [7, 7, 7]], 4)):
        keras.utils.set_random_seed(0)
        layer = wide_model(UNITS, DIM, sampler=SAMPLERS[sampler]).layers[0]
        x = np.ones((2, DIM), "float32")
        losses.append(SlideCrossentropy(reduction=None)(y, layer(x, training=True)).numpy())
    assert (losses[0] == losses[1]).all()


@pytest.mark.parametrize("sampler", ["all", "lsh"])
def test_a_last_batch_of_another_size_and_one_of_one_row(sampler):
    model = compiled(sampler)
    x, y = np.ones((9, DIM), "float32"), np.arange(9)
    assert np.isfinite(model.fit(x, y, batch_size=4, verbose=0, epochs=2).history["loss"]).all()
    stock = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    close(model.evaluate(x, y, batch_size=4, verbose=0), stock(y, model(x)))
    assert np.isfinite(model.train_on_batch(x[:1], y[:1]))


def test_huge_logits_stay_finite_and_exact():
    model = wide_model(UNITS, DIM)
    layer = model.layers[0]
    layer.kernel.assign(1e4 * layer.kernel)
    x = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype("float32")
    y = np.arange(ROWS)
    stock = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    wanted = stock(y, dense_twin(layer)(x))
    for training in (True, False):
        close(SlideCrossentropy(reduction=None)(y, layer(x, training=training)), wanted)


def test_integer_features_are_taken_as_by_dense():
    layer = wide_model(UNITS, DIM).layers[0]
    x = np.arange(2 * DIM).reshape(2, DIM)
    close(layer(x), dense_twin(layer)(x))
    sparse = SparseDense(4)
    fed = tf.sparse.from_dense(x)
    assert fed.dtype.is_integer
    found = sparse(fed)
    close(found, x @ sparse.kernel.numpy() + sparse.bias.numpy())


def test_sparse_layer_of_higher_rank_input():
    layer = SparseDense(4)
    x = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    assert layer(x).shape == (2, 3, 4)
    with pytest.raises((ValueError, Refused), match="(?i)rank|shape|matrix"):
        layer(tf.sparse.from_dense(x))


def test_sparse_and_dense_input_agree_with_gradients():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(7, 20)) * (rng.random((7, 20)) < 0.3)).astype("float32")
    layer = SparseDense(5, activation="tanh", bias_initializer="random_normal")
    layer.build((None, 20))
    twin = keras.layers.Dense(5, activation="tanh")
    twin.build((None, 20))
    twin.set_weights(layer.get_weights())
    upstream = rng.normal(size=(7, 5)).astype("float32")
    values = []
    for used, fed in ((layer, tf.sparse.from_dense(x)), (layer, x), (twin, x)):
        with tf.GradientTape() as tape:
            out = used(fed)
            loss = tf.reduce_sum(out * upstream)
        kernel, bias = tape.gradient(loss, [v.value for v in used.trainable_variables])
        values.append([out, tf.convert_to_tensor(kernel), tf.convert_to_tensor(bias)])
    present = np.flatnonzero((x != 0).any(axis=0))
    for found in values[:2]:
        for a, b in zip(found, values[2], strict=True):
            close(a, b)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.sparse.from_dense(x)))
    rows = tape.gradient(loss, layer.kernel.value).indices.numpy()
    assert rows.tolist() == present.tolist()


def test_gradients_reach_the_values_of_a_sparse_input():
    x = tf.sparse.from_dense([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
    layer = SparseDense(4)
    layer.build((None, 3))
    values = tf.constant(x.values)
    with tf.GradientTape() as tape:
        tape.watch(values)
        out = layer(tf.SparseTensor(x.indices, values, x.dense_shape))
        loss = tf.reduce_sum(out)
    sums = layer.kernel.numpy().sum(axis=1)
    close(tape.gradient(loss, values), sums[[1, 2, 0]])
