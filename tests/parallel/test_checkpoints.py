"""Checkpoints: exact resume, other numbers of ranks, faults, the callback, export."""

import functools
import json
import os
import resource
import shutil
import sys
import threading
from pathlib import Path

import keras
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf

from tests.keras.keras_cases import run_python
from tests.parallel.checkpoint_cases import (
    FEATURES,
    UNITS,
    Parts,
    build,
    random_state,
    require_state,
    set_state,
    state_of,
    tables_of,
    train,
    uneven,
)
from tf_dslide import (
    AllNeurons,
    DSlideDense,
    LearnedHash,
    LshSampler,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    UniformSampler,
    _atomic,
    sharding,
)
from tf_dslide.checkpoints import (
    Checkpoint,
    CheckpointError,
    export,
    latest,
    load_checkpoint,
    save_checkpoint,
    shards,
)
from tf_dslide.checkpoints.manifest import Manifest
from tf_dslide.parallel.errors import RankError


def hidden_in(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def edit_manifest(folder, change):
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@functools.cache
def unchanged(ranks=2, cut=sharding.equal_ranges, **changes):
    """Models that no test may change, though it may save them."""
    return Parts(ranks, cut, seed=77, **changes)


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for work in (save_checkpoint, load_checkpoint):
        with pytest.raises(ImportError, match=r"pip install 'tf-dslide\[mpi\]'"):
            work(tmp_path / "a", build())
    assert not list(tmp_path.iterdir())


# Resuming


SAMPLERS = {
    "lsh": LshSampler(hash=SimHash(bits=3, tables=5), active=12, rebuild_every=7, seed=2),
    "rehash": LshSampler(
        hash=SimHash(bits=3, tables=5),
        active=12,
        bucket_size=9,
        rebuild_every=3,
        bucket_policy="reservoir",
        rehash_every=2,
        seed=2,
    ),
    "learned": LshSampler(
        hash=LearnedHash(bits=3, tables=5), active=12, rebuild_every=7, rebuild_on_drift=0.05
    ),
    "all": AllNeurons(),
}

FRESH = """
import sys
import numpy as np
from tests.parallel.checkpoint_cases import build, state_of, train
from tests.parallel.test_checkpoints import SAMPLERS
from tf_dslide.checkpoints import load_checkpoint
name, folder, out = sys.argv[1:]
model = build(sampler=SAMPLERS[name], units=200, seed=99, eager=False)
assert load_checkpoint(folder, model) == {"epoch": 2, "step": 6}
np.savez(out, losses=train(model, 2, 4), **{f"v{i}": v for i, (v, _) in enumerate(state_of(model))})
"""


def train_and_save(folder, name, **changes):
    """A model after four epochs, their losses, and its checkpoint after two of them."""
    model = build(sampler=SAMPLERS[name], units=200, **changes)
    losses = train(model, 0, 2)
    save_checkpoint(folder, model, progress={"epoch": 2, "step": 6})
    if name == "lsh":
        # The tables are those of earlier weights, so that building them now would not do.
        before, rebuilt = tables_of(model), build(sampler=SAMPLERS[name], units=200)
        assert not before["stale"]
        rebuilt.set_weights(model.get_weights())
        rebuilt.layers[-1].rebuild()
        assert (before["neuron_ids"] != tables_of(rebuilt)["neuron_ids"]).any()
    return model, losses + train(model, 2, 4)


@pytest.mark.parametrize(
    "name",
    ["lsh", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rehash", "learned", "all"))],
)
def test_a_training_goes_on_exactly(name, tmp_path):
    through, losses = train_and_save(tmp_path / "a", name)
    other = build(sampler=SAMPLERS[name], units=200, seed=99)
    load_checkpoint(tmp_path / "a", other)
    assert train(other, 2, 4) == losses[2:]
    for (found, _), (value, _) in zip(state_of(other), state_of(through), strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_a_training_goes_on_exactly_in_a_fresh_process(tmp_path):
    through, losses = train_and_save(tmp_path / "a", "lsh", eager=False)
    run_python(FRESH, "lsh", tmp_path / "a", tmp_path / "fresh.npz")
    fresh = np.load(tmp_path / "fresh.npz")
    assert fresh["losses"].tolist() == losses[2:]
    for number, (value, _) in enumerate(state_of(through)):
        np.testing.assert_array_equal(fresh[f"v{number}"], value)


def test_saving_does_not_disturb_the_training(tmp_path):
    quiet, saving = build(units=200), build(units=200)
    checkpoint = Checkpoint(tmp_path)
    assert train(saving, 0, 3, callbacks=[checkpoint]) == train(quiet, 0, 3)
    for (found, _), (value, _) in zip(state_of(saving), state_of(quiet), strict=True):
        np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    "make",
    [
        lambda rate: keras.optimizers.SGD(rate, momentum=0.9, use_ema=True),
        keras.optimizers.Adam,
        lambda rate: SparseAdam(keras.optimizers.schedules.CosineDecay(rate, 50), clipnorm=1.0),
        lambda rate: SparseAdam(rate, gradient_accumulation_steps=3),
        lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.RMSprop(rate)),
        keras.optimizers.Adafactor,
    ],
    ids=["sgd", "adam", "schedule", "accumulation", "scaled", "adafactor"],
)
def test_any_optimizer(make, tmp_path):
    first, other = build(optimizer=make), build(optimizer=make)
    wanted = random_state(first)
    set_state(first, wanted)
    save_checkpoint(tmp_path / "a", first)
    load_checkpoint(tmp_path / "a", other)
    require_state(other, wanted)
    assert len(wanted) > len(first.variables) + 2


def test_a_changed_learning_rate_goes_on(tmp_path):
    model, other = build(), build()
    train(model, 0, 1)
    model.optimizer.learning_rate = 0.125
    save_checkpoint(tmp_path / "a", model)
    load_checkpoint(tmp_path / "a", other)
    assert float(other.optimizer.learning_rate) == 0.125


def test_another_sampler_takes_the_weights_and_builds_its_own_tables(tmp_path):
    model = build()
    train(model, 0, 1)
    save_checkpoint(tmp_path / "a", model)
    for sampler in (
        LshSampler(hash=SimHash(bits=3, tables=3), active=8),
        UniformSampler(5),
        AllNeurons(),
    ):
        other = build(sampler=sampler, seed=99)
        load_checkpoint(tmp_path / "a", other)
        require_state(other, [value for value, _ in state_of(model)])
        sampled = other.layers[-1]._sampled_weights
        assert int(sampled.step) == 3
        if isinstance(sampler, LshSampler):
            assert tables_of(other)["stale"]
            assert tables_of(other)["rebuilds"] == tables_of(model)["rebuilds"]


def test_a_model_without_optimizer_takes_the_weights(tmp_path):
    model, plain = build(), build(optimizer=None, seed=99)
    set_state(model, random_state(model))
    save_checkpoint(tmp_path / "a", model)
    load_checkpoint(tmp_path / "a", plain)
    require_state(plain, [v.numpy() for v in model.variables])
    save_checkpoint(tmp_path / "b", plain, progress={"epoch": 0})
    other = build(seed=98)
    before = [v.numpy() for v in other.optimizer.variables]
    load_checkpoint(tmp_path / "b", other)
    for slot, value in zip(other.optimizer.variables, before, strict=False):
        np.testing.assert_array_equal(slot, value)


# Files


def test_the_library_reads_the_files(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(5, dtype="bfloat16"),
            keras.layers.Dense(4, dtype="float64"),
            keras.layers.Dense(4, dtype="float16"),
            DSlideDense(7, sampler=LshSampler(hash=SimHash(bits=2, tables=3))),
        ]
    )
    save_checkpoint(tmp_path / "a", model)
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "manifest.json",
        "rank-00000-of-00001.safetensors",
    }
    tensors = safetensors.numpy.load_file(tmp_path / "a" / "rank-00000-of-00001.safetensors")
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    for saved, variable in zip(manifest["model"]["variables"], model.variables, strict=True):
        found = tensors.pop(saved["key"])
        assert (found == np.asarray(variable.value)).all()
        assert found.dtype == saved["dtype"] == variable.dtype
        assert list(found.shape) == saved["shape"]
    # Never used, the tables are empty.
    assert tensors["sampler/0/neuron_ids"].shape == (0, 0)
    assert tensors["sampler/0/stale"].dtype == bool
    assert manifest["versions"]["tensorflow"] == tf.__version__
    other = keras.models.clone_model(model)
    load_checkpoint(tmp_path / "a", other)
    for found, wanted in zip(other.variables, model.variables, strict=True):
        assert (np.asarray(found.value) == np.asarray(wanted.value)).all()


