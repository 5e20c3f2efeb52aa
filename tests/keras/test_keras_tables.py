"""Hash tables rebuild themselves on schedule, and training is the same for one seed."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_cases import close, run_python, wide_model

from tf_dslide import (
    DWTA,
    WTA,
    DSlideDense,
    LshSampler,
    MinHash,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
)
from tf_dslide.selectors import no_labels
from tf_dslide.sharding import Shard

SLOW = pytest.mark.slow
UNITS, DIM, ROWS = 120, 6, 8


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(ROWS, DIM)).astype("float32"), rng.integers(0, UNITS, ROWS)


def compiled(run_eagerly: bool = False, **kwargs: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = wide_model(UNITS, DIM, sampler=LshSampler(active=20, **kwargs))
    model.compile(SparseAdam(0.05), SlideCrossentropy(), run_eagerly=run_eagerly)
    return model


def state(model: keras.Model) -> tuple[int, ...]:
    """Steps, step of the next rebuild, number of rebuilds; with rehashing, generation and age."""
    sampled = model.layers[-1]._sampled_weights
    return int(sampled.step), *sampled.selector.get_state()


def tables(layer: DSlideDense) -> list[np.ndarray]:
    selector: Any = layer._sampled_weights.selector
    return [selector._bucket_ptr.numpy(), selector._neuron_ids.numpy()]


def schedule(every: int, decay: float, steps: int) -> list[int]:
    """The steps at which tables are rebuilt: the first, then after n0 * exp(decay * t) more."""
    out = [1]
    while True:
        out.append(out[-1] + max(1, int(every * np.exp(decay * (len(out) - 1)))))
        if out[-1] > steps:
            return out[:-1]


@pytest.mark.parametrize(
    ("every", "decay", "steps", "how"),
    [
        pytest.param(3, 0.0, 11, "fit", marks=SLOW),
        (2, 0.5, 25, "fit"),
        (1, 0.0, 4, "fit"),
        pytest.param(100, 0.1, 5, "fit", marks=SLOW),
        (2, 0.5, 25, "several"),
        (2, 0.5, 25, "eager"),
    ],
)
def test_rebuilds_follow_the_schedule(every, decay, steps, how):
    model = compiled(how == "eager", rebuild_every=every, rebuild_decay=decay)
    if how == "several":
        model.compile(SparseAdam(0.05), SlideCrossentropy(), steps_per_execution=3)
    x, y = data()
    model.fit(np.tile(x, (steps, 1)), np.tile(y, steps), batch_size=ROWS, verbose=0)
    wanted = schedule(every, decay, steps)
    found = state(model)
    assert found[0] == steps
    assert found[2] == len(wanted)


def test_rebuilds_happen_at_the_steps_of_an_exponential_decay():
    """The (t + 1)-th is n0 * (1 + exp(decay) + ... + exp(decay * (t - 1))) steps after the first.

    That is SLIDE's schedule, with whole steps.
    """
    model = compiled(rebuild_every=3, rebuild_decay=0.4)
    x, y = data()
    seen, due = [], []
    for step in range(1, 81):
        before = state(model)[2]
        model.train_on_batch(x, y)
        if state(model)[2] > before:
            seen.append(step)
            due.append(state(model)[1])
    assert seen == schedule(3, 0.4, 80)
    assert seen[1:] == due[:-1]
    intervals = np.diff(seen)
    assert (np.abs(intervals - 3 * np.exp(0.4 * np.arange(len(intervals)))) < 1).all()
    assert len(intervals) > 5


FAMILIES = [SimHash(bits=3, tables=6), DWTA(tables=6), WTA(tables=6), MinHash(tables=6)]


def functions(model_or_layer: Any) -> bytes:
    """The hash functions of a layer at work."""
    layer = getattr(model_or_layer, "layers", [model_or_layer])[-1]
    numbers = layer._sampled_weights.selector._hash._numbers
    return b"".join(np.asarray(n).tobytes() for n in numbers)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_new_hash_functions_every_so_often(family):
    model = compiled(hash=family, rebuild_every=2, rebuild_decay=0.0, rehash_every=3)
    x, y = data()
    layer = model.layers[0]
    seen = []
    for step in range(1, 20):
        before = layer.kernel.numpy()
        rebuilds = state(model)[2]
        model.train_on_batch(x, y)
        seen.append(functions(model))
        # Rebuilds at 1, 3, 5, ...: new functions at every third after the first.
        generation = (step - 1) // 6
        assert state(model)[3:] == (generation, (step - 1) // 2 % 3)
        if state(model)[2] > rebuilds:
            fresh = type(family).from_config(family.get_config())
            fresh.build(DIM, UNITS)
            fresh.make_redrawable()
            fresh.redraw(generation)
            codes = fresh.codes(tf.constant(before)).numpy()
            ptr, ids = tables(layer)
            for table, column in enumerate(codes.T):
                assert (ids[table] == np.argsort(column, kind="stable")).all()
                assert (np.diff(ptr[table]) == np.bincount(column, minlength=fresh.buckets)).all()
    assert [seen[0] == each for each in seen] == [step <= 6 for step in range(1, 20)]
    assert len(set(seen)) == 4


def test_rebuilds_without_a_schedule_keep_the_functions():
    model = compiled(rebuild_every=1000, rehash_every=1)
    x, y = data()
    model.train_on_batch(x, y)
    before = functions(model)
    for _ in range(3):
        model.layers[0].rebuild()
        model.layers[0].set_weights(model.layers[0].get_weights())
        model.train_on_batch(x, y)
    assert functions(model) == before
    assert state(model)[3:] == (0, 0)


@pytest.mark.slow
def test_no_rehash_is_the_default():
    for rehash_every in (None, 0):
        model = compiled(rebuild_every=1, rehash_every=rehash_every)
        x, y = data()
        model.fit(x, y, epochs=4, verbose=0)
        assert len(state(model)) == 3
        assert functions(model) == functions(compiled(rehash_every=5))


@pytest.mark.parametrize("steps", [pytest.param(6, marks=SLOW), 7, pytest.param(9, marks=SLOW)])
def test_saved_functions_go_on_as_if_not_saved(steps, tmp_path):
    """What is loaded draws when the training that went on draws, and what it draws."""
    arguments = {"rebuild_every": 2, "rebuild_decay": 0.0, "rehash_every": 2}
    model, loaded = compiled(**arguments), compiled(**arguments)
    x, y = data()
    for _ in range(steps):
        model.train_on_batch(x, y)
    model.save_weights(tmp_path / "a.weights.h5")
    loaded.load_weights(tmp_path / "a.weights.h5")
    assert state(loaded) == state(model)
    assert functions(loaded) == functions(model)
    assert functions(model) != functions(compiled(**arguments))
    # Saved without `rehash_every`: the first functions.
    plain = compiled(rebuild_every=2)
    plain.train_on_batch(x, y)
    plain.save_weights(tmp_path / "b.weights.h5")
    # Both build tables of the weights now.
    model.layers[0].set_weights(model.layers[0].get_weights())
    for step in range(7):
        losses = [each.train_on_batch(x, y) for each in (loaded, model)]
        assert step > 0 or losses[0] == losses[1]
        assert state(loaded) == state(model)
        assert functions(loaded) == functions(model)
    loaded.load_weights(tmp_path / "b.weights.h5")
    assert functions(loaded) == functions(plain)
    assert state(loaded)[3:] == (0, 0)


def test_shards_of_a_layer_draw_the_same_functions():
    """What ranks have: each its own neurons and one step counter."""
    sampler = LshSampler(active=20, rebuild_every=2, rebuild_decay=0.0, rehash_every=2)
    parts = [Shard(0, 70, UNITS), Shard(70, UNITS, UNITS)]
    selectors: list[Any] = [sampler.selector(part, DIM) for part in parts]
    x, _ = data()
    seen = set()
    for number in range(1, 12):
        step = tf.constant(number, tf.int64)
        for selector, part in zip(selectors, parts, strict=True):
            kernel = tf.random.stateless_normal((part.units, DIM), (number, part.begin))
            selector.select(tf.constant(x), no_labels(x), kernel, None, step)
        one, two = ([n.numpy() for n in s._hash._numbers] for s in selectors)
        assert all((a == b).all() for a, b in zip(one, two, strict=True))
        assert selectors[0].get_state() == selectors[1].get_state()
        seen.add(one[-1].tobytes())  # the weights; each projection takes all coordinates
    assert len(seen) == 3


def test_a_rebuild_uses_the_weights_of_its_step():
    model = compiled(rebuild_every=3, rebuild_decay=0.0)
    x, y = data()
    layer = model.layers[0]
    seen = []
    for _ in range(8):
        before = layer.kernel.numpy()
        rebuilt = state(model)[2]
        model.train_on_batch(x, y)
        if state(model)[2] > rebuilt:
            seen.append(state(model)[0])
            fresh = wide_model(UNITS, DIM, sampler=layer.sampler).layers[0]
            fresh.kernel.assign(before)
            fresh.rebuild()
            for found, wanted in zip(tables(layer), tables(fresh), strict=True):
                assert (found == wanted).all()
    assert seen == [1, 4, 7]


def test_evaluate_and_predict_leave_tables_and_counters_alone():
    model = compiled(rebuild_every=2)
    x, y = data()
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert state(model) == (0, 0, 0)
    model.fit(x, y, verbose=0)
    before = state(model), tables(model.layers[0])
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    model(x, training=True)
    assert state(model) == before[0]
    for found, wanted in zip(tables(model.layers[0]), before[1], strict=True):
        assert (found == wanted).all()


def replaced(model: keras.Model, how: str, weights: list[np.ndarray], tmp_path: Path) -> None:
    """Gives `model` other weights in one of Keras' ways."""
    layer = model.layers[-1]
    other = keras.models.clone_model(model)
    other.set_weights(weights)
    if how == "layer.set_weights":
        layer.set_weights(weights)
    elif how == "model.set_weights":
        model.set_weights(weights)
    elif how == "load_weights":
        other.save_weights(tmp_path / "a.weights.h5")
        model.load_weights(tmp_path / "a.weights.h5")
    elif how == "legacy h5":
        other.save_weights(tmp_path / "a.weights.h5")
        other.compile()
        other.save(tmp_path / "b.h5")
        model.load_weights(tmp_path / "b.h5")
    elif how == "kernel.assign":
        layer.kernel.assign(weights[0])
        layer.bias.assign(weights[1])
    elif how == "nested":
        outer = keras.Sequential([keras.Input((DIM,)), model])
        outer.set_weights(weights)
    elif how == "early stopping":
        # Brings the best weights back with model.set_weights, at the end of fit.
        stopper = keras.callbacks.EarlyStopping(restore_best_weights=True, monitor="loss")
        stopper.set_model(model)
        stopper.best_weights, stopper.best_epoch = weights, 0
        stopper.stopped_epoch, stopper.patience, stopper.wait = 0, 0, 1
        model.set_weights(weights)


