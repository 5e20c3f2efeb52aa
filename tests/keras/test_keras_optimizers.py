"""Optimizers on row-sparse gradients: ours against NumPy, stock ones against dense gradients."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import RowAdam, close, dense_twin, wide_model

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    LshSampler,
    PrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
)

UNITS, DIM, BATCH = 40, 6, 8

STOCK = {
    "sgd": lambda **k: keras.optimizers.SGD(0.3, **k),
    "momentum": lambda **k: keras.optimizers.SGD(0.1, momentum=0.9, **k),
    "nesterov": lambda **k: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, **k),
    "adam": lambda **k: keras.optimizers.Adam(0.01, **k),
    "amsgrad": lambda **k: keras.optimizers.Adam(0.01, amsgrad=True, **k),
    "adamw": lambda **k: keras.optimizers.AdamW(0.01, **k),
    "nadam": lambda **k: keras.optimizers.Nadam(0.01, **k),
    "adamax": lambda **k: keras.optimizers.Adamax(0.01, **k),
    "adagrad": lambda **k: keras.optimizers.Adagrad(0.1, **k),
    "adadelta": lambda **k: keras.optimizers.Adadelta(1.0, **k),
    "rmsprop": lambda **k: keras.optimizers.RMSprop(0.01, **k),
    "centered": lambda **k: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True, **k),
    "ftrl": lambda **k: keras.optimizers.Ftrl(0.1, **k),
    "lion": lambda **k: keras.optimizers.Lion(0.01, **k),
}


@pytest.fixture
def data():
    keras.utils.set_random_seed(7)
    rng = np.random.default_rng(7)
    return rng.normal(size=(BATCH, DIM)).astype("float32"), rng.integers(0, UNITS, BATCH)


def sparse_gradients(layer, x, y):
    """The loss's row-sparse gradients of kernel and bias."""
    with tf.GradientTape() as tape:
        loss = SlideCrossentropy()(y, layer(x, training=True))
    return tape.gradient(loss, [v.value for v in layer.trainable_variables])