@pytest.mark.slow
def test_memory_stays_that_of_the_model(tmp_path):
    """Peaks of saving and loading 3 x 40 MB and tables of 10 MB, in a fresh process."""
    code = """
        import sys, keras
        from tf_dslide import DSlideDense, LshSampler, SlideCrossentropy, SparseAdam
        from tf_dslide.checkpoints import load_checkpoint, save_checkpoint, shards
        shards.PIECE_BYTES = 1 << 20

        def peak_during(work):
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the peak
            now = kilobytes("VmRSS")
            work()
            return (kilobytes("VmHWM") - now) / 1024

        def kilobytes(name):
            lines = open("/proc/self/status").read().splitlines()
            return int(next(line for line in lines if line.startswith(name)).split()[1])

        inputs = keras.Input((200,))
        model = keras.Model(inputs, DSlideDense(50_000, sampler=LshSampler())(inputs))
        model.layers[-1].rebuild()
        model.compile(SparseAdam(), SlideCrossentropy())
        save_checkpoint(sys.argv[1], model)
        print(peak_during(lambda: save_checkpoint(sys.argv[1], model)))
        load_checkpoint(sys.argv[1], model)
        print(peak_during(lambda: load_checkpoint(sys.argv[1], model)))
    """
    saving, loading = map(float, run_python(code, tmp_path / "a").split())
    assert saving < 8
    assert loading < 8


