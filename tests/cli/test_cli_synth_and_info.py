import gzip
import json
import os
import platform

import keras
import numpy as np
import pytest
import tensorflow as tf
from cli_helpers import dslide

import tf_dslide
from tf_dslide.data import TEST_START, make_preset, make_synthetic, read_xmc


def assert_same(first, second):
    assert (first.features != second.features).nnz == 0
    assert (first.labels != second.labels).nnz == 0


@pytest.mark.parametrize("split", ["train", "test"])
def test_preset(tmp_path, split):
    path = tmp_path / "small.txt.gz"
    options = ("--samples", 40, "--split", split, "--seed", 3)
    out = dslide("synth", "small", path, *options).succeeded().out
    assert out == f"Wrote 40 samples, 5,000 features and 3,000 labels to {path}\n"
    assert path.read_bytes().startswith(b"\x1f\x8b")
    assert gzip.decompress(path.read_bytes()).startswith(b"40 5000 3000\n")
    expected = make_preset("small", split=split, num_samples=40, seed=3)
    assert_same(read_xmc(path), expected)


def test_custom(tmp_path):
    path = tmp_path / "custom.txt"
    options = ("--features", 90, "--labels", 8, "--nnz", 5, "--labels-per-sample", 1.5)
    dslide("synth", "custom", path, *options, "--samples", 300, "--split", "test").succeeded()
    expected = make_synthetic(
        300, 90, 8, start=TEST_START, features_per_sample=5, labels_per_sample=1.5
    )
    data = read_xmc(path)
    assert_same(data, expected)
    assert np.diff(data.features.indptr).mean() == pytest.approx(5, abs=0.5)


def test_custom_data_narrower_than_the_usual_means(tmp_path):
    path = tmp_path / "custom.txt"
    dslide("synth", "custom", path, "--features", 3, "--labels", 2, "--samples", 5).succeeded()
    assert read_xmc(path).features.shape == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("other",), "'other' is none of amazon-670k, delicious-200k, text8, small, custom"),
        (("custom", "--labels", 3), "--features"),
        (("custom", "--features", 3), "--labels"),
        (
            ("custom", "--features", 3, "--labels", 3, "--nnz", 4),
            "4.0 does not lie between 1 and 3",
        ),
        (("custom", "--features", 3, "--labels", 3, "--nnz", "nan"), "nan does not lie"),
        (("small", "--nnz", 4), "4.0 would be ignored"),
        (("small", "--samples", 0), "--samples"),
    ],
)
def test_mistakes_keep_the_earlier_file(tmp_path, arguments, expected):
    path = tmp_path / "data.txt"
    path.write_text("earlier")
    preset, *options = arguments
    assert expected in dslide("synth", preset, path, *options).failed(2)
    assert path.read_text() == "earlier"


def test_info():
    facts = json.loads(dslide("info", "--json").succeeded().out)
    assert facts["dslide"] == tf_dslide.__version__
    assert facts["simd"] == tf_dslide.build_info().simd
    assert facts["tensorflow"] == tf.__version__
    assert facts["keras"] == keras.__version__
    assert facts["numpy"] == np.__version__
    assert facts["python"] == platform.python_version()
    assert facts["cores"] == os.cpu_count()
    table = dslide("info").succeeded().out
    for name, value in facts.items():
        assert name.replace("_", " ") in table
        assert str(value).split()[0] in table


def test_version_and_help():
    assert dslide("--version").succeeded().out == f"dslide {tf_dslide.__version__}\n"
    out = dslide("--help").succeeded().out
    assert all(command in out for command in ("train", "evaluate", "predict", "synth", "info"))
    assert "Usage: dslide" in dslide().out
    assert "--learning-rate" in dslide("train", "--help").succeeded().out
