"""Skip-gram data against a loop over the words."""

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
