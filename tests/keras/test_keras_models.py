"""DSlideDense in every kind of Keras model, under every way to run one."""

import copy
import pickle
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import (
    close,
    dense_twin,
    multi_hot,
    padded,
    softmax_crossentropy,
    targets,
    wide_model,
)

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    LabelPrior,
    LshSampler,
    NDCGAtK,
    PrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
)

SLOW = pytest.mark.slow
UNITS, DIM, BATCH = 53, 7, 12


@pytest.fixture
def rng():
    keras.utils.set_random_seed(11)
    return np.random.default_rng(11)


@pytest.fixture
def data(rng):
    x = rng.normal(size=(BATCH * 4, DIM)).astype("float32")
    return x, rng.integers(0, UNITS, BATCH * 4)


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__()
        self.hidden = SparseDense(9, activation="relu")
        self.head = DSlideDense(UNITS, **kwargs)

    def call(self, inputs, training=None):
        return self.head(self.hidden(inputs), training=training)


def build_model(kind: str, **kwargs: object) -> keras.Model:
    kwargs = {"sampler": AllNeurons(), **kwargs}
    if kind == "subclassed":
        return Subclassed(**kwargs)
    layers = [SparseDense(9, activation="relu"), DSlideDense(UNITS, **kwargs)]
    if kind == "sequential":
        return keras.Sequential([keras.Input((DIM,), sparse=True), *layers])
    if kind == "deferred":
        return keras.Sequential(layers)
    inputs = keras.Input((DIM,), sparse=True)
    return keras.Model(inputs, layers[1](layers[0](inputs)))


@pytest.mark.parametrize(
    ("kind", "sparse"),
    [
        ("sequential", True),
        pytest.param("functional", False, marks=SLOW),
        pytest.param("subclassed", True, marks=SLOW),
    ],
)
def test_every_kind_of_model_runs_and_agrees_with_dense(kind, sparse, data):
    x, y = data
    fed = tf.sparse.from_dense(x) if sparse else x
    model = build_model(kind)
    model.compile(SparseAdam(1e-2), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    history = model.fit(
        fed, y, batch_size=BATCH, epochs=4, verbose=0, validation_data=(fed, y)
    ).history
    assert set(history) == {"loss", "precision_at_1", "val_loss", "val_precision_at_1"}
    assert history["loss"][-1] < history["loss"][0]

    w1, b1, w2, b2 = (w.astype("float64") for w in model.get_weights())
    logits = np.maximum(x @ w1 + b1, 0) @ w2.T + b2
    close(model.predict(fed, batch_size=BATCH, verbose=0), logits)
    close(model.predict_on_batch(fed), logits)
    wanted = softmax_crossentropy(logits, targets([[i] for i in y], UNITS))[0].mean()
    hits = (logits.argmax(axis=1) == y).mean()
    loss, precision = model.evaluate(fed, y, batch_size=5, verbose=0)
    close(loss, wanted)
    close(precision, hits)
    loss, precision = model.test_on_batch(fed, y)
    close(loss, wanted)
    close(precision, hits)
    # Keras reports the loss before the step.
    close(model.train_on_batch(fed, y)[0], wanted)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        pytest.param("functional", LshSampler(active=20), marks=SLOW),
        pytest.param("subclassed", LshSampler(active=20), marks=SLOW),
        ("deferred", UniformSampler(20)),
    ],
    ids=["functional", "subclassed", "deferred"],
)
def test_training_by_fit_and_by_hand_are_the_same(kind, sampler, data):
    x, y = data

    def fresh() -> keras.Model:
        keras.utils.set_random_seed(1)
        model = build_model(kind, sampler=sampler)
        model(x[:1])
        return model

    fitted = fresh()
    fitted.compile(SparseAdam(1e-2), SlideCrossentropy())
    fitted.fit(x, y, batch_size=BATCH, shuffle=False, epochs=3, verbose=0)

    def by_hand(in_graph: bool, persistent: bool) -> keras.Model:
        model, optimizer, loss_fn = fresh(), SparseAdam(1e-2), SlideCrossentropy()
        optimizer.build(model.trainable_variables)

        def step(x, y):
            with tf.GradientTape(persistent=persistent) as tape:
                loss = loss_fn(y, model(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables))
            return loss

        run = tf.function(step) if in_graph else step
        for _ in range(3):
            for at in range(0, len(x), BATCH):
                run(tf.constant(x[at : at + BATCH]), tf.constant(y[at : at + BATCH]))
        optimizer.catch_up()
        return model

    for in_graph in (False, True):
        model = by_hand(in_graph, persistent=in_graph)
        for found, wanted in zip(model.get_weights(), fitted.get_weights(), strict=True):
            close(found, wanted)


