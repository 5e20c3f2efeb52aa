"""Saving, loading in a fresh process, configurations, files of other versions, export."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras_cases import close, run_python, wide_model

import tf_dslide
from tf_dslide import (
    DWTA,
    WTA,
    AllNeurons,
    DSlideDense,
    DSlideHidden,
    DSlideLinear,
    LabelPrior,
    LearnedHash,
    LogUniformSampler,
    LshSampler,
    MinHash,
    NDCGAtK,
    PrecisionAtK,
    PropensityScoredPrecisionAtK,
    SimHash,
    SlideBinaryCrossentropy,
    SlideCrossentropy,
    SparseAdagrad,
    SparseAdam,
    SparseDense,
    UniformSampler,
    UnitRows,
)

FEATURES, UNITS, ROWS = 40, 300, 48

SAMPLERS = {
    "lsh": LshSampler(
        hash=SimHash(bits=4, tables=7, density=0.5, seed=3),
        active=50,
        random=0.25,
        head=0.5,
        bucket_size=64,
        rebuild_every=2,
        rebuild_decay=0.3,
        rehash_every=1,
        seed=4,
    ),
    "dwta": LshSampler(
        hash=DWTA(bins=2, tables=5, bin_size=4, address_bits=3, seed=2), rebuild_every=3
    ),
    "weighted": LshSampler(active=40, random=0.5, importance=0.5, batch_labels=False, seed=4),
    "reservoir": LshSampler(bucket_policy="reservoir", selection="threshold", threshold=5),
    "fifo": LshSampler(bucket_policy="fifo", selection="union"),
    "uniform": UniformSampler(20, subtract_log_q=True, seed=3),
    "log_uniform": LogUniformSampler(20, seed=3),
    "all": AllNeurons(),
}

LOADED = ("lsh", "uniform")


def data() -> tuple[scipy.sparse.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.3)
    return scipy.sparse.csr_matrix(x.astype("float32")), rng.integers(0, UNITS, (ROWS, 1))


def build_model(sampler: object, dtype: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(6)
    inputs = keras.Input((FEATURES,), sparse=True)
    hidden = SparseDense(
        16,
        activation="relu",
        kernel_initializer=keras.initializers.HeNormal(seed=3),
        kernel_regularizer=keras.regularizers.L2(1e-4),
        dtype=dtype,
    )(inputs)
    outputs = DSlideDense(
        UNITS,
        sampler=sampler,
        activation="softmax",
        bias_constraint="non_neg",
        name="labels",
        dtype=dtype,
    )(hidden)
    model = keras.Model(inputs, outputs)
    rate = keras.optimizers.schedules.CosineDecay(0.02, 50)
    model.compile(
        SparseAdam(rate, beta_1=0.8, weight_decay=0.01, clipnorm=1.0),
        SlideCrossentropy(),
        metrics=[
            PrecisionAtK(1),
            NDCGAtK(3),
            PropensityScoredPrecisionAtK(
                2, label_counts=np.arange(UNITS), num_samples=5000, a=0.6, b=2.6
            ),
        ],
    )
    return model


FRESH = """
import sys, json
from pathlib import Path
import keras, numpy as np, scipy.sparse, tensorflow as tf
import tf_dslide
folder = Path(sys.argv[1])
x, y = scipy.sparse.load_npz(folder / "x.npz"), np.load(folder / "y.npy")
for path in sorted(folder.glob("*.keras")):
    model = keras.models.load_model(path)
    layer = model.layers[-1]
    out = {"predict": model.predict(x, verbose=0), "evaluate": model.evaluate(x, y, verbose=0)}
    hidden = model.layers[1](tf.sparse.from_dense(x.toarray()))
    out["scores"], out["labels"] = (t.numpy() for t in layer.top_k(hidden, k=5))
    sampled = layer._sampled_weights
    state = sampled.selector.get_state() if sampled.selector else []
    out["schedule"] = np.array([int(sampled.step), *state])
    history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0).history
    out.update({"history_" + k: v for k, v in history.items()})
    out.update({f"weight_{i}": w for i, w in enumerate(model.get_weights())})
    out.update({f"optimizer_{i}": v.numpy() for i, v in enumerate(model.optimizer.variables)})
    state = sampled.selector.get_state() if sampled.selector else []
    out["schedule_after"] = np.array([int(sampled.step), *state])
    np.savez(path.with_suffix(".npz"), **out)
