"""Labels of every accepted form give one loss; the others give one clear error."""

from collections.abc import Iterable

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras_cases import (
    Labels,
    close,
    multi_hot,
    padded,
    random_labels,
    softmax_crossentropy,
    targets,
    wide_model,
)

from tf_dslide import (
    AllNeurons,
    DSlideDense,
    LshSampler,
    PrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
)
from tf_dslide.labels import to_csr

UNITS, DIM, ROWS = 23, 5, 18
RNG = np.random.default_rng(8)
MULTI = random_labels(RNG, ROWS, UNITS, most=4)
MULTI[3] = []
MULTI[5] = [0, UNITS - 1]
SINGLE = RNG.integers(0, UNITS, ROWS)


def with_explicit_zeros(labels: Labels, dtype: str) -> tf.SparseTensor:
    """Multi-hot with a zero in every row beside its labels."""
    entries = []
    for row, ids in enumerate(labels):
        absent = min(set(range(UNITS)) - set(ids))
        entries += [(row, i, int(i != absent)) for i in sorted([*ids, absent])]
    rows, columns, values = zip(*entries, strict=True)
    return tf.SparseTensor(
        np.stack([rows, columns], 1).astype("int64"),
        np.array(values).astype(dtype),
        (len(labels), UNITS),
    )


def unordered_csr(labels: Labels) -> scipy.sparse.csr_matrix:
    """Descending ids in each row."""
    ids = [sorted(row, reverse=True) for row in labels]
    splits = np.cumsum([0, *map(len, ids)])
    flat = np.concatenate(ids).astype(int)
    return scipy.sparse.csr_matrix((np.ones(len(flat), "float32"), flat, splits), (len(ids), UNITS))


HOT = multi_hot(MULTI, UNITS)

MULTI_FORMS = {
    "padded_int64": padded(MULTI),
    "padded_int32": padded(MULTI, 6, "int32"),
    "padded_int16": padded(MULTI, 6, "int16"),
    "padded_repeated": np.concatenate([padded(MULTI), padded(MULTI)], axis=1),
    "padded_tensor": tf.constant(padded(MULTI)),
    "ragged_int64": tf.ragged.constant(MULTI, dtype=tf.int64),
    "ragged_int32": tf.ragged.constant(MULTI, dtype=tf.int32),
    "ragged_uint8": tf.ragged.constant(MULTI, dtype=tf.uint8),
    "ragged_splits32": tf.ragged.constant(MULTI, dtype=tf.int64, row_splits_dtype=tf.int32),
    "sparse_float": with_explicit_zeros(MULTI, "float32"),
    "sparse_int": with_explicit_zeros(MULTI, "int64"),
    "sparse_bool": with_explicit_zeros(MULTI, "bool"),
    "csr_float": scipy.sparse.csr_matrix(HOT),
    "csr_float64": scipy.sparse.csr_matrix(HOT.astype("float64")),
    "csr_int": scipy.sparse.csr_matrix(HOT.astype("int32")),
    "csr_bool": scipy.sparse.csr_matrix(HOT.astype(bool)),
    "csr_unordered": unordered_csr(MULTI),
    "csr_array": scipy.sparse.csr_array(HOT),
    "coo": scipy.sparse.coo_matrix(HOT),
    "hot_float32": HOT,
    "hot_float64": HOT.astype("float64"),
    "hot_weighted": HOT * 7.5,
    "hot_bool": HOT.astype(bool),
}

SINGLE_FORMS = {
    "ids_int64": SINGLE,
    "ids_int32": SINGLE.astype("int32"),
    "ids_uint8": SINGLE.astype("uint8"),
    "ids_int8": SINGLE.astype("int8"),
    "ids_uint32": SINGLE.astype("uint32"),
    "ids_float": SINGLE.astype("float32"),
    "ids_tensor": tf.constant(SINGLE),
    "column_int64": SINGLE[:, None],
    "column_uint8": SINGLE[:, None].astype("uint8"),
    "column_float": SINGLE[:, None].astype("float32"),
}


@pytest.fixture
def model():
    keras.utils.set_random_seed(4)
    model = wide_model(UNITS, DIM)
    model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=[PrecisionAtK(2)])
    return model


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")


def expected(layer, x, labels):
    logits = x @ layer.kernel.numpy().T.astype("float64") + layer.bias.numpy()
    losses = softmax_crossentropy(logits, targets(labels, UNITS))[0]
    best = np.argsort(-logits, axis=1)[:, :2]
    hits = [len(set(row.tolist()) & set(ids)) for row, ids in zip(best, labels, strict=True)]
    return losses, np.mean(hits) / 2


