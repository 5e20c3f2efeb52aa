"""PyTorch's way to sampled softmax: sparse embeddings for both layers, and its SparseAdam.

Needs PyTorch, which tf_dslide does not: `pip install torch` where this is to be measured.
"""

from collections.abc import Callable

import numpy as np
import torch
from peers import Shape
from scipy import sparse
from torch import nn


def draw(count: int, units: int) -> torch.Tensor:
    """Distinct neurons, uniformly: what is drawn twice is drawn again."""
    drawn = torch.unique(torch.randint(units, (count,)))
    while len(drawn) < count:
        more = torch.randint(units, (count - len(drawn),))
        drawn = torch.unique(torch.cat([drawn, more]))
    return drawn


class SparsePeer(nn.Module):
    """Shared uniform negatives; each row's softmax runs over them and its own labels.

    A negative that is among a row's labels counts once, as its label. `draw_negatives` is there for
    tests; it must give distinct neurons in ascending order.
    """

    def __init__(
        self,
        shape: Shape,
        learning_rate: float = 1e-3,
        seed: int = 0,
        draw_negatives: Callable[[int, int], torch.Tensor] = draw,
    ) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self._shape = shape
        self._draw = draw_negatives
        self.input_kernel = nn.EmbeddingBag(shape.features, shape.hidden, mode="sum", sparse=True)
        self.input_bias = nn.Parameter(torch.zeros(shape.hidden))
        self.kernel = nn.Embedding(shape.units, shape.hidden, sparse=True)
        self.bias = nn.Embedding(shape.units, 1, sparse=True)
        nn.init.xavier_uniform_(self.input_kernel.weight)
        nn.init.xavier_uniform_(self.kernel.weight)
        nn.init.zeros_(self.bias.weight)
        tables = [self.input_kernel.weight, self.kernel.weight, self.bias.weight]
        self._optimizers = [
            torch.optim.SparseAdam(tables, lr=learning_rate),
            torch.optim.Adam([self.input_bias], lr=learning_rate),
        ]

    def step(self, features: sparse.csr_matrix, labels: sparse.csr_matrix) -> float:
        """Trains on a batch and gives the mean loss; all rows must have labels."""
        loss = self._loss(features, labels)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return loss.item()

    def _loss(self, features: sparse.csr_matrix, labels: sparse.csr_matrix) -> torch.Tensor:
        sums = self.input_kernel(
            torch.from_numpy(features.indices.astype(np.int64)),
            torch.from_numpy(features.indptr[:-1].astype(np.int64)),
            per_sample_weights=torch.from_numpy(features.data),
        )
        hidden = torch.relu(sums + self.input_bias)
        counts = np.diff(labels.indptr)
        rows = torch.from_numpy(np.repeat(np.arange(len(counts)), counts))
        ids = torch.from_numpy(labels.indices.astype(np.int64))
        negatives = self._draw(self._shape.negatives, self._shape.units)

        logits = torch.addmm(self.bias(negatives).T, hidden, self.kernel(negatives).T)
        logits = logits.index_put(_hits(rows, ids, negatives), torch.tensor(-torch.inf))
        own = (hidden[rows] * self.kernel(ids)).sum(1) + self.bias(ids)[:, 0]
        # Padded to as many labels as a row has at most.
        places = torch.from_numpy(np.arange(len(ids)) - np.repeat(labels.indptr[:-1], counts))
        padded = torch.full((len(counts), int(counts.max())), -torch.inf)
        padded = padded.index_put((rows, places), own)
        log_sums = torch.logaddexp(torch.logsumexp(logits, 1), torch.logsumexp(padded, 1))
        picked = torch.zeros(len(counts)).index_add(0, rows, own)
        return (log_sums - picked / torch.from_numpy(counts)).mean()


def _hits(rows: torch.Tensor, ids: torch.Tensor, negatives: torch.Tensor) -> tuple:
    """Rows and places of the negatives that are among the row's labels."""
    places = torch.searchsorted(negatives, ids).clamp(max=len(negatives) - 1)
    hit = negatives[places] == ids
    return rows[hit], places[hit]


class Batches:
    """Shuffled batches without end, assembled by SciPy."""

    def __init__(
        self, features: sparse.csr_matrix, labels: sparse.csr_matrix, size: int, seed: int
    ) -> None:
        self._features, self._labels, self._size = features, labels, size
        self._rng = np.random.default_rng(seed)
        self._order = np.zeros(0, np.int64)

    def __next__(self) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        if len(self._order) < self._size:
            self._order = self._rng.permutation(self._features.shape[0])
        rows, self._order = self._order[: self._size], self._order[self._size :]
        return self._features[rows], self._labels[rows]
