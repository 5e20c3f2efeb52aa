"""Weights of features against their formula."""

import numpy as np
import pytest
from scipy import sparse

from tf_dslide.data import Dataset, tf_idf


def counts(rng, rows):
    dense = rng.integers(0, 4, (rows, 6)) * (rng.random((rows, 6)) < 0.6)
    return Dataset(sparse.csr_matrix(dense.astype(np.float32)), np.ones((rows, 2)), name="words")


def test_the_formula(rng):
    train, test = counts(rng, 30), counts(rng, 9)
    weighed = tf_idf(train, test)
    idf = np.log(31 / (1 + (train.features.toarray() > 0).sum(0))) + 1
    for before, after in zip((train, test), weighed, strict=True):
        dense = before.features.toarray()
        wanted = np.where(dense > 0, 1 + np.log(np.maximum(dense, 1)), 0) * idf
        norms = np.sqrt((wanted**2).sum(1, keepdims=True))
        wanted /= np.where(norms > 0, norms, 1)
        np.testing.assert_allclose(after.features.toarray(), wanted, rtol=1e-5)
        assert after.features.dtype == np.float32
        assert (after.labels != before.labels).nnz == 0


def test_what_is_no_count(rng):
    words = counts(rng, 5)
    half = Dataset(words.features * 0.5, words.labels, name="halves")
    with pytest.raises(ValueError, match="'halves' has a feature of value 0.5"):
        tf_idf(words, half)
    wide = Dataset(sparse.csr_matrix((5, 7), dtype=np.float32), words.labels)
    with pytest.raises(ValueError, match="7 features, but 'words' has 6"):
        tf_idf(words, wide)