REPLACED = [
    "layer.set_weights",
    "model.set_weights",
    "load_weights",
    pytest.param("legacy h5", marks=SLOW),
    "kernel.assign",
    pytest.param("nested", marks=SLOW),
    pytest.param("early stopping", marks=SLOW),
]


@pytest.mark.parametrize("constraint", [None, pytest.param("max_norm", marks=SLOW)])
@pytest.mark.parametrize("how", REPLACED)
def test_new_weights_get_new_tables_before_the_next_use(how, constraint, tmp_path):
    model = compiled(rebuild_every=1000)
    if constraint:
        if how not in ("layer.set_weights", "model.set_weights", "load_weights"):
            pytest.skip("the others end the same way")
        sampler = LshSampler(active=20, rebuild_every=1000)
        model = wide_model(UNITS, DIM, sampler=sampler, kernel_constraint=constraint)
        model.compile(SparseAdam(0.05), SlideCrossentropy())
    x, y = data()
    model.fit(x, y, verbose=0)
    rng = np.random.default_rng(4)
    weights = [rng.normal(size=w.shape).astype("float32") for w in model.get_weights()]
    fresh = compiled(rebuild_every=1000)
    fresh.layers[0].set_weights(weights)
    fresh.layers[0].rebuild()
    replaced(model, how, weights, tmp_path)
    close(model.layers[0].kernel.numpy(), weights[0])
    found = model.layers[0].top_k(x, k=5, exact=False)[1].numpy()
    assert (found == fresh.layers[0].top_k(x, k=5, exact=False)[1].numpy()).all()
    model.train_on_batch(x, y)
    for a, b in zip(tables(model.layers[0]), tables(fresh.layers[0]), strict=True):
        assert (a == b).all()


