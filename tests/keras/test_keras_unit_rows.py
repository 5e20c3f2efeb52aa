"""SparseAdagrad, rows of length 1 and the start from centroids, against Keras and NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import sparse

from tf_dslide import (
    DSlideDense,
    SlideCrossentropy,
    SparseAdagrad,
    SparseAdam,
    SparseDense,
    UniformSampler,
    UnitRows,
    start_from_centroids,
)
from tf_dslide.data import Dataset, batches

FEATURES, HIDDEN, UNITS, ROWS = 40, 7, 60, 48


def some_data(seed=0):
    rng = np.random.default_rng(seed)
    features = rng.random((ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.2)
    labels = np.zeros((ROWS, UNITS))
    for row in range(ROWS):
        # The last ten labels have no sample.
        labels[row, rng.choice(UNITS - 10, rng.integers(1, 4), replace=False)] = 1
    return Dataset(sparse.csr_matrix(features), sparse.csr_matrix(labels))


def network(optimizer, constraint=None, sampler=None, seed=1):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((FEATURES,), sparse=True),
            SparseDense(HIDDEN),
            keras.layers.UnitNormalization(),
            DSlideDense(UNITS, sampler=sampler, kernel_constraint=constraint),
        ]
    )
    model.compile(optimizer, SlideCrossentropy())
    return model


def train(model, epochs=2):
    stream = batches(some_data(), 16, shuffle=True)
    return model.fit(stream, epochs=epochs, verbose=0, shuffle=False).history["loss"]


@pytest.mark.usefixtures("eager_or_graph")
def test_adagrad_is_that_of_keras():
    initial = 0.1  # so large that it does not matter where epsilon is added
    sampler = UniformSampler(20, seed=3)
    mine = network(SparseAdagrad(0.05, initial, epsilon=1e-7), sampler=sampler)
    keras_adagrad = keras.optimizers.Adagrad(0.05, initial, epsilon=1e-7)
    theirs = network(keras_adagrad, sampler=UniformSampler(20, seed=3))
    np.testing.assert_allclose(train(mine), train(theirs), rtol=1e-5)
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-5)


def test_adagrad_on_slices_with_repeats_and_on_dense_gradients():
    start = np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3)
    slices = tf.IndexedSlices(tf.constant([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]), [7, 2, 7], [10, 3])
    dense = np.zeros((10, 3), np.float32)
    np.add.at(dense, [7, 2, 7], slices.values.numpy())
    for gradient in (slices, tf.constant(dense)):
        variable = keras.Variable(start)
        optimizer = SparseAdagrad(0.5, weight_decay=0.1)
        optimizer.apply([gradient], [variable])
        touched = np.ones((10, 1), bool)
        if gradient is slices:
            touched = np.isin(np.arange(10), [2, 7])[:, None]
        steps = np.where(dense != 0, 0.5 * dense / (np.abs(dense) + 1e-7), 0) + 0.05 * start
        np.testing.assert_allclose(variable.numpy(), start - steps * touched, atol=1e-6)


@pytest.mark.usefixtures("eager_or_graph")
@pytest.mark.parametrize("optimizer", [SparseAdagrad, SparseAdam])
@pytest.mark.parametrize("sampler", [None, UniformSampler(15), "AllNeurons"])
def test_rows_have_length_one_as_keras_makes_them(optimizer, sampler):
    if sampler == "AllNeurons":
        from tf_dslide import AllNeurons

        sampler = AllNeurons()
    model = network(optimizer(0.05), UnitRows(), sampler)
    start_from_centroids(model, some_data())
    before = model.layers[-1].kernel.numpy()
    losses = train(model)
    assert losses[-1] < losses[0]
    kernel = model.layers[-1].kernel
    lengths = np.linalg.norm(kernel.numpy(), axis=1)
    moved = (kernel.numpy() != before).any(axis=1)
    assert moved.any()
    np.testing.assert_allclose(lengths[moved], 1, rtol=1e-5)
    assert isinstance(kernel.constraint, UnitRows)


def test_a_step_then_length_one_is_what_keras_computes():
    start = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    gradient = tf.IndexedSlices(tf.ones([3, 4]), [0, 4, 5], [6, 4])
    mine = keras.Variable(start)
    theirs = keras.Variable(start)
    mine.constraint = UnitRows()
    SparseAdagrad(0.3).apply([gradient], [mine])
    keras.optimizers.Adagrad(0.3, 0.0).apply([tf.convert_to_tensor(gradient)], [theirs])
    expected = start.copy()
    for row in (0, 4, 5):
        expected[row] = theirs.numpy()[row] / np.linalg.norm(theirs.numpy()[row])
    np.testing.assert_allclose(mine.numpy(), expected, rtol=1e-5)


def test_unit_rows_with_another_optimizer():
    model = network(keras.optimizers.SGD(0.1), UnitRows())
    train(model, 1)
    lengths = np.linalg.norm(model.layers[-1].kernel.numpy(), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


def test_zeros_stay():
    np.testing.assert_array_equal(UnitRows()(np.zeros((2, 3), "float32")), np.zeros((2, 3)))
    variable = keras.Variable(np.zeros((4, 3), "float32"))
    variable.constraint = UnitRows()
    SparseAdagrad(0.5).apply([tf.IndexedSlices(tf.zeros([2, 3]), [1, 3], [4, 3])], [variable])
    np.testing.assert_array_equal(variable.numpy(), np.zeros((4, 3)))


@pytest.mark.slow
def test_save_and_load(tmp_path):
    model = network(SparseAdagrad(0.05, 0.1, epsilon=1e-6), UnitRows())
    train(model, 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.layers[-1].kernel_constraint, UnitRows)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    np.testing.assert_allclose(train(loaded, 1), train(model, 1), rtol=1e-4)


def test_bad_accumulator():
    with pytest.raises(ValueError, match="must not be negative; received -1"):
        SparseAdagrad(initial_accumulator_value=-1)


def test_centroids_against_numpy():
    data = some_data()
    model = network(SparseAdam())
    kernel = model.layers[-1].kernel.numpy()
    start_from_centroids(model, data, batch_size=10)
    first = model.layers[0].kernel.numpy()
    hidden = data.features @ first
    hidden /= np.linalg.norm(hidden, axis=1, keepdims=True)
    sums = data.labels.T @ hidden
    has_samples = data.label_counts > 0
    expected = kernel.copy()
    lengths = np.linalg.norm(sums[has_samples], axis=1, keepdims=True)
    expected[has_samples] = sums[has_samples] / lengths
    np.testing.assert_allclose(model.layers[-1].kernel.numpy(), expected, atol=1e-5)
    assert (data.label_counts == 0).any()


def test_centroids_need_a_model_that_fits():
    model = network(SparseAdam())
    other = some_data()
    wide = Dataset(other.features, sparse.csr_matrix((ROWS, UNITS + 1)))
    with pytest.raises(ValueError, match=f"{UNITS} classes, but the data have {UNITS + 1}"):
        start_from_centroids(model, wide)
    with pytest.raises(ValueError, match="end in a DSlideDense"):
        start_from_centroids(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), other)