# Other ranks


@pytest.mark.parametrize(
    ("path", "cut", "piece"),
    [
        pytest.param([1, 2, 3, 1], sharding.equal_ranges, 1 << 24, marks=pytest.mark.slow),
        ([3, 2, 1], uneven, 50),
        # More ranks than units of the hidden layer.
        pytest.param([7, 2], uneven, 1, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_other_numbers_of_ranks(path, cut, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "PIECE_BYTES", piece)
    wanted = random_state(build())
    first = Parts(path[0], cut)
    for model in first.models:
        set_state(model, wanted)
    first.succeed(lambda m, s: save_checkpoint(tmp_path / "0", m, s, {"epoch": 4}))
    for number, ranks in enumerate(path[1:]):
        parts = Parts(ranks, cut, seed=50 + number)
        load_and_save(parts, tmp_path / str(number), tmp_path / str(number + 1), wanted)
    whole = build(seed=3)
    load_checkpoint(tmp_path / str(len(path) - 1), whole)
    require_state(whole, wanted)


def load_and_save(parts, old, new, wanted):
    progress = parts.succeed(lambda m, s: load_checkpoint(old, m, s))
    assert progress == [{"epoch": 4}] * len(parts.models)
    for model in parts.models:
        require_state(model, wanted)
        assert tables_of(model)["stale"]
    parts.succeed(lambda m, s: save_checkpoint(new, m, s, {"epoch": 4}))


def test_files_hold_parts_and_shared_values_once(tmp_path):
    parts = unchanged(3, uneven)
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s))
    files = sorted((tmp_path / "a").glob("*.safetensors"))
    first, second, _ = (safetensors.numpy.load_file(path) for path in files)
    manifest = json.loads((tmp_path / "a" / "manifest.json").read_text())
    for saved in [*manifest["model"]["variables"], *manifest["optimizer"]["variables"]]:
        if saved["axis"] is None:
            assert saved["key"] in first
            assert saved["key"] not in second
        else:
            (rank, begin, end) = saved["parts"][1]
            assert rank == 1
            assert second[saved["key"]].shape[saved["axis"]] == end - begin
    axes = [(v["path"].split("/")[-1], v["axis"]) for v in manifest["model"]["variables"]]
    split = [("kernel", 1), ("bias", 0)], [("kernel", 0), ("bias", 0)]
    state = ("seed_generator_state", None)
    assert axes == [*split[0], ("kernel", None), ("bias", None), state, *split[1]]


def test_the_same_ranks_keep_their_tables_and_others_build_new_ones(tmp_path):
    parts = Parts(2)
    for model in parts.models:
        model.layers[-1].rebuild()
        # From now on the tables are not those of the weights.
        model.layers[-1].kernel._value.assign(-model.layers[-1].kernel.numpy())
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s))
    same, shifted, more = Parts(2, seed=9), Parts(2, uneven, seed=9), Parts(3, seed=9)
    for other in (same, shifted, more):
        other.succeed(lambda m, s: load_checkpoint(tmp_path / "a", m, s))
    for found, wanted in zip(same.models, parts.models, strict=True):
        for name, value in tables_of(wanted).items():
            np.testing.assert_array_equal(tables_of(found)[name], value)
        assert not tables_of(found)["stale"]
    for model in (*shifted.models, *more.models):
        assert tables_of(model)["stale"]
        assert tables_of(model)["rebuilds"] == 1


