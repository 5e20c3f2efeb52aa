"""Run under mpirun: trainings by `fit`. Each argument says what is wrong with rank 1 in one.

The error of a training is printed as one line of JSON, and the next one begins; the last ends the
job in whichever way it does.
"""

import json
import os
import signal
import sys
from unittest import mock

import tests.fewer_imports  # noqa: F401

# isort: split
import keras
import numpy as np
from scipy import sparse

from tf_dslide import DSlideDense, PrecisionAtK, SlideCrossentropy, SparseAdam, SparseDense
from tf_dslide.data import Dataset, batches
from tf_dslide.parallel import MPIModelParallel, strategy

FEATURES, LABELS, SAMPLES, BATCH = 50, 40, 90, 16


def data(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, LABELS, SAMPLES)
    features = np.zeros((SAMPLES, FEATURES), np.float32)
    features[np.arange(SAMPLES), labels] = 1
    features[np.arange(SAMPLES), rng.integers(0, FEATURES, SAMPLES)] += 0.5
    rows = sparse.csr_matrix(
        (np.ones(SAMPLES, np.float32), (np.arange(SAMPLES), labels)), (SAMPLES, LABELS)
    )
    return Dataset(sparse.csr_matrix(features), rows)


class Trouble(keras.callbacks.Callback):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def on_train_batch_end(self, batch, logs=None):
        if batch != 3:
            return
        if self.kind == "exception":
            raise KeyError("something of the user's own")
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "leave":
            sys.exit(0)


def train(kind):
    second = os.environ.get("PMI_RANK", "0") == "1"
    trouble = kind if second else "none"
    version = "0.0.1" if trouble == "version" else strategy.__version__
    with mock.patch.object(strategy, "__version__", version):
        split = MPIModelParallel(timeout=20, check_every=4)
    keras.utils.set_random_seed(8 if trouble == "seed" else 7)
    units = LABELS + 1 if trouble == "model" else LABELS
    model = keras.Sequential(
        [
            keras.Input((FEATURES,), sparse=True),
            SparseDense(16, activation="relu", strategy=split),
            DSlideDense(units, strategy=split),
        ]
    )
    model.compile(SparseAdam(0.05), SlideCrossentropy(), metrics=[PrecisionAtK(1)])
    train = batches(
        data(2 if trouble == "data" else 1),
        BATCH + (trouble == "batch size"),
        shuffle=True,
        seed=1 if trouble == "order" else 0,
    )
    history = model.fit(train, epochs=8, shuffle=False, callbacks=[Trouble(trouble)])
    result = model.evaluate(train, return_dict=True, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert result["precision_at_1"] > 0.8, result
    # One write with its line's end: `print` makes two, between which the other rank's may come.
    sys.stderr.write(f"precision on rank {split.rank}: {result['precision_at_1']}\n")


def main(*kinds):
    for kind in kinds[:-1]:
        try:
            train(kind)
        except Exception as error:
            rank = int(os.environ["PMI_RANK"])
            line = json.dumps({"kind": kind, "rank": rank, "error": str(error)})
            # After the line of the progress bar.
            sys.stdout.write(f"\n{line}\n")
            sys.stdout.flush()
    train(kinds[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
