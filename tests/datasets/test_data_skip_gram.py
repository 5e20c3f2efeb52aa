"""Skip-gram data against a loop over the words."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_dslide.data import read_skip_gram

WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=2, max_size=30)


@given(WORDS, st.integers(1, 6), st.integers(1, 4))
def test_against_a_loop(tmp_path_factory, words, vocabulary, window):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(words))
    first_use = {word: words.index(word) for word in words}
    names = sorted(first_use, key=lambda word: (-words.count(word), first_use[word]))[:vocabulary]
    kept = [names.index(word) for word in words if word in names]
    if len(kept) < 2:
        with pytest.raises(ValueError, match="another one"):
            read_skip_gram(path, vocabulary=vocabulary, window=window)
        return
    data = read_skip_gram(path, vocabulary=vocabulary, window=window)
    assert data.label_names == tuple(names)
    assert data.features.indices.tolist() == kept
    assert (data.features.data == 1).all()
    for place in range(len(kept)):
        around = kept[max(0, place - window) : place] + kept[place + 1 : place + 1 + window]
        np.testing.assert_array_equal(data.labels[place].indices, sorted(set(around)))


def test_case_and_white_space(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The\n  the\tTHE  cat\n")
    data = read_skip_gram(path, window=1)
    assert data.label_names == ("the", "cat")
    assert data.name == "text"
    np.testing.assert_array_equal(data.labels.toarray(), [[1, 0], [1, 0], [1, 1], [1, 0]])


@pytest.mark.parametrize("name", ["vocabulary", "window"])
def test_bad_numbers(tmp_path, name):
    with pytest.raises(ValueError, match=f"{name} is 0"):
        read_skip_gram(tmp_path / "text.txt", **{name: 0})


@pytest.mark.parametrize("text", ["", "alone"])
def test_too_short(tmp_path, text):
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match="another one"):
        read_skip_gram(tmp_path / "text.txt")


def test_several_texts_some_compressed(tmp_path):
    (tmp_path / "a.txt").write_text("the cat saw")
    (tmp_path / "b.dict.dz").write_bytes(gzip.compress(b"the dog"))
    (tmp_path / "whole.txt").write_text("the cat saw the dog")
    data = read_skip_gram(tmp_path / "a.txt", tmp_path / "b.dict.dz")
    whole = read_skip_gram(tmp_path / "whole.txt")
    assert data.label_names == whole.label_names
    assert data.name == "a"
    assert (data.features != whole.features).nnz == 0
    assert (data.labels != whole.labels).nnz == 0


def test_words_of_letters(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("The [1913] Œuvre's end_note.".encode() + b" caf\xe9")
    with pytest.raises(UnicodeDecodeError):
        read_skip_gram(path)
    data = read_skip_gram(path, word=r"[^\W\d_]+", errors="replace")
    assert data.label_names == ("the", "œuvre", "s", "end", "note", "caf")


def test_frequent_words_are_thinned_out(tmp_path):
    rng = np.random.default_rng(0)
    names = np.array(["often", "sometimes", "seldom", "outside"])
    path = tmp_path / "text.txt"
    path.write_text(" ".join(rng.choice(names, 40_000, p=[0.7, 0.2, 0.07, 0.03])))
    settings = {"vocabulary": 3, "window": 1, "subsample": 0.1}
    data = read_skip_gram(path, **settings)
    found = np.bincount(data.features.indices)
    for share, count in zip([0.7, 0.2, 0.07], found, strict=True):
        # Shares are those of the whole text, in and out of the vocabulary.
        kept = min(1, np.sqrt(0.1 / share))
        assert abs(count - 40_000 * share * kept) < 5 * np.sqrt(40_000 * share)
    # Neighbours are those of the words that are left.
    ids = data.features.indices
    np.testing.assert_array_equal(data.labels[5].indices, np.unique(ids[[4, 6]]))
    same, other = (read_skip_gram(path, **settings, seed=seed) for seed in (0, 1))
    assert (same.features != data.features).nnz == 0
    assert other.num_samples != data.num_samples


def test_bad_settings(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b a b")
    with pytest.raises(ValueError, match=r"subsample is -1e-05; it must be positive"):
        read_skip_gram(path, subsample=-1e-5)
    with pytest.raises(ValueError, match=r"word is '\(', which is no regular expression"):
        read_skip_gram(path, word="(")
    with pytest.raises(ValueError, match="no file: of 0 words 0 are left"):
        read_skip_gram()