"""


def results(model, x, y):
    """What the fresh process records, from this one."""
    layer = model.layers[-1]
    out = {"predict": model.predict(x, verbose=0), "evaluate": model.evaluate(x, y, verbose=0)}
    hidden = model.layers[1](tf.sparse.from_dense(x.toarray()))
    out["scores"], out["labels"] = (t.numpy() for t in layer.top_k(hidden, k=5))
    out["schedule"] = schedule_of(layer)
    return out


def schedule_of(layer):
    sampled = layer._sampled_weights
    state = sampled.selector.get_state() if sampled.selector else []
    return np.array([int(sampled.step), *state])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Models trained and saved here, in a folder."""
    folder = tmp_path_factory.mktemp("models")
    x, y = data()
    scipy.sparse.save_npz(folder / "x.npz", x)
    np.save(folder / "y.npy", y)
    models = {}
    for name, sampler in ((name, SAMPLERS[name]) for name in LOADED):
        model = build_model(sampler)
        model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
        model.save(folder / f"{name}.keras")
        models[name] = model
    return models, folder


@pytest.fixture(scope="module")
def loaded(saved):
    """What these models give here, and what loaded and trained on in one fresh process."""
    models, folder = saved
    before = {name: results(model, *data()) for name, model in models.items()}
    run_python(FRESH, folder)
    after = {name: dict(np.load(folder / f"{name}.npz")) for name in LOADED}
    return models, before, after


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADED)
def test_a_fresh_process_predicts_the_same(name, loaded):
    _, before, after = loaded
    for key, wanted in before[name].items():
        found = after[name][key]
        assert (found == np.asarray(wanted, found.dtype)).all(), key


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADED)
def test_a_fresh_process_trains_on_as_this_one_would(name, loaded):
    """Tables are rebuilt on load: the same is to be had here by refreshing them now."""
    models, _, after = loaded
    model, (x, y) = models[name], data()
    layer = model.layers[-1]
    layer.set_weights(layer.get_weights())
    history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0).history
    found = after[name]
    assert (found["schedule_after"] == schedule_of(layer)).all()
    for key, wanted in history.items():
        close(found[f"history_{key}"], wanted)
    for i, wanted in enumerate(model.get_weights()):
        assert (found[f"weight_{i}"] == wanted).all()
    for i, wanted in enumerate(model.optimizer.variables):
        assert (found[f"optimizer_{i}"] == wanted.numpy()).all()


@pytest.mark.slow
def test_the_schedule_is_restored_and_not_begun_again(loaded):
    _, before, after = loaded
    step, due, rebuilds, generation, _ = before["lsh"]["schedule"]
    assert (after["lsh"]["schedule"] == before["lsh"]["schedule"]).all()
    assert step == 6
    assert rebuilds > 1
    assert due > step
    assert generation == rebuilds - 1


def test_save_weights_and_load_weights(tmp_path, saved):
    models, _ = saved
    x, _ = data()
    for name in LOADED:
        models[name].save_weights(tmp_path / "a.weights.h5")
        other = build_model(SAMPLERS[name])
        other.load_weights(tmp_path / "a.weights.h5")
        assert (other.predict(x, verbose=0) == models[name].predict(x, verbose=0)).all()
        assert (schedule_of(other.layers[-1]) == schedule_of(models[name].layers[-1])).all()


@pytest.mark.slow
def test_weights_move_between_samplers(tmp_path, saved):
    """A model trained by hashing goes on with all neurons, or with other tables."""
    models, _ = saved
    x, y = data()
    models["lsh"].save_weights(tmp_path / "a.weights.h5")
    for sampler in (LshSampler(hash=DWTA()),):
        other = build_model(sampler)
        other.load_weights(tmp_path / "a.weights.h5")
        assert (other.predict(x, verbose=0) == models["lsh"].predict(x, verbose=0)).all()
        other.fit(x, y, verbose=0)
    models["uniform"].save_weights(tmp_path / "b.weights.h5")
    other = build_model(LshSampler(active=50))
    other.load_weights(tmp_path / "b.weights.h5")
    assert (other.predict(x, verbose=0) == models["uniform"].predict(x, verbose=0)).all()
    other.fit(x, y, verbose=0)


