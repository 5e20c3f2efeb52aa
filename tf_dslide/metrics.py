"""Ranking metrics of extreme classification, without dense logits where the layer allows."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import labels as label_forms
from tf_dslide import lazy
from tf_dslide._checks import require_positive
from tf_dslide._compat import get_keras_mask, register_metric
from tf_dslide._packing import pack_counts, unpack_counts


def propensities(
    label_counts: Any, num_samples: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """Probability that a true label was recorded, after Jain et al. (KDD 2016).

    `p = 1 / (1 + C * (count + b) ** -a)` with `C = (log(num_samples) - 1) * (b + 1) ** a`: rare
    labels are likelier to be missing from the data.

    Args:
        label_counts: Training samples of each label, `(units,)`.
        num_samples: Number of training samples, at least 1.
        a: Exponent; 0.55 for most data sets, 0.6 for Amazon, 0.5 for Wikipedia.
        b: Offset; 1.5 for most data sets, 2.6 for Amazon, 0.4 for Wikipedia.

    Returns:
        `(units,) float64` in (0, 1].

    Raises:
        ValueError: A count is negative, or there are no samples.

    Example:
    >>> propensities([0, 10, 1000], num_samples=10_000).round(3).tolist()
    [0.084, 0.22, 0.767]
    """
    counts = np.asarray(label_counts, np.float64)
    require_positive("num_samples", num_samples)
    if counts.ndim != 1 or counts.size == 0 or not (counts >= 0).all():
        raise ValueError(
            "`label_counts` must be a vector of numbers from 0 on, one a label; received shape "
            f"{counts.shape} with minimum {counts.min() if counts.size else 'none'}"
        )
    # For fewer samples than e the formula would pass 1.
    c = max(0.0, np.log(num_samples) - 1) * (b + 1) ** a
    return 1 / (1 + c * (counts + b) ** -a)


class _RankingMetric(keras.metrics.Metric):
    """Base: finds each row's `k` best classes and which of them are labels.

    On the output of a `DSlideDense` under `fit`, the `k` best of the row's active set are taken, as
    the loss computed them; under `evaluate` the `k` best of all units, exactly. On any other tensor
    the `k` largest values.
    """

    def __init__(self, k: int, name: str, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.k = require_positive("k", k)
        self._total = self.add_variable((), initializer="zeros", name="total")
        self._weight = self.add_variable((), initializer="zeros", name="weight")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch.

        Args:
            y_true: Labels in any form that `SlideCrossentropy` takes.
            y_pred: `(batch, ..., units)`.
            sample_weight: Weight of each row, or `None`.
        """
        logits = lazy.find(y_pred)
        if logits is None:
            y_pred = tf.convert_to_tensor(y_pred)
        positions, units = len(y_pred.shape) - 1, y_pred.shape[-1]
        labels = label_forms.expect_rows(
            label_forms.to_csr(y_true, units, positions), y_pred.shape, lazy.leading_axes(y_pred)
        )
        k = min(self.k, units)
        if logits is not None:
            top = logits.top_k(k)
        else:
            top = tf.math.top_k(tf.reshape(y_pred, [-1, units]), k).indices
        weight = _row_weights(y_pred, sample_weight)
        hits = tf.cast(label_forms.contains(labels, top), tf.float32)
        self._add(top, hits, labels, weight)

    def _add(self, top: tf.Tensor, hits: tf.Tensor, labels: Any, weight: tf.Tensor) -> None:
        """Adds the rows' `_score` by default, with their weights."""
        score = self._score(hits, labels)
        self._total.assign_add(tf.reduce_sum(score * weight))
        self._weight.assign_add(tf.reduce_sum(weight))

    def _score(self, hits: tf.Tensor, labels: Any) -> tf.Tensor:
        raise NotImplementedError

    def result(self) -> tf.Tensor:
        """The metric so far, `() float32`; 0 before any row."""
        return tf.math.divide_no_nan(
            tf.convert_to_tensor(self._total), tf.convert_to_tensor(self._weight)
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this metric again."""
        return {"k": self.k, "name": self.name, "dtype": self.dtype}


def _row_weights(y_pred: tf.Tensor, sample_weight: Any) -> tf.Tensor:
    """One weight for each output vector, from sample weights and the Keras mask."""
    weight = tf.ones(lazy.leading_axes(y_pred), tf.float32)
    weight.set_shape(y_pred.shape[:-1])
    if sample_weight is not None:
        given = tf.cast(tf.convert_to_tensor(sample_weight), tf.float32)
        while given.shape.rank > weight.shape.rank and given.shape[-1] == 1:
            given = tf.squeeze(given, -1)
        while given.shape.rank < weight.shape.rank:
            given = given[..., None]
        weight *= given
    mask = get_keras_mask(y_pred)
    if mask is not None:
        weight *= tf.cast(mask, tf.float32)
    return tf.reshape(weight, [-1])


@keras.saving.register_keras_serializable(package="tf_dslide")
class PrecisionAtK(_RankingMetric):
    """Share of labels among the `k` best classes, averaged over rows: P@k.

    A row without labels counts 0. With fewer than `k` units the missing places count as misses.

    Under `fit` on a `DSlideDense`, the best classes are those of the active set, which holds the
    labels: the figure flatters. `evaluate` is exact.

    Args:
        k: Number of best classes.
        name: Name of the metric; `precision_at_<k>` by default.
        dtype: As in Keras.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import PrecisionAtK
    >>> metric = PrecisionAtK(2)
    >>> metric.update_state(np.array([[0, 2]]), np.array([[0.1, 0.9, 0.8, 0.2]]))
    >>> float(metric.result())
    0.5
    """

    def __init__(self, k: int = 1, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(k, name or f"precision_at_{k}", dtype)

    def _score(self, hits: tf.Tensor, labels: Any) -> tf.Tensor:
        return tf.reduce_sum(hits, axis=1) / self.k


@keras.saving.register_keras_serializable(package="tf_dslide")
class NDCGAtK(_RankingMetric):
    """Normalised discounted cumulative gain of the `k` best classes: nDCG@k.

    A hit at place `p`, from 1, gains `1 / log2(p + 1)`; the sum is divided by the best one possible
    for the row's number of labels. A row without labels counts 0.

    Args:
        k: Number of best classes.
        name: Name of the metric; `ndcg_at_<k>` by default.
        dtype: As in Keras.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import NDCGAtK
    >>> metric = NDCGAtK(3)
    >>> metric.update_state(np.array([2]), np.array([[0.1, 0.9, 0.8, 0.2]]))
    >>> round(float(metric.result()), 4)
    0.6309
    """

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(k, name or f"ndcg_at_{k}", dtype)

    def _score(self, hits: tf.Tensor, labels: Any) -> tf.Tensor:
        discount = (1 / np.log2(np.arange(2, self.k + 2))).astype("float32")
        gain = tf.reduce_sum(hits * discount[: hits.shape[1]], axis=1)
        ideal = tf.gather(
            np.concatenate([[0], np.cumsum(discount)]).astype("float32"),
            tf.minimum(labels.row_lengths(), self.k),
        )
        return tf.math.divide_no_nan(gain, ideal)


@keras.saving.register_keras_serializable(package="tf_dslide")
class PropensityScoredPrecisionAtK(_RankingMetric):
    """Precision at k with rare labels weighted up: PSP@k of Jain et al. (KDD 2016).

    Each hit counts `1 / propensity`; the sum over all rows is divided by the best sum possible. See
    `propensities`.

    Args:
        k: Number of best classes.
        label_counts: Training samples of each label, `(units,)`.
        num_samples: Number of training samples.
        a: Exponent of the propensity model.
        b: Offset of the propensity model.
        name: Name of the metric; `psp_at_<k>` by default.
        dtype: As in Keras.

    Memory: 4 bytes a label. A saved model holds the counts, compressed.

    Example:
    >>> import numpy as np
    >>> from tf_dslide import PropensityScoredPrecisionAtK
    >>> metric = PropensityScoredPrecisionAtK(1, label_counts=[100, 1], num_samples=101)
    >>> metric.update_state(np.array([0, 1]), np.array([[0.9, 0.1], [0.8, 0.2]]))
    >>> bool(metric.result() < 0.5)
    True
    """

    def __init__(
        self,
        k: int = 1,
        label_counts: Any = None,
        num_samples: int = 0,
        a: float = 0.55,
        b: float = 1.5,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(k, name or f"psp_at_{k}", dtype)
        if label_counts is None:
            raise ValueError(
                "`label_counts` must hold the training samples of each label; received None"
            )
        self._counts = unpack_counts(label_counts)
        self._num_samples, self._a, self._b = int(num_samples), float(a), float(b)
        self._gain = (1 / propensities(self._counts, num_samples, a, b)).astype("float32")

    def _add(self, top: tf.Tensor, hits: tf.Tensor, labels: Any, weight: tf.Tensor) -> None:
        gains = tf.gather(self._gain, tf.maximum(top, 0)) * hits
        self._total.assign_add(tf.reduce_sum(tf.reduce_sum(gains, axis=1) * weight))
        ragged = tf.RaggedTensor.from_row_splits(
            tf.gather(self._gain, labels.ids), labels.row_splits, validate=False
        )
        best = tf.sort(ragged.to_tensor(0.0), axis=1, direction="DESCENDING")[:, : self.k]
        self._weight.assign_add(tf.reduce_sum(tf.reduce_sum(best, axis=1) * weight))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch; see the base class.

        Raises:
            ValueError: There are not as many `label_counts` as classes.
        """
        if y_pred.shape[-1] != self._counts.size:
            raise ValueError(
                f"`label_counts` holds {self._counts.size} labels but the output has "
                f"{y_pred.shape[-1]} classes"
            )
        super().update_state(y_true, y_pred, sample_weight)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this metric again."""
        return {
            **super().get_config(),
            "label_counts": pack_counts(self._counts),
            "num_samples": self._num_samples,
            "a": self._a,
            "b": self._b,
        }


def _make_nameable(name: str, metric: Callable[[int], _RankingMetric]) -> None:
    """Lets `compile(metrics=["precision_at_5"])` find a metric for each usual `k`."""
    for k in (1, 3, 5, 10):
        # Keras calls what it finds without arguments if it is a class.
        register_metric(f"{name}_{k}", type(name, (), {"__new__": lambda _, k=k: metric(k)}))


_make_nameable("precision_at", PrecisionAtK)
_make_nameable("ndcg_at", NDCGAtK)