def test_set_weights_keeps_the_schedule():
    """Fresh tables after set_weights do not make the following interval start over from n0."""
    model = compiled(rebuild_every=2, rebuild_decay=0.7)
    x, y = data()
    for _ in range(12):
        model.train_on_batch(x, y)
    step, due, count = state(model)
    model.layers[0].set_weights(model.layers[0].get_weights())
    model.train_on_batch(x, y)
    after = state(model)
    assert after[0] == step + 1
    assert after[2] <= count + 1
    assert after[1] >= due


@pytest.mark.parametrize(
    "family",
    [SimHash(), *(pytest.param(family, marks=SLOW) for family in (DWTA(), WTA(), MinHash()))],
    ids=lambda family: type(family).__name__,
)
def test_one_seed_one_training_and_seeds_differ(family):
    runs = []
    for seed in (0, 0, 1):
        config = {**family.get_config(), "seed": seed}
        model = compiled(hash=type(family).from_config(config), seed=seed, rebuild_every=2)
        x, y = data()
        model.fit(x, y, epochs=5, verbose=0)
        runs.append(model.get_weights()[0])
    assert (runs[0] == runs[1]).all()
    assert not (runs[0] == runs[2]).all()


def test_two_layers_with_one_sampler_object_have_tables_of_their_own():
    sampler = LshSampler(active=10)
    a, b = DSlideDense(50, sampler=sampler), DSlideDense(90, sampler=sampler)
    a.build((None, 4))
    b.build((None, 8))
    a.rebuild()
    b.rebuild()
    assert tables(a)[1].shape[1] == 50
    assert tables(b)[1].shape[1] == 90
    assert a.top_k(np.ones((1, 4)), k=3, exact=False)[0].shape == (1, 3)
    assert b.top_k(np.ones((1, 8)), k=3, exact=False)[0].shape == (1, 3)


