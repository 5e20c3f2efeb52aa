"""Words and the words around them: the skip-gram task on any text."""

from __future__ import annotations

import gzip
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from tf_dslide.data.dataset import Dataset

_GZIP = b"\x1f\x8b"


def read_skip_gram(
    *paths: str | os.PathLike[str],
    vocabulary: int = 253_855,
    window: int = 2,
    word: str = r"\S+",
    subsample: float | None = None,
    seed: int = 0,
    errors: str = "strict",
) -> Dataset:
    r"""Make a data set of a text: each word is a sample, the words around it are its labels.

    Features and labels are the same ids, 0 for the most frequent word; words of equal frequency
    are in the order of their first use. The network that learns this task has word vectors in its
    first layer (Mikolov et al., word2vec; the Text8 task of D-SLIDE, arXiv 2201.12667, section 5).

    Args:
        *paths: Texts in UTF-8, perhaps compressed with gzip, read one after the other as one text.
        vocabulary: How many of the most frequent words to know, at most; others are dropped before
            words are counted as neighbours. 253,855 is that of Text8.
        window: How many words on each side are labels.
        word: What a word is: a regular expression, looked for in the text in lower case. The
            default takes what stands between white space; `[^\W\d_]+` takes runs of letters.
        subsample: Drops occurrences of frequent words at random, before neighbours are counted: a
            word that makes up the share `f` of the text is kept with the probability
            `min(1, sqrt(subsample / f))`, as in word2vec, where 1e-5 to 1e-3 is usual. What is
            dropped is dropped for good: all epochs see the same words. `None` keeps all.
        seed: Of the words dropped.
        errors: What becomes of bytes that are not UTF-8, as in `open`: `"strict"`, `"replace"`,
            `"ignore"`.

    Returns:
        A `Dataset` of `(words, vocabulary)` features, one 1 in each row, and the labels of each
        word, named by the words. A word that stands next to itself has itself among its labels.

    Raises:
        ValueError: `vocabulary`, `window` or `subsample` is not positive, `word` is no regular
            expression, or there are fewer than two words.
        UnicodeDecodeError: A text is not UTF-8, and `errors` is `"strict"`.

    Memory: some 60 bytes a word of the text, the text, and some 100 bytes a label while they are
    put together.

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
    if subsample is not None and not subsample > 0:
        raise ValueError(f"subsample is {subsample}; it must be positive, or None to keep all")
    try:
        pattern = re.compile(word)
    except re.error as error:
        raise ValueError(f"word is {word!r}, which is no regular expression: {error}") from None
    words = [found for path in paths for found in _words(path, pattern, errors)]
    # most_common keeps the order of first use among equals.
    counts = Counter(words).most_common(vocabulary)
    names = tuple(name for name, _ in counts)
    number = {name: i for i, name in enumerate(names)}
    ids = np.array([number[name] for name in words if name in number], np.int32)
    if subsample is not None:
        shares = np.array([count for _, count in counts]) / max(1, len(words))
        kept = np.sqrt(subsample / shares)
        ids = ids[np.random.default_rng(seed).random(len(ids)) < kept[ids]]
    if len(ids) < 2:
        raise ValueError(
            f"{', '.join(map(str, paths)) or 'no file'}: of {len(words)} words {len(ids)} are "
            "left; a word needs another one beside it"
        )
    features, labels = _neighbours(ids, len(names), window)
    return Dataset(features, labels, names, Path(paths[0]).stem)


def _words(path: str | os.PathLike[str], pattern: re.Pattern[str], errors: str) -> Iterator[str]:
    content = Path(path).read_bytes()
    if content.startswith(_GZIP):
        content = gzip.decompress(content)
    text = content.decode(errors=errors).lower()
    return (match[0] for match in pattern.finditer(text))


def _neighbours(
    ids: np.ndarray, vocabulary: int, window: int
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Features and labels of words that stand in this order."""
    places = np.arange(len(ids))
    shape = (len(ids), vocabulary)
    ones = np.ones(len(ids), np.float32)
    features = sparse.csr_matrix((ones, ids, np.arange(len(ids) + 1)), shape)
    rows, columns = [], []
    for distance in range(1, min(window, len(ids) - 1) + 1):
        rows += [places[distance:], places[:-distance]]
        columns += [ids[:-distance], ids[distance:]]
    entries = (np.concatenate(rows), np.concatenate(columns))
    labels = sparse.csr_matrix((np.ones(len(entries[0]), np.float32), entries), shape)
    return features, labels
