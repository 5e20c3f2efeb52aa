"""Ranking metrics against NumPy and scikit-learn, alone and inside fit."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import Labels, close, multi_hot, random_labels, wide_model
from keras_cases import padded as padded_to
from sklearn.metrics import ndcg_score

from tf_dslide import (
    LshSampler,
    NDCGAtK,
    PrecisionAtK,
    PropensityScoredPrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    UniformSampler,
    propensities,
)

UNITS, DIM, ROWS = 31, 6, 20
COUNTS = np.random.default_rng(0).zipf(1.5, UNITS) % 500


def padded(labels: Labels) -> np.ndarray:
    """Integer labels as wide as the units could be a multi-hot matrix, so these are wider."""
    return padded_to(labels, UNITS + 1)


def best(scores: np.ndarray, k: int) -> np.ndarray:
    """The `k` best of each row, the lower id first among equals."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def precision(scores, labels, k):
    rows = zip(best(scores, k), labels, strict=True)
    return np.array([len(set(top.tolist()) & set(ids)) / k for top, ids in rows])


def ndcg(scores, labels, k):
    gains = 1 / np.log2(np.arange(2, k + 2))
    out = []
    for top, ids in zip(best(scores, k), labels, strict=True):
        got = sum(gains[place] for place, i in enumerate(top) if i in ids)
        ideal = gains[: len(set(ids))].sum()
        out.append(got / ideal if ids else 0.0)
    return np.array(out)


def propensity_parts(scores, labels, k, gain):
    """What PSP@k divides: the hits' gains, and the largest possible."""
    got, ideal = [], []
    for top, ids in zip(best(scores, k), labels, strict=True):
        got.append(sum(gain[i] for i in top if i in ids))
        ideal.append(sum(sorted((gain[i] for i in set(ids)), reverse=True)[:k]))
    return np.array(got), np.array(ideal)


def jain(counts, num_samples, a=0.55, b=1.5):
    """The formula of Jain et al., as `xclib` has it: 1 / p for each label."""
    c = (np.log(num_samples) - 1) * (b + 1) ** a
    return 1 + c * (np.asarray(counts, "float64") + b) ** -a


@pytest.fixture
def case():
    rng = np.random.default_rng(6)
    scores = rng.normal(size=(ROWS, UNITS)).astype("float32")
    labels = random_labels(rng, ROWS, UNITS, most=6)
    labels[0], labels[1] = [], list(range(UNITS))
    # Make hits likely.
    for row, ids in enumerate(labels):
        scores[row, ids[:3]] += 2
    return scores, labels, rng.random(ROWS).astype("float32")


def make(k):
    return [
        PrecisionAtK(k),
        NDCGAtK(k),
        PropensityScoredPrecisionAtK(k, label_counts=COUNTS, num_samples=9000),
    ]


def references(scores, labels, k, weights):
    got, ideal = propensity_parts(scores, labels, k, jain(COUNTS, 9000))
    return [
        np.average(precision(scores, labels, k), weights=weights),
        np.average(ndcg(scores, labels, k), weights=weights),
        (got * weights).sum() / (ideal * weights).sum(),
    ]


@pytest.mark.parametrize("k", [1, 3, 5, 10, UNITS])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_numpy_over_batches_and_after_reset(k, weighted, case):
    scores, labels, weights = case
    weights = weights if weighted else np.ones(ROWS, "float32")
    for metric, wanted in zip(make(k), references(scores, labels, k, weights), strict=True):
        for _ in range(2):
            metric.reset_state()
            assert float(metric.result()) == 0.0
            for part in (slice(0, 7), slice(7, 7), slice(7, ROWS)):
                metric.update_state(
                    padded(labels[part]), scores[part], weights[part] if weighted else None
                )
            close(metric.result(), wanted)


@pytest.mark.parametrize("k", [1, 2, 5, UNITS])
def test_ndcg_equals_scikit_learn(k, case):
    scores, labels, _ = case
    for row in range(1, ROWS):
        if labels[row]:
            metric = NDCGAtK(k)
            metric.update_state(padded(labels[row : row + 1]), scores[row : row + 1])
            hot = multi_hot(labels[row : row + 1], UNITS)
            close(metric.result(), ndcg_score(hot, scores[row : row + 1], k=k))