def as_dense(gradients):
    return [tf.convert_to_tensor(g) for g in gradients]


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("name", STOCK)
def test_stock_optimizers_treat_row_sparse_gradients_as_dense_ones(name, data):
    """Several steps with changing rows, so that moments of rows not named count."""
    x, y = data
    layer = wide_model(UNITS, DIM, sampler=UniformSampler(5)).layers[0]
    twin = wide_model(UNITS, DIM).layers[0]
    twin.set_weights(layer.get_weights())
    ours, stock = STOCK[name](), STOCK[name]()
    ours.build(layer.trainable_variables)
    stock.build(twin.trainable_variables)

    @tf.function
    def step(gradients):
        ours.apply(gradients, layer.trainable_variables)

    for shift in range(3):
        gradients = sparse_gradients(layer, x, (y + shift) % UNITS)
        assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
        # The twin gets the same gradients, so that rounding does not add up.
        stock.apply(as_dense(gradients), twin.trainable_variables)
        step(gradients) if shift else ours.apply(gradients, layer.trainable_variables)
        for found, wanted in zip(layer.get_weights(), twin.get_weights(), strict=True):
            close(found, wanted)


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("name", ["momentum", "adam", "adagrad"])
def test_stock_optimizers_train_as_on_dense(name, data):
    x, y = data
    model = wide_model(UNITS, DIM)
    twin = keras.Sequential([keras.Input((DIM,)), dense_twin(model.layers[0])])
    model.compile(STOCK[name](), SlideCrossentropy())
    twin.compile(STOCK[name](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(5):
        close(model.train_on_batch(x, y), twin.train_on_batch(x, y))
    close(model.get_weights()[0], twin.get_weights()[0].T, relative=1e-4)


def rare_rows(rng, step):
    """Rows of a step: some each time, others after 1 to 150 steps, one in the first step alone."""
    wanted = [row for row in range(UNITS - 1) if rng.random() < 1.0 / (1 + row**1.4)]
    if step % 150 == 1:
        wanted += [UNITS - 3, UNITS - 2]
    return np.unique([*wanted, *([UNITS - 1] if step == 0 else [])])


@pytest.mark.parametrize("decay", [None, 0.1])
@pytest.mark.parametrize("always", [False, True], ids=["when updated", "every step"])
def test_rows_that_catch_up_follow_adam(always, decay):
    """200 steps of Keras' Adam, from gradients with rows that are missing for up to 150 of them."""
    rng = np.random.default_rng(4)
    start = rng.normal(size=(UNITS, DIM)).astype("float32")
    ours, theirs = keras.Variable(start), keras.Variable(start)
    sparse_adam = SparseAdam(0.01, epsilon=1e-7, weight_decay=decay)
    adam = keras.optimizers.AdamW(0.01, weight_decay=decay or 0.0)
    for step in range(200):
        rows = rare_rows(rng, step)
        if always:
            # Then what the gradient is made of is Adam's too.
            sparse_adam.catch_up()
            close(ours.numpy(), theirs.numpy(), relative=2e-4)
            values = np.tanh(ours.numpy()[rows] + rng.normal(size=(len(rows), DIM)))
        else:
            values = rng.normal(size=(len(rows), DIM))
        values = tf.constant(values, tf.float32)
        slices = tf.IndexedSlices(values, tf.constant(rows), [UNITS, DIM])
        sparse_adam.apply([slices], [ours])
        adam.apply([tf.convert_to_tensor(slices)], [theirs])
    sparse_adam.finalize_variable_values([ours])
    close(ours.numpy(), theirs.numpy(), relative=2e-4)
    for mine, other in zip(
        (sparse_adam._momentums, sparse_adam._velocities),
        (adam._momentums, adam._velocities),
        strict=True,
    ):
        close(mine[0].numpy(), other[0].numpy(), relative=1e-4)
    assert np.abs(theirs.numpy() - start).max() > 0.1


def test_fit_leaves_no_row_behind(data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=UniformSampler(5))
    model.compile(SparseAdam(0.05), SlideCrossentropy())
    model.fit(x, y, batch_size=2, epochs=3, verbose=0)
    optimizer, before = model.optimizer, model.get_weights()
    assert all((last.numpy() == optimizer.iterations).all() for last in optimizer._last_steps)
    optimizer.catch_up()
    for weight, same in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, same)


def test_betas_that_rows_cannot_catch_up_with():
    with pytest.raises(ValueError, match=r"beta_1 \*\* 2.*0\.8"):
        SparseAdam(beta_1=0.9, beta_2=0.8)
    assert SparseAdam(beta_1=0.9, beta_2=0.8, lazy=True).get_config()["lazy"]
    SparseAdam().catch_up()  # not built: nothing to do


CLIPS = [{"clipnorm": 0.05}, {"global_clipnorm": 0.05}, {"clipvalue": 0.01}, {"clipnorm": 1e3}]


def clipped(gradients: list[np.ndarray], how: dict) -> list[np.ndarray]:
    """Clipping of dense gradients."""
    ((name, limit),) = how.items()
    if name == "clipvalue":
        return [g.clip(-limit, limit) for g in gradients]
    norms = [np.sqrt((g * g).sum()) for g in gradients]
    if name == "global_clipnorm":
        norms = [np.sqrt(sum(n * n for n in norms))] * len(gradients)
    return [g * min(1.0, limit / n) for g, n in zip(gradients, norms, strict=True)]


@pytest.mark.parametrize("how", CLIPS, ids=str)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_clipping_counts_the_dense_gradient(how, graph, data):
    x, y = data
    layer = wide_model(UNITS, DIM, sampler=UniformSampler(5)).layers[0]
    optimizer = SparseAdam(0.01, **how)
    optimizer.build(layer.trainable_variables)
    weights = [w.astype("float64") for w in layer.get_weights()]
    adams = [RowAdam(w.shape, 0.01) for w in weights]

    def apply(gradients):
        optimizer.apply(gradients, layer.trainable_variables)

    step = tf.function(apply) if graph else apply
    for shift in range(3):
        gradients = sparse_gradients(layer, x, (y + shift) % UNITS)
        wanted = clipped([g.numpy().astype("float64") for g in as_dense(gradients)], how)
        for adam, weight, gradient, sparse in zip(adams, weights, wanted, gradients, strict=True):
            adam.update(weight, gradient, sparse.indices.numpy())
        step(gradients)
        for found, weight in zip(layer.get_weights(), weights, strict=True):
            close(found, weight)


@pytest.mark.parametrize("how", CLIPS[:3], ids=str)
def test_clipping_counts_repeated_rows_once(how):
    """An embedding's gradient names a row once for each use; its norm is that of the sum."""
    table = keras.Variable(np.ones((5, 2), "float32"))
    optimizer = SparseAdam(0.01, **how)
    gradient = tf.IndexedSlices(tf.constant([[1.0, 2], [3, 4], [5, 6]]), [4, 1, 4], [5, 2])
    summed = np.zeros((5, 2))
    summed[1], summed[4] = [3, 4], [6, 8]
    optimizer.apply([gradient], [table])
    close(optimizer._momentums[0].numpy(), 0.1 * clipped([summed], how)[0])


def test_clipping_inside_fit(data):
    x, y = data
    model = wide_model(UNITS, DIM)
    twin = keras.Sequential([keras.Input((DIM,)), dense_twin(model.layers[0])])
    model.compile(SparseAdam(0.01, epsilon=1e-7, global_clipnorm=0.1), SlideCrossentropy())
    twin.compile(
        keras.optimizers.Adam(0.01, global_clipnorm=0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(x, y, epochs=4, verbose=0)
    twin.fit(x, y, epochs=4, verbose=0)
    close(model.get_weights()[0], twin.get_weights()[0].T)


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize(
    "kwargs",
    [
        {"use_ema": True, "ema_momentum": 0.8},
        {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
        {"gradient_accumulation_steps": 3},
        {"gradient_accumulation_steps": 2, "clipnorm": 0.05},
        {"loss_scale_factor": 128.0},
        {"weight_decay": 0.2},
    ],
    ids=str,
)
def test_keras_arguments_as_in_adam(kwargs, data):
    """With dense gradients SparseAdam is Adam, whatever Keras does around it."""
    x, y = data
    adam = keras.optimizers.AdamW if "weight_decay" in kwargs else keras.optimizers.Adam
    model = wide_model(UNITS, DIM)
    twin = keras.Sequential([keras.Input((DIM,)), dense_twin(model.layers[0])])
    model.compile(SparseAdam(0.01, epsilon=1e-7, **kwargs), SlideCrossentropy())
    twin.compile(adam(0.01, **kwargs), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for _ in range(3):
        for part in (slice(0, 3), slice(3, 8)):
            close(
                model.train_on_batch(x[part], y[part]),
                twin.train_on_batch(x[part], y[part]),
                relative=3e-5,
            )
        close(model.get_weights()[0], twin.get_weights()[0].T, relative=3e-5)
        assert int(model.optimizer.iterations) == int(twin.optimizer.iterations)
    if kwargs.get("use_ema"):
        model.optimizer.finalize_variable_values(model.trainable_variables)
        twin.optimizer.finalize_variable_values(twin.trainable_variables)
        close(model.get_weights()[0], twin.get_weights()[0].T, relative=3e-5)


def test_gradient_accumulation_of_row_sparse_gradients(data):
    x, y = data
    layer = wide_model(UNITS, DIM, sampler=UniformSampler(5)).layers[0]
    start = layer.get_weights()[0]
    optimizer = SparseAdam(0.01, gradient_accumulation_steps=2)
    optimizer.build(layer.trainable_variables)
    first = sparse_gradients(layer, x, y)
    optimizer.apply(first, layer.trainable_variables)
    assert (layer.get_weights()[0] == start).all()
    second = sparse_gradients(layer, x, (y + 1) % UNITS)
    optimizer.apply(second, layer.trainable_variables)
    mean = (as_dense(first)[0] + as_dense(second)[0]).numpy() / 2
    close(optimizer._momentums[0].numpy(), 0.1 * mean)
    # Twice, in Keras' way of counting, so the bias corrections are those of step 2.
    assert (layer.get_weights()[0] != start).any()


@pytest.mark.usefixtures("eager_or_graph")
def test_loss_scaling_of_row_sparse_gradients(data):
    """The wrapper that mixed_float16 puts around an optimizer."""
    x, y = data
    plain = wide_model(UNITS, DIM, sampler=UniformSampler(5))
    scaled = wide_model(UNITS, DIM, sampler=UniformSampler(5))
    scaled.set_weights(plain.get_weights())
    plain.compile(SparseAdam(0.01), SlideCrossentropy())
    wrapper = keras.optimizers.LossScaleOptimizer(
        SparseAdam(0.01), initial_scale=8.0, dynamic_growth_steps=2
    )
    scaled.compile(wrapper, SlideCrossentropy())
    for _ in range(4):
        plain.train_on_batch(x, y)
        scaled.train_on_batch(x, y)
    assert float(wrapper.dynamic_scale.numpy()) == 32.0
    for found, wanted in zip(scaled.get_weights(), plain.get_weights(), strict=True):
        close(found, wanted, relative=3e-5)


@pytest.mark.parametrize("optimizer", ["ours", "sgd"])
def test_loss_scale_factor_of_row_sparse_gradients(optimizer, data):
    x, y = data
    models = []
    for factor in (None, 64.0):
        keras.utils.set_random_seed(1)
        model = wide_model(UNITS, DIM, sampler=UniformSampler(5))
        make = SparseAdam if optimizer == "ours" else keras.optimizers.SGD
        model.compile(make(0.01, loss_scale_factor=factor), SlideCrossentropy())
        model.fit(x, y, epochs=3, verbose=0)
        models.append(model)
    for found, wanted in zip(models[1].get_weights(), models[0].get_weights(), strict=True):
        close(found, wanted)


@pytest.mark.slow
def test_optimizers_that_need_a_dense_gradient_warn_once():
    """Their moments make a step as dear as a dense layer's: 4.5 million weights here."""
    x, y = np.ones((4, 64), "float32"), np.arange(4)

    def warned(optimizer: keras.optimizers.Optimizer) -> list[str]:
        model = wide_model(70_000, 64, sampler=UniformSampler(5))
        model.compile(optimizer, SlideCrossentropy())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(x, y, batch_size=2, epochs=2, verbose=0)
        return [text for w in caught if "SparseAdam" in (text := str(w.message))]

    assert not warned(SparseAdam(global_clipnorm=1.0))
    assert not warned(keras.optimizers.SGD(0.1))
    assert len(warned(keras.optimizers.Adam())) == 1
    assert not warned(keras.optimizers.RMSprop())


@pytest.mark.usefixtures("eager_or_graph")
def test_loss_scaling_skips_a_step_that_overflows(data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=UniformSampler(5))
    wrapper = keras.optimizers.LossScaleOptimizer(SparseAdam(0.01), initial_scale=1e38)
    model.compile(wrapper, SlideCrossentropy(reduction="sum"))
    start = model.get_weights()
    model.train_on_batch(100 * x, y)
    assert float(wrapper.dynamic_scale.numpy()) == np.float32(0.5e38)
    for found, wanted in zip(model.get_weights(), start, strict=True):
        assert (found == wanted).all()


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize(
    "rate",
    [
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_steps=2, warmup_target=0.2),
        keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.1, 0.01, 0.2]),
    ],
    ids=lambda rate: type(rate).__name__,
)
def test_learning_rate_schedules(rate, data):
    x, y = data
    model = wide_model(UNITS, DIM)
    twin = keras.Sequential([keras.Input((DIM,)), dense_twin(model.layers[0])])
    model.compile(SparseAdam(rate, epsilon=1e-7), SlideCrossentropy())
    twin.compile(
        keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    for _ in range(4):
        close(model.train_on_batch(x, y), twin.train_on_batch(x, y), relative=3e-5)
    close(model.get_weights()[0], twin.get_weights()[0].T, relative=1e-4)


def test_the_learning_rate_can_be_set_between_steps(data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20))
    model.compile(SparseAdam(0.1), SlideCrossentropy())
    model.fit(x, y, verbose=0)
    start = model.get_weights()
    model.optimizer.learning_rate = 0.0
    model.fit(x, y, verbose=0)
    for found, wanted in zip(model.get_weights(), start, strict=True):
        assert (found == wanted).all()


def test_weight_decay_touches_the_rows_of_the_step_alone(data):
    x, y = data
    layer = wide_model(UNITS, DIM, sampler=UniformSampler(5)).layers[0]
    optimizer = SparseAdam(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.build(layer.trainable_variables)
    weights = [w.astype("float64") for w in layer.get_weights()]
    adams = [RowAdam(weights[0].shape, 0.01, 0.5), RowAdam(weights[1].shape, 0.01)]
    for shift in range(3):
        gradients = sparse_gradients(layer, x, (y + shift) % UNITS)
        for adam, weight, gradient in zip(adams, weights, gradients, strict=True):
            rows = gradient.indices.numpy()
            adam.update(weight, tf.convert_to_tensor(gradient).numpy(), rows)
        optimizer.apply(gradients, layer.trainable_variables)
        for found, weight in zip(layer.get_weights(), weights, strict=True):
            close(found, weight)


class AdamOfDenseGradients(keras.optimizers.Adam):
    """Keras' Adam squares each of the slices that name one row, not their sum."""

    def apply(self, grads, trainable_variables=None):
        super().apply(as_dense(grads), trainable_variables)


@pytest.mark.usefixtures("eager_or_graph")
def test_other_layers_train_under_sparse_adam_as_under_adam():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, (16, 12)), rng.integers(0, 3, 16)

    def fresh() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((12,), dtype="int32"),
                keras.layers.Embedding(30, 8),
                keras.layers.Conv1D(5, 3, activation="relu"),
                keras.layers.LayerNormalization(),
                keras.layers.PReLU(),
                keras.layers.GlobalMaxPooling1D(),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(3),
            ]
        )

    model, twin = fresh(), fresh()
    twin.set_weights(model.get_weights())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # A large epsilon: Adam blows up what rounding leaves of gradients that are zero in truth.
    model.compile(SparseAdam(0.01, epsilon=0.01), loss)
    twin.compile(AdamOfDenseGradients(0.01, epsilon=0.01), loss)
    # All 30 rows of the embedding occur, so that both algorithms agree.
    assert len(np.unique(x)) == 30
    for _ in range(4):
        close(model.train_on_batch(x, y), twin.train_on_batch(x, y), relative=3e-5)
    for found, wanted in zip(model.get_weights(), twin.get_weights(), strict=True):
        close(found, wanted, relative=3e-4)