@pytest.mark.slow
def test_what_rank_0_learned_serves_other_numbers_of_ranks(tmp_path):
    sampler = LshSampler(hash=LearnedHash(bits=2, tables=3), active=8, rebuild_every=5)
    parts = Parts(2, sampler=sampler)
    for rank, model in enumerate(parts.models):
        for variable in model.layers[-1]._sampled_weights.selector.learned.values():
            variable.assign(tf.ones_like(variable) * (rank + 3))
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s))
    for ranks, wanted in ((1, [3]), (2, [3, 4]), (3, [3, 3, 3])):
        other = Parts(ranks, sampler=sampler, seed=9)
        other.succeed(lambda m, s: load_checkpoint(tmp_path / "a", m, s))
        for model, value in zip(other.models, wanted, strict=True):
            for variable in model.layers[-1]._sampled_weights.selector.learned.values():
                assert (variable.numpy() == value).all()


@pytest.mark.slow
def test_learning_begins_again_with_another_sampler(tmp_path):
    hash_family = LearnedHash(bits=2, tables=3)
    model = build(sampler=LshSampler(hash=hash_family, active=8, rebuild_every=500))
    train(model, 0, 1)
    save_checkpoint(tmp_path / "a", model)
    other = build(sampler=LshSampler(hash=hash_family, active=9, rebuild_every=500))
    load_checkpoint(tmp_path / "a", other)
    rounds = other.layers[-1]._sampled_weights.selector.learned["hash_rounds"]
    assert rounds == 0
    train(other, 1, 2)
    assert rounds == 1