def test_persistent_tape_gives_gradients_twice(data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20))
    layer = model.layers[0]
    with tf.GradientTape(persistent=True) as tape:
        loss = SlideCrossentropy()(y, model(x, training=True))
        double = 2.0 * loss
    once = tf.convert_to_tensor(tape.gradient(loss, layer.kernel.value))
    again = tf.convert_to_tensor(tape.gradient(loss, layer.kernel.value))
    twice = tf.convert_to_tensor(tape.gradient(double, layer.kernel.value))
    close(again, once)
    close(twice, 2 * once)


@pytest.mark.slow
def test_eager_steps_and_several_steps_per_execution_give_the_same(data):
    x, y = data
    sampler = LshSampler(active=20)

    def train(**kwargs: object) -> tuple[dict, list]:
        keras.utils.set_random_seed(1)
        model = build_model("sequential", sampler=sampler)
        model.compile(
            SparseAdam(5e-2), SlideCrossentropy(), metrics=[PrecisionAtK(1), NDCGAtK(3)], **kwargs
        )
        history = model.fit(x, y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0).history
        return history, [*model.get_weights(), model.evaluate(x, y, verbose=0)]

    wanted = train()
    for kwargs in ({"steps_per_execution": 4}, {"run_eagerly": True}):
        found = train(**kwargs)
        for a, b in zip(found[1], wanted[1], strict=True):
            close(a, b)
        for name, values in wanted[0].items():
            if name == "loss" or kwargs != {"steps_per_execution": 4}:
                close(found[0][name], values)


@pytest.mark.slow
def test_eager_training_metrics_judge_the_weights_before_the_step(data):
    """A training metric judges the outputs that the loss saw, as with Dense."""
    x, y = data

    def first_step(run_eagerly: bool, loss: keras.losses.Loss, k: int) -> tuple[float, float]:
        keras.utils.set_random_seed(1)
        model = wide_model(UNITS, DIM)
        # So fast that one step changes the best neurons.
        model.compile(SparseAdam(5.0), loss, metrics=[PrecisionAtK(k)], run_eagerly=run_eagerly)
        before = np.argsort(-model.predict(x, verbose=0), axis=1)[:, :k]
        wanted = (before == y[:, None]).any(axis=1).mean() / k
        return model.train_on_batch(x, y)[1], wanted

    stock = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    wrong = []
    for run_eagerly in (False, True):
        for loss in (SlideCrossentropy(), stock):
            for k in (1, 20) if run_eagerly else (20,):
                found, wanted = first_step(run_eagerly, loss, k)
                if abs(found - wanted) > 1e-6:
                    wrong.append((run_eagerly, loss.name, k, found, wanted))
    assert not wrong


