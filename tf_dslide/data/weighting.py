"""Weights of features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tf_dslide.data._sklearn import from_sklearn
from tf_dslide.data.dataset import Dataset


def tf_idf(train: Dataset, *others: Dataset) -> tuple[Dataset, ...]:
    """Weighs counts of words by how rare the words are, and makes each row's length 1.

    A count `c` becomes `(1 + log c) * (log((1 + n) / (1 + df)) + 1)`, where `df` of the `n` rows of
    `train` have the feature. Classifiers of bags of words are better for it by some points of
    precision; features that are weighed already need it not.

    Args:
        train: The training data, whose counts tell how rare a feature is.
        *others: Data to weigh alike, such as test data.

    Returns:
        The data sets in the order given, with new features.

    Raises:
        ValueError: A count lies below 1 (features that are weighed already have such values), or
            the numbers of features differ.

    Memory: a copy of the features. Time: two passes.

    Example:
    >>> from tf_dslide.data import Dataset, tf_idf
    >>> (weighed,) = tf_idf(Dataset([[1, 0, 2], [1, 1, 0]], [[1, 0], [0, 1]]))
    >>> weighed.features.toarray().astype("float64").round(2).tolist()
    [[0.39, 0.0, 0.92], [0.58, 0.81, 0.0]]
    """
    transformer = from_sklearn("feature_extraction.text", "TfidfTransformer")
    for dataset in (train, *others):
        values = dataset.features.data
        if len(values) and values.min() < 1:
            raise ValueError(
                f"tf_idf weighs counts, but {dataset.name!r} has a feature of value "
                f"{values.min():.4g}; features that are weighed already are to stay as they are"
            )
        if dataset.num_features != train.num_features:
            raise ValueError(
                f"{dataset.name!r} has {dataset.num_features} features, but {train.name!r} has "
                f"{train.num_features}"
            )
    weigh = transformer(sublinear_tf=True).fit(train.features)
    return tuple(
        replace(dataset, features=weigh.transform(dataset.features).astype(np.float32))
        for dataset in (train, *others)
    )
