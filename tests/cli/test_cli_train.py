import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from cli_helpers import NUM_LABELS, SMALL, dslide

from tf_dslide import (
    DWTA,
    WTA,
    AllNeurons,
    LearnedHash,
    LogUniformSampler,
    LshSampler,
    MinHash,
    SimHash,
    UniformSampler,
)
from tf_dslide.cli import callbacks, network, settings


def train(data, out, *options):
    return dslide("train", data, "--out", out, *SMALL, *options)


def weights(path):
    return keras.models.load_model(path, compile=False).get_weights()


def test_learns_and_reports_each_epoch(files, trained):
    start, *epochs, saved = trained.log
    assert start["event"] == "start"
    assert start["samples"] == 600
    assert start["hidden"] == [16]
    assert [epoch["epoch"] for epoch in epochs] == list(range(1, 9))
    assert saved == {**saved, "event": "saved", "steps": 8 * 19, "model": str(trained.path)}
    assert epochs[-1]["loss"] < 0.8 * epochs[0]["loss"]
    most_common = np.argmax(files.train_data.label_counts)
    baseline = files.test_data.labels[:, most_common].mean()
    assert epochs[-1]["precision_at_1"] > 2 * baseline
    header, *rows = trained.out.splitlines()[1:10]
    assert header.split()[1:8] == ["loss", "P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3"]
    for row, epoch in zip(rows, epochs, strict=True):
        shown = [float(cell.replace(",", "")) for cell in row.split()]
        names = [f"precision_at_{k}" for k in (1, 3, 5)] + ["ndcg_at_5"]
        names += [f"psp_at_{k}" for k in (1, 3, 5)]
        assert shown[0] == epoch["epoch"]
        assert shown[1] == pytest.approx(epoch["loss"], abs=1e-4)
        assert shown[2:9] == pytest.approx([100 * epoch[name] for name in names], abs=0.01)


def test_reported_figures_are_those_of_the_saved_model(files, trained):
    report = json.loads(dslide("evaluate", trained.path, files.test, "--json").succeeded().out)
    for name in ("precision_at_1", "precision_at_5", "ndcg_at_5", "psp_at_1", "psp_at_5"):
        assert report[name] == pytest.approx(trained.log[-2][name], rel=1e-5)


def test_saved_model_resumes_in_keras(files, trained):
    model = keras.models.load_model(trained.path)
    assert int(model.optimizer.iterations) == 8 * 19
    assert float(model.optimizer.learning_rate) == 0  # decayed to the end
    assert model.input_shape == (None, 200)
    assert model.output_shape == (None, NUM_LABELS)


@pytest.mark.slow
def test_one_seed_one_result(files, tmp_path):
    options = ("--epochs", 1, "--validation-split", 0, "--dropout", 0.2)
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(files.train, tmp_path / f"{name}.keras", *options, "--seed", seed).succeeded()
    a, b, c = (weights(tmp_path / f"{name}.keras") for name in "abc")
    for first, second in zip(a, b, strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(a[0], c[0])


@pytest.mark.slow
def test_cache_takes_the_place_of_the_files(files, tmp_path):
    train_text, test_text = tmp_path / "train.txt", tmp_path / "test.txt.gz"
    cache = tmp_path / "new" / "cache"
    options = ("--test", test_text, "--cache", cache, "--epochs", 1)
    for path, original in ((train_text, files.train), (test_text, files.test)):
        path.write_bytes(original.read_bytes())
    train(train_text, tmp_path / "first.keras", *options).succeeded()
    assert len(list(cache.iterdir())) == 2
    for path in (train_text, test_text):
        # Garbage of the same size and time: only what was kept can be trained on.
        status = path.stat()
        path.write_bytes(b"x" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    train(train_text, tmp_path / "second.keras", *options).succeeded()
    for first, second in zip(
        weights(tmp_path / "first.keras"), weights(tmp_path / "second.keras"), strict=True
    ):
        np.testing.assert_array_equal(first, second)
    train_text.write_bytes(b"y")
    message = train(train_text, tmp_path / "third.keras", *options).failed()
    assert f"{train_text}, line 1: found 'y'" in message


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--sampler", "uniform", "--num-sampled", 7), UniformSampler),
        (("--sampler", "log_uniform"), LogUniformSampler),
        (("--sampler", "lsh", "--active", 70), LshSampler),
        (("--sampler", "all"), AllNeurons),
    ],
)
def test_other_samplers(files, tmp_path, options, kind):
    path = tmp_path / "model.keras"
    common = ("--hidden", 8, "--epochs", 1, "--validation-split", 0, "--out", path)
    out = dslide("train", files.train, *common, *options).succeeded().out
    assert "P@1" not in out  # nothing to score on
    sampler = keras.models.load_model(path, compile=False).layers[-1].sampler
    assert isinstance(sampler, kind)
    if kind is UniformSampler:
        assert sampler.num_sampled == 7
    if kind is LshSampler:
        assert sampler.active == 70


