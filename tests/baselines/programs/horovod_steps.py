"""On two ranks: Horovod's methods take the steps that one process takes on the joined batch."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np
from mpi4py import MPI
from scipy import sparse

from baselines.horovod_dense import HorovodDense
from baselines.horovod_sampled import HorovodSampled
from baselines.ranks import Ranks
from baselines.task import Task
from baselines.tensorflow_dense import TensorFlowDense
from baselines.tensorflow_sampled import TensorFlowSampled
from baselines.training import Session
from tf_dslide.data import Dataset

ROWS, STEPS = 12, 5


def data() -> Dataset:
    """A batch in all, so that ranks' parts and the whole are the same samples at each step.

    Neighbours have the same labels: both ranks' parts then have the same labels as the whole, and
    the softmax of each runs over the same candidates.
    """
    rng = np.random.default_rng(0)
    features = rng.random((ROWS, 30)) * (rng.random((ROWS, 30)) < 0.3)
    labels = np.zeros((ROWS, 200))
    for pair in range(ROWS // 2):
        labels[2 * pair : 2 * pair + 2, rng.choice(200, 3, replace=False)] = 1
    return Dataset(sparse.csr_matrix(features), sparse.csr_matrix(labels))


def session(ranks: Ranks) -> Session:
    task = Task("test", "", {}, "", "", 8, ROWS, 1e-2, 5, None, 20, 1)
    return Session(task, ranks, data(), data(), None)


def weights_of(method: object) -> list[np.ndarray]:
    if hasattr(method, "network"):
        return [weight.numpy() for weight in method.network.weights]
    peer = method.peer
    tables = (peer.input_kernel.weight, peer.input_bias[0], peer.kernel.weight, peer.bias.weight)
    return [table.numpy() for table in tables]


def check(several: type, one: type, comm: MPI.Comm) -> None:
    split, whole = several(session(Ranks(comm))), one(session(Ranks()))
    before = weights_of(split)
    for _ in range(STEPS):
        losses = comm.allgather(split.step())
        np.testing.assert_allclose(np.mean(losses), whole.step(), rtol=1e-4)
        found, expected = weights_of(split), weights_of(whole)
        for mine, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert all((x != y).any() for x, y in zip(found, before, strict=True))
    for weight in found:
        for other in comm.allgather(weight):
            np.testing.assert_array_equal(weight, other)
    exchanged = split.exchanged()
    assert exchanged.bytes_sent > 0
    assert exchanged.seconds_waiting > 0


if __name__ == "__main__":
    comm = MPI.COMM_WORLD
    assert comm.Get_size() == 2
    check(HorovodDense, TensorFlowDense, comm)
    check(HorovodSampled, TensorFlowSampled, comm)
    if comm.Get_rank() == 0:
        print("the same")
