"""Swapping one line: a `Dense` model becomes ours, and each trap on the way says so."""

import inspect
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.keras_cases import softmax_crossentropy
from tf_dslide import (
    AllNeurons,
    DenseCostWarning,
    DSlideDense,
    DSlideHidden,
    DSlideLinear,
    LshSampler,
    SlideBinaryCrossentropy,
    SlideCrossentropy,
    SparseAdagrad,
    SparseAdam,
    SparseDense,
    UniformSampler,
    top_k_model,
)

UNITS, DIM, ROWS = 10_000, 8, 24
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, DIM)).astype("float32")
Y = RNG.integers(0, 300, ROWS)


class Subclassed(keras.Model):
    """A model whose `call` takes no `training`, as many have."""

    def __init__(self, last):
        super().__init__()
        self.last = last

    def call(self, x):
        return self.last(x)


def uniform(units=300):
    return DSlideDense(units, sampler=UniformSampler(20))


def linear():
    layer = DSlideLinear(300, active=5)
    layer.adapt((X > 0.5).astype("float32"), np.eye(300)[Y])
    return layer


def fitted(layer, loss, optimizer="sparse_adam", metrics=(), **options):
    """The warnings of dense cost that a fit gives."""
    model = keras.Sequential([keras.Input((DIM,)), layer])
    model.compile(optimizer, loss, metrics=list(metrics), **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    return [str(w.message) for w in caught if w.category is DenseCostWarning]


# ---- signatures


@pytest.mark.parametrize("layer", [DSlideDense, SparseDense, DSlideHidden, DSlideLinear])
def test_arguments_are_those_of_dense_in_its_order_and_ours_have_names(layer):
    parameters = list(inspect.signature(layer).parameters.values())
    assert not [p for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    theirs = [name for name in inspect.signature(keras.layers.Dense).parameters if name in first]
    assert first == theirs
    if layer is not DSlideLinear:  # whose kernel is not one that Dense has
        assert len(first) == 10
    named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert named >= {"name", "dtype", "trainable"}


def test_options_of_samplers_have_names():
    kinds = {p.kind for p in inspect.signature(LshSampler).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


# ---- never silently dense


@pytest.mark.parametrize(
    ("loss", "metrics", "options"),
    [
        ("sparse_categorical_crossentropy", [], {"activation": "softmax"}),
        ("slide_crossentropy", ["accuracy"], {}),
        ("slide_crossentropy", [], {"activation": "tanh"}),
        ("slide_crossentropy", [], {"activity_regularizer": "l2"}),
    ],
    ids=["stock loss", "stock metric", "other activation", "activity regularizer"],
)
def test_dense_cost_in_training_is_told_once(loss, metrics, options):
    (message,) = fitted(DSlideDense(UNITS, name="out", **options), loss, metrics=metrics)
    assert "all 10,000 logits of each row of out" in message
    assert "loss='slide_crossentropy'" in message
    assert "metrics=['precision_at_1']" in message


def test_a_linear_layer_tells_of_it_too():
    layer = DSlideLinear(UNITS, active=5)
    layer.adapt((X > 0.5).astype("float32"), np.eye(UNITS)[Y])
    (message,) = fitted(layer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert "all 10,000 logits" in message


@pytest.mark.parametrize(
    ("layer", "loss", "metrics"),
    [
        (lambda: DSlideDense(UNITS), "slide_crossentropy", ["precision_at_1", "ndcg_at_5"]),
        (lambda: DSlideDense(UNITS, "softmax"), "slide_crossentropy", ["precision_at_1"]),
        (lambda: DSlideDense(UNITS, "sigmoid"), "slide_binary_crossentropy", []),
        (lambda: DSlideDense(UNITS - 1, "softmax"), "sparse_categorical_crossentropy", []),
        (
            lambda: DSlideDense(UNITS, "softmax", sampler=AllNeurons()),
            "sparse_categorical_crossentropy",
            ["accuracy"],
        ),
    ],
    ids=["ours", "softmax", "sigmoid", "small", "all neurons"],
)
def test_no_word_where_nothing_is_dense_or_it_is_meant(layer, loss, metrics):
    assert fitted(layer(), loss, metrics=metrics) == []


def test_a_layer_behind_brings_dense_cost_and_says_so():
    model = keras.Sequential([keras.Input((DIM,)), DSlideDense(UNITS), keras.layers.Softmax()])
    model.compile("sparse_adam", "slide_crossentropy")
    with pytest.warns(DenseCostWarning, match="let this layer be the last"):
        model.fit(X, Y, verbose=0)


# ---- a model that does not hand `training` on


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("loss", [SlideCrossentropy, SlideBinaryCrossentropy])
@pytest.mark.parametrize("layer", [uniform, linear])
def test_a_model_without_the_argument_trains_sampled(layer, loss):
    """With the same start, data and draws it learns what a Sequential model does."""
    results = []
    for wrap in (Subclassed, lambda last: keras.Sequential([keras.Input((DIM,)), last])):
        keras.utils.set_random_seed(1)
        last = layer()
        model = wrap(last)
        optimizer = SparseAdagrad(0.1) if layer is linear else SparseAdam(0.1)
        model.compile(optimizer, loss())
        x = (X > 0.5).astype("float32")
        history = model.fit(x, Y, batch_size=8, epochs=2, verbose=0, shuffle=False).history
        results.append((history["loss"], last.get_weights(), model.evaluate(x, Y, verbose=0)))
        if layer is uniform:
            assert int(last._sampled_weights.step) == 6
    (loss_a, weights_a, exact_a), (loss_b, weights_b, exact_b) = results
    np.testing.assert_allclose(loss_a, loss_b, rtol=1e-5)
    for a, b in zip(weights_a, weights_b, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert exact_a == pytest.approx(exact_b, rel=1e-5)


@pytest.mark.parametrize("loss", [SlideCrossentropy, SlideBinaryCrossentropy])
@pytest.mark.parametrize("layer", [uniform, linear])
def test_a_gradient_outside_training_is_that_of_all_units(layer, loss):
    x = (X > 0.5).astype("float32")
    last = layer()
    last(x)
    with tf.GradientTape() as tape:
        value = loss()(Y, last(x, training=False))
    gradient = tf.convert_to_tensor(tape.gradient(value, last.trainable_weights[0]))
    logits = last(x, training=False).numpy().astype("float64")
    hot = np.eye(300)[Y]
    if loss is SlideCrossentropy:
        losses, slope = softmax_crossentropy(logits, hot)
    else:
        losses = (np.logaddexp(0, logits) - hot * logits).sum(axis=1)
        slope = 1 / (1 + np.exp(-logits)) - hot
    assert float(value) == pytest.approx(losses.mean(), rel=1e-5)
    by_kernel = slope.T @ x / ROWS
    if layer is linear:
        splits, neurons = last.splits.numpy(), last.neurons.numpy()
        features = np.repeat(np.arange(DIM), np.diff(splits))
        by_kernel = by_kernel[neurons, features]
    np.testing.assert_allclose(gradient, by_kernel, atol=1e-5)


# ---- names


def test_names_resolve_in_compile():
    model = keras.Sequential([keras.Input((DIM,)), uniform()])
    model.compile("sparse_adam", "slide_crossentropy", metrics=["precision_at_3", "ndcg_at_5"])
    history = model.fit(X, Y, verbose=0).history
    assert set(history) == {"loss", "precision_at_3", "ndcg_at_5"}
    assert isinstance(model.optimizer, SparseAdam)
    assert isinstance(keras.losses.get("slide_crossentropy"), SlideCrossentropy)
    assert isinstance(keras.losses.get("slide_binary_crossentropy"), SlideBinaryCrossentropy)
    assert isinstance(keras.optimizers.get("sparse_adagrad"), SparseAdagrad)


def test_a_model_compiled_with_names_is_saved_and_loaded(tmp_path):
    model = keras.Sequential([keras.Input((DIM,)), uniform()])
    model.compile("sparse_adam", "slide_crossentropy", metrics=["precision_at_1"])
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    assert again.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))


# ---- weights come and go


@pytest.mark.parametrize("kind", [DSlideDense, SparseDense])
@pytest.mark.parametrize("use_bias", [True, False])
def test_from_dense_and_back(kind, use_bias):
    dense = keras.layers.Dense(
        7, "relu" if kind is SparseDense else "softmax", use_bias, bias_initializer="ones"
    )
    expected = dense(X).numpy()
    ours = kind.from_dense(dense, name="ours")
    np.testing.assert_allclose(ours(X), expected, atol=1e-5)
    assert (ours.name, ours.activation) == ("ours", dense.activation)
    back = ours.to_dense()
    assert type(back) is keras.layers.Dense
    np.testing.assert_allclose(back(X), expected, atol=1e-5)
    for a, b in zip(back.get_weights(), dense.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_from_dense_takes_our_options_and_an_unbuilt_layer():
    ours = DSlideDense.from_dense(keras.layers.Dense(50), sampler="lsh")
    assert isinstance(ours.sampler, LshSampler)
    assert not ours.built
    assert not ours.to_dense().built


@pytest.mark.parametrize("wrong", [keras.layers.Conv1D(3, 2), "dense"])
def test_from_dense_refuses_another_layer(wrong):
    with pytest.raises(ValueError, match=r"must be a keras\.layers\.Dense"):
        DSlideDense.from_dense(wrong)


@pytest.mark.parametrize("ours", [DSlideDense, SparseDense])
def test_a_file_of_dense_says_what_to_do(ours, tmp_path):
    keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(9)]).save_weights(
        tmp_path / "dense.weights.h5"
    )
    model = keras.Sequential([keras.Input((DIM,)), ours(9)])
    with pytest.raises(ValueError, match=rf"{ours.__name__}\.from_dense\(layer\)"):
        model.load_weights(tmp_path / "dense.weights.h5")


# ---- answers


def best(logits, k, excluded):
    """Scores and labels of the best `k` of each row, by brute force."""
    scores = np.full((len(logits), k), -np.inf, "float32")
    labels = np.full((len(logits), k), -1)
    for row, left_out in enumerate(excluded):
        found = [i for i in np.argsort(-logits[row], kind="stable") if i not in set(left_out)][:k]
        labels[row, : len(found)] = found
        scores[row, : len(found)] = logits[row, found]
    return scores, labels


def check(found, expected):
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)


EXCLUDED = RNG.integers(-1, 12, (ROWS, 5))


@pytest.mark.parametrize(
    ("exclude", "rows"),
    [
        (None, [[]] * ROWS),
        (np.array([3, 1, 3]), [[3, 1]] * ROWS),
        (np.array([], "int64"), [[]] * ROWS),
        (EXCLUDED, EXCLUDED),
        (tf.ragged.constant([[0], [], *[[1, 2]] * (ROWS - 2)]), [[0], [], *[[1, 2]] * (ROWS - 2)]),
        (np.arange(12), [range(12)] * ROWS),
    ],
    ids=["nothing", "for all", "an empty list", "padded", "ragged", "everything"],
)
@pytest.mark.parametrize("k", [1, 4, 12])
def test_top_k_without_excluded_labels(exclude, rows, k):
    layer = DSlideDense(12)
    logits = layer(X).numpy()
    check(layer.top_k(X, k, exclude), best(logits, k, rows))


def test_top_k_of_a_linear_layer_without_excluded_labels():
    layer = linear()
    x = (X > 0.5).astype("float32")
    logits = layer(x).numpy()
    check(layer.top_k(x, 3, np.unique(Y)[:40]), best(logits, 3, [np.unique(Y)[:40]] * ROWS))


def test_top_k_of_rank_three():
    layer = DSlideDense(12)
    x = X.reshape(4, 6, DIM)
    logits = layer(x).numpy().reshape(ROWS, 12)
    scores, labels = layer.top_k(x, 3)
    assert scores.shape == labels.shape == (4, 6, 3)
    check(
        (scores.numpy().reshape(-1, 3), labels.numpy().reshape(-1, 3)), best(logits, 3, [[]] * ROWS)
    )
    scores, labels = layer.top_k(x, 3, EXCLUDED.reshape(4, 6, 5))
    check((scores.numpy().reshape(-1, 3), labels.numpy().reshape(-1, 3)), best(logits, 3, EXCLUDED))


@pytest.mark.parametrize(
    ("exclude", "error"),
    [
        (np.array([[1], [2]]), "same number of rows"),
        (np.array([99]), "99"),
        (np.zeros((2, 2, 2), int), "does not belong to outputs with 1 leading axes"),
        (np.array([0.5]), "Labels|integer"),
    ],
)
def test_bad_exclusions_are_clear_errors(exclude, error):
    layer = DSlideDense(12)
    layer(X)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=error):
        layer.top_k(X, 2, exclude)