def test_a_very_large_interval_fits_the_counter():
    model = compiled(rebuild_every=10**9, rebuild_decay=50.0)
    x, y = data()
    for _ in range(4):
        model.layers[0].rebuild()
        model.train_on_batch(x, y)
        assert state(model)[1] > state(model)[0]


def test_stock_losses_need_no_tables():
    model = compiled()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = data()
    model.fit(x, y, verbose=0)
    assert state(model) == (0, 0, 0)


TRAIN = """
import os, sys, json, hashlib
import numpy as np, keras, tensorflow as tf
threads = int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(threads)
tf.config.threading.set_inter_op_parallelism_threads(threads)
from tf_dslide import *
digests = {}
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 70)) * (rng.random((300, 70)) < 0.2)
y = np.where(rng.random((300, 4)) < 0.6, rng.integers(0, 1500, (300, 4)), -1)
fed = tf.sparse.from_dense(x.astype("float32"))
samplers = {
    "lsh": LshSampler(active=200, rebuild_every=2),
    "all": AllNeurons(),
}
for name, sampler in samplers.items():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((70,), sparse=True), SparseDense(33, activation="relu"),
                              DSlideDense(1500, sampler=sampler)])
    model.compile(SparseAdam(0.01, weight_decay=0.01, global_clipnorm=1.0), SlideCrossentropy(),
                  metrics=[PrecisionAtK(1), NDCGAtK(5)])
    history = model.fit(fed, y, batch_size=64, verbose=0).history
    result = model.evaluate(fed, y, batch_size=64, verbose=0)
    digest = hashlib.sha256()
    # The dense layer's product is TensorFlow's, so only what our ops computed counts.
    for array in [*model.get_weights(), np.array([*history.values()]), np.array(result),
                  *(t.numpy() for t in model.layers[-1].top_k(model.layers[0](fed), k=5))]:
        digest.update(np.ascontiguousarray(array).tobytes())
    digests[name] = digest.hexdigest()
print(json.dumps(digests))
"""


@pytest.mark.levels
def test_one_and_two_threads_give_the_same_bits():
    one, two = (json.loads(run_python(TRAIN, threads)) for threads in (1, 2))
    assert one == two


def test_a_loss_that_is_also_a_metric_reports_the_same():
    """One step draws one active set, however many ask for a loss."""
    model = compiled(rebuild_every=3, rebuild_decay=0.0)
    model.compile(SparseAdam(5.0), SlideCrossentropy(), metrics=[SlideCrossentropy(name="again")])
    x, y = data()
    for step in range(1, 5):
        loss, again = model.train_on_batch(x, y)
        if step == 1:
            close(again, loss)
        assert state(model)[0] == step
    assert state(model)[2] == len(schedule(3, 0.0, 4))


def test_one_layer_on_two_inputs_counts_each_use():
    layer = DSlideDense(UNITS, sampler=LshSampler(active=20, rebuild_every=3, rebuild_decay=0))
    inputs = [keras.Input((DIM,)), keras.Input((DIM,))]
    model = keras.Model(inputs, [layer(each) for each in inputs])
    model.compile(SparseAdam(0.01), [SlideCrossentropy(), SlideCrossentropy()])
    x, y = data()
    for _ in range(4):
        model.train_on_batch([x, x], [y, y])
    assert state(model)[0] == 8
    assert state(model)[2] == len(schedule(3, 0.0, 8))


def test_the_step_counter_survives_a_graph_of_its_own():
    """A layer used in two models counts the steps of both."""
    layer = DSlideDense(UNITS, sampler=LshSampler(active=20, rebuild_every=2, rebuild_decay=0))
    x, y = data()
    for _ in range(2):
        model = keras.Sequential([keras.Input((DIM,)), layer])
        model.compile(SparseAdam(0.01), SlideCrossentropy())
        model.train_on_batch(x, y)
    assert int(layer._sampled_weights.step) == 2
    assert tf.executing_eagerly()