def test_ranks_that_have_drifted_apart_get_their_own_functions_back(tmp_path):
    sampler = LshSampler(
        hash=SimHash(bits=2, tables=3),
        active=8,
        rehash_every=1,
        rebuild_on_drift=0.1,
        rebuild_every=5,
    )
    parts = Parts(2, sampler=sampler)
    selectors = [model.layers[-1]._sampled_weights.selector for model in parts.models]
    for generation, selector in enumerate(selectors):
        selector.set_state([9, 4, generation, 0])
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s))
    other = Parts(2, sampler=sampler, seed=9)
    other.succeed(lambda m, s: load_checkpoint(tmp_path / "a", m, s))
    for wanted, model in zip(selectors, other.models, strict=True):
        found = model.layers[-1]._sampled_weights.selector
        assert found.get_state() == wanted.get_state()
        for mine, its in zip(found._hash._numbers, wanted._hash._numbers, strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_state_that_cannot_be_split_is_refused(tmp_path):
    parts = Parts(2, optimizer=keras.optimizers.Adafactor)
    for error in parts.on_all(lambda m, s: save_checkpoint(tmp_path / "a", m, s)):
        assert isinstance(error, CheckpointError)
        assert "Adafactor keeps" in str(error)
        assert "split over ranks" in str(error)
    assert not list(tmp_path.iterdir())


def test_ranks_with_different_models_do_not_save(tmp_path):
    other = unchanged(units=UNITS + 1).models[1]
    for error in unchanged().on_all(
        lambda m, s: save_checkpoint(tmp_path / "a", other if s.rank else m, s)
    ):
        assert isinstance(error, RankError)
        assert "the model to be saved" in str(error)
    assert not list(tmp_path.iterdir())


# Faults while saving


@pytest.fixture
def file_limit():
    """Sets how long files may grow: writing more fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_rank_that_cannot_write_ends_the_saving_on_all(tmp_path, file_limit):
    parts = Parts(3, uneven, units=2000)
    wanted = [state_of(model) for model in parts.models]
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s, {"epoch": 1}))
    sizes = [path.stat().st_size for path in sorted((tmp_path / "a").glob("*.safetensors"))]
    assert sizes[2] > max(sizes[:2])
    file_limit((sizes[2] + max(sizes[:2])) // 2)
    errors = parts.on_all(lambda m, s: save_checkpoint(tmp_path / "a", m, s, {"epoch": 2}))
    texts = {str(error) for error in errors}
    assert texts == {f"{tmp_path / 'a'} was not saved: rank 2 of 3: [Errno 27] File too large"}
    assert all(isinstance(error, CheckpointError) for error in errors)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    progress = parts.succeed(lambda m, s: load_checkpoint(tmp_path / "a", m, s))
    assert progress == [{"epoch": 1}] * 3
    for model, values in zip(parts.models, wanted, strict=True):
        for (found, _), (value, _) in zip(state_of(model), values, strict=True):
            np.testing.assert_array_equal(found, value)


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    """A real one, where this process may mount a small file system of its own."""
    code = """
        import os, sys
        from tests.parallel.checkpoint_cases import build
        from tf_dslide.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
        place = sys.argv[1]
        save_checkpoint(f"{place}/small", build(), progress={"epoch": 3})
        large = build(units=100_000)
        try:
            save_checkpoint(f"{place}/large", large)
        except CheckpointError as error:
            print(error)
        print(sorted(os.listdir(place)), load_checkpoint(f"{place}/small", build()))
    """
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}"
    if not shutil.which("unshare") or os.system(f"unshare -rm sh -c '{mount}' 2>/dev/null"):
        pytest.skip("no file systems can be mounted here")
    program = f"""
        import subprocess, sys, os
        code = {code!r}
        import textwrap
        inner = [sys.executable, "-c", textwrap.dedent(code), {str(tmp_path)!r}]
        outer = ["unshare", "-rm", "sh", "-c", '{mount} && exec "$@"', "sh"]
        print(subprocess.run(outer + inner, check=True, stdout=subprocess.PIPE, text=True).stdout)
    """
    message, rest = run_python(program).splitlines()[:2]
    assert message == f"{tmp_path}/large was not saved: [Errno 28] No space left on device"
    assert rest == "['small'] {'epoch': 3}"


def test_the_manifest_may_fail_too(tmp_path, monkeypatch):
    model = build()
    save_checkpoint(tmp_path / "a", model, progress={"epoch": 1})

    def fail(folder):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_atomic, "flush_folder", fail)
    with pytest.raises(CheckpointError, match=r"a was not saved: \[Errno 5\] Input/output"):
        save_checkpoint(tmp_path / "a", model)
    assert load_checkpoint(tmp_path / "a", model) == {"epoch": 1}
    assert not hidden_in(tmp_path)


def test_what_a_killed_saving_left_is_replaced(tmp_path):
    left = tmp_path / ".epoch-0002.unfinished"
    left.mkdir()
    (left / "rank-00000-of-00009.safetensors").write_bytes(b"half")
    assert latest(tmp_path) is None
    save_checkpoint(tmp_path / "epoch-0002", build())
    assert not hidden_in(tmp_path)
    assert len(list((tmp_path / "epoch-0002").iterdir())) == 2


def test_a_checkpoint_takes_the_place_of_an_earlier_one(tmp_path):
    first, second = unchanged(3), unchanged(2)
    first.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s, {"epoch": 1}))
    second.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s, {"epoch": 2}))
    assert len(list((tmp_path / "a").iterdir())) == 3
    assert load_checkpoint(tmp_path / "a", build()) == {"epoch": 2}
    assert not hidden_in(tmp_path)


def test_what_is_no_checkpoint_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("text")
    with pytest.raises(CheckpointError, match="mine was not saved: it exists and is not a check"):
        save_checkpoint(tmp_path / "mine", build())
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "text"
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"\[Errno 17\] File exists"):
        save_checkpoint(tmp_path / "file" / "a", build())


def test_ranks_that_do_not_see_the_same_folder(tmp_path, monkeypatch):
    parts = unchanged()
    is_dir = Path.is_dir
    ranks = {}

    def is_dir_here(path):
        seen = path.name.startswith(".") and ranks.get(threading.get_ident()) == 1
        return False if seen else is_dir(path)

    def save(model, strategy):
        ranks[threading.get_ident()] = strategy.rank
        save_checkpoint(tmp_path / "a", model, strategy)

    monkeypatch.setattr(Path, "is_dir", is_dir_here)
    for error in parts.on_all(save):
        assert "rank 1 of 2: it does not see" in str(error)
        assert "file system that all ranks share" in str(error)
    assert not list(tmp_path.iterdir())


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match=r"`progress` must be.* JSON.*received \{'a': \{1\}"):
        save_checkpoint(tmp_path / "a", build(), progress={"a": {1}})
    with pytest.raises(ValueError, match="is not built"):
        save_checkpoint(tmp_path / "a", keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(ValueError, match="`keep` must be a positive integer; received 0"):
        Checkpoint(tmp_path, keep=0)
    with pytest.raises(ValueError, match="`every_epochs` must be"):
        Checkpoint(tmp_path, every_epochs=0.5)
    with pytest.raises(ValueError, match=r"`path` must end in .keras; received"):
        export(tmp_path / "a", tmp_path / "model.h5")
    assert not list(tmp_path.iterdir())


# Faults while loading


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of three ranks."""
    folder = tmp_path_factory.mktemp("saved") / "a"
    parts = unchanged(3)
    parts.succeed(lambda m, s: save_checkpoint(folder, m, s, {"epoch": 1}))
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "a"))