def test_more_places_than_units():
    """Places that do not exist are misses; the ideal has no more places than labels."""
    scores = np.array([[0.1, 0.9], [0.8, 0.2]], "float32")
    y = np.array([[1, -1, -1], [0, 1, -1]])
    for metric, wanted in (
        (PrecisionAtK(5), (1 + 2) / 2 / 5),
        (NDCGAtK(5), 1.0),
        (PropensityScoredPrecisionAtK(5, label_counts=[3, 4], num_samples=7), 1.0),
    ):
        metric.update_state(y, scores)
        close(metric.result(), wanted)


def test_equal_scores_take_the_lower_id():
    metric = PrecisionAtK(2)
    metric.update_state(np.array([[0, 1], [2, 3]]), np.zeros((2, 4), "float32"))
    close(metric.result(), 0.5)


def test_rows_without_labels_and_no_rows_at_all():
    for metric in make(2):
        metric.update_state(np.full((3, 1), -1), np.zeros((3, UNITS), "float32"))
        assert float(metric.result()) == 0.0
        metric.update_state(np.zeros((0, 1), "int64"), np.zeros((0, UNITS), "float32"))
        assert float(metric.result()) == 0.0


@pytest.mark.parametrize(("a", "b"), [(0.55, 1.5), (0.6, 2.6), (0.5, 0.4)])
def test_propensities_are_those_of_jain(a, b):
    close(1 / propensities(COUNTS, 12_345, a, b), jain(COUNTS, 12_345, a, b), relative=1e-12)
    values = propensities(np.sort(COUNTS), 12_345, a, b)
    assert (np.diff(values) >= 0).all()
    assert (values > 0).all()
    assert (values <= 1).all()
    assert (propensities(COUNTS, 2, a, b) <= 1).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([1, -2], 10), "-2"),
        (([[1, 2]], 10), r"\(1, 2\)"),
        (([], 10), "label_counts"),
        (([1, 2], 0), "num_samples.*0"),
        (([1, float("nan")], 10), "nan"),
    ],
    ids=["negative", "matrix", "empty", "no_samples", "nan"],
)
def test_propensities_refuse(arguments, words):
    with pytest.raises(ValueError, match=words):
        propensities(*arguments)


def test_psp_with_equal_propensities_is_precision_over_the_best_possible(case):
    scores, labels, _ = case
    metric = PropensityScoredPrecisionAtK(3, label_counts=np.full(UNITS, 9), num_samples=99)
    metric.update_state(padded(labels), scores)
    hits = precision(scores, labels, 3).sum() * 3
    close(metric.result(), hits / sum(min(3, len(ids)) for ids in labels))


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", None])
def test_k_must_be_positive(k):
    for kind in (PrecisionAtK, NDCGAtK):
        with pytest.raises(ValueError, match="`k`"):
            kind(k)


def test_psp_refuses_other_numbers_of_labels(case):
    scores, labels, _ = case
    metric = PropensityScoredPrecisionAtK(1, label_counts=[1, 2, 3], num_samples=6)
    with pytest.raises(ValueError, match=f"3.*{UNITS}"):
        metric.update_state(padded(labels), scores)
    with pytest.raises(ValueError, match="label_counts"):
        PropensityScoredPrecisionAtK(1)


def test_names_and_dtypes(case):
    scores, labels, _ = case
    assert [m.name for m in make(3)] == ["precision_at_3", "ndcg_at_3", "psp_at_3"]
    assert PrecisionAtK(2, name="mine").name == "mine"
    metric = PrecisionAtK(3, dtype="float64")
    metric.update_state(padded(labels), scores.astype("float64"))
    close(metric.result(), precision(scores, labels, 3).mean())
    half = PrecisionAtK(3)
    half.update_state(padded(labels), tf.cast(scores.round(1), tf.bfloat16))
    assert 0 < float(half.result()) <= 1


