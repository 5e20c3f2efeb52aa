"""Words and the words around them: the skip-gram task on any text."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import numpy as np
from scipy import sparse

from tf_dslide.data.dataset import Dataset


def read_skip_gram(
    path: str | os.PathLike[str], *, vocabulary: int = 253_855, window: int = 2
) -> Dataset:
    r"""Make a data set of a text: each word is a sample, the words around it are its labels.

    Words are what stands between white space, in lower case. Features and labels are the same ids,
    0 for the most frequent word; words of equal frequency are in the order of their first use. The
    network that learns this task has word vectors in its first layer (Mikolov et al., word2vec;
    the Text8 task of D-SLIDE, arXiv 2201.12667, section 5).

    Args:
        path: A text in UTF-8.
        vocabulary: How many of the most frequent words to know, at most; others are dropped before
            words are counted as neighbours. 253,855 is that of Text8.
        window: How many words on each side are labels.

    Returns:
        A `Dataset` of `(words, vocabulary)` features, one 1 in each row, and the labels of each
        word, named by the words. A word that stands next to itself has itself among its labels.

    Raises:
        ValueError: `vocabulary` or `window` is not positive, or the text has fewer than two words.
        UnicodeDecodeError: The text is not UTF-8.

    Memory: some 60 bytes a word of the text, and the text.

    Example:
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "text.txt")
    >>> _ = path.write_text("the cat saw the dog")
    >>> data = read_skip_gram(path, window=1)
    >>> data.label_names
    ('the', 'cat', 'saw', 'dog')
    >>> data.labels.toarray()[0], data.labels.toarray()[2]
    (array([0., 1., 0., 0.], dtype=float32), array([1., 1., 0., 0.], dtype=float32))
    """
    for name, value in (("vocabulary", vocabulary), ("window", window)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    words = Path(path).read_text(encoding="utf-8").lower().split()
    # most_common keeps the order of first use among equals.
    names = tuple(word for word, _ in Counter(words).most_common(vocabulary))
    number = {word: i for i, word in enumerate(names)}
    ids = np.array([number[word] for word in words if word in number], np.int32)
    if len(ids) < 2:
        raise ValueError(f"{path} has {len(words)} words; a word needs another one beside it")
    places = np.arange(len(ids))
    shape = (len(ids), len(names))
    ones = np.ones(len(ids), np.float32)
    features = sparse.csr_matrix((ones, ids, np.arange(len(ids) + 1)), shape)
    rows, columns = [], []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        rows += [places[distance:], places[:-distance]]
        columns += [ids[:-distance], ids[distance:]]
    entries = (np.concatenate(rows), np.concatenate(columns))
    labels = sparse.csr_matrix((np.ones(len(entries[0]), np.float32), entries), shape)
    return Dataset(features, labels, names, Path(path).stem)
