"""A training by `fit` on ranks of which rank 1 may be unlike the others."""

from typing import Any

import keras
import numpy as np
from scipy import sparse

from tf_dslide import DSlideDense, PrecisionAtK, SlideCrossentropy, SparseAdam, SparseDense
from tf_dslide.data import Dataset, batches
from tf_dslide.parallel import MPIModelParallel

FEATURES, LABELS, SAMPLES, BATCH = 50, 40, 90, 16


class OlderParallel(MPIModelParallel):
    """That of another version."""

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"tf_dslide": "0.0.1"}


def make_data(seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, LABELS, SAMPLES)
    features = np.zeros((SAMPLES, FEATURES), np.float32)
    features[np.arange(SAMPLES), labels] = 1
    features[np.arange(SAMPLES), rng.integers(0, FEATURES, SAMPLES)] += 0.5
    rows = sparse.csr_matrix(
        (np.ones(SAMPLES, np.float32), (np.arange(SAMPLES), labels)), (SAMPLES, LABELS)
    )
    return Dataset(sparse.csr_matrix(features), rows)


def build(split: Any, difference: str = "", eager: bool = False) -> keras.Model:
    keras.utils.set_random_seed(8 if difference == "seed" else 7)
    units = LABELS + 1 if difference == "model" else LABELS
    model = keras.Sequential(
        [
            keras.Input((FEATURES,), sparse=True),
            SparseDense(16, activation="relu", strategy=split),
            DSlideDense(units, strategy=split),
        ]
    )
    metrics = [PrecisionAtK(1)]
    model.compile(SparseAdam(0.05), SlideCrossentropy(), metrics=metrics, run_eagerly=eager)
    return model


def stream(difference: str = "") -> Any:
    return batches(
        make_data(2 if difference == "data" else 1),
        BATCH + (difference == "batch size"),
        shuffle=True,
        seed=1 if difference == "order" else 0,
    )


def train_unlike(difference: str, communicator: Any) -> None:
    """Trains a little, with something different on rank 1."""
    mine = difference if communicator.rank == 1 else ""
    kind = OlderParallel if mine == "version" else MPIModelParallel
    model = build(kind(communicator, check_every=4, verbose=False), mine, eager=True)
    model.fit(stream(mine), epochs=2, shuffle=False, verbose=0)