@pytest.mark.slow
def test_a_mixed_precision_model(tmp_path):
    x, y = data()
    model = build_model(LshSampler(active=50), dtype="mixed_bfloat16")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.layers[-1].dtype_policy.name == "mixed_bfloat16"
    assert (other.predict(x, verbose=0) == model.predict(x, verbose=0)).all()


def test_a_subclassed_layer_and_model_can_be_saved(tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Mine(DSlideDense):
        def __init__(self, units, scale=1.0, **kwargs):
            super().__init__(units, **kwargs)
            self.scale = scale

        def get_config(self):
            return {**super().get_config(), "scale": self.scale}

    model = keras.Sequential([keras.Input((4,)), Mine(9, scale=3.0, sampler="uniform")])
    model.save(tmp_path / "m.keras")
    other = keras.models.load_model(tmp_path / "m.keras")
    assert other.layers[0].scale == 3.0
    x = np.ones((2, 4), "float32")
    assert (other.predict(x, verbose=0) == model.predict(x, verbose=0)).all()


def edited(path: Path, target: Path, edit: Callable[[str], str]) -> Path:
    """A copy of a .keras file whose config.json went through `edit`."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.namelist():
            content = old.read(item)
            if item == "config.json":
                content = edit(content.decode()).encode()
            new.writestr(item, content)
    return target


@pytest.mark.parametrize("other", ["99", "0", "null", '"new"'])
def test_a_file_of_another_format_is_refused_naming_both(other, tmp_path, saved):
    folder = saved[1]

    def edit(text: str) -> str:
        assert '"format": 2' in text
        return text.replace('"format": 2', f'"format": {other}')

    path = edited(folder / "lsh.keras", tmp_path / "other.keras", edit)
    with pytest.raises(ValueError, match="format") as caught:
        keras.models.load_model(path)
    named = {"null": "None", '"new"': "'new'"}.get(other, other)
    assert f"format {named}" in str(caught.value)
    assert "format 2" in str(caught.value)
    assert "DSlideDense" in str(caught.value) or "SparseDense" in str(caught.value)


def test_a_file_without_a_format_is_refused(tmp_path, saved):
    folder = saved[1]
    path = edited(
        folder / "lsh.keras", tmp_path / "o.keras", lambda text: text.replace(', "format": 2', "")
    )
    with pytest.raises(ValueError, match="format None.*format 2"):
        keras.models.load_model(path)


def damaged(path: Path, target: Path, damage: Callable[[h5py.Group], None]) -> Path:
    """A copy of a .keras file whose weights went through `damage`."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for item in old.namelist():
            if item == "model.weights.h5":
                weights = target.with_suffix(".h5")
                weights.write_bytes(old.read(item))
                with h5py.File(weights, "r+") as file:
                    damage(file["layers/d_slide_dense/vars"])
                new.write(weights, item)
            else:
                new.writestr(item, old.read(item))
    return target


@pytest.mark.parametrize("lost", ["sampler_schedule", "0", "1"])
def test_weights_that_lack_something_are_refused(lost, tmp_path, saved):
    folder = saved[1]

    def damage(group: h5py.Group) -> None:
        del group[lost]

    path = damaged(folder / "lsh.keras", tmp_path / "d.keras", damage)
    with pytest.raises((ValueError, KeyError), match=lost) as caught:
        keras.models.load_model(path)
    assert "labels" in str(caught.value), "the error must name the layer"


def test_weights_of_another_shape_are_refused(tmp_path, saved):
    folder = saved[1]

    def damage(group: h5py.Group) -> None:
        del group["0"]
        group["0"] = np.zeros((7, 16), "float32")

    path = damaged(folder / "lsh.keras", tmp_path / "d.keras", damage)
    with pytest.raises(ValueError, match=r"7, 16"):
        keras.models.load_model(path)


def test_weights_of_a_dense_layer_are_refused_with_a_hint(tmp_path):
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(9, name="same")])
    ours = keras.Sequential([keras.Input((4,)), DSlideDense(9, name="same")])
    dense.save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ValueError, match="same|d_slide_dense|DSlideDense"):
        ours.load_weights(tmp_path / "a.weights.h5")
    bias = keras.Sequential([keras.Input((4,)), DSlideDense(9, name="same", use_bias=False)])
    bias.save_weights(tmp_path / "b.weights.h5")
    with pytest.raises(ValueError, match="use_bias|same"):
        ours.load_weights(tmp_path / "b.weights.h5")


