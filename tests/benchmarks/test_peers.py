"""The peers compute what they claim to: a step of each against plain NumPy, or it is no bar."""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse

from tests import reference
from tests.reference import ActiveSet, AdamSettings, AdamState, Csr, csr

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import peers

FEATURES, HIDDEN, UNITS, BATCH = 30, 8, 50, 6
NEGATIVES = np.array([3, 10, 11, 20, 42], np.int32)
RATE = 1e-2
SHAPE = peers.Shape(FEATURES, HIDDEN, UNITS, len(NEGATIVES))
# A label that is a negative, in a row that has it and in others; a label of two rows.
LABELS = [[3, 7], [10], [7], [0, 1, 49], [42, 3, 20], [5]]


class Weights(NamedTuple):
    input_kernel: np.ndarray
    input_bias: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray


def random_features(rng: np.random.Generator) -> sparse.csr_matrix:
    """Few distinct features, each in several rows; the first row has none."""
    matrix = rng.random((BATCH, FEATURES)) * (rng.random((BATCH, FEATURES)) < 0.2)
    matrix[0] = matrix[:, 20:] = 0
    return sparse.csr_matrix(matrix, dtype=np.float32)


def to_tensors(
    features: sparse.csr_matrix, labels: list[list[int]]
) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
    from tf_dslide.data.pipeline import to_sparse_tensor

    return to_sparse_tensor(features), tf.ragged.constant(labels, tf.int64, ragged_rank=1)


class NumpyPeer:
    """The network and its row-sparse Adam; `lists` names the neurons of each row's softmax."""

    def __init__(self, start: Weights) -> None:
        self.states = [AdamState(w, np.zeros_like(w), np.zeros_like(w)) for w in start]
        self.steps = 0

    @property
    def weights(self) -> Weights:
        return Weights(*(state.weight for state in self.states))

    def step(self, features: sparse.csr_matrix, lists: Csr, labels: Csr) -> float:
        loss, gradients = self._gradients(features, lists, labels)
        self.steps += 1
        settings = AdamSettings(self.steps, RATE, epsilon=1e-8)
        seen, neurons = np.unique(features.indices), np.unique(lists.ids)
        rows = (seen, np.arange(HIDDEN), neurons, neurons)
        self.states = [
            reference.row_adam(state, touched, gradient[touched], settings)
            for state, touched, gradient in zip(self.states, rows, gradients, strict=True)
        ]
        return loss

    def _gradients(
        self, features: sparse.csr_matrix, lists: Csr, labels: Csr
    ) -> tuple[float, Weights]:
        weights, x = self.weights, features.toarray().astype(np.float64)
        sums = x @ weights.input_kernel + weights.input_bias
        hidden = np.maximum(sums, 0)
        logits = reference.active_logits(hidden, lists, weights.kernel, weights.bias)
        losses, by_logit = reference.softmax_crossentropy(logits, lists, labels)
        by_logit /= BATCH
        by_sum = reference.csr_mat_mul(by_logit, lists, weights.kernel) * (sums > 0)
        gradients = Weights(
            x.T @ by_sum,
            by_sum.sum(0),
            reference.row_gradient(hidden, by_logit, lists, UNITS),
            reference.entry_sums(by_logit, lists, UNITS),
        )
        return losses.mean(), gradients


def own_lists(labels: Csr) -> Csr:
    return ActiveSet(labels, NEGATIVES).distinct()


def common_lists(labels: Csr) -> Csr:
    return csr([np.union1d(labels.ids, NEGATIVES)] * labels.rows)


def sorted_lists(lists: Csr) -> Csr:
    return csr([np.sort(lists.row(row)) for row in range(lists.rows)])


def random_start(rng: np.random.Generator) -> Weights:
    return Weights(
        rng.normal(size=(FEATURES, HIDDEN)).astype("float32"),
        rng.normal(size=HIDDEN).astype("float32"),
        rng.normal(size=(UNITS, HIDDEN)).astype("float32"),
        rng.normal(size=UNITS).astype("float32"),
    )


def assert_equal_weights(found: Weights, peer: NumpyPeer, start: Weights) -> None:
    for name, value, expected, initial in zip(
        Weights._fields, found, peer.weights, start, strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-5, err_msg=name)
        untouched = np.asarray(expected) == initial
        np.testing.assert_array_equal(value[untouched], initial[untouched], err_msg=name)


@pytest.mark.parametrize("empty_row", [False, True])
@pytest.mark.parametrize(
    ("softmax", "lists_of"),
    [
        (peers.softmax_of_own_labels, own_lists),
        (peers.softmax_of_all_candidates, common_lists),
    ],
)
def test_steps_of_row_adam(rng, softmax, lists_of, empty_row):
    start = random_start(rng)
    peer = peers.RowAdamPeer(SHAPE, softmax, RATE, draw_negatives=lambda *_: tf.constant(NEGATIVES))
    variables = (peer.input_kernel.weight, peer.input_bias[0], peer.kernel.weight, peer.bias.weight)
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    step = tf.function(peer.step)
    expected = NumpyPeer(start)
    lists = [[] if empty_row and row == 2 else ids for row, ids in enumerate(LABELS)]
    labels = csr([sorted(row) for row in lists])
    for _ in range(3):
        features = random_features(rng)
        loss = step(*to_tensors(features, lists))
        assert float(loss) == pytest.approx(
            expected.step(features, sorted_lists(lists_of(labels)), labels), rel=1e-5
        )
    found = Weights(*(variable.numpy() for variable in variables))
    assert_equal_weights(found, expected, start)
    assert not np.array_equal(found.kernel, start.kernel)


def test_negatives_are_distinct_and_uniform():
    drawn = np.stack([peers.draw(10, 40).numpy() for _ in range(400)])
    assert all(len(set(row)) == 10 for row in drawn)
    # Each neuron comes in a quarter of the draws: 100 times, standard deviation 8.7.
    counts = np.bincount(drawn.ravel(), minlength=40)
    assert len(counts) == 40
    assert (np.abs(counts - 100) < 50).all()


def test_sampled_softmax_over_all_neurons_is_the_full_one(rng):
    """With every neuron drawn and one label a row nothing is random: corrections cancel out."""
    shape = SHAPE._replace(negatives=UNITS)
    peer = peers.SampledSoftmaxPeer(shape, learning_rate=0.5)
    labels = [[3], [10], [7], [7], [0], [49]]
    features = random_features(rng)
    variables = (peer.input_kernel, peer.input_bias, peer.kernel, peer.bias)
    start = random_start(rng)
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    everything = reference.all_units(BATCH, UNITS)
    loss, gradients = NumpyPeer(start)._gradients(features, everything, csr(labels))

    assert float(tf.function(peer.step)(*to_tensors(features, labels))) == pytest.approx(
        loss, rel=1e-5
    )
    for variable, value, gradient in zip(variables, start, gradients, strict=True):
        np.testing.assert_allclose(variable.numpy(), value - 0.5 * gradient, rtol=1e-5, atol=1e-5)


def test_sampled_softmax_learns(rng):
    peer = peers.SampledSoftmaxPeer(SHAPE._replace(negatives=25), learning_rate=0.5)
    step = tf.function(peer.step)
    batch = to_tensors(random_features(rng), LABELS)
    losses = [float(step(*batch)) for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def test_one_label_is_one_of_the_rows():
    labels = tf.ragged.constant(LABELS, tf.int64)
    drawn = np.stack([peers._one_label(labels).numpy() for _ in range(100)])
    assert [sorted(set(column.tolist())) for column in drawn.T] == [sorted(r) for r in LABELS]
