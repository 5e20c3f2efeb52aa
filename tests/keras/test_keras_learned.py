"""Projections that are trained find more of the best neurons; tables wait for codes to drift."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import run_python, wide_model

from tf_dslide import (
    DSlideDense,
    LearnedHash,
    LshSampler,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
)
from tf_dslide._native.ops import Csr

UNITS, DIM, ROWS, TABLES, BITS = 1500, 24, 128, 20, 5


def skewed(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights that share a direction, biases, and hidden vectors as behind a ReLU."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(DIM, DIM)) * np.linspace(1.5, 0.2, DIM)[:, None]
    kernel = rng.normal(size=(UNITS, DIM)) @ mixing + 3 * rng.normal(size=DIM)
    x = np.maximum(rng.normal(size=(4 * ROWS, DIM)) @ mixing + 0.5, 0)
    return (a.astype("float32") for a in (kernel, rng.normal(size=UNITS), x))


def layer_of(sampler: LshSampler, kernel: np.ndarray, bias: np.ndarray) -> DSlideDense:
    layer = DSlideDense(len(kernel), sampler=sampler)
    layer.build((None, kernel.shape[1]))
    layer.kernel.assign(kernel)
    layer.bias.assign(bias)
    return layer


def select(layer: DSlideDense, x: np.ndarray, step: int, labels: bool = True) -> Csr:
    """The neurons that hashing gives for rows without labels, in training or to predict."""
    nothing = Csr(tf.zeros([len(x) + 1], tf.int64), tf.zeros([0], tf.int32))
    sampled = layer._sampled_weights
    selection = sampled.selector.select(
        tf.constant(x),
        nothing if labels else None,
        sampled.kernel,
        sampled.bias,
        tf.constant(step, tf.int64),
    )
    return selection.active.own


def recall(layer: DSlideDense, x: np.ndarray, step: int, best: int = 30) -> float:
    """Share of the neurons of the highest logits, by brute force, among those selected."""
    logits = x.astype("float64") @ layer.kernel.numpy().T + layer.bias.numpy()
    wanted = np.argsort(-logits, axis=1)[:, :best]
    own = select(layer, x, step)
    splits, ids = own.row_splits.numpy(), own.ids.numpy()
    assert (np.diff(splits) <= 100).all()
    return float(
        np.mean([np.isin(w, ids[splits[r] : splits[r + 1]]) for r, w in enumerate(wanted)])
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_learning_raises_recall_at_the_same_budget(seed):
    kernel, bias, x = skewed(seed)
    found = {}
    for family in (
        SimHash(BITS, TABLES, seed=seed),
        LearnedHash(BITS, TABLES, steps=0, seed=seed),
        LearnedHash(BITS, TABLES, seed=seed),
    ):
        sampler = LshSampler(
            hash=family, active=100, random=0, head=0, rebuild_every=1, rebuild_decay=0
        )
        layer = layer_of(sampler, kernel, bias)
        for step in range(1, 4):
            select(layer, x[step * ROWS :][:ROWS], step)
        # Rows that nothing was learned from, at a step without a rebuild.
        layer._sampled_weights.selector.set_state([9, 3])
        found[type(family).__name__, getattr(family, "steps", None)] = recall(layer, x[:ROWS], 4)
    learned = found["LearnedHash", 16]
    assert learned > found["SimHash", None] + 0.1
    assert learned > found["LearnedHash", 0] + 0.1


def codes_of(layer: DSlideDense, x: np.ndarray) -> list[np.ndarray]:
    hash: Any = layer._sampled_weights.selector._hash
    kernel = layer.kernel.numpy()
    return [hash.codes(kernel).numpy(), hash.query_codes(x).numpy()]


def compiled(sampler: LshSampler) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = wide_model(300, DIM, sampler=sampler)
    model.compile(SparseAdam(0.05), SlideCrossentropy())
    return model


def batch(rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, DIM)).astype("float32"), rng.integers(0, 300, rows)


def test_the_first_step_learns_and_a_prediction_does_not():
    learned = LearnedHash(4, 6)
    model = compiled(LshSampler(hash=learned, active=60, rebuild_every=2, rebuild_decay=0))
    layer = model.layers[-1]
    x, y = batch()
    before = codes_of(layer, x)
    layer.top_k(x, k=3, exact=False)
    layer.rebuild()
    assert all((a == b).all() for a, b in zip(codes_of(layer, x), before, strict=True))
    layer._sampled_weights.selector.set_state([0, 0])
    model.fit(x, y, epochs=5, batch_size=len(x), verbose=0)
    # Rebuilds at steps 1, 3 and 5.
    assert int(layer._sampled_weights.selector.learned["hash_rounds"]) == 3
    assert all((a != b).any() for a, b in zip(codes_of(layer, x), before, strict=True))


def test_replaced_weights_do_not_lead_to_learning():
    model = compiled(LshSampler(hash=LearnedHash(4, 6), active=60, rebuild_every=100))
    x, y = batch()
    model.train_on_batch(x, y)
    before = codes_of(model.layers[-1], x)[1]
    model.set_weights(model.get_weights())
    model.train_on_batch(x, y)
    assert int(model.layers[-1]._sampled_weights.selector.learned["hash_rounds"]) == 1
    assert (codes_of(model.layers[-1], x)[1] == before).all()


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("units", [1, 2, 5])
def test_few_rows_and_few_neurons(rows, units):
    layer = DSlideDense(
        units, sampler=LshSampler(hash=LearnedHash(2, 3), active=4, random=0, head=0)
    )
    layer.build((None, 7))
    own = select(layer, np.ones((rows, 7), "float32"), 1)
    assert own.row_splits.shape == [rows + 1]


def test_equal_neurons_and_no_bias_are_nothing_to_learn_from():
    layer = DSlideDense(
        50, use_bias=False, kernel_initializer="zeros", sampler=LshSampler(hash=LearnedHash(3, 4))
    )
    layer.build((None, 7))
    before = codes_of(layer, np.ones((2, 7), "float32"))
    select(layer, np.ones((9, 7), "float32"), 1)
    after = codes_of(layer, np.ones((2, 7), "float32"))
    assert all((a == b).all() for a, b in zip(after, before, strict=True))


@pytest.mark.slow
def test_one_seed_one_training_and_seeds_differ():
    x, y = batch()
    runs = []
    for seed in (0, 0, 1):
        model = compiled(LshSampler(hash=LearnedHash(4, 6, seed=seed), active=60, rebuild_every=2))
        model.fit(x, y, epochs=3, batch_size=8, verbose=0)
        runs.append([model.get_weights()[0], *codes_of(model.layers[-1], x)])
    assert all((a == b).all() for a, b in zip(runs[0], runs[1], strict=True))
    assert not all((a == b).all() for a, b in zip(runs[0], runs[2], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".keras", ".weights.h5"])
def test_what_was_learned_is_saved(ending, tmp_path):
    x, y = batch()
    sampler = LshSampler(hash=LearnedHash(4, 6), active=60, rebuild_every=2)
    model = compiled(sampler)
    model.fit(x, y, epochs=3, batch_size=8, verbose=0)
    model.layers[-1].rebuild()
    path = tmp_path / f"a{ending}"
    if ending == ".keras":
        model.save(path)
        other = keras.models.load_model(path)
    else:
        model.save_weights(path)
        other = compiled(sampler)
        other.load_weights(path)
    mine, its = (m.layers[-1]._sampled_weights.selector.learned for m in (model, other))
    assert set(mine) == {"hash_queries", "hash_neurons", "hash_rounds"}
    for name, variable in mine.items():
        assert (its[name].numpy() == variable.numpy()).all()
    for a, b in zip(
        model.layers[-1].top_k(x, 5, exact=False),
        other.layers[-1].top_k(x, 5, exact=False),
        strict=True,
    ):
        assert (a.numpy() == b.numpy()).all()


def test_weights_saved_with_another_hash_are_refused(tmp_path):
    compiled(LshSampler(active=60)).save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ValueError, match="hash=LearnedHash"):
        compiled(LshSampler(hash=LearnedHash(4, 6), active=60)).load_weights(
            tmp_path / "a.weights.h5"
        )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"bits": 25}, "in 1..24"),
        ({"steps": -1}, "whole number"),
        ({"steps": 1.5}, "whole number"),
        ({"learning_rate": 0}, "positive and finite"),
        ({"learning_rate": float("inf")}, "positive and finite"),
    ],
)
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        LearnedHash(**kwargs)


@pytest.mark.parametrize("drift", [-0.1, 1, float("nan")])
def test_bad_drift(drift):
    with pytest.raises(ValueError, match="rebuild_on_drift"):
        LshSampler(rebuild_on_drift=drift)


def test_new_functions_in_place_of_learned_ones_are_refused():
    with pytest.raises(ValueError, match=r"`rehash_every`.*LearnedHash has learned.*received 3"):
        LshSampler(hash=LearnedHash(), rehash_every=3)


def test_the_first_learning_that_can_centres_the_vectors():
    """A round without anything to learn from does not count as the first."""
    kernel, bias, x = skewed(0)
    sampler = LshSampler(
        hash=LearnedHash(3, 4, steps=0), random=0, head=0, rebuild_every=1, rebuild_decay=0
    )
    layer = layer_of(sampler, np.zeros_like(kernel), bias)
    select(layer, x[:9], 1)
    assert (layer._sampled_weights.selector.learned["hash_queries"].numpy()[:, -1] == 0).all()
    layer.kernel.assign(kernel)
    select(layer, x[:ROWS], 2)
    projections = layer._sampled_weights.selector.learned["hash_queries"].numpy()
    mean = x[:ROWS].astype("float64").mean(axis=0)
    np.testing.assert_allclose(projections[:, -1], -projections[:, :-1] @ mean, rtol=1e-3)


def tables(layer: DSlideDense) -> list[np.ndarray]:
    selector: Any = layer._sampled_weights.selector
    return [selector._bucket_ptr.numpy(), selector._neuron_ids.numpy()]


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_tables_are_rebuilt_only_when_codes_have_drifted(rate):
    model = compiled(LshSampler(active=60, rebuild_every=2, rebuild_decay=0, rebuild_on_drift=0.05))
    model.compile(keras.optimizers.SGD(rate), SlideCrossentropy())
    x, y = batch()
    model.train_on_batch(x, y)
    first = tables(model.layers[-1])
    for _ in range(6):
        model.train_on_batch(100 * x, y)
    due, rebuilds = model.layers[-1]._sampled_weights.selector.get_state()
    assert due == 9  # It looked at steps 3, 5 and 7.
    same = all((a == b).all() for a, b in zip(tables(model.layers[-1]), first, strict=True))
    assert same == (rate == 0)
    assert (rebuilds == 1) == (rate == 0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_the_limit_is_the_share_of_changed_codes(share):
    """A part of the neurons is turned round, so that all their codes change: by brute force."""
    rng = np.random.default_rng(8)
    kernel = rng.normal(size=(200, DIM)).astype("float32")
    changed = kernel.copy()
    changed[: round(share * 200)] *= -1
    for limit in (0.05, 0.2, 0.6):
        sampler = LshSampler(hash=SimHash(6, 10), rebuild_every=1, rebuild_decay=0)
        sampler = LshSampler.from_config({**sampler.get_config(), "rebuild_on_drift": limit})
        layer = layer_of(sampler, kernel, np.zeros(200, "float32"))
        x = np.ones((2, DIM), "float32")
        select(layer, x, 1)
        before = codes_of(layer, x)[0]
        # As an optimizer does it, unseen.
        layer.kernel._value.assign(changed)
        drift = (codes_of(layer, x)[0] != before).mean()
        select(layer, x, 2)
        assert (layer._sampled_weights.selector.get_state()[1] == 2) == (drift > limit)
        assert abs(drift - share) < 1e-6 + 0.01


def test_replaced_weights_rebuild_without_drift():
    model = compiled(LshSampler(active=60, rebuild_every=100, rebuild_on_drift=0.9))
    x, y = batch()
    model.train_on_batch(x, y)
    model.set_weights(model.get_weights())
    model.train_on_batch(x, y)
    assert model.layers[-1]._sampled_weights.selector.get_state()[1] == 2


LEARN = """
import sys, hashlib
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf_dslide._native import ops
rng = np.random.default_rng(0)
d, bits, tables = 33, 5, 9
first = rng.normal(size=(bits * tables, d + 1)).astype("float32")
arrays = [rng.normal(size=s).astype("float32") for s in ((150, d), (3000, d), (3000,))]
learned = ops.learn_projections(*arrays, first, first, True, 4, bits=bits, tables=tables, steps=6,
                                learning_rate=0.1, seed=3)
codes = ops.projection_codes(arrays[1], learned[1], bits, tables)
print(hashlib.sha256(b"".join(t.numpy().tobytes() for t in (*learned, codes))).hexdigest())
"""


@pytest.mark.levels
def test_one_and_two_threads_learn_the_same_bits():
    assert run_python(LEARN, 1) == run_python(LEARN, 2)