def many_outputs(shape: tuple[int | None, ...], names: Iterable[str]) -> keras.Model:
    """One output for each name, all with the same weights, so that one graph serves all forms."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input(shape)
    settings = {"sampler": AllNeurons(), "bias_initializer": "random_normal"}
    layers = [DSlideDense(UNITS, name=name, **settings) for name in names]
    model = keras.Model(inputs, [layer(inputs) for layer in layers])
    for layer in layers:
        layer.set_weights(layers[0].get_weights())
    model.compile(
        SparseAdam(0.0),
        [SlideCrossentropy() for _ in names],
        metrics=[[PrecisionAtK(2)] for _ in names],
    )
    return model


# All forms are given to the loss directly below; Keras' own handling differs by type and width.
EVALUATED = (
    *("padded_int32", "ragged_int64", "sparse_int", "csr_bool", "csr_unordered", "coo"),
    *("hot_bool", "ids_int64", "ids_uint8", "column_float", "column_uint8"),
)
TRAINED = ("padded_int32", "ragged_int64", "csr_bool", "column_uint8")


@pytest.mark.parametrize("kind", [pytest.param("multi", marks=pytest.mark.slow), "single"])
def test_every_form_gives_the_same_through_evaluate_and_fit(kind, x):
    forms = MULTI_FORMS if kind == "multi" else SINGLE_FORMS
    forms = {name: y for name, y in forms.items() if name in EVALUATED}
    labels = MULTI if kind == "multi" else [[int(i)] for i in SINGLE]
    # Keras averages the losses of single outputs over batches, whatever the batches' sizes.
    kwargs = {"batch_size": ROWS // 3, "verbose": 0}
    model = many_outputs((DIM,), forms)
    losses, precision = expected(model.layers[1], x, labels)
    found = model.evaluate(x, list(forms.values()), return_dict=True, **kwargs)
    # The learning rate is 0, so that training reports the same. A graph for each would take long.
    trained = {name: y for name, y in forms.items() if name in TRAINED}
    model = many_outputs((DIM,), trained)
    history = model.fit(x, [*trained.values()] if kind == "multi" else y_of(trained), **kwargs)
    for name in forms:
        close(found[f"{name}_loss"], losses.mean())
        close(found[f"{name}_precision_at_2"], precision)
    for name in trained if kind == "multi" else []:
        close(history.history[f"{name}_loss"], [losses.mean()])
        close(history.history[f"{name}_precision_at_2"], [precision])
    close(history.history["loss"], [losses.mean() * len(trained)])


def y_of(forms: dict[str, object]) -> object:
    """The only form; a model with one output takes no list."""
    (y,) = forms.values()
    return y


@pytest.mark.parametrize(
    "name", ["ragged_int64", pytest.param("csr_float", marks=pytest.mark.slow)]
)
def test_shuffled_and_validated(name, model, x):
    y = MULTI_FORMS[name]
    losses, precision = expected(model.layers[0], x, MULTI)
    history = model.fit(x, y, batch_size=7, epochs=2, validation_data=(x, y), verbose=0).history
    close(history["loss"], [losses.mean()] * 2)
    close(history["val_loss"], [losses.mean()] * 2)
    close(history["val_precision_at_2"], [precision] * 2)


def test_one_model_takes_integer_labels_of_different_shapes_in_turn(model, x):
    """Keras relaxes the shapes of its graph, even to an unknown rank, when other labels come."""
    ids = SINGLE_FORMS["ids_int64"]
    losses, precision = expected(model.layers[0], x, [[int(i)] for i in ids])
    for y in (ids, ids[:, None], padded([[int(i)] for i in ids], 3), ids):
        close(model.test_on_batch(x, y), [losses.mean(), precision])


@pytest.mark.parametrize("name", ["ragged_int64", "sparse_float", "padded_int64"])
def test_datasets(name, model, x):
    y = MULTI_FORMS[name]
    losses, precision = expected(model.layers[0], x, MULTI)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    close(model.evaluate(dataset, verbose=0), [losses.mean(), precision])


@pytest.mark.parametrize("name", [*MULTI_FORMS, *SINGLE_FORMS])
def test_called_directly(name, model, x):
    y = {**MULTI_FORMS, **SINGLE_FORMS}[name]
    if scipy.sparse.issparse(y):
        pytest.skip("SciPy matrices come through fit")
    labels = MULTI if name in MULTI_FORMS else [[int(i)] for i in SINGLE]
    losses, _ = expected(model.layers[0], x, labels)
    for logits in (model(x), model(x).numpy()):
        close(SlideCrossentropy(reduction=None)(y, logits), losses)


def test_python_lists(model, x):
    losses, _ = expected(model.layers[0], x, [[int(i)] for i in SINGLE])
    close(SlideCrossentropy(reduction=None)(SINGLE.tolist(), model(x)), losses)


@pytest.mark.parametrize(
    "form", ["csr", pytest.param("unordered", marks=pytest.mark.slow), "coo", "float64", "int"]
)
def test_scipy_features_through_fit_and_predict(form):
    rng = np.random.default_rng(3)
    dense = rng.normal(size=(ROWS, 40)) * (rng.random((ROWS, 40)) < 0.2)
    dense[2] = 0
    dense = np.round(5 * dense).astype("float32") if form == "int" else dense.astype("float32")
    x = scipy.sparse.csr_matrix(dense)
    if form == "unordered":
        for row in range(ROWS):
            part = slice(x.indptr[row], x.indptr[row + 1])
            x.indices[part] = x.indices[part][::-1]
            x.data[part] = x.data[part][::-1]
        x.has_sorted_indices = False
    x = {
        "coo": x.tocoo(),
        "float64": x.astype("float64"),
        "int": x.astype("int64"),
    }.get(form, x)
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((40,), sparse=True),
            SparseDense(6, activation="relu"),
            DSlideDense(UNITS, sampler=AllNeurons()),
        ]
    )
    model.compile(SparseAdam(0.0), SlideCrossentropy())
    w1, b1, w2, b2 = model.get_weights()
    logits = np.maximum(dense @ w1 + b1, 0) @ w2.T + b2
    close(model.predict(x, batch_size=7, verbose=0), logits)
    if form not in ("csr", "unordered"):
        return
    wanted = softmax_crossentropy(logits, targets(MULTI, UNITS))[0].mean()
    y = scipy.sparse.csr_matrix(HOT)
    close(model.evaluate(x, y, batch_size=7, verbose=0), wanted)
    close(model.fit(x, y, batch_size=7, verbose=0).history["loss"][0], wanted)


TIMES = [[SINGLE[:6].tolist()], [SINGLE[6:12].tolist()], [SINGLE[12:].tolist()]]
SETS = [MULTI[:6], MULTI[6:12], MULTI[12:]]
SEQUENCE_FORMS = {
    "ids": SINGLE.reshape(3, 6),
    "ids_uint8": SINGLE.reshape(3, 6).astype("uint8"),
    "column": SINGLE.reshape(3, 6, 1),
    "padded": padded(MULTI, 7).reshape(3, 6, 7),
    "hot_float": HOT.reshape(3, 6, UNITS),
    "hot_bool": HOT.reshape(3, 6, UNITS).astype(bool),
    "ragged": tf.ragged.constant(SETS, dtype=tf.int64),
    "ragged_uniform": tf.RaggedTensor.from_uniform_row_length(
        tf.ragged.constant(MULTI, dtype=tf.int64), 6
    ),
}


@pytest.mark.parametrize("kind", [pytest.param("multi", marks=pytest.mark.slow), "single"])
def test_outputs_of_rank_three(kind):
    single = {"ids", "ids_uint8", "column"}
    forms = {k: y for k, y in SEQUENCE_FORMS.items() if (k in single) == (kind == "single")}
    labels = [[int(i)] for i in SINGLE] if kind == "single" else MULTI
    x = np.random.default_rng(1).normal(size=(3, 6, DIM)).astype("float32")
    in_graph = {name: forms[name] for name in ("column", "padded", "ragged") if name in forms}
    model = many_outputs((6, DIM), in_graph)
    losses, precision = expected(model.layers[1], x.reshape(ROWS, DIM), labels)
    kwargs = {"batch_size": 1, "verbose": 0}
    fed = y_of(in_graph) if len(in_graph) == 1 else [*in_graph.values()]
    found = model.evaluate(x, fed, return_dict=True, **kwargs)
    close(found["loss"], losses.mean() * len(in_graph))
    close(model.fit(x, fed, **kwargs).history["loss"], [losses.mean() * len(in_graph)])
    for y in forms.values():
        logits = model.layers[1](x)
        close(SlideCrossentropy(reduction=None)(y, logits), losses.reshape(3, 6))
        metric = PrecisionAtK(2)
        metric.update_state(y, logits)
        close(metric.result(), precision)


def test_sequences_of_unequal_length_as_ragged_ids_name_the_mismatch():
    """(batch, time) ids as a ragged tensor do not fit (batch, time, units) logits."""
    layer = DSlideDense(UNITS)
    y = tf.ragged.constant([[1, 2, 3], [4]])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="[Ll]abels"):
        SlideCrossentropy()(y, layer(np.ones((2, 3, DIM), "float32")))


def test_one_unit_and_one_row():
    layer = DSlideDense(1)
    x = np.ones((2, DIM), "float32")
    for y in ([0, 0], [[0], [0]], [[0], [-1]], [[1.0], [0.0]], [[0, -1], [-1, -1]]):
        losses = SlideCrossentropy(reduction=None)(np.array(y), layer(x, training=True))
        close(losses, [0, 0])


def test_csr_keeps_order_and_drops_repeats():
    csr = to_csr(np.array([[4, 1, 4, -1], [-1, -1, -1, -1], [-1, 0, 3, 0]]), 5)
    assert csr.row_splits.numpy().tolist() == [0, 2, 2, 4]
    assert csr.ids.numpy().tolist() == [1, 4, 0, 3]


REFUSED = {
    "too_large": (np.array([1, UNITS, 2]), ["row 1", str(UNITS)]),
    "too_large_in_padded": (np.array([[1, -1], [2, 3], [-1, 99]]), ["row 2", "99"]),
    "negative": (np.array([1, 2, -3]), ["row 2", "-3"]),
    "minus_two_in_padded": (np.array([[1, -1], [-2, 3], [0, 1]]), ["row 1", "-2"]),
    "too_large_in_ragged": (tf.ragged.constant([[1], [], [4, 2**40]], dtype=tf.int64), ["row 2"]),
    "sparse_of_another_width": (
        tf.SparseTensor([[0, 30]], [1.0], (3, 31)),
        [str(UNITS), "31"],
    ),
    "hot_of_another_width": (np.ones((3, UNITS + 1), "float32"), [str(UNITS), str(UNITS + 1)]),
    "float_lists": (np.array([[1.0, 2.0], [0, 0], [3, 4]]), ["float", "ids"]),
    "ragged_of_floats": (tf.ragged.constant([[1.0], [], [2.0]]), ["float", "integer"]),
    "integer_hot": (HOT[:3].astype("int64"), ["RaggedTensor", str(UNITS)]),
    "fraction": (np.array([1.5, 2, 3], "float32"), ["whole"]),
    "nan": (np.array([np.nan, 2, 3], "float32"), ["whole"]),
    "strings": (np.array(["a", "b", "c"]), ["string"]),
    "too_many_rows": (np.array([1, 2, 3, 4]), ["rows"]),
    "too_few_rows": (padded([[1], [2]]), ["rows"]),
    "rank_three": (np.zeros((3, 2, 2), "int64"), ["(3, 2, 2)"]),
    "scalar": (np.array(3), ["()"]),
    "complex": (np.array([1j, 2, 3]), ["complex"]),
    "ragged_of_rank_three": (tf.ragged.constant([[[1]], [[2], [3]], [[]]]), ["agged"]),
    "sparse_of_rank_three": (
        tf.SparseTensor(np.zeros((1, 3), "int64"), [1.0], (3, 2, UNITS)),
        [str(UNITS)],
    ),
}


@pytest.mark.parametrize("dense_logits", [False, True], ids=["lazy", "dense"])
@pytest.mark.parametrize("name", REFUSED)
def test_other_labels_give_one_clear_error(name, dense_logits):
    y, words = REFUSED[name]
    layer = DSlideDense(UNITS, sampler=LshSampler(active=5))
    x = np.ones((3, DIM), "float32")
    layer.build(x.shape)

    def loss():
        logits = layer(x, training=True)
        return SlideCrossentropy()(y, tf.identity(logits) if dense_logits else logits)

    errors = (ValueError, TypeError, tf.errors.InvalidArgumentError)
    for run in (loss, tf.function(loss)):
        with pytest.raises(errors) as caught:
            run()
        message = str(caught.value)
        for word in words:
            assert word.lower() in message.lower(), message


def test_a_bad_label_inside_fit_names_row_and_label_and_loses_nothing(x):
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=5))
    model.compile(SparseAdam(0.1), SlideCrossentropy())
    model.fit(x, SINGLE, verbose=0)
    weights = model.get_weights()
    bad = SINGLE.copy()
    bad[4] = 77
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)row 4.*77|77.*row 4"):
        model.fit(x, bad, batch_size=ROWS, shuffle=False, verbose=0)
    for found, wanted in zip(model.get_weights(), weights, strict=True):
        assert (found == wanted).all()
    model.fit(x, SINGLE, verbose=0)


def test_metrics_refuse_the_same_labels():
    logits = np.zeros((3, UNITS), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match="row 1"):
        PrecisionAtK(1).update_state(np.array([1, UNITS, 2]), logits)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="rows"):
        PrecisionAtK(1).update_state(np.array([1, 2]), logits)
