"""Tiny data in files, and a model that `dslide train` made of them."""

import json

import pytest
from cli_helpers import NUM_FEATURES, NUM_LABELS, SMALL, Files, Trained, dslide

from tf_dslide.data import TEST_START, make_synthetic, write_xmc

SHAPE = {"features_per_sample": 8, "labels_per_sample": 2, "noise": 0.2}


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("data")
    train_data = make_synthetic(600, NUM_FEATURES, NUM_LABELS, **SHAPE)
    test_data = make_synthetic(150, NUM_FEATURES, NUM_LABELS, start=TEST_START, **SHAPE)
    names = [f"label: no {number}" for number in range(NUM_LABELS)]
    made = Files(
        folder,
        folder / "train.txt",
        folder / "test.txt.gz",
        folder / "names.txt",
        train_data,
        test_data,
        names,
    )
    write_xmc(made.train, train_data)
    write_xmc(made.test, test_data)
    made.names.write_text("".join(f"{name}\n" for name in names))
    return made


@pytest.fixture(scope="session")
def trained(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model without label names, trained long enough to have learnt something."""
    folder = tmp_path_factory.mktemp("model")
    path, log = folder / "small.keras", folder / "run.jsonl"
    options = ("--test", files.test, "--epochs", 8, "--out", path, "--log", log)
    result = dslide("train", files.train, *options, *SMALL).succeeded()
    return Trained(path, result.out, [json.loads(line) for line in log.read_text().splitlines()])