def test_eager_cost_warning_comes_once_and_only_for_large_outputs():
    layer = DSlideDense(70_000, sampler=UniformSampler(10))
    x = np.ones((64, 2), "float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        layer(x[:2])
        assert not [w for w in caught if "eager" in str(w.message)]
        layer(x)
        layer(x, training=True)
    texts = [str(w.message) for w in caught if "eager" in str(w.message)]
    assert len(texts) == 1
    assert layer.name in texts[0]
    assert "tf.function" in texts[0]


def test_no_eager_warning_inside_fit():
    model = wide_model(70_000, 2, sampler=UniformSampler(10))
    model.compile(SparseAdam(), SlideCrossentropy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(np.ones((64, 2), "float32"), np.arange(64), batch_size=64, verbose=0)
        model.evaluate(np.ones((64, 2), "float32"), np.arange(64), batch_size=64, verbose=0)


@pytest.mark.slow
def test_several_inputs_and_outputs(data, rng):
    x, y = data
    other = rng.normal(size=(len(x), 3)).astype("float32")
    grades = rng.normal(size=(len(x), 2)).astype("float32")

    def fresh(head: str) -> keras.Model:
        keras.utils.set_random_seed(3)
        a, b = keras.Input((DIM,), sparse=True, name="a"), keras.Input((3,), name="b")
        hidden = keras.layers.Concatenate()([SparseDense(6, activation="relu")(a), b])
        slide = DSlideDense(UNITS, sampler=AllNeurons(), name="classes")
        classes = slide(hidden)
        grade = keras.layers.Dense(2, name="grade")(hidden)
        if head == "dense":
            classes = dense_twin(slide)(hidden)
        return keras.Model([a, b], {"classes": classes, "grade": grade})

    model, twin = fresh("slide"), fresh("dense")
    model.compile(
        SparseAdam(1e-2),
        {"classes": SlideCrossentropy(), "grade": "mse"},
        loss_weights={"classes": 0.7, "grade": 2.0},
        metrics={"classes": [PrecisionAtK(1)]},
    )
    twin.compile(
        SparseAdam(1e-2),
        {
            "classes": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "grade": "mse",
        },
        loss_weights={"classes": 0.7, "grade": 2.0},
        metrics={"classes": ["accuracy"]},
    )
    fed, wanted = [tf.sparse.from_dense(x), other], {"classes": y, "grade": grades}
    kwargs = {"batch_size": BATCH, "shuffle": False, "epochs": 3, "verbose": 0}
    history = model.fit(fed, wanted, **kwargs).history
    expected = twin.fit(fed, wanted, **kwargs).history
    for name in ("loss", "classes_loss", "grade_loss"):
        close(history[name], expected[name])
    close(history["classes_precision_at_1"], expected["classes_accuracy"])
    found = model.evaluate(fed, wanted, return_dict=True, verbose=0)
    again = twin.evaluate(fed, wanted, return_dict=True, verbose=0)
    close(found["loss"], again["loss"])
    close(found["classes_precision_at_1"], again["classes_accuracy"])
    predicted = model.predict(fed, verbose=0)
    close(predicted["classes"], twin.predict(fed, verbose=0)["classes"])
    close(predicted["grade"], twin.predict(fed, verbose=0)["grade"])


@pytest.mark.slow
def test_two_wide_outputs_as_a_list(data):
    x, y = data
    inputs = keras.Input((DIM,))
    first = DSlideDense(UNITS, sampler=LshSampler(active=20), name="first")(inputs)
    second = DSlideDense(90, sampler=UniformSampler(30), name="second")(inputs)
    model = keras.Model(inputs, [first, second])
    model.compile(
        SparseAdam(1e-2),
        [SlideCrossentropy(), SlideCrossentropy()],
        metrics=[[PrecisionAtK(1)], [PrecisionAtK(1), NDCGAtK(3)]],
    )
    history = model.fit(x, [y, y + 30], epochs=10, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    logits = model.predict(x, verbose=0)
    found = model.evaluate(x, [y, y + 30], return_dict=True, verbose=0)
    close(found["first_precision_at_1"], (logits[0].argmax(1) == y).mean())
    close(found["second_precision_at_1"], (logits[1].argmax(1) == y + 30).mean())


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize(
    "sampler",
    [AllNeurons(), UniformSampler(UNITS)],
    ids=["all", "sampled"],
)
def test_one_layer_on_two_inputs(sampler, data):
    """Gradients of both uses add up, for our optimizer and for a stock one."""
    x, y = data

    def fresh(optimizer: keras.optimizers.Optimizer, *, twin: bool) -> keras.Model:
        keras.utils.set_random_seed(3)
        layer = DSlideDense(UNITS, sampler=sampler)
        layer.build((None, DIM))
        used = dense_twin(layer) if twin else layer
        a, b = keras.Input((DIM,)), keras.Input((DIM,))
        model = keras.Model([a, b], [used(a), used(b)])
        loss = (
            keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            if twin
            else SlideCrossentropy()
        )
        model.compile(optimizer, [loss, loss])
        return model

    for name in ("ours", "sgd"):
        make = (lambda: SparseAdam(1e-2)) if name == "ours" else (lambda: keras.optimizers.SGD(0.5))
        model, twin = fresh(make(), twin=False), fresh(make(), twin=True)
        for step in range(4):
            fed = [x, np.roll(x, step, axis=1)]
            close(
                model.train_on_batch(fed, [y, y[::-1].copy()])[0],
                twin.train_on_batch(fed, [y, y[::-1].copy()])[0],
            )
        close(model.layers[-1].kernel.numpy(), twin.layers[-1].kernel.numpy().T)
        close(model.layers[-1].bias.numpy(), twin.layers[-1].bias.numpy())


def test_two_losses_on_one_output_each_count(data):
    x, y = data
    layer = wide_model(UNITS, DIM, sampler=LshSampler(active=20)).layers[0]
    loss_fn = SlideCrossentropy()
    with tf.GradientTape() as tape:
        logits = layer(x, training=True)
        loss = loss_fn(y, logits) + loss_fn(y[::-1].copy(), logits)
    gradient = tape.gradient(loss, layer.kernel.value)
    assert np.isfinite(float(loss))
    labels = set(y.tolist())
    assert labels <= set(tf.convert_to_tensor(gradient.indices).numpy().tolist())


def test_freezing(data):
    x, y = data
    model = build_model("sequential", sampler=LshSampler(active=20))
    head = model.layers[1]
    head.trainable = False
    model.compile(SparseAdam(1e-2), SlideCrossentropy())
    start = [w.copy() for w in model.get_weights()]
    model.fit(x, y, verbose=0, epochs=2)
    after = model.get_weights()
    assert not (after[0] == start[0]).all()
    assert (after[2] == start[2]).all()
    assert (after[3] == start[3]).all()
    head.trainable, model.layers[0].trainable = True, False
    model.compile(SparseAdam(1e-2), SlideCrossentropy())
    model.fit(x, y, verbose=0, epochs=2)
    again = model.get_weights()
    assert (after[0] == again[0]).all()
    assert not (after[2] == again[2]).all()


def test_clone_deepcopy_and_pickle(data):
    x, _ = data
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20, rebuild_every=7))
    wanted = model.predict(x, verbose=0)
    clone = keras.models.clone_model(model)
    assert clone.layers[0].sampler.get_config() == model.layers[0].sampler.get_config()
    assert clone.layers[0].kernel is not model.layers[0].kernel
    clone.set_weights(model.get_weights())
    close(clone.predict(x, verbose=0), wanted)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(other.predict(x, verbose=0), wanted)
        other.layers[0].kernel.assign(other.layers[0].kernel * 0)
        close(model.predict(x, verbose=0), wanted)


def test_a_layer_alone_can_be_copied_as_a_dense_can():
    for layer in (keras.layers.Dense(5), DSlideDense(5), SparseDense(5)):
        layer.build((None, 3))
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            close(other.kernel.numpy(), layer.kernel.numpy())
            assert other.kernel is not layer.kernel


def test_summary_weights_shapes_and_spec():
    model = build_model("functional", sampler=LshSampler())
    text: list[str] = []
    model.summary(print_fn=lambda line, **_: text.append(line))
    assert str(9 * UNITS + UNITS) in "".join(text)
    assert model.count_params() == DIM * 9 + 9 + 9 * UNITS + UNITS
    head = model.layers[-1]
    assert [w.path.split("/")[-1] for w in head.weights] == ["kernel", "bias"]
    assert [tuple(w.shape) for w in head.get_weights()] == [(UNITS, 9), (UNITS,)]
    assert model.output_shape == (None, UNITS)
    assert head.compute_output_shape((None, 4, 9)) == (None, 4, UNITS)
    spec = head.compute_output_spec(keras.KerasTensor((3, 9), "float32"))
    assert spec.shape == (3, UNITS)
    assert spec.dtype == "float32"
    half = DSlideDense(5, dtype="mixed_bfloat16")
    assert half.compute_output_spec(keras.KerasTensor((3, 9))).dtype == "bfloat16"


def test_set_weights_refuses_wrong_shapes():
    layer = DSlideDense(5)
    layer.build((None, 3))
    with pytest.raises(ValueError, match=r"\(5, 3\)"):
        layer.set_weights([np.zeros((3, 5)), np.zeros(5)])
    with pytest.raises(ValueError, match="length 1"):
        layer.set_weights([np.zeros((5, 3))])


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "tanh", None])
@pytest.mark.parametrize("training", [False, True])
def test_activations_as_in_dense(activation, training, data):
    x, y = data
    model = wide_model(UNITS, DIM, activation=activation)
    layer = model.layers[0]
    close(layer(x, training=training), dense_twin(layer)(x))
    if activation in ("softmax", "sigmoid", None):
        logits = x @ layer.kernel.numpy().T + layer.bias.numpy()
        wanted = softmax_crossentropy(logits, targets([[i] for i in y], UNITS))[0].mean()
        close(SlideCrossentropy()(y, layer(x, training=training)), wanted)
    else:
        # Any other tensor counts as logits.
        logits = layer(x).numpy()
        wanted = softmax_crossentropy(logits, targets([[i] for i in y], UNITS))[0].mean()
        close(SlideCrossentropy()(y, layer(x, training=training)), wanted)