def test_a_scalar_and_a_vector_variable():
    scalar, vector = keras.Variable(2.0), keras.Variable([1.0, 2.0, 3.0])
    optimizer = SparseAdam(0.1)
    gradient = tf.IndexedSlices(tf.constant([1.0, 3.0]), [2, 0], [3])
    optimizer.apply([tf.constant(5.0), gradient], [scalar, vector])
    close(scalar.numpy(), 1.9)
    close(vector.numpy(), [0.9, 2.0, 2.9])


def test_variables_without_gradient_stay():
    used, unused = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = SparseAdam(0.1, clipnorm=1.0)
    with pytest.warns(UserWarning, match="[Gg]radients do not exist"):
        optimizer.apply([tf.constant([1.0]), None], [used, unused])
    assert used.numpy()[0] != 1.0
    assert unused.numpy()[0] == 1.0


@pytest.mark.usefixtures("eager_or_graph")
def test_all_rows_of_an_empty_step_stay():
    """A batch without features names no row; the step still counts."""
    model = keras.Sequential([keras.Input((5,), sparse=True), SparseDense(3), DSlideDense(20)])
    model.compile(SparseAdam(0.1), SlideCrossentropy())
    kernel = model.get_weights()[0]
    model.train_on_batch(tf.sparse.from_dense(np.zeros((4, 5), "float32")), np.arange(4))
    assert (model.get_weights()[0] == kernel).all()
    assert int(model.optimizer.iterations.numpy()) == 1


def test_variables_and_state():
    layer = DSlideDense(7, sampler=AllNeurons())
    layer.build((None, 3))
    optimizer = SparseAdam(0.1)
    optimizer.build(layer.trainable_variables)
    assert [tuple(v.shape) for v in optimizer.variables] == [
        *((), ()),
        *((7, 3), (7, 3), (7,), (7,)),
        *((7,), (7,)),
    ]
    with pytest.raises(ValueError, match="Unknown variable"):
        optimizer.apply([tf.constant(1.0)], [keras.Variable(1.0)])


@pytest.mark.slow
def test_precision_rises_with_every_optimizer_under_fit():
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(2)
    centers = rng.normal(size=(UNITS, DIM))
    y = rng.integers(0, UNITS, 400)
    x = (centers[y] + 0.1 * rng.normal(size=(400, DIM))).astype("float32")
    for optimizer in (SparseAdam(0.05), keras.optimizers.SGD(5.0)):
        model = wide_model(UNITS, DIM, sampler=LshSampler(active=20))
        model.compile(optimizer, SlideCrossentropy(), metrics=[PrecisionAtK(1)])
        model.fit(x, y, epochs=15, verbose=0)
        assert model.evaluate(x, y, verbose=0)[1] > 0.8