@pytest.mark.slow
def test_options_reach_the_model(files, tmp_path):
    path = tmp_path / "model.keras"
    options = ("--hidden", 8, "--dropout", 0.25, "--hash", "dwta", "--bits", 5, "--tables", 6)
    options += ("--schedule", "cosine", "--weight-decay", 0.01, "--epochs", 1, "--seed", 5)
    train(files.train, path, *options).succeeded()
    model = keras.models.load_model(path)
    names = [type(layer).__name__ for layer in model.layers]
    # `SMALL` asks for a hidden layer of 16 first.
    assert names == ["SparseDense", "Dropout", "Dense", "Dropout", "DSlideDense"]
    assert [model.layers[0].units, model.layers[2].units] == [16, 8]
    assert model.layers[1].rate == 0.25
    sampler = model.layers[-1].sampler
    assert isinstance(sampler.hash, DWTA)
    assert (sampler.hash.tables, sampler.hash.address_bits, sampler.hash.bins) == (6, 5, 2)
    assert (sampler.active, sampler.seed, sampler.hash.seed) == (20, 5, 5)
    assert model.optimizer.weight_decay == 0.01
    schedule = model.optimizer.get_config()["learning_rate"]
    assert schedule["class_name"] == "CosineDecay"
    assert schedule["config"]["decay_steps"] == 18  # 570 samples are left to train on


@pytest.mark.parametrize(
    ("name", "family"),
    [(None, SimHash), ("wta", WTA), ("dwta", DWTA), ("minhash", MinHash), ("learned", LearnedHash)],
)
def test_hash_families(name, family):
    for bits in (None, 7):
        made = network._make_hash(settings.SamplerSettings("lsh", name, bits, tables=4), seed=5)
        assert type(made) is family
        assert (made.tables, made.seed) == (4, 5)
        made.build(32, 100_000)
        assert made.buckets == 2 ** (bits or (12 if family in (WTA, DWTA) else 11))


def test_rebuild_schedule():
    chosen = settings.SamplerSettings("lsh", rebuild_every=70)
    assert network._make_sampler(chosen, seed=5).rebuild_every == 70
    assert network._make_sampler(settings.SamplerSettings("lsh"), seed=5).rebuild_every == 25


def test_synthetic_preset_and_validation_split(tmp_path):
    path, log = tmp_path / "model.keras", tmp_path / "run.jsonl"
    options = ("--epochs", 1, "--bits", 4, "--validation-split", 0.1, "--log", log)
    train("synth:small:100", path, *options).succeeded()
    start, epoch, _ = (json.loads(line) for line in log.read_text().splitlines())
    assert (start["samples"], start["test_samples"], start["features"]) == (90, 10, 5000)
    assert "precision_at_1" in epoch
    sampler = keras.models.load_model(path, compile=False).layers[-1].sampler
    assert isinstance(sampler.hash, SimHash)
    assert sampler.hash.bits == 4


@pytest.mark.slow
def test_log_is_appended_to(files, tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text('{"event": "earlier"}\n')
    options = ("--epochs", 1, "--validation-split", 0, "--log", log)
    train(files.train, tmp_path / "model.keras", *options).succeeded()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events == ["earlier", "start", "epoch", "saved"]


@pytest.fixture
def interrupted_at(monkeypatch):
    """Makes Ctrl-C arrive at a step of the training."""

    def interrupt(step):
        seen = []

        def arrive(*_, **__):
            seen.append(1)
            if len(seen) == step:
                raise KeyboardInterrupt

        monkeypatch.setattr(callbacks.TrainingProgress, "on_train_batch_end", arrive)

    return interrupt


def test_interrupt_keeps_the_model_so_far(files, tmp_path, interrupted_at):
    path = tmp_path / "model.keras"
    interrupted_at(step=7)
    options = ("--epochs", 3, "--label-names", files.names, "--validation-split", 0)
    result = train(files.train, path, *options)
    assert result.status == 130
    assert f"Interrupted after 7 of 57 steps: the model so far is saved in {path}" in result.out
    assert int(keras.models.load_model(path).optimizer.iterations) == 7
    assert (tmp_path / "model.labels.txt").read_text() == files.names.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.keras", "model.labels.txt"]


def test_interrupt_before_the_first_step_keeps_the_earlier_model(files, tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(callbacks.TrainingProgress, "on_train_begin", interrupt)
    path = tmp_path / "model.keras"
    path.write_text("earlier")
    result = train(files.train, path)
    assert result.status == 130
    assert "before the first step" in result.out
    assert path.read_text() == "earlier"


@pytest.mark.slow
def test_sigint_to_a_real_process(files, tmp_path):
    path = tmp_path / "model.keras"
    options = ("--test", files.test, "--epochs", 100_000, *SMALL, "--out", path)
    command = [sys.executable, "-m", "tf_dslide.cli", "train", files.train, *options]
    with subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores SIGINT, and its children would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            for line in process.stdout:
                if line.split()[0] == "2":  # the second epoch is over
                    break
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "the model so far is saved" in out
    assert "Traceback" not in err
    assert int(keras.models.load_model(path).optimizer.iterations) >= 2 * 19