@pytest.mark.parametrize("from_logits", [True, pytest.param(False, marks=SLOW)])
def test_stock_losses_and_metrics_as_on_dense(from_logits, data):
    x, y = data
    activation = None if from_logits else "softmax"
    losses = []
    for twin in (False, True):
        keras.utils.set_random_seed(8)
        layer = DSlideDense(UNITS, sampler=LshSampler(active=10), activation=activation)
        layer.build((None, DIM))
        used = dense_twin(layer) if twin else layer
        model = keras.Sequential([keras.Input((DIM,)), used])
        model.compile(
            keras.optimizers.Adam(1e-2),
            keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits),
            metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(3), PrecisionAtK(1)],
        )
        history = model.fit(x, y, epochs=3, batch_size=BATCH, shuffle=False, verbose=0).history
        losses.append([*history.values(), model.evaluate(x, y, verbose=0)])
    for found, wanted in zip(*losses, strict=True):
        close(found, wanted)
    hot = multi_hot([[i] for i in y], UNITS)
    stock = keras.losses.CategoricalCrossentropy(from_logits=from_logits)
    close(stock(hot, model(x)), model.evaluate(x, y, verbose=0)[0])


def test_precision_equals_accuracy_while_training_with_a_stock_loss(data):
    """Weights move fast here: the metric must judge the outputs of the step, not later ones."""
    x, y = data
    model = wide_model(UNITS, DIM)
    model.compile(
        keras.optimizers.SGD(30.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", PrecisionAtK(1)],
    )
    history = model.fit(x, y, epochs=4, batch_size=BATCH, shuffle=False, verbose=0).history
    close(history["precision_at_1"], history["accuracy"])


@pytest.mark.usefixtures("eager_or_graph")
def test_inputs_of_rank_three(rng):
    x = rng.normal(size=(6, 4, DIM)).astype("float32")
    y = rng.integers(0, UNITS, (6, 4))
    model = keras.Sequential([keras.Input((None, DIM)), DSlideDense(UNITS, sampler=AllNeurons())])
    model.compile(SparseAdam(1e-2), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    twin = keras.Sequential([keras.Input((None, DIM)), dense_twin(model.layers[0])])
    twin.compile(
        SparseAdam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    for _ in range(3):
        close(model.train_on_batch(x, y), twin.train_on_batch(x, y))
    close(model.evaluate(x, y, verbose=0), twin.evaluate(x, y, verbose=0))
    predicted = model.predict(x, verbose=0)
    assert predicted.shape == (6, 4, UNITS)
    close(predicted, twin.predict(x, verbose=0))
    close(
        SlideCrossentropy(reduction=None)(y, model(x)),
        keras.losses.sparse_categorical_crossentropy(y, twin(x), from_logits=True),
    )


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("how", ["masking", "embedding"])
def test_masks_count_as_on_dense(how, rng):
    lengths = [4, 1, 3, 0, 2, 4]
    y = rng.integers(0, UNITS, (6, 4))
    if how == "masking":
        x = rng.normal(size=(6, 4, DIM)).astype("float32")
        for row, length in enumerate(lengths):
            x[row, length:] = 0
        front = [keras.Input((4, DIM)), keras.layers.Masking()]
    else:
        x = rng.integers(1, 20, (6, 4))
        for row, length in enumerate(lengths):
            x[row, length:] = 0
        embedding = keras.layers.Embedding(20, DIM, mask_zero=True)
        front = [keras.Input((4,), dtype="int32"), embedding]
    model = keras.Sequential([*front, DSlideDense(UNITS, sampler=AllNeurons())])
    model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    twin = keras.Sequential([*front, dense_twin(model.layers[-1])])
    twin.compile(
        SparseAdam(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    y[rng.random(y.shape) < 0.5] = model.predict(x, verbose=0).argmax(-1)[0, 0]
    found, wanted = model.evaluate(x, y, verbose=0), twin.evaluate(x, y, verbose=0)
    close(found[0], wanted[0])
    close(model.train_on_batch(x, y)[0], twin.train_on_batch(x, y)[0])
    close(found[1], wanted[1])
    weights = rng.random((6, 4)).astype("float32")
    close(
        model.evaluate(x, y, sample_weight=weights, verbose=0)[0],
        twin.evaluate(x, y, sample_weight=weights, verbose=0)[0],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "sparse", "sampler"),
    [
        ("mixed_float16", True, LshSampler(active=20)),
        ("mixed_bfloat16", True, AllNeurons()),
    ],
    ids=["half", "bfloat16_all"],
)
def test_mixed_precision(policy, sparse, sampler, data):
    x, y = data
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = build_model("sequential", sampler=sampler)
        model.compile(SparseAdam(2e-2), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
        fed = tf.sparse.from_dense(x) if sparse else x
        history = model.fit(fed, y, batch_size=BATCH, epochs=12, verbose=0).history
        assert history["loss"][-1] < 0.8 * history["loss"][0]
        assert all(w.dtype == "float32" for w in model.get_weights())
        w1, b1, w2, b2 = model.get_weights()
        logits = np.maximum(x @ w1 + b1, 0) @ w2.T + b2
        predicted = model.predict(fed, verbose=0)
        close(predicted, logits, relative=5e-2)
        wanted = softmax_crossentropy(logits, targets([[i] for i in y], UNITS))[0].mean()
        close(model.evaluate(fed, y, verbose=0)[0], wanted, relative=2e-2)
        hidden = model.layers[0](fed)
        _, labels = model.layers[1].top_k(hidden, k=1)
        assert labels.shape == (len(x), 1)
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("layer", [DSlideDense, SparseDense])
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_precisions_are_refused(layer, dtype):
    with pytest.raises(ValueError, match=f"float32.*{dtype}"):
        layer(4, dtype=dtype).build((None, 3))


@pytest.mark.usefixtures("eager_or_graph")
def test_regularizers_and_constraints_as_on_dense(data):
    x, y = data
    keras.utils.set_random_seed(1)
    # Constraints see the kernel as (units, d), those of Dense as (d, units).
    model = wide_model(
        UNITS,
        DIM,
        kernel_regularizer=keras.regularizers.L2(0.01),
        bias_regularizer="l1",
        activity_regularizer=keras.regularizers.L2(1e-4),
        kernel_constraint=keras.constraints.MaxNorm(0.5, axis=1),
        bias_constraint="non_neg",
    )
    layer = model.layers[0]
    twin = keras.layers.Dense(
        UNITS,
        kernel_regularizer=keras.regularizers.L2(0.01),
        bias_regularizer="l1",
        activity_regularizer=keras.regularizers.L2(1e-4),
        kernel_constraint=keras.constraints.MaxNorm(0.5, axis=0),
        bias_constraint="non_neg",
    )
    other = keras.Sequential([keras.Input((DIM,)), twin])
    twin.kernel.assign(layer.kernel.numpy().T)
    twin.bias.assign(layer.bias)
    model.compile(SparseAdam(0.05, epsilon=1e-7), SlideCrossentropy())
    other.compile(
        keras.optimizers.Adam(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for _ in range(5):
        close(model.train_on_batch(x, y), other.train_on_batch(x, y))
    close(layer.kernel.numpy(), twin.kernel.numpy().T)
    close(layer.bias.numpy(), twin.bias.numpy())
    assert np.linalg.norm(layer.kernel.numpy(), axis=1).max() <= 0.5 + 1e-5
    close(model.evaluate(x, y, verbose=0), other.evaluate(x, y, verbose=0))


@pytest.mark.parametrize(
    ("sampler", "optimizer"),
    [(LshSampler(active=20), "ours"), pytest.param(UniformSampler(20), "adam", marks=SLOW)],
    ids=["ours", "adam"],
)
def test_regularizers_and_constraints_with_hashing(sampler, optimizer, data):
    """The sum of a row-sparse and a dense gradient is dense, and right."""
    x, y = data
    optimizers = {
        "ours": SparseAdam(0.05),
        "adam": keras.optimizers.Adam(0.05),
    }
    model = wide_model(
        UNITS,
        DIM,
        sampler=sampler,
        kernel_regularizer=keras.regularizers.L2(0.1),
        kernel_constraint=keras.constraints.MaxNorm(0.6, axis=1),
    )
    model.compile(optimizers[optimizer], SlideCrossentropy())
    start = model.get_weights()[0]
    history = model.fit(x, y, epochs=5, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    kernel = model.get_weights()[0]
    assert np.linalg.norm(kernel, axis=1).max() <= 0.6 + 1e-5
    assert (kernel != start).any(axis=1).all()


@pytest.mark.slow
def test_sample_and_class_weights_as_on_dense(data, rng):
    x, y = data
    model = wide_model(UNITS, DIM)
    twin = keras.Sequential([keras.Input((DIM,)), dense_twin(model.layers[0])])
    model.compile(
        SparseAdam(0.0),
        SlideCrossentropy(),
        metrics=[PrecisionAtK(1)],
        weighted_metrics=[PrecisionAtK(1, name="weighted")],
    )
    twin.compile(
        SparseAdam(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
    )
    y = np.where(rng.random(len(y)) < 0.4, model.predict(x, verbose=0).argmax(1), y)
    weights = rng.random(len(x)).astype("float32")
    kwargs = {"sample_weight": weights, "verbose": 0, "batch_size": 7}
    close(model.evaluate(x, y, **kwargs), twin.evaluate(x, y, **kwargs))
    found = model.fit(x, y, shuffle=False, **kwargs).history
    wanted = twin.fit(x, y, shuffle=False, **kwargs).history
    close(found["loss"], wanted["loss"])
    close(found["weighted"], wanted["weighted"])
    close(model.train_on_batch(x, y, weights), twin.train_on_batch(x, y, weights))
    ours, stock = SlideCrossentropy(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    close(ours(y, model(x), weights[:, None]), stock(y, twin(x), weights[:, None]))
    class_weight = {i: float(i % 5) for i in range(UNITS)}
    kwargs = {"class_weight": class_weight, "verbose": 0, "shuffle": False, "batch_size": 7}
    close(model.fit(x, y, **kwargs).history["loss"], twin.fit(x, y, **kwargs).history["loss"])


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 4)], ids=str)
def test_sample_weights_of_sequences_as_on_dense(shape, rng):
    x = rng.normal(size=(6, 4, DIM)).astype("float32")
    model = keras.Sequential([keras.Input((4, DIM)), DSlideDense(UNITS, sampler=AllNeurons())])
    twin = keras.Sequential([keras.Input((4, DIM)), dense_twin(model.layers[0])])
    model.compile(
        SparseAdam(0.0), SlideCrossentropy(), weighted_metrics=[PrecisionAtK(1, name="weighted")]
    )
    twin.compile(
        SparseAdam(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="weighted")],
    )
    y = rng.integers(0, UNITS, (6, 4))
    best = model.predict(x, verbose=0).argmax(-1)
    y = np.where(rng.random(y.shape) < 0.5, best, y)
    weights = rng.random(shape).astype("float32")
    try:
        wanted = twin.evaluate(x, y, sample_weight=weights, verbose=0)
    except Exception:
        pytest.skip("Keras refuses these weights")
    close(model.evaluate(x, y, sample_weight=weights, verbose=0), wanted)


@pytest.mark.parametrize("reduction", ["sum", "mean", "mean_with_sample_weight", "none", None])
def test_reductions_as_in_keras(reduction, data, rng):
    x, y = data
    model = wide_model(UNITS, DIM)
    weights = rng.random(len(x)).astype("float32")
    ours = SlideCrossentropy(reduction=reduction)
    stock = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    for w in (None, weights):
        close(ours(y, model(x), w), stock(y, model(x), w))


def test_the_loss_works_on_any_logits(data):
    x, _ = data
    logits = np.random.default_rng(0).normal(size=(5, UNITS)).astype("float32")
    labels = [[1, 4], [0], [], [2, 2, 52], [7]]
    losses = SlideCrossentropy(reduction=None)(padded(labels), logits)
    close(losses, softmax_crossentropy(logits, targets(labels, UNITS))[0])
    variable = tf.Variable(logits)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(SlideCrossentropy(reduction=None)(padded(labels), variable * 1.0))
    _, wanted = softmax_crossentropy(logits, targets(labels, UNITS))
    close(tape.gradient(total, variable), wanted)


@pytest.mark.usefixtures("eager_or_graph")
def test_a_layer_after_the_logits_counts(data):
    """What changes the logits hides the lazy ones."""
    x, y = data
    inputs = keras.Input((DIM,))
    layer = DSlideDense(UNITS, sampler=LshSampler(active=5))
    model = keras.Model(inputs, 3.0 * layer(inputs))
    model.compile(SparseAdam(0.0), SlideCrossentropy())
    wanted = softmax_crossentropy(model.predict(x, verbose=0), targets([[i] for i in y], UNITS))
    close(model.evaluate(x, y, verbose=0), wanted[0].mean())
    close(model.train_on_batch(x, y), wanted[0].mean())


def test_sparse_tensors_into_the_wide_layer_as_into_dense(data):
    x, _ = data
    layer = wide_model(UNITS, DIM).layers[0]
    twin = dense_twin(layer)
    sparse = tf.sparse.from_dense(x)
    close(layer(sparse), twin(sparse))


@pytest.mark.slow
def test_callbacks(tmp_path, data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20))
    model.compile(SparseAdam(0.05), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    path = tmp_path / "best.keras"
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=0, min_delta=100.0),
        keras.callbacks.EarlyStopping(
            monitor="val_precision_at_1", mode="max", patience=2, restore_best_weights=True
        ),
        keras.callbacks.ModelCheckpoint(path, save_best_only=True, monitor="val_loss"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    ]
    history = model.fit(
        x, y, epochs=40, validation_data=(x, y), callbacks=callbacks, verbose=0
    ).history
    assert float(model.optimizer.learning_rate.numpy()) < 0.05
    best = max(history["val_precision_at_1"])
    close(model.evaluate(x, y, verbose=0)[1], best)
    loaded = keras.models.load_model(path)
    close(loaded.evaluate(x, y, verbose=0)[0], min(history["val_loss"]))
    assert "precision_at_1" in (tmp_path / "log.csv").read_text()


def test_explicit_xla_is_refused_or_works(data):
    x, y = data
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20))
    model.compile(SparseAdam(0.05), SlideCrossentropy(), jit_compile="auto")
    assert model.jit_compile is False
    model.train_on_batch(x, y)


def test_label_prior_starts_from_the_frequencies():
    counts = np.array([9, 0, 4, 200])
    layer = DSlideDense(4, bias_initializer=LabelPrior(counts, smoothing=0.5))
    layer.build((None, 3))
    shares = np.exp(layer.bias.numpy())
    close(shares / shares.sum(), (counts + 0.5) / (counts + 0.5).sum())
    close(layer.bias.numpy().max(), 0)
    for bad in ([[1, 2]], [1, -2], []):
        with pytest.raises(ValueError, match="label_counts"):
            LabelPrior(bad)((2,))
    for smoothing in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="smoothing"):
            LabelPrior(counts, smoothing=smoothing)
    with pytest.raises(ValueError, match=r"4 labels.*3"):
        DSlideDense(3, bias_initializer=LabelPrior(counts)).build((None, 2))


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("kind", ["nested", "wrapped"])
def test_models_in_models_stay_lazy(kind, data):
    """What returns its input as it is keeps the lazy logits; TimeDistributed works, densely."""
    x, y = data
    if kind == "nested":
        inner = keras.Sequential(
            [keras.Input((DIM,)), DSlideDense(UNITS, sampler=UniformSampler(5))]
        )
        model = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM), inner])
        assert model(x)._dslide is not None
    else:
        layer = DSlideDense(UNITS, sampler=AllNeurons())
        model = keras.Sequential([keras.Input((4, DIM)), keras.layers.TimeDistributed(layer)])
        x, y = np.tile(x[:, None], (1, 4, 1)), np.tile(y[:, None], (1, 4))
    model.compile(SparseAdam(0.01), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    history = model.fit(x, y, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    logits = model.predict(x, verbose=0).reshape(-1, UNITS)
    wanted = softmax_crossentropy(logits, targets([[i] for i in y.ravel()], UNITS))[0].mean()
    close(model.evaluate(x, y, verbose=0)[0], wanted)


@pytest.mark.slow
def test_a_dataset_of_unknown_batch_size(data):
    x, y = data
    model = build_model("sequential", sampler=LshSampler(active=20))
    model.compile(SparseAdam(0.05), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    assert dataset.element_spec[0].shape[0] is None
    history = model.fit(dataset, epochs=10, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert model.predict(dataset, verbose=0).shape == (len(x), UNITS)
    close(model.evaluate(dataset, verbose=0), model.evaluate(x, y, verbose=0))