def require_refused(folder, *texts, **changes):
    """Loading fails on all ranks with one message, and changes nothing."""
    parts = unchanged(**changes)
    before = [[value for value, _ in state_of(model)] for model in parts.models]
    errors = parts.on_all(lambda m, s: load_checkpoint(folder, m, s))
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, CheckpointError)
        assert isinstance(error, ValueError)
        for text in (f"{folder} cannot be loaded: ", *texts):
            assert text in str(error)
    for model, values in zip(parts.models, before, strict=True):
        for (found, _), value in zip(state_of(model), values, strict=True):
            np.testing.assert_array_equal(found, value)
    return str(errors[0])


def test_what_is_no_checkpoint(tmp_path, copied):
    require_refused(tmp_path / "none", "there is no such folder")
    require_refused(tmp_path, "it is not a checkpoint: it has no manifest.json")
    (tmp_path / "file").write_text("")
    require_refused(tmp_path / "file", "it is not a folder")
    (tmp_path / "run" / "epoch-0012").mkdir(parents=True)
    require_refused(tmp_path / "run", "folder of checkpoints: load one of them", "epoch-0012")
    for text in ("", "{", "[]", '"text"', "{}"):
        (copied / "manifest.json").write_text(text)
        require_refused(copied, "manifest.json is damaged")
    (copied / "manifest.json").write_text('{"made_by": "another", "format": 1}')
    require_refused(copied, "it is not a checkpoint of tf_dslide, but of 'another'")


def test_a_newer_format(copied):
    def change(manifest):
        manifest["format"] = 2
        manifest["versions"]["tf_dslide"] = "9.9"

    edit_manifest(copied, change)
    require_refused(copied, "it is in format 2, made by tf_dslide 9.9", "reads format 1")


@pytest.mark.parametrize(
    "key", ["files", "progress", "model", "optimizer", "samplers"], ids=lambda key: key
)
def test_a_manifest_that_lacks_something(key, copied):
    edit_manifest(copied, lambda manifest: manifest.pop(key))
    require_refused(copied, f"manifest.json is damaged (KeyError('{key}'))")


def test_a_manifest_whose_parts_leave_a_gap(copied):
    def change(manifest):
        manifest["model"]["variables"][0]["parts"].pop()

    edit_manifest(copied, change)
    require_refused(copied, "kernel up to 4 of 5 only")


def test_a_manifest_of_another_model(saved, copied):
    message = require_refused(saved, units=UNITS + 1)
    assert f"float32 ({UNITS}, 6), in the checkpoint, but " in message
    assert f"float32 ({UNITS + 1}, 6), here" in message
    require_refused(saved, "variable 0 of the model is", "(30, 5)", "(30, 6)", hidden=6)
    with pytest.raises(CheckpointError, match="the model has 7 variables in the checkpoint, but 4"):
        inputs = keras.Input((FEATURES,), sparse=True)
        x = build().layers[1](inputs)
        load_checkpoint(saved, keras.Model(inputs, keras.layers.Dense(6)(x)))
    # The manifest of the model at hand, beside files of another one.
    other = unchanged(3, units=UNITS + 1)
    other.succeed(lambda m, s: save_checkpoint(copied, m, s))
    shutil.copy(saved / "manifest.json", copied)
    require_refused(copied, "rank-00000-of-00003.safetensors", "at step 0 of another model")


