"""Exact ranking figures of a model on data. Imports TensorFlow: commands import it when needed."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tf_dslide.cli.network import loss_of
from tf_dslide.data import Dataset, batches
from tf_dslide.layers import DSlideDense
from tf_dslide.linear import DSlideLinear
from tf_dslide.metrics import NDCGAtK, PrecisionAtK, PropensityScoredPrecisionAtK

PLACES = (1, 3, 5)

TITLES = {
    **{f"precision_at_{k}": f"P@{k}" for k in PLACES},
    **{f"ndcg_at_{k}": f"nDCG@{k}" for k in PLACES},
    **{f"psp_at_{k}": f"PSP@{k}" for k in PLACES},
}


def ranking_metrics(
    propensity: dict[str, Any] | None, ndcg_places: Sequence[int] = PLACES
) -> list[keras.metrics.Metric]:
    """The metrics of a report, named as in `TITLES`.

    Args:
        propensity: Arguments of `PropensityScoredPrecisionAtK` other than `k`, or `None` to leave
            PSP out.
        ndcg_places: The k of nDCG.
    """
    metrics: list[keras.metrics.Metric] = [PrecisionAtK(k) for k in PLACES]
    metrics += [NDCGAtK(k) for k in ndcg_places]
    if propensity is not None:
        metrics += [PropensityScoredPrecisionAtK(k, **propensity) for k in PLACES]
    return metrics


def make_scorer(
    model: keras.Model, metrics: list[keras.metrics.Metric], *, with_loss: bool
) -> keras.Model:
    """A model with the same weights whose `evaluate` gives the figures.

    The model itself stays as it is compiled, so that a training step does not pay for metrics.

    Args:
        model: A functional or sequential model.
        metrics: What to compute.
        with_loss: Whether to compute the exact loss too, which nearly doubles the work: that which
            `dslide train` trains such a model with.
    """
    scorer = keras.Model(model.inputs, model.outputs)
    loss: keras.losses.Loss = _NoLoss()
    if with_loss:
        loss = loss_of(model.layers[-1])
    scorer.compile(loss=loss, metrics=metrics)
    return scorer


def best_labels(
    hidden: keras.Model,
    layer: DSlideDense | DSlideLinear,
    data: Dataset,
    k: int,
    batch_size: int,
    **how: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the best labels and their scores, `(batch, k)`, of each batch.

    Args:
        hidden: Computes what `layer` is called on.
        layer: The output layer.
        data: The samples.
        k: Labels a sample.
        batch_size: Samples at once.
        **how: Further arguments of the layer's `top_k`; with `exact=False` a label is -1 where
            hashing found too few.
    """
    for features, _ in batches(data, batch_size):
        scores, found = layer.top_k(hidden(features, training=False), k, **how)
        yield found.numpy(), scores.numpy()


class _NoLoss(keras.losses.Loss):
    """Costs nothing; Keras insists on a loss, and would cast the labels for it."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.zeros(())