def test_loading_fails_before_anything_changed(tmp_path, saved):
    folder = saved[1]
    x, _ = data()
    model = build_model(SAMPLERS["lsh"])
    wanted = model.layers[-1].get_weights()
    path = tmp_path / "w.weights.h5"
    with zipfile.ZipFile(folder / "lsh.keras") as file:
        path.write_bytes(file.read("model.weights.h5"))
    with h5py.File(path, "r+") as file:
        del file["layers/d_slide_dense/vars/sampler_schedule"]
    with pytest.raises(ValueError, match="sampler_schedule"):
        model.load_weights(path)
    for a, b in zip(model.layers[-1].get_weights(), wanted, strict=True):
        assert (a == b).all()


OBJECTS = [
    *SAMPLERS.values(),
    SimHash(bits=3, tables=4, density=0.9, seed=7),
    DWTA(bins=3, tables=4, bin_size=16, address_bits=9, seed=7),
    WTA(bins=3, tables=4, bin_size=16, address_bits=9, seed=7),
    MinHash(bins=3, tables=4, top=5, address_bits=9, seed=7),
    LshSampler(hash=LearnedHash(bits=3), active=9, rebuild_on_drift=0.1),
    LearnedHash(bits=3, tables=4, steps=5, learning_rate=0.2, seed=7),
    LabelPrior([3, 0, 2**40], smoothing=0.5),
    SlideCrossentropy(reduction="sum", name="mine"),
    SlideCrossentropy(dtype="float32"),
    SlideBinaryCrossentropy(reduction="sum", name="mine"),
    DSlideLinear(7, active=3, weights_per_feature=4, scale=2.0, smoothing=0.5, name="mine"),
    PrecisionAtK(4, name="mine"),
    NDCGAtK(2, dtype="float64"),
    PropensityScoredPrecisionAtK(2, label_counts=[5, 0, 7], num_samples=12, a=0.5, b=0.4),
    SparseAdam(
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9),
        beta_1=0.5,
        beta_2=0.9,
        epsilon=1e-3,
        weight_decay=0.1,
        global_clipnorm=2.0,
        use_ema=True,
        ema_momentum=0.7,
        ema_overwrite_frequency=3,
        gradient_accumulation_steps=2,
        name="mine",
    ),
    SparseAdam(0.25),
    SparseAdagrad(
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9),
        initial_accumulator_value=0.2,
        epsilon=1e-3,
        weight_decay=0.1,
        clipvalue=2.0,
        name="mine",
    ),
    SparseAdagrad(0.25),
    UnitRows(),
    SparseDense(
        3,
        activation="tanh",
        use_bias=False,
        kernel_initializer=keras.initializers.Constant(2.0),
        kernel_regularizer="l2",
        activity_regularizer=keras.regularizers.L1(0.1),
        kernel_constraint="max_norm",
        name="mine",
        dtype="mixed_bfloat16",
        trainable=False,
    ),
    DSlideDense(
        3,
        sampler=SAMPLERS["dwta"],
        activation="softmax",
        bias_initializer=LabelPrior([1, 2, 3]),
        bias_regularizer=keras.regularizers.L1L2(0.1, 0.2),
        bias_constraint="non_neg",
        name="mine",
    ),
    DSlideHidden(
        3,
        activation="tanh",
        sampler=SAMPLERS["lsh"],
        inference="all",
        use_bias=False,
        kernel_initializer="he_normal",
        name="mine",
    ),
]