def sequential(last):
    return keras.Sequential([keras.Input((DIM,)), last])


def functional(last):
    inputs = keras.Input((DIM,))
    return keras.Model(inputs, last(inputs))


def nested(last):
    inputs = keras.Input((DIM,))
    return keras.Model(inputs, sequential(last)(inputs))


@pytest.mark.parametrize(
    ("layer", "wrap"),
    [
        (uniform, functional),
        (uniform, Subclassed),
        (linear, sequential),
        *(
            pytest.param(layer, wrap, marks=pytest.mark.slow)
            for layer, wrap in [
                *((uniform, sequential), (uniform, nested)),
                *((linear, functional), (linear, nested), (linear, Subclassed)),
            ]
        ),
    ],
)
def test_a_whole_model_answers(wrap, layer):
    x = (X > 0.5).astype("float32")
    last = layer()
    model = wrap(last)
    logits = model.predict(x, verbose=0)
    check(top_k_model(model, 3).predict(x, verbose=0), best(logits, 3, [[]] * ROWS))
    for_all = top_k_model(model, 3, [5, 0, 5])
    check(for_all.predict(x, verbose=0), best(logits, 3, [[0, 5]] * ROWS))
    for_rows = top_k_model(model, 3, "input")
    check(for_rows.predict([x, EXCLUDED], verbose=0), best(logits, 3, EXCLUDED))


def test_a_whole_model_answers_by_hashing_too():
    model = sequential(DSlideDense(300, sampler=LshSampler(active=40)))
    scores, labels = top_k_model(model, 3, exact=False).predict(X, verbose=0)
    logits = model.predict(X, verbose=0)
    found = labels >= 0
    assert found.any()
    rows = np.arange(ROWS)[:, None].repeat(3, 1)[found]
    np.testing.assert_allclose(scores[found], logits[rows, labels[found]], rtol=1e-4)


def test_a_model_of_answers_is_saved_and_loaded(tmp_path):
    model = top_k_model(sequential(DSlideDense(300)), 3, [7])
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "answers.keras")
    check(keras.models.load_model(tmp_path / "answers.keras").predict(X, verbose=0), expected)


def test_a_model_that_ends_otherwise_is_refused():
    model = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(9)])
    with pytest.raises(ValueError, match="not that of a DSlideDense or DSlideLinear"):
        top_k_model(model, 3).predict(X, verbose=0)
