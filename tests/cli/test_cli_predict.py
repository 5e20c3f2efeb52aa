import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from cli_helpers import NUM_LABELS, dslide
from cli_reference import best_labels
from scipy import sparse

from tf_dslide import DSlideDense
from tf_dslide.data import to_sparse_tensor


@pytest.fixture(scope="module")
def dense_scores(files, trained):
    model = keras.models.load_model(trained.path, compile=False)
    return model(to_sparse_tensor(files.test_data.features)).numpy()


def parse(text):
    """Labels and scores of each line, in order."""
    rows = [[pair.rsplit(":", 1) for pair in line.split()] for line in text.splitlines()]
    return (
        [[int(label) for label, _ in row] for row in rows],
        [[float(score) for _, score in row] for row in rows],
    )


def test_text_is_the_order_of_the_dense_scores(files, trained, dense_scores):
    text = dslide("predict", trained.path, files.test, "-k", 4, "--batch-size", 64).succeeded().out
    labels, scores = parse(text)
    expected = best_labels(dense_scores, 4)
    np.testing.assert_array_equal(labels, expected)
    dense = np.take_along_axis(dense_scores, expected, axis=1)
    np.testing.assert_allclose(scores, dense, rtol=1e-4, atol=1e-5)


def test_npz_and_text_file_agree(files, trained, tmp_path):
    text, npz = tmp_path / "best.txt", tmp_path / "best.npz"
    for out in (text, npz):
        dslide("predict", trained.path, files.test, "-k", 4, "--out", out).succeeded()
    labels, scores = parse(text.read_text())
    matrix = sparse.load_npz(npz)
    assert matrix.shape == (150, NUM_LABELS)
    assert matrix.format == "csr"
    assert matrix.has_canonical_format
    assert (np.diff(matrix.indptr) == 4).all()
    found = np.take_along_axis(matrix.toarray(), np.array(labels), axis=1)
    np.testing.assert_allclose(found, scores, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.npz", "best.txt"]


def test_format_option_beats_the_suffix(files, trained, tmp_path):
    out = tmp_path / "best.dat"
    arguments = ("predict", trained.path, files.test, "--out", out)
    dslide(*arguments, "--format", "npz").succeeded()
    assert sparse.load_npz(out).shape == (150, NUM_LABELS)


def test_hashed_finds_a_part_of_the_best(files, trained, dense_scores, tmp_path):
    out = tmp_path / "hashed.npz"
    options = ("--hashed", "-k", NUM_LABELS, "--out", out)
    dslide("predict", trained.path, files.test, *options).succeeded()
    matrix = sparse.load_npz(out).tocoo()
    # The sampler looks at 20 of the 60 labels at most; what it finds has its right score.
    assert 0 < np.bincount(matrix.row).max() <= 20
    dense = dense_scores[matrix.row, matrix.col]
    np.testing.assert_allclose(matrix.data, dense, rtol=1e-4, atol=1e-5)


def test_never_computes_all_logits(files, trained, monkeypatch):
    call, computed = DSlideDense.call, []

    def spy(layer, inputs, *arguments, **options):
        if tf.executing_eagerly() and not isinstance(inputs, keras.KerasTensor):
            computed.append(inputs.shape)
        return call(layer, inputs, *arguments, **options)

    monkeypatch.setattr(DSlideDense, "call", spy)
    dslide("predict", trained.path, files.test).succeeded()
    assert not computed
    features = to_sparse_tensor(files.test_data.features)
    keras.models.load_model(trained.path, compile=False)(features)
    assert computed  # the spy does see a model at work


def test_names_from_option_from_beside_the_model_and_numbers(files, trained, tmp_path):
    numbers = dslide("predict", trained.path, files.test, "-k", 2).succeeded().out
    named = dslide("predict", trained.path, files.test, "-k", 2, "--label-names", files.names)
    expected = [
        "\t".join(
            f"{files.label_names[int(label)]}:{score}"
            for label, score in (pair.split(":") for pair in line.split())
        )
        for line in numbers.splitlines()
    ]
    assert named.succeeded().out.splitlines() == expected
    # A copy of the model with the names beside it, as `dslide train` leaves them.
    copy = tmp_path / "copy.keras"
    copy.write_bytes(trained.path.read_bytes())
    (tmp_path / "copy.labels.txt").write_bytes(files.names.read_bytes())
    assert dslide("predict", copy, files.test, "-k", 2).succeeded().out.splitlines() == expected
    assert dslide("predict", copy, files.test, "-k", 2, "--numbers").succeeded().out == numbers


@pytest.mark.slow
def test_hashed_needs_hash_tables(files, tmp_path):
    path = tmp_path / "uniform.keras"
    hidden = ("--hidden", 4, "--epochs", 1, "--out", path, "--validation-split", 0)
    dslide("train", files.train, "--sampler", "uniform", *hidden).succeeded()
    message = dslide("predict", path, files.test, "--hashed").failed()
    assert "--sampler lsh" in message
    assert "UniformSampler" in message


def test_interrupted_writing_leaves_the_earlier_file(files, trained, tmp_path, monkeypatch):
    out = tmp_path / "best.txt"
    out.write_text("earlier")

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DSlideDense, "top_k", interrupted)
    assert "Interrupted" in dslide("predict", trained.path, files.test, "--out", out).failed(130)
    assert out.read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["best.txt"]


@pytest.mark.slow
def test_fresh_process(files, trained):
    here = dslide("predict", trained.path, files.test, "-k", 3).succeeded().out
    command = [sys.executable, "-m", "tf_dslide.cli", "predict", trained.path, files.test]
    there = subprocess.run(
        [*command, "-k", "3", "--threads", "1"], capture_output=True, text=True, check=False
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout == here
