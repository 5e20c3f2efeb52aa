"""Ranking figures from dense scores, written from their definitions."""

import numpy as np

from tf_dslide.data import Dataset


def best_labels(scores: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def figures(scores: np.ndarray, data: Dataset, counts: np.ndarray, num_samples: int) -> dict:
    truth = data.labels.toarray() > 0
    weight = 1 + (np.log(num_samples) - 1) * 2.5**0.55 * (counts + 1.5) ** -0.55
    found = {}
    for k in (1, 3, 5):
        best = best_labels(scores, k)
        hits = np.take_along_axis(truth, best, axis=1)
        discounts = 1 / np.log2(np.arange(2, k + 2))
        ideal = [discounts[: min(k, row.sum())].sum() for row in truth]
        gained = sum((weight[row] * hit).sum() for row, hit in zip(best, hits, strict=True))
        possible = sum(np.sort(weight[row])[::-1][:k].sum() for row in truth)
        found[f"precision_at_{k}"] = hits.mean()
        found[f"ndcg_at_{k}"] = np.mean((hits * discounts).sum(axis=1) / ideal)
        found[f"psp_at_{k}"] = gained / possible
    shifted = scores - scores.max(axis=1, keepdims=True)
    log_share = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    found["loss"] = -np.mean([row[true].mean() for row, true in zip(log_share, truth, strict=True)])
    return found
