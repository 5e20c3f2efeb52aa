"""The commands on a classifier without hidden layer."""

import json

import keras
import numpy as np
import pytest
from cli_helpers import NUM_LABELS, dslide

from tf_dslide import DSlideLinear, SparseAdagrad
from tf_dslide.data import Dataset, batches


@pytest.fixture(scope="module")
def linear(files, tmp_path_factory):
    """The model and its log."""
    folder = tmp_path_factory.mktemp("linear")
    path, log = folder / "linear.keras", folder / "run.jsonl"
    options = ("--hidden", 0, "--batch-size", 32, "--test", files.test, "--out", path, "--log", log)
    dslide("train", files.train, *options).succeeded()
    return path, [json.loads(line) for line in log.read_text().splitlines()]


def test_learns_without_hidden_layer(files, linear):
    path, (start, *epochs, saved) = linear
    assert start["hidden"] == []
    assert start["sampler"] is None
    assert [epoch["epoch"] for epoch in epochs] == [1, 2]
    assert epochs[1]["loss"] < epochs[0]["loss"]
    most_common = np.argmax(files.train_data.label_counts)
    baseline = files.test_data.labels[:, most_common].mean()
    assert epochs[-1]["precision_at_1"] > 2 * baseline
    model = keras.models.load_model(path)
    assert isinstance(model.layers[-1], DSlideLinear)
    assert isinstance(model.optimizer, SparseAdagrad)
    assert saved["steps"] == int(model.optimizer.iterations) == 38


def test_evaluate_gives_the_loss_it_was_trained_with(files, linear):
    path, log = linear
    report = json.loads(dslide("evaluate", path, files.test, "--json").succeeded().out)
    for name in ("precision_at_1", "precision_at_5", "psp_at_1"):
        assert report[name] == pytest.approx(log[-2][name], rel=1e-5)
    logits = logits_of(path, files.test_data)
    true = files.test_data.labels.toarray() > 0
    losses = np.logaddexp(0, np.where(true, -logits, logits)).sum(axis=1)
    assert report["loss"] == pytest.approx(losses.mean(), rel=1e-4)


def logits_of(path, data: Dataset) -> np.ndarray:
    model = keras.models.load_model(path, compile=False)
    return np.concatenate([np.asarray(model(x)) for x, _ in batches(data, 64)])


def test_predict_ranks_as_the_logits_do(files, linear, tmp_path):
    path, _ = linear
    out = tmp_path / "best.txt"
    dslide("predict", path, files.test, "-k", 3, "--out", out).succeeded()
    best = [[pair.split(":") for pair in line.split()] for line in out.read_text().splitlines()]
    labels = np.array([[int(label) for label, _ in row] for row in best])
    scores = np.array([[float(score) for _, score in row] for row in best])
    logits = logits_of(path, files.test_data)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :3]
    np.testing.assert_allclose(
        scores, np.take_along_axis(logits, expected, 1), rtol=1e-4, atol=1e-5
    )
    assert (labels == expected).mean() > 0.99  # but for equals
    assert labels.max() < NUM_LABELS


def test_hashed_prediction_is_refused(files, linear):
    message = dslide("predict", linear[0], files.test, "--hashed").failed()
    assert "has a DSlideLinear" in message


@pytest.mark.slow
def test_resumes_exactly(files, tmp_path):
    options = ("--hidden", 0, "--batch-size", 32, "--validation-split", 0, "--epochs", 3)
    options += ("--schedule", "constant")
    whole, parts = tmp_path / "whole.keras", tmp_path / "parts.keras"
    dslide("train", files.train, *options, "--out", whole).succeeded()
    folder = ("--checkpoint", tmp_path / "checkpoints", "--out", parts)
    dslide("train", files.train, *options[:-3], 1, *options[-2:], *folder).succeeded()
    again = dslide("train", files.train, *options, *folder, "--resume").succeeded()
    assert "1 of 3 epochs are done" in again.out
    first, second = (keras.models.load_model(path).get_weights() for path in (whole, parts))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hidden", 16), "either 0 alone, for none, or widths"),
        (("--sampler", "lsh"), "'lsh' has no effect with --hidden 0"),
        (("--hash", "dwta"), "'dwta' has no effect with --hidden 0"),
        (("--rebuild-every", 3), "3 has no effect with --hidden 0"),
        (("--dropout", 0.5), "0.5 has no effect with --hidden 0"),
        (("--weight-decay", 0.1), "0.1 has no effect with --hidden 0"),
    ],
)
def test_options_of_networks_are_refused(files, options, message):
    assert message in dslide("train", files.train, "--hidden", 0, *options).failed(2)


def test_tune_is_for_networks(files):
    assert "only a network is tuned" in dslide("tune", files.train, "--hidden", 0).failed(2)