def test_another_optimizer(saved):
    message = require_refused(saved, optimizer=keras.optimizers.SGD)
    assert "saved with the optimizer tf_dslide>SparseAdam" in message
    assert "compiled with SGD" in message
    message = require_refused(saved, optimizer=lambda rate: SparseAdam(rate, use_ema=True))
    assert "variable 3 of the optimizer is" in message


def test_a_truncated_file(copied):
    path = copied / "rank-00001-of-00003.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 1)
    message = require_refused(copied, f"it has {size - 1:,} bytes and should have {size:,}")
    # Of two ranks the second one looks at the second file.
    assert "rank 1 of 2: the file rank-00001-of-00003.safetensors is truncated" in message
    os.truncate(path, 0)
    require_refused(copied, "is truncated: it has 0 bytes")


def test_a_missing_file(copied):
    (copied / "rank-00002-of-00003.safetensors").unlink()
    require_refused(
        copied, "the file rank-00002-of-00003.safetensors is missing; 3 ranks wrote one each"
    )


@pytest.mark.parametrize("place", [0, 9, -1])
def test_a_flipped_bit(place, copied):
    path = copied / "rank-00000-of-00003.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    require_refused(copied, "rank-00000-of-00003.safetensors is damaged or of another checkpoint")


def test_a_foreign_file(copied, tmp_path):
    name = "rank-00001-of-00003.safetensors"
    # Another training of the same model, of which everything is of the same size.
    foreign = Parts(3, seed=5)
    for model in foreign.models:
        model.optimizer.build(model.trainable_variables)
        model.optimizer.iterations.assign(8)
    foreign.succeed(lambda m, s: save_checkpoint(tmp_path / "b", m, s))
    shutil.copy(tmp_path / "b" / name, copied)
    require_refused(copied, name, "it says that it is of rank 1 of 3 at step 8 of this model")
    shutil.copy(copied / "rank-00002-of-00003.safetensors", copied / name)
    require_refused(copied, name, "it says that it is of rank 2 of 3")
    safetensors.numpy.save_file({"a": np.zeros(9)}, copied / name)
    require_refused(copied, name, "it was not made by tf_dslide")


def test_ranks_that_see_different_checkpoints(saved, copied):
    edit_manifest(copied, lambda manifest: manifest["progress"].update(epoch=9))
    parts = unchanged()
    for error in parts.on_all(lambda m, s: load_checkpoint([saved, copied][s.rank], m, s)):
        assert isinstance(error, RankError)
        assert "manifest.json" in str(error)


def test_a_file_that_vanishes_while_loading(copied, monkeypatch):
    require_whole = Manifest.require_whole

    def then_lose_it(manifest, index):
        require_whole(manifest, index)
        (copied / manifest.files[index]["name"]).unlink()

    monkeypatch.setattr(Manifest, "require_whole", then_lose_it)
    for error in Parts(2).on_all(lambda m, s: load_checkpoint(copied, m, s)):
        assert "could be loaded in part only: do not go on with this model" in str(error)


# The callback


def run_epochs(model, checkpoint, epochs):
    """As `fit` without training."""
    checkpoint.set_model(model)
    checkpoint.set_params({"epochs": epochs})
    for epoch in range(epochs):
        checkpoint.on_epoch_end(epoch)


def test_the_callback_keeps_the_last_ones_and_finds_them_again(tmp_path):
    run = tmp_path / "new" / "run"
    checkpoint = Checkpoint(run, notes={"batch_size": 16})
    model = build()
    assert checkpoint.resume(model) == 0
    train(model, 0, 3, callbacks=[checkpoint])
    assert sorted(path.name for path in run.iterdir()) == ["epoch-0002", "epoch-0003"]
    assert latest(run) == run / "epoch-0003"
    other = build(seed=99)
    assert Checkpoint(run).resume(other) == 3
    # After the last epoch `fit` brings all rows up to date.
    other.optimizer.catch_up()
    require_state(other, [value for value, _ in state_of(model)])
    manifest = json.loads((run / "epoch-0003" / "manifest.json").read_text())
    assert manifest["progress"] == {"batch_size": 16, "epoch": 3, "step": 9}