@pytest.mark.parametrize(
    "graph", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "graph"]
)
def test_on_dslide_dense_in_inference_they_judge_all_units(graph, case):
    _, labels, weights = case
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=4))
    for k in (5,) if graph else (1, 5, UNITS):
        metrics = make(k)

        def update(metrics=metrics):
            logits = model(x, training=False)
            for metric in metrics:
                metric.update_state(padded(labels), logits, weights)

        (tf.function(update) if graph else update)()
        wanted = references(model.predict(x, verbose=0), labels, k, weights)
        close([m.result() for m in metrics], wanted)


def test_under_fit_they_judge_the_active_set(case):
    """Only the labels and few others are active: nearly every label is among the best."""
    _, labels, _ = case
    labels = [ids[:2] if ids else [3] for ids in labels]
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    model = wide_model(UNITS, DIM, sampler=UniformSampler(1, batch_labels=False))
    model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=make(3))
    y = padded(labels)
    trained = model.train_on_batch(x, y, return_dict=True)
    # The active set is at most the two labels and one more, all of which are among the best three.
    wanted = np.mean([len(ids) / 3 for ids in labels])
    close(trained["precision_at_3"], wanted)
    close(trained["psp_at_3"], 1.0)
    exact = model.test_on_batch(x, y, return_dict=True)
    assert exact["precision_at_3"] < trained["precision_at_3"]
    references_of = references(model.predict(x, verbose=0), labels, 3, np.ones(ROWS))
    close([exact[m] for m in ("precision_at_3", "ndcg_at_3", "psp_at_3")], references_of)


@pytest.mark.slow
def test_the_offsets_of_a_sampler_do_not_change_the_ranking(case):
    """Training metrics rank true logits, not those corrected for sampling."""
    _, labels, _ = case
    labels = [ids[:1] or [0] for ids in labels]
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    # Every neuron is drawn, so the training metric must equal the exact one.
    for sampler in (
        UniformSampler(UNITS, subtract_log_q=True),
        LshSampler(active=UNITS, random=1.0, head=0.0),
        LshSampler(active=UNITS, random=0.6, head=0.4),
    ):
        model = wide_model(UNITS, DIM, sampler=sampler)
        model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=make(3))
        trained = model.train_on_batch(x, padded(labels))
        close(trained, model.test_on_batch(x, padded(labels)))


@pytest.mark.slow
def test_metrics_of_one_model_share_one_search_and_agree(case):
    _, labels, _ = case
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    model = wide_model(UNITS, DIM)
    metrics = [PrecisionAtK(k) for k in (1, 20, 5, 3, UNITS, 50)]
    model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=metrics)
    scores = model.predict(x, verbose=0)
    wanted = [precision(scores, labels, k).mean() for k in (1, 20, 5, 3, UNITS)]
    wanted.append(wanted[-1] * UNITS / 50)
    close(model.test_on_batch(x, padded(labels))[1:], wanted)
    close(model.train_on_batch(x, padded(labels))[1:], wanted)


def test_history_is_reset_between_epochs(case):
    _, labels, _ = case
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    model = wide_model(UNITS, DIM)
    model.compile(SparseAdam(0.0), SlideCrossentropy(), metrics=make(3))
    history = model.fit(x, padded(labels), epochs=3, batch_size=6, verbose=0).history
    for name in ("loss", "precision_at_3", "ndcg_at_3", "psp_at_3"):
        close(history[name], [history[name][0]] * 3)


@pytest.mark.slow
def test_stock_layers_take_the_metrics(case):
    _, labels, _ = case
    x = np.random.default_rng(1).normal(size=(ROWS, DIM)).astype("float32")
    model = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(UNITS)])
    model.compile("sgd", SlideCrossentropy(), metrics=make(3))
    wanted = references(model.predict(x, verbose=0), labels, 3, np.ones(ROWS))
    close(model.evaluate(x, padded(labels), batch_size=7, verbose=0)[1:], wanted)
    model.fit(x, padded(labels), verbose=0)
