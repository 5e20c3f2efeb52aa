"""The dense baseline computes what Keras would."""

import keras
import numpy as np
import tensorflow as tf

from baselines.dense_softmax import DenseNetwork, best_of, log_prior
from benchmarks.peers import AdamSchedule
from tf_dslide import LabelPrior
from tf_dslide.data import to_sparse_tensor

FEATURES, HIDDEN, UNITS, RATE = 20, 6, 33, 1e-2
LABELS = [[0, 32], [5], [], [7, 8, 9], [5]]


def some_features() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.random((5, FEATURES), np.float32) * (rng.random((5, FEATURES)) < 0.3)


def keras_twin(network: DenseNetwork) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(UNITS),
        ]
    )
    for variable, weight in zip(model.trainable_variables, network.weights, strict=True):
        variable.assign(weight)
    return model


def test_steps_are_those_of_keras():
    network = DenseNetwork(FEATURES, HIDDEN, UNITS, 0, tf.random.stateless_normal([UNITS], [1, 2]))
    model, optimizer = keras_twin(network), keras.optimizers.Adam(RATE, epsilon=1e-8)
    targets = np.zeros((5, UNITS), np.float32)
    for row, ids in enumerate(LABELS):
        targets[row, ids] = 1 / max(len(ids), 1)
    x, y = some_features(), tf.ragged.constant(LABELS, tf.int64)
    schedule = AdamSchedule(RATE)

    @tf.function
    def step(features, labels):
        loss, gradients = network.gradients(features, labels)
        network.apply(gradients, schedule.next())
        return loss

    for _ in range(4):
        with tf.GradientTape() as tape:
            logits = model(x)
            logs = tf.nn.log_softmax(logits)
            expected = -tf.reduce_sum(targets * logs) / 5  # a row without labels counts as a row
        variables = [v.value for v in model.trainable_variables]
        gradients = tape.gradient(expected, variables)
        optimizer.apply(gradients, model.trainable_variables)
        np.testing.assert_allclose(step(to_sparse_tensor(x), y), expected, rtol=1e-5)
        for mine, theirs in zip(network.weights, variables, strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=2e-5)


def test_best_of_is_the_order_of_all_logits():
    network = DenseNetwork(FEATURES, HIDDEN, UNITS, 4)
    hidden = network.hidden(to_sparse_tensor(some_features()))
    expected = np.argsort(-network.logits(hidden).numpy(), axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(best_of(network.logits, hidden, 4, rows=2), expected)


def test_the_prior_is_that_of_our_layers():
    counts = np.array([3, 0, 10])
    expected = LabelPrior(counts)((3,), "float32").numpy()
    np.testing.assert_allclose(log_prior(counts), expected, rtol=1e-6)
