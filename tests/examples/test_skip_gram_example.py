"""The example of word embeddings on a language whose classes of words are known."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "skip_gram.py"
CLASSES, MEMBERS, WORDS = 5, 8, 20_000


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("skip_gram_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def class_of(word):
    return ord(word[0]) - ord("a")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Each word is of the class after that of the word before it, and otherwise by chance."""
    letters = np.random.default_rng(0).integers(0, MEMBERS, WORDS)
    words = [f"{chr(97 + i % CLASSES)}{chr(97 + m)}" for i, m in enumerate(letters)]
    path = tmp_path_factory.mktemp("text") / "language.txt"
    path.write_text(". ".join(words))
    return path


@pytest.fixture(scope="module")
def outcome(example, text, tmp_path_factory):
    """What a run of the program leaves: its report, its embeddings, its standard output."""
    folder = tmp_path_factory.mktemp("outcome")
    options = "--window 1 --subsample 1 --units 16 --active 16 --epochs 3 --batch-size 256"
    options += " --rate 0.02"
    files = ["--save", str(folder / "words.npz"), "--report", str(folder / "report.md")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["skip_gram.py", str(text), *options.split(), *files])
        patch.setattr(sys, "path", list(sys.path))
        example.main()
    return folder


def test_words_of_a_class_are_neighbours(example, outcome):
    with np.load(outcome / "words.npz") as saved:
        words, embeddings = saved["words"], saved["embeddings"]
    assert embeddings.shape == (CLASSES * MEMBERS, 16)
    found, cosines = example.neighbours(embeddings, np.arange(len(words)), MEMBERS - 1, len(words))
    for word, row in zip(words, found, strict=True):
        others = {w for w in words if class_of(w) == class_of(word)} - {word}
        assert {words[i] for i in row} == others
    assert (np.diff(cosines, axis=1) <= 0).all()


def rows_of(report, head):
    """Cells of the table whose first column has this head."""
    tables = [part.splitlines() for part in report.split("\n\n") if part.startswith(f"| {head}")]
    (table,) = tables
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_the_loss_falls_to_that_of_the_language(outcome):
    rows = rows_of((outcome / "report.md").read_text(), "Epoch")
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for column in (2, 3):
        losses = [float(row[column]) for row in rows]
        # All words are about equally frequent: that alone is known before training.
        assert losses[0] == pytest.approx(np.log(CLASSES * MEMBERS), abs=0.02)
        assert losses[0] > losses[1] > losses[-1]
        # A neighbour is one of the words of two classes; nothing more can be known of it.
        assert losses[-1] == pytest.approx(np.log(2 * MEMBERS), abs=0.06)


def test_the_report_says_what_was_done(outcome):
    report = (outcome / "report.md").read_text()
    assert "python examples/skip_gram.py" in report
    assert "--window 1 --subsample 1" in report
    assert f"A vocabulary of {CLASSES * MEMBERS} words" in report
    for word, near in rows_of(report, "Word"):
        assert {class_of(other) for other in near.split(", ")} == {class_of(word)}
    for name in ("processor", "tensorflow", "commit"):
        assert f"{name} " in report


def test_pieces_are_held_out(example, text):
    data = example.read_skip_gram(text)
    train, held = example.hold_out(data)
    assert train.num_samples + held.num_samples == data.num_samples == WORDS
    assert held.num_samples == example.PIECE
    np.testing.assert_array_equal(held.features.indices, data.features.indices[-example.PIECE :])
    with pytest.raises(SystemExit, match="500 words are too few"):
        example.hold_out(data.take(slice(example.PIECE)))


def test_nearest_of_words_in_and_out_of_the_candidates(example):
    embeddings = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [2, 0.1]], np.float32)
    found, cosines = example.neighbours(embeddings, np.array([0, 4]), 1, 4)
    np.testing.assert_array_equal(found[1], [0])
    assert cosines[1, 0] == pytest.approx(2 / np.hypot(2, 0.1))
    assert cosines[0, 0] == pytest.approx(0, abs=1e-6)


def test_unknown_words_are_named(example, text):
    data = example.read_skip_gram(text, word=example.LETTERS)
    assert [data.label_names[i] for i in example.words_to_show(data, ["AA", "bb"])] == ["aa", "bb"]
    with pytest.raises(SystemExit, match="not among the 40 words known: zz"):
        example.words_to_show(data, ["aa", "zz"])
