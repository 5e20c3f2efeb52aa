"""An extreme-classification data set in memory: sparse features and sparse labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Sparse features and the set of true labels of each sample.

    Both matrices are brought to canonical CSR form (columns sorted and unique in each row); an
    argument that is in that form already is kept without a copy. Repeated features of a sample
    add up, and repeated labels count once. Samples without features or without labels are legal.

    Args:
        features: `(num_samples, num_features)` sparse matrix (or 2-D array), made `float32`.
        labels: `(num_samples, num_labels)` sparse matrix (or 2-D array). Every non-zero entry
            marks a true label; the stored values become `float32` ones.
        label_names: A readable name for each label, or `None`.
        name: What to call the data set in messages and reports.

    Raises:
        ValueError: The row counts differ, a feature is NaN or infinite (the message names row,
            feature and value), or the number of names is not the number of labels.

    Example:
    >>> from scipy import sparse
    >>> features = sparse.csr_matrix([[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    >>> labels = sparse.csr_matrix([[1, 0], [1, 1]])
    >>> data = Dataset(features, labels, label_names=["cat", "dog"], name="pets")
    >>> data
    Dataset('pets': 2 samples, 3 features, 2 labels)
    >>> data.label_counts
    array([2, 1])
    >>> data.take([1]).features.toarray()
    array([[0., 0., 1.]], dtype=float32)
    """

    features: sparse.csr_matrix
    labels: sparse.csr_matrix
    label_names: tuple[str, ...] | None = None
    name: str = "data"

    def __post_init__(self) -> None:
        features = _canonical_csr(self.features)
        labels = _binary(_canonical_csr(self.labels))
        if features.shape[0] != labels.shape[0]:
            raise ValueError(
                f"features has {features.shape[0]} rows and labels has {labels.shape[0]}; "
                "both need one row for each sample"
            )
        _require_finite(features)
        names = None if self.label_names is None else tuple(self.label_names)
        if names is not None and len(names) != labels.shape[1]:
            raise ValueError(
                f"label_names has {len(names)} names for {labels.shape[1]} labels; "
                "give one name for each label, in order"
            )
        # The class is frozen for its users; these are the checked forms of the same fields.
        object.__setattr__(self, "features", features)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "label_names", names)

    @classmethod
    def _trusted(
        cls,
        features: sparse.csr_matrix,
        labels: sparse.csr_matrix,
        label_names: tuple[str, ...] | None,
        name: str,
    ) -> Dataset:
        """Make a data set of parts that were checked before, without looking at the data."""
        dataset = object.__new__(cls)
        for field, value in (
            ("features", features),
            ("labels", labels),
            ("label_names", label_names),
            ("name", name),
        ):
            object.__setattr__(dataset, field, value)
        return dataset

    @property
    def num_samples(self) -> int:
        """Number of samples (rows)."""
        return self.features.shape[0]

    @property
    def num_features(self) -> int:
        """Width of the feature matrix."""
        return self.features.shape[1]

    @property
    def num_labels(self) -> int:
        """Width of the label matrix: the number of classes."""
        return self.labels.shape[1]

    @property
    def label_counts(self) -> np.ndarray:
        """How many samples bear each label: `(num_labels,)` `int64`. Counted at each access."""
        return np.bincount(self.labels.indices, minlength=self.num_labels).astype(np.int64)

    def take(self, rows: Any) -> Dataset:
        """Return the data set of some samples, in the order asked for.

        Args:
            rows: Row numbers (a sequence or integer array; repeats allowed), a boolean mask of
                shape `(num_samples,)`, or a `slice`.

        Returns:
            A new `Dataset` with the same features, labels, names and name.

        Raises:
            IndexError: A row lies outside the data set.
        """
        if not isinstance(rows, slice):
            rows = np.asarray(rows)
            if rows.size == 0 and rows.dtype != bool:
                rows = rows.astype(np.int64)
        return replace(self, features=self.features[rows], labels=self.labels[rows])

    def __len__(self) -> int:
        return self.num_samples

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {self.num_samples} samples, "
            f"{self.num_features} features, {self.num_labels} labels)"
        )


def _canonical_csr(matrix: Any) -> sparse.csr_matrix:
    """Return `matrix` as float32 CSR with sorted, unique columns; never changes the argument."""
    with np.errstate(over="ignore"):  # a value beyond float32 is reported as infinite, by place
        csr = sparse.csr_matrix(matrix, dtype=np.float32)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    return csr


def _binary(labels: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the labels with every stored value 1, again without changing the argument."""
    if (labels.data == 1).all():
        return labels
    labels = labels.copy()
    labels.eliminate_zeros()
    labels.data.fill(1)
    return labels


def _require_finite(features: sparse.csr_matrix) -> None:
    bad = np.flatnonzero(~np.isfinite(features.data))
    if bad.size:
        first = bad[0]
        row = np.searchsorted(features.indptr, first, side="right") - 1
        raise ValueError(
            f"features[{row}, {features.indices[first]}] is {features.data[first]} as float32; "
            "features must be finite: clean or drop that sample"
        )
