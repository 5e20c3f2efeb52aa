"""Wide hidden layers whose neurons are picked by hashing, and what follows them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import close, dense, dense_twin, run_python

import tf_dslide
from tf_dslide import (
    DWTA,
    DSlideDense,
    DSlideHidden,
    LogUniformSampler,
    LshSampler,
    PrecisionAtK,
    SimHash,
    SlideCrossentropy,
    SparseAdagrad,
    SparseAdam,
    SparseDense,
    UniformSampler,
    selectors,
)

SHAPES = [(1, 1, 1), (2, 1, 3), (5, 7, 4), (31, 9, 8), (33, 8, 1), (129, 31, 17), (300, 130, 33)]
ACTIVATIONS = ["relu", "linear", "tanh", "gelu"]
HASHED = {
    "default": None,
    "dwta": LshSampler(hash=DWTA(tables=7), active=9, random=0.0, head=0.0),
    "head_and_random": LshSampler(active=60, random=0.3, head=0.2),
    "sim_hash": LshSampler(hash=SimHash(bits=4, tables=7), active=40, random=0.1),
}


def make_hidden(units, dim, sampler="all", **kwargs):
    layer = DSlideHidden(
        units,
        sampler=sampler,
        kernel_initializer=keras.initializers.RandomNormal(seed=1),
        bias_initializer=keras.initializers.RandomNormal(stddev=0.5, seed=2),
        **kwargs,
    )
    layer.build((None, dim))
    return layer


def floats(rng, *shape):
    return rng.normal(size=shape).astype("float32")


def sparse_inputs(rng, rows, features, share=0.4):
    """A dense and a sparse tensor of the same numbers; every third row is empty."""
    x = floats(rng, rows, features) * (rng.random((rows, features)) < share)
    x[2::3] = 0
    return x, tf.sparse.from_dense(x)


@pytest.mark.parametrize(
    "graph", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_all_neurons_it_is_dense(shape, activation, graph):
    units, dim, rows = shape
    rng = np.random.default_rng(units)
    layer = make_hidden(units, dim, activation=activation)
    x, upstream = tf.constant(floats(rng, rows, dim)), floats(rng, rows, units)

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.sparse.to_dense(layer(x, training=True))
            objective = tf.reduce_sum(outputs * upstream)
        by_x, *others = tape.gradient(objective, [x, *layer.trainable_variables])
        assert all(isinstance(g, tf.IndexedSlices) for g in others)
        return outputs, [by_x, *map(tf.convert_to_tensor, others)]

    outputs, gradients = (tf.function(step) if graph else step)()
    twin = dense_twin(layer)
    with tf.GradientTape() as tape:
        tape.watch(x)
        expected = twin(x)
        objective = tf.reduce_sum(expected * upstream)
    by_x, by_kernel, by_bias = tape.gradient(objective, [x, *twin.trainable_variables])
    close(outputs, expected)
    for found, wanted in zip(gradients, [by_x, tf.transpose(by_kernel), by_bias], strict=True):
        close(found, wanted)


def derivative(activation, logits):
    x = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = keras.activations.get(activation)(x)
    return tape.gradient(y, x).numpy()


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("name", HASHED)
def test_outputs_and_gradients_are_those_of_the_active_neurons(name, activation, graph):
    units, dim, rows, width = 301, 11, 10, 6
    rng = np.random.default_rng(3)
    layer = make_hidden(units, dim, HASHED[name], activation=activation)
    after = SparseDense(width)
    after.build((None, units))
    x, upstream = tf.constant(floats(rng, rows, dim)), floats(rng, rows, width)

    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            hidden = layer(x, training=True)
            outputs = after(hidden)
            objective = tf.reduce_sum(outputs * upstream)
        variables = [x, *layer.trainable_variables, *after.trainable_variables]
        return hidden, outputs, tape.gradient(objective, variables)

    hidden, outputs, gradients = (tf.function(step) if graph else step)()
    # The same step's choice again: it depends on the seed and the step's number alone.
    sampled = layer._sampled_weights
    own, shared = sampled.selector.select(
        x, selectors.no_labels(x), layer.kernel, layer.bias, sampled.step
    ).active
    active = np.zeros((rows, units), "float32")
    active[:, shared.numpy()] = 1
    active[np.repeat(np.arange(rows), np.diff(own.row_splits)), own.ids.numpy()] = 1
    assert 0 < active.sum() < active.size

    kernel, bias = layer.kernel.numpy(), layer.bias.numpy()
    logits = x.numpy() @ kernel.T + bias
    values = keras.activations.get(activation)(logits).numpy() * active
    close(tf.sparse.to_dense(hidden), values)
    assert {tuple(place) for place in hidden.indices.numpy()} <= {
        tuple(place) for place in np.argwhere(active)
    }
    close(outputs, values @ after.kernel.numpy() + after.bias.numpy())
    by_logits = (upstream @ after.kernel.numpy().T) * derivative(activation, logits) * active
    by_x, by_kernel, by_bias, by_after, by_after_bias = gradients
    close(by_x, by_logits @ kernel)
    close(dense(by_kernel), by_logits.T @ x.numpy())
    close(dense(by_bias), by_logits.sum(0))
    close(dense(by_after), values.T @ upstream)
    close(by_after_bias, upstream.sum(0))
    for slices in (by_kernel, by_bias, by_after):
        named = slices.indices.numpy()
        assert (np.diff(named) > 0).all()
        assert set(named) <= set(np.flatnonzero(active.any(0)))


class FrozenSet(tf_dslide.Sampler):
    """Always the same neurons: some for each row, and some for all."""

    def selector(self, units, dim):
        class Frozen(selectors.Selector):
            def select(self, x, labels, kernel, bias, step, labels_per_row=None):
                splits = tf.constant([0, 2, 2, 5], tf.int64)
                own = selectors.Csr(splits, tf.constant([1, 4, 0, 4, 6]))
                return selectors.Selection(selectors.ActiveSet(own, tf.constant([2, 4])))

        return Frozen()


@pytest.mark.parametrize("activation", ["tanh", "linear"])
def test_gradients_equal_finite_differences_with_the_active_set_held(activation):
    units, dim, width = 8, 5, 3
    rng = np.random.default_rng(5)
    layer, after = make_hidden(units, dim, FrozenSet(), activation=activation), SparseDense(width)
    after.build((None, units))
    x, upstream = tf.Variable(floats(rng, 3, dim)), floats(rng, 3, width)
    variables = [x, *layer.trainable_variables, *after.trainable_variables]
    with tf.GradientTape() as tape:
        outputs = after(layer(x.value(), training=True))
        objective = tf.reduce_sum(outputs * upstream)
    gradients = [dense(g) for g in tape.gradient(objective, [v.value for v in variables[1:]])]
    active = np.zeros((3, units))
    active[:, [2, 4]] = 1
    active[[0, 0, 2, 2, 2], [1, 4, 0, 4, 6]] = 1
    function = np.tanh if activation == "tanh" else np.array

    def value(arrays):
        x, kernel, bias, kernel_after, bias_after = arrays
        hidden = function(x @ kernel.T + bias) * active
        return ((hidden @ kernel_after + bias_after) * upstream).sum()

    arrays = [np.array(v.numpy(), "float64") for v in variables]
    close(objective, value(arrays))
    for array, gradient in zip(arrays[1:], gradients, strict=True):
        slopes = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-5
            above = value(arrays)
            array[place] = before - 1e-5
            slopes[place] = (above - value(arrays)) / 2e-5
            array[place] = before
        close(gradient, slopes)


def two_hidden(sampler, *, features=20, units=70, classes=30, activation="relu", **kwargs):
    """Sparse features, a narrow layer, a wide one, a narrow one, the classes."""
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input((features,), sparse=True),
            SparseDense(9, activation="relu", bias_initializer="random_normal"),
            DSlideHidden(
                units, activation, sampler=sampler, bias_initializer="random_normal", **kwargs
            ),
            SparseDense(8, activation="tanh"),
            DSlideDense(classes, sampler=sampler),
        ]
    )


def three_layers(sampler, **kwargs):
    """A wide hidden layer straight before the classes."""
    model = two_hidden(sampler, **kwargs)
    keras.utils.set_random_seed(4)
    return keras.Sequential([model.inputs[0], *model.layers[:2], DSlideDense(30, sampler=sampler)])


def twin_of(model):
    """Dense layers with the same weights."""
    inputs = x = keras.Input(model.input_shape[1:])
    for layer in model.layers:
        twin = keras.layers.Dense(layer.units, layer.activation)
        x = twin(x)
        kernel, bias = layer.get_weights()
        transposed = isinstance(layer, (DSlideDense, DSlideHidden))
        twin.set_weights([kernel.T if transposed else kernel, bias])
    return keras.Model(inputs, x)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: SparseAdagrad(0.05),
    # With tanh all neurons are handed on, and all rows have a gradient, as for Adam.
    "adam": lambda: SparseAdam(1e-3),
}


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("sgd", two_hidden),
        pytest.param("adagrad", two_hidden, marks=pytest.mark.slow),
        pytest.param("adam", two_hidden, marks=pytest.mark.slow),
        pytest.param("sgd", three_layers, marks=pytest.mark.slow),
    ],
)
def test_twenty_steps_with_all_neurons_are_those_of_dense_layers(name, build):
    rng = np.random.default_rng(7)
    x, sparse = sparse_inputs(rng, 25, 20, share=0.9 if name == "adam" else 0.4)
    y = rng.integers(0, 30, (25, 1))
    model = build("all", activation="tanh" if name == "adam" else "relu")
    twin = twin_of(model)
    close(model(sparse), twin(x))
    model.compile(OPTIMIZERS[name](), SlideCrossentropy())
    twin.compile(OPTIMIZERS[name](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(20):
        close(model.train_on_batch(sparse, y), twin.train_on_batch(x, y), 1e-4)
    for layer, other in zip(model.layers, twin.layers[1:], strict=True):
        kernel = layer.kernel.numpy()
        transposed = isinstance(layer, (DSlideDense, DSlideHidden))
        close(kernel.T if transposed else kernel, other.kernel, 1e-4 if name == "adam" else 1e-5)
        close(layer.bias, other.bias, 1e-4 if name == "adam" else 1e-5)
    close(model.predict(sparse, verbose=0), twin.predict(x, verbose=0), 1e-4)


@pytest.mark.parametrize("optimizer", [SparseAdam, SparseAdagrad])
def test_only_active_rows_move(optimizer):
    rng = np.random.default_rng(8)
    sampler = LshSampler(hash=SimHash(bits=5, tables=3), active=12, random=0.0, head=0.0)
    model = two_hidden(sampler, units=400)
    model.compile(optimizer(0.1), SlideCrossentropy())
    _, sparse = sparse_inputs(rng, 8, 20)
    hidden, after = model.layers[1:3]
    for _ in range(3):
        before = [hidden.get_weights(), after.get_weights()]
        x = model.layers[0](sparse)
        step = hidden._sampled_weights.step
        own, shared = hidden._sampled_weights.selector.select(
            x, selectors.no_labels(x), hidden.kernel, hidden.bias, step + 1
        ).active
        assert shared.shape == (0,)
        seen = np.unique(own.ids)
        assert 0 < len(seen) < 200
        model.train_on_batch(sparse, rng.integers(0, 30, (8, 1)))
        moved = (hidden.kernel.numpy() != before[0][0]).any(1)
        moved |= hidden.bias.numpy() != before[0][1]
        assert moved.any()
        assert set(np.flatnonzero(moved)) <= set(seen)
        moved = np.flatnonzero((after.kernel.numpy() != before[1][0]).any(1))
        assert len(moved)
        assert set(moved) <= set(seen)


def learnable(rows=400, features=30, classes=12, seed=9):
    """Samples about a centre for each class."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, features)) * (rng.random((classes, features)) < 0.4)
    y = rng.integers(0, classes, rows)
    x = centres[y] + 0.3 * rng.normal(size=(rows, features)) * (centres[y] != 0)
    return x.astype("float32"), y


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers",
    [
        lambda: [SparseDense(24, "relu"), DSlideHidden(600)],
        pytest.param(
            lambda: [SparseDense(24, "relu"), DSlideHidden(600), SparseDense(16, "relu")],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda: [DSlideHidden(600), DSlideHidden(200), keras.layers.Dense(16, "relu")],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["wide", "wide_narrow", "wide_wide_dense"],
)
def test_models_of_several_hidden_layers_learn_and_are_saved(layers, tmp_path):
    keras.utils.set_random_seed(1)
    x, y = learnable()
    model = keras.Sequential(
        [keras.Input((30,), sparse=True), *layers(), DSlideDense(12, sampler="all")]
    )
    sparse = tf.sparse.from_dense(x)
    data = tf.data.Dataset.from_tensor_slices((sparse, y)).batch(50)
    model.compile(SparseAdam(3e-3), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    model.fit(data, epochs=12, verbose=0)
    assert model.evaluate(data, verbose=0)[1] > 0.9
    outputs = model.predict(data, verbose=0)
    assert outputs.shape == (400, 12)

    model.save(tmp_path / "model.keras")
    other = keras.models.load_model(tmp_path / "model.keras")
    # Tables are rebuilt on load: the same is to be had here by refreshing them now.
    for layer in model.layers:
        layer.set_weights(layer.get_weights())
    np.testing.assert_array_equal(other.predict(data, verbose=0), model.predict(data, verbose=0))
    for m in (model, other):
        m.fit(data, epochs=1, verbose=0)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


TRAIN = """
import keras, numpy as np, tensorflow as tf
from tf_dslide import *
keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x, y = rng.normal(size=(90, 30)).astype("float32"), rng.integers(0, 500, (90, 1))
def sampler(seed):
    return LshSampler(hash=SimHash(bits=5, tables=9), active=60, random=0.2, head=0.1, seed=seed)
model = keras.Sequential([
    keras.Input((30,)), DSlideHidden(3000, sampler=sampler(1)), SparseDense(17, "relu"),
    DSlideHidden(700, sampler="lsh", activation="gelu"),
    DSlideDense(500, sampler=sampler(2))])
model.compile(SparseAdam(1e-2), SlideCrossentropy())
model.fit(x, y, batch_size=30, epochs=4, shuffle=False, verbose=0)
results = [*model.get_weights(), model.predict(x, verbose=0)]
"""
WITH_ONE_THREAD = """
import sys, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
{train}
np.savez(sys.argv[1], *results)
"""


@pytest.mark.levels
def test_the_number_of_threads_changes_no_bit(tmp_path):
    here: dict[str, object] = {}
    exec(TRAIN, here)
    run_python(WITH_ONE_THREAD.format(train=TRAIN), tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz") as one:
        assert len(one.files) == len(here["results"])
        for name, array in zip(one.files, here["results"], strict=True):
            assert one[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", HASHED)
def test_a_sample_is_predicted_the_same_in_any_batch(name):
    rng = np.random.default_rng(2)
    layer = make_hidden(2000, 9, HASHED[name])
    x = floats(rng, 40, 9)
    together = tf.sparse.to_dense(layer(x)).numpy()
    assert (together != 0).any(1).all()
    order = rng.permutation(40)
    np.testing.assert_array_equal(tf.sparse.to_dense(layer(x[order])), together[order])
    np.testing.assert_array_equal(tf.sparse.to_dense(layer(x[7:8])), together[7:8])


def test_inference_with_all_neurons():
    rng = np.random.default_rng(2)
    layer = make_hidden(301, 9, LshSampler(active=20, random=0.0), inference="all")
    x = floats(rng, 12, 9)
    close(tf.sparse.to_dense(layer(x)), dense_twin(layer)(x))
    in_training = layer(x, training=True)
    assert in_training.indices.shape[0] <= 12 * 20
    again = DSlideHidden.from_config(layer.get_config())
    assert again.inference == "all"


@pytest.mark.parametrize("sampler", ["all", None])
def test_sparse_input_is_its_dense_form(sampler):
    rng = np.random.default_rng(3)
    layer = make_hidden(130, 21, sampler)
    x, sparse = sparse_inputs(rng, 13, 21)
    results = []
    for given in (tf.constant(x), sparse):
        values = given.values if isinstance(given, tf.SparseTensor) else given
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = layer(given, training=False)
            objective = tf.reduce_sum(outputs.values**2)
        results.append((outputs, tape.gradient(objective, values)))
    np.testing.assert_array_equal(results[0][0].indices, results[1][0].indices)
    np.testing.assert_array_equal(results[0][0].values, results[1][0].values)
    by_values = tf.gather_nd(results[0][1], sparse.indices)
    np.testing.assert_array_equal(results[1][1], by_values)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("ordered", [True, False])
def test_sparse_dense_sends_the_gradient_to_its_inputs_values(ordered, graph):
    rng = np.random.default_rng(6)
    layer = SparseDense(7, activation="tanh")
    layer.build((None, 19))
    x, sparse = sparse_inputs(rng, 10, 19)
    order = np.arange(len(sparse.values)) if ordered else rng.permutation(len(sparse.values))
    indices, values = sparse.indices.numpy()[order], tf.constant(sparse.values.numpy()[order])
    upstream = floats(rng, 10, 7)

    def gradient(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = layer(tf.SparseTensor(indices, values, sparse.dense_shape))
            objective = tf.reduce_sum(outputs * upstream)
        return tape.gradient(objective, values)

    found = (tf.function(gradient) if graph else gradient)(values)
    kernel = layer.kernel.numpy()
    by_logits = upstream * (1 - np.tanh(x @ kernel) ** 2)
    close(found, (by_logits @ kernel.T)[tuple(indices.T)])


def test_empty_rows_and_empty_batches():
    layer, after = make_hidden(40, 6, None), SparseDense(3)
    after.build((None, 40))
    for x in (np.zeros((4, 6), "float32"), np.zeros((0, 6), "float32")):
        for training in (True, False):
            hidden = layer(x, training=training)
            assert tuple(hidden.dense_shape.numpy()) == (len(x), 40)
            assert after(hidden).shape == (len(x), 3)
    no_active = make_hidden(40, 6, FrozenNothing())
    hidden = no_active(np.ones((4, 6), "float32"))
    assert hidden.indices.shape == (0, 2)
    np.testing.assert_array_equal(after(hidden), np.tile(after.bias, (4, 1)))


class FrozenNothing(tf_dslide.Sampler):
    """No neuron at all."""

    def selector(self, units, dim):
        return selectors.NothingSelector()


def test_run_eagerly_functional_and_batches_of_one():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    hidden = DSlideHidden(300, sampler=LshSampler(active=20, random=0.2))(inputs)
    assert hidden.sparse
    assert hidden.shape == (None, 300)
    outputs = [
        DSlideDense(9, sampler="all")(SparseDense(5, "relu")(hidden)),
        SparseDense(2)(hidden),
    ]
    model = keras.Model(inputs, outputs)
    rng = np.random.default_rng(0)
    x, y = floats(rng, 5, 6), rng.integers(0, 9, (5, 1))
    for eagerly in (True, False):
        model.compile(SparseAdam(), [SlideCrossentropy(), "mse"], run_eagerly=eagerly)
        history = model.fit(x, [y, floats(rng, 5, 2)], batch_size=1, epochs=2, verbose=0)
        assert np.isfinite(history.history["loss"]).all()


def test_mixed_precision():
    layer = make_hidden(60, 6, None, dtype="mixed_bfloat16")
    x = floats(np.random.default_rng(0), 5, 6)
    hidden = layer(x)
    assert hidden.dtype == tf.bfloat16
    assert layer(keras.Input((6,))).dtype == "bfloat16"
    after = SparseDense(3, dtype="mixed_bfloat16")
    assert after(hidden).dtype == tf.bfloat16
    with tf.GradientTape() as tape:
        objective = tf.reduce_sum(after(layer(x, training=True)))
    gradients = tape.gradient(objective, layer.trainable_variables)
    assert all(g.values.dtype == tf.float32 for g in gradients)


def test_tables_follow_the_schedule_and_replaced_weights():
    sampler = LshSampler(active=30, random=0.0, rebuild_every=3, rebuild_decay=0.0)
    layer = make_hidden(400, 6, sampler)
    x = floats(np.random.default_rng(0), 5, 6)
    for step in range(1, 8):
        layer(x, training=True)
        assert int(layer._sampled_weights.step) == step
        assert layer._sampled_weights.selector.get_state()[1] == 1 + (step - 1) // 3
    before = tf.sparse.to_dense(layer(x))
    layer.kernel.assign(-layer.kernel.numpy())
    layer.bias.assign(-layer.bias.numpy())
    assert layer._sampled_weights.selector.get_state()[1] == 3
    assert (tf.sparse.to_dense(layer(x)).numpy() != before.numpy()).any()
    assert layer._sampled_weights.selector.get_state()[1] == 4


def test_clear_errors():
    for activation in ("softmax", "log_softmax", "sparsemax", lambda x: x[:, :1]):
        with pytest.raises(ValueError, match="each value alone"):
            DSlideHidden(5, activation)
    for activation in ("sigmoid", "softplus", "exponential"):
        with pytest.raises(ValueError, match=f"0 at 0.*{activation}"):
            DSlideHidden(5, activation)
    with pytest.raises(ValueError, match="received the layer"):
        DSlideHidden(5, keras.layers.PReLU())
    for sampler in (UniformSampler(3), LogUniformSampler(3), "uniform"):
        with pytest.raises(ValueError, match="chooses by chance"):
            DSlideHidden(5, sampler=sampler)
    with pytest.raises(ValueError, match="not split over ranks yet"):
        DSlideHidden(5, strategy=object())
    with pytest.raises(ValueError, match="`activity_regularizer` needs a dense output"):
        DSlideHidden(5, activity_regularizer="l2")
    with pytest.raises(ValueError, match="`inference`.*'exact'"):
        DSlideHidden(5, inference="exact")
    with pytest.raises(ValueError, match="expected ndim=2, found ndim=3"):
        DSlideHidden(5)(np.ones((2, 3, 4), "float32"))
    layer = make_hidden(50, 6, None)
    with pytest.raises(ValueError, match="5"):
        layer(np.ones((2, 5), "float32"))
    x = np.ones((3, 6), "float32")
    x[1, 2] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 1"):
        layer(x)


@pytest.mark.parametrize("name", ["relu6", "leaky_relu", "silu", "elu", "selu", "squareplus_like"])
def test_other_activations_that_are_zero_at_zero(name):
    activation = (lambda x: tf.sign(x) * x**2) if name == "squareplus_like" else name
    layer = make_hidden(40, 6, activation=activation)
    x = floats(np.random.default_rng(0), 5, 6)
    close(tf.sparse.to_dense(layer(x)), dense_twin(layer)(x))