def test_the_callback_saves_every_so_often_and_at_the_end(tmp_path):
    run_epochs(build(), Checkpoint(tmp_path, every_epochs=2, keep=None), 5)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch-0002", "epoch-0004", "epoch-0005"]


def test_a_checkpoint_that_is_not_whole_is_left_out(tmp_path):
    run_epochs(build(), Checkpoint(tmp_path), 2)
    os.truncate(tmp_path / "epoch-0002" / "rank-00000-of-00001.safetensors", 100)
    with pytest.warns(UserWarning, match="epoch-0002 is left out: the file rank-00000.*truncated"):
        assert latest(tmp_path) == tmp_path / "epoch-0001"
    with pytest.warns(UserWarning, match="epoch-0002 is left out"):
        assert Checkpoint(tmp_path).resume(build()) == 1


def test_other_things_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "epoch-0009").write_text("a file")
    (tmp_path / "epoch-best").mkdir()
    assert latest(tmp_path) is None
    run_epochs(build(), Checkpoint(tmp_path, keep=1), 3)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["epoch-0003", "epoch-0009", "epoch-best"]
    assert latest(tmp_path).name == "epoch-0003"


def test_more_than_9999_epochs(tmp_path):
    for name in ("epoch-9999", "epoch-10000"):
        save_checkpoint(tmp_path / name, build())
    assert latest(tmp_path).name == "epoch-10000"


def test_all_ranks_resume_from_what_the_first_finds(tmp_path):
    parts = unchanged()
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "epoch-0007", m, s, {"epoch": 7}))
    others = Parts(2, seed=9)
    assert others.succeed(lambda m, s: Checkpoint(tmp_path, s).resume(m)) == [7, 7]
    for found, wanted in zip(others.models, parts.models, strict=True):
        for (value, _), (expected, _) in zip(state_of(found), state_of(wanted), strict=True):
            np.testing.assert_array_equal(value, expected)


# Export


def test_export_of_several_ranks_predicts_as_the_whole_model(tmp_path):
    wanted = random_state(build())
    parts = Parts(3, uneven)
    for model in parts.models:
        set_state(model, wanted)
    parts.succeed(lambda m, s: save_checkpoint(tmp_path / "a", m, s))
    export(tmp_path / "a", tmp_path / "a.keras")
    found = keras.models.load_model(tmp_path / "a.keras")
    assert not found.compiled
    whole = build()
    set_state(whole, wanted)
    x = tf.sparse.from_dense(np.eye(FEATURES, dtype="float32"))
    np.testing.assert_array_equal(found(x), whole(x))
    export(tmp_path / "a", tmp_path / "b.keras", training=True)
    going_on = keras.models.load_model(tmp_path / "b.keras")
    # Keras leaves the state of its random numbers out of its files.
    random = [value.dtype == np.int64 and value.shape == (2,) for value in wanted]
    assert sum(random) == 1
    for (found, _), value, is_random in zip(state_of(going_on), wanted, random, strict=True):
        assert is_random or (found == value).all()
    assert isinstance(going_on.loss, SlideCrossentropy)
    assert not hidden_in(tmp_path)


@keras.saving.register_keras_serializable("tests")
class Odd(keras.Model):
    """A model that does not say how it is made."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x)

    def get_config(self):
        raise NotImplementedError


def test_export_of_a_model_without_configuration(tmp_path):
    models = [Odd(DSlideDense(9)), keras.Sequential([keras.Input((4,)), DSlideDense(9)])]
    x = np.ones((2, 4), "float32")
    wanted = models[0](x)
    save_checkpoint(tmp_path / "a", models[0])
    with pytest.raises(CheckpointError, match="does not say how to build its model.*pass `model`"):
        export(tmp_path / "a", tmp_path / "a.keras")
    export(tmp_path / "a", tmp_path / "a.keras", model=models[1])
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "a.keras")(x), wanted)


def test_an_export_that_fails_leaves_the_earlier_file(tmp_path, file_limit):
    save_checkpoint(tmp_path / "a", build(units=5000))
    (tmp_path / "a.keras").write_text("earlier")
    file_limit(50_000)
    with pytest.raises(OSError, match="File too large"):
        export(tmp_path / "a", tmp_path / "a.keras")
    assert (tmp_path / "a.keras").read_text() == "earlier"
    assert not hidden_in(tmp_path)
