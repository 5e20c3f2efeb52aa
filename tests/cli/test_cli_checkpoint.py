"""`dslide train --checkpoint DIR --resume`."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
from cli_helpers import SMALL, dslide

from tf_dslide.cli import callbacks

OPTIONS = (*SMALL, "--dropout", 0.2, "--schedule", "constant", "--validation-split", 0.1)


def train(data, folder, name, *options):
    log = folder / f"{name}.jsonl"
    out = ("--out", folder / f"{name}.keras", "--log", log)
    return dslide("train", data, *out, *OPTIONS, *options)


def epochs_of(log):
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return {line["epoch"]: line["loss"] for line in lines if line["event"] == "epoch"}


def require_same_models(first, second):
    first, second = (keras.models.load_model(path) for path in (first, second))
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first.optimizer.variables, second.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_killed_training_goes_on_as_if_nothing_had_happened(files, tmp_path):
    run = tmp_path / "run"
    options = ["--checkpoint", run, "--epochs", 100_000, "--log", tmp_path / "killed.jsonl"]
    command = [sys.executable, "-m", "tf_dslide.cli", "train", files.train, *OPTIONS, *options]
    command += ["--out", tmp_path / "killed.keras"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stdout:
                if line.split()[0] == "3":
                    break
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert not (tmp_path / "killed.keras").exists()
    done = max(int(path.name[-4:]) for path in run.glob("epoch-*"))
    assert done >= 2
    options = ("--checkpoint", run, "--resume", "--epochs", done + 2)
    out = train(files.train, tmp_path, "resumed", *options).succeeded().out
    assert f"Resumed from {run}: {done} of {done + 2} epochs are done" in out
    train(files.train, tmp_path, "through", "--epochs", done + 2).succeeded()
    through, resumed, killed = (
        epochs_of(tmp_path / f"{name}.jsonl") for name in ("through", "resumed", "killed")
    )
    assert list(resumed) == [done + 1, done + 2]
    assert resumed == {epoch: through[epoch] for epoch in resumed}
    assert killed[1] == through[1]
    require_same_models(tmp_path / "resumed.keras", tmp_path / "through.keras")


@pytest.fixture(scope="module")
def two_epochs(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_epochs")
    options = ("--checkpoint", folder / "run", "--epochs", 2)
    train(files.train, folder, "first", *options).succeeded()
    return folder


@pytest.fixture
def run(two_epochs, tmp_path):
    """A folder of checkpoints of two epochs, beside the model that they made."""
    shutil.copytree(two_epochs, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def test_resuming_a_training_that_is_over_gives_its_model(files, tmp_path, run):
    options = ("--checkpoint", run, "--resume", "--epochs", 2)
    train(files.train, tmp_path, "again", *options).succeeded()
    require_same_models(tmp_path / "first.keras", tmp_path / "again.keras")
    message = train(files.train, tmp_path, "less", *options[:3], "--epochs", 1).failed()
    assert message == f"Error: {run / 'epoch-0002'} has 2 epochs, more than --epochs 1"


@pytest.mark.slow
def test_resuming_without_a_checkpoint_begins(files, tmp_path):
    options = ("--checkpoint", tmp_path / "new" / "run", "--resume", "--epochs", 1)
    out = train(files.train, tmp_path, "model", *options).succeeded().out
    assert "Resumed" not in out
    assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == ["epoch-0001"]


@pytest.mark.slow
def test_an_interrupted_epoch_is_trained_again(files, tmp_path, run, monkeypatch):
    seen = []

    def arrive(*_, **__):
        seen.append(1)
        if len(seen) == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.TrainingProgress, "on_train_batch_end", arrive)
        options = ("--checkpoint", run, "--resume", "--epochs", 3)
        assert train(files.train, tmp_path, "interrupted", *options).status == 130
    train(files.train, tmp_path, "resumed", *options).succeeded()
    train(files.train, tmp_path, "through", "--epochs", 3).succeeded()
    require_same_models(tmp_path / "resumed.keras", tmp_path / "through.keras")


def test_checkpoints_are_not_mixed(files, tmp_path, run):
    message = train(files.train, tmp_path, "b", "--checkpoint", run, "--epochs", 2).failed()
    assert f"{run} holds checkpoints of an earlier training: add --resume to go on" in message


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--batch-size", 16), "--batch-size was 32 and is now 16"),
        (("--hidden", 9), "--hidden was [16] and is now [16, 9]"),
        (("--seed", 4), "--seed was 0 and is now 4"),
        (("--active", 30), "--active was 20 and is now 30"),
        (("--schedule", "linear"), "--schedule was 'constant' and is now 'linear'"),
        (("--validation-split", 0.2), "number of samples was 540 and is now 480"),
    ],
)
def test_another_training_is_refused(files, tmp_path, run, options, expected):
    options = ("--checkpoint", run, "--resume", "--epochs", 3, *options)
    message = train(files.train, tmp_path, "b", *options).failed()
    assert f"{run / 'epoch-0002'} is of another training: " in message
    assert expected in message
    assert not (tmp_path / "b.keras").exists()


def test_other_data_are_refused(files, tmp_path, run):
    lines = files.train.read_text().splitlines()
    other = tmp_path / "other.txt"
    other.write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]) + "\n")
    options = ("--checkpoint", run, "--resume", "--epochs", 3)
    message = train(other, tmp_path, "b", *options).failed()
    assert "checksum of the data was" in message


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over(files, tmp_path, run):
    os.truncate(run / "epoch-0002" / "rank-00000-of-00001.safetensors", 50)
    options = ("--checkpoint", run, "--resume", "--epochs", 2)
    with pytest.warns(UserWarning, match="epoch-0002 is left out"):
        out = train(files.train, tmp_path, "again", *options).succeeded().out
    assert "1 of 2 epochs are done" in out
    require_same_models(tmp_path / "first.keras", tmp_path / "again.keras")


@pytest.mark.slow
def test_a_full_disk_is_one_line(files, tmp_path, run):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        options = ("--checkpoint", run, "--resume", "--epochs", 3)
        message = train(files.train, tmp_path, "b", *options).failed()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert message == f"Error: {run / 'epoch-0003'} was not saved: [Errno 27] File too large"
    assert sorted(path.name for path in run.iterdir()) == ["epoch-0001", "epoch-0002"]


def test_bad_options(files, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    message = train(files.train, tmp_path, "b", "--resume").failed(2)
    assert "'--resume'" in message
    assert "it needs --checkpoint DIR" in message
    message = train(files.train, tmp_path, "b", "--checkpoint", file).failed()
    assert message == f"Error: {file} is not a folder"
    message = train(files.train, tmp_path, "b", "--checkpoint", file / "run").failed()
    assert f"{file / 'run'} cannot be written to" in message
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    message = train(files.train, tmp_path, "b", "--checkpoint", tmp_path / "run").failed()
    assert "--checkpoint needs the package safetensors" in message
    assert not (tmp_path / "run").exists()
