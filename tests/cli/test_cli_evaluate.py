import json

import keras
import pytest
from cli_helpers import NUM_LABELS, dslide
from cli_reference import figures

from tf_dslide import DSlideDense, SparseDense
from tf_dslide.data import to_sparse_tensor, write_xmc


@pytest.fixture(scope="module")
def dense_scores(files, trained):
    model = keras.models.load_model(trained.path, compile=False)
    return model(to_sparse_tensor(files.test_data.features)).numpy().astype("float64")


@pytest.fixture(scope="module")
def report(files, trained):
    return evaluated(trained.path, files.test, "--batch-size", 64)


def evaluated(*arguments):
    return json.loads(dslide("evaluate", *arguments, "--json").succeeded().out)


def test_figures_equal_those_of_the_dense_scores(files, trained, dense_scores, report):
    expected = figures(dense_scores, files.test_data, files.train_data.label_counts, 600)
    assert {name: report[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert report["samples"] == 150
    assert report["samples_per_second"] > 0
    assert report["propensities"] == f"label counts stored in {trained.path}"


@pytest.mark.slow
def test_propensities_from_training_data(files, trained, dense_scores, report):
    stored = report["psp_at_5"]
    report = evaluated(trained.path, files.test, "--train", files.test)
    expected = figures(dense_scores, files.test_data, files.test_data.label_counts, 150)
    assert {name: report[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert report["propensities"] == f"label counts of {files.test}"
    assert report["psp_at_5"] != pytest.approx(stored, rel=1e-3)


def test_table_shows_the_same_figures(files, trained, report):
    out = dslide("evaluate", trained.path, files.test).succeeded().out
    for family in ("precision", "ndcg", "psp"):
        cells = [f"{100 * report[f'{family}_at_{k}']:.2f}" for k in (1, 3, 5)]
        assert any(all(cell in line for cell in cells) for line in out.splitlines()), (family, out)
    assert f"loss {report['loss']:.4f}; 150 samples" in out
    assert f"PSP: propensities from the label counts stored in {trained.path}" in out


@pytest.mark.slow
def test_model_without_label_counts(files, tmp_path):
    """A model of the user's own, not of `dslide train`."""
    path = tmp_path / "own.keras"
    inputs = keras.Input((200,), sparse=True)
    keras.Model(inputs, DSlideDense(NUM_LABELS)(SparseDense(4)(inputs))).save(path)
    out = dslide("evaluate", path, files.test).succeeded().out
    assert "nDCG" in out
    assert "PSP is left out: the model stores no label counts" in out
    assert "psp_at_1" in evaluated(path, files.test, "--train", files.train)


@pytest.mark.slow
def test_two_files(files, trained, report, tmp_path):
    data = files.test_data
    for name, matrix in (("x.txt", data.features), ("y.txt", data.labels)):
        lines = [f"{matrix.shape[0]} {matrix.shape[1]}"]
        for row in matrix:
            pairs = zip(row.indices, row.data, strict=True)
            lines.append(" ".join(f"{column}:{value!s}" for column, value in pairs))
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    pair = evaluated(trained.path, tmp_path / "x.txt", "--labels", tmp_path / "y.txt")
    assert pair["loss"] == pytest.approx(report["loss"], rel=1e-5)


@pytest.mark.slow
def test_file_without_header(files, trained, report, tmp_path):
    whole, bare = tmp_path / "whole.txt", tmp_path / "bare.txt"
    write_xmc(whole, files.test_data)
    bare.write_text(whole.read_text().partition("\n")[2])
    sizes = ("--num-features", 200, "--num-labels", NUM_LABELS)
    headless = evaluated(trained.path, bare, *sizes)
    assert headless["loss"] == pytest.approx(report["loss"], rel=1e-5)
