"""Trains with checkpoints on several ranks: through, resumed, and resumed on other ranks.

Arguments: the folder, `through` or `other`.
"""

import sys
from pathlib import Path

import tests.fewer_imports  # noqa: F401

# isort: split
import keras
import numpy as np
import tensorflow as tf

from tests.parallel.checkpoint_cases import FEATURES, build, state_of, train
from tf_dslide import LshSampler, SimHash
from tf_dslide.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from tf_dslide.parallel import MPIModelParallel

SAMPLER = {"hash": SimHash(bits=3, tables=5), "active": 24, "rebuild_every": 7}
UNITS = 200


def new_model(strategy: MPIModelParallel, seed: int, eager: bool = False) -> keras.Model:
    return build(strategy, units=UNITS, sampler=LshSampler(**SAMPLER), seed=seed, eager=eager)


def require_equal(found: keras.Model, wanted: keras.Model) -> None:
    for (a, _), (b, _) in zip(state_of(found), state_of(wanted), strict=True):
        np.testing.assert_array_equal(a, b)


def predict(model: keras.Model) -> np.ndarray:
    return np.asarray(model.predict(tf.sparse.from_dense(np.eye(FEATURES)), verbose=0))


def through(folder: Path, strategy: MPIModelParallel) -> None:
    """Trains four epochs, and the last two of them once more from a checkpoint."""
    model = new_model(strategy, 1)
    checkpoint = Checkpoint(folder, strategy, keep=3)
    assert checkpoint.resume(model) == 0
    losses = train(model, 0, 4, callbacks=[checkpoint])
    resumed = new_model(strategy, 2)
    assert load_checkpoint(folder / "epoch-0002", resumed, strategy)["epoch"] == 2
    assert train(resumed, 2, 4) == losses[2:]
    require_equal(resumed, model)
    scores = predict(model)
    if strategy.rank == 0:
        np.save(folder / "scores.npy", scores)
        print(f"resumed exactly on {strategy.size} ranks")


def other(folder: Path, strategy: MPIModelParallel) -> None:
    """Goes on from the last epoch on another number of ranks."""
    model = new_model(strategy, 3, eager=True)
    checkpoint = Checkpoint(folder, strategy)
    assert checkpoint.resume(model) == 4
    # As `fit` did when the last epoch was over.
    model.optimizer.catch_up()
    np.testing.assert_allclose(predict(model), np.load(folder / "scores.npy"), atol=1e-4)
    train(model, 4, 5)
    save_checkpoint(folder / "epoch-0005", model, strategy, {"epoch": 5})
    scores = predict(model)
    if strategy.rank == 0:
        np.save(folder / "scores.npy", scores)
        print(f"went on with {strategy.size} ranks")


if __name__ == "__main__":
    {"through": through, "other": other}[sys.argv[2]](Path(sys.argv[1]), MPIModelParallel())