def same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    assert json.dumps(a.get_config(), sort_keys=True) == json.dumps(b.get_config(), sort_keys=True)


@pytest.mark.parametrize("thing", OBJECTS, ids=lambda thing: type(thing).__name__)
def test_configurations_survive_a_round_trip_through_json(thing):
    same(type(thing).from_config(thing.get_config()), thing)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(thing)))
    assert serialized["registered_name"].startswith("tf_dslide>")
    same(keras.saving.deserialize_keras_object(serialized), thing)
    if isinstance(thing, (SparseAdam, SparseAdagrad)):
        # Keras itself puts a schedule into the configuration of an optimizer that it reads.
        return
    config = thing.get_config()
    text = json.dumps(config, sort_keys=True)
    type(thing).from_config(config)
    assert json.dumps(config, sort_keys=True) == text


def test_every_public_class_is_among_them():
    classes = {
        value for name in tf_dslide.__all__ if isinstance(value := getattr(tf_dslide, name), type)
    }
    bases = {tf_dslide.Sampler, tf_dslide.HashFamily, tf_dslide.DenseCostWarning}
    assert classes - bases <= {type(thing) for thing in OBJECTS}


def test_keras_get_functions_find_ours():
    same(keras.losses.get(keras.losses.serialize(SlideCrossentropy())), SlideCrossentropy())
    same(keras.metrics.get(keras.metrics.serialize(PrecisionAtK(3))), PrecisionAtK(3))
    optimizer = SparseAdam(0.1, beta_1=0.3)
    same(keras.optimizers.get(keras.optimizers.serialize(optimizer)), optimizer)


def test_metrics_measure_the_same_after_a_round_trip():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 2**40, 30)
    metric = PropensityScoredPrecisionAtK(3, label_counts=counts, num_samples=2**41)
    other = PropensityScoredPrecisionAtK.from_config(json.loads(json.dumps(metric.get_config())))
    scores, y = rng.normal(size=(9, 30)), rng.integers(0, 30, (9, 2))
    metric.update_state(y, scores)
    other.update_state(y, scores)
    assert float(metric.result()) == float(other.result())


def test_metric_state_is_saved_with_a_model_checkpoint(tmp_path):
    metric = NDCGAtK(3)
    metric.update_state(np.array([1]), np.array([[0.1, 0.5, 0.9]]))
    other = NDCGAtK(3)
    for a, b in zip(other.variables, metric.variables, strict=True):
        a.assign(b)
    close(other.result(), metric.result())


@pytest.mark.slow
def test_export_serves_dense_logits(tmp_path):
    model = wide_model(50, 6, sampler=SAMPLERS["lsh"])
    model.compile(SparseAdam(), SlideCrossentropy())
    x = np.random.default_rng(0).normal(size=(5, 6)).astype("float32")
    model.fit(x, np.arange(5), verbose=0)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    close(served.serve(x), model.predict(x, verbose=0))
    # A server has TensorFlow and no tf_dslide.
    code = """
        import sys, numpy as np, tensorflow as tf
        served = tf.saved_model.load(sys.argv[1])
        x = np.load(sys.argv[2])
        assert "tf_dslide" not in sys.modules
        np.save(sys.argv[3], served.serve(x).numpy())
    """
    np.save(tmp_path / "x.npy", x)
    run_python(code, tmp_path / "served", tmp_path / "x.npy", tmp_path / "y.npy")
    close(np.load(tmp_path / "y.npy"), model.predict(x, verbose=0))


def test_tensorflow_checkpoints_restore_the_weights(tmp_path):
    model = wide_model(50, 6, sampler=SAMPLERS["lsh"])
    checkpoint = tf.train.Checkpoint(model=model)
    path = checkpoint.save(tmp_path / "point")
    wanted = model.get_weights()
    model.set_weights([np.zeros_like(w) for w in wanted])
    checkpoint.restore(path).expect_partial()
    for a, b in zip(model.get_weights(), wanted, strict=True):
        assert (a == b).all()
