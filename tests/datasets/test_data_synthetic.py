"""Synthetic data: shape, determinism, planted structure, power law."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import normalize

from tf_dslide.data import (
    PRESETS,
    TEST_START,
    SyntheticSpec,
    make_preset,
    make_synthetic,
    synthetic,
    synthetic_batches,
)

SPEC = SyntheticSpec(800, 300, features_per_sample=25, labels_per_sample=3)


def assert_same(ours, theirs):
    for a, b in ((ours.features, theirs.features), (ours.labels, theirs.labels)):
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.indptr, b.indptr)
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_array_equal(a.data, b.data)


@pytest.mark.parametrize(("name", "num_samples"), [("amazon-670k", 4000), ("delicious-200k", 1500)])
def test_presets_have_the_means_they_promise(name, num_samples):
    data, spec = make_preset(name, num_samples=num_samples), PRESETS[name].spec
    assert data.features.shape == (num_samples, spec.num_features)
    assert data.labels.shape == (num_samples, spec.num_labels)
    assert data.features.nnz / num_samples == pytest.approx(spec.features_per_sample, rel=0.02)
    assert data.labels.nnz / num_samples == pytest.approx(spec.labels_per_sample, rel=0.03)


def test_skip_gram_shape():
    data = make_preset("text8", num_samples=2000)
    np.testing.assert_array_equal(np.diff(data.features.indptr), 1)
    np.testing.assert_array_equal(data.features.data, 1)


def test_published_shapes():
    shapes = {
        name: (preset.spec.num_features, preset.spec.num_labels, preset.num_train, preset.num_test)
        for name, preset in PRESETS.items()
    }
    assert shapes["amazon-670k"] == (135_909, 670_091, 490_449, 153_025)
    assert shapes["delicious-200k"] == (782_585, 205_443, 196_606, 100_095)
    assert shapes["text8"] == (253_855, 253_855, 13_604_165, 3_401_042)


def test_splits_have_their_sizes():
    small = PRESETS["small"]
    assert make_preset("small").num_samples == small.num_train
    assert make_preset("small", split="test").num_samples == small.num_test
    assert make_preset("small", split="test", num_samples=0).num_samples == 0


def test_rows_are_like_tf_idf():
    data = SPEC.samples(0, 3000)
    assert data.features.has_sorted_indices
    assert (data.features.data > 0).all()
    norms = sparse.linalg.norm(data.features, axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
    # Common features weigh less than rare ones.
    frequency = np.bincount(data.features.indices, minlength=800)
    weight = np.bincount(data.features.indices, data.features.data, 800) / np.maximum(frequency, 1)
    common = np.argsort(-frequency)[:20]
    assert weight[common].mean() < 0.7 * weight[frequency > 0].mean()


def test_every_row_has_distinct_labels_and_at_least_one():
    labels = SPEC.samples(0, 3000).labels
    assert labels.has_canonical_format
    assert np.diff(labels.indptr).min() >= 1
    assert len(set(np.diff(labels.indptr))) > 3


@pytest.mark.parametrize("size", [0, 1, 100, 1023, 1024, 1025, 2500])
def test_fewer_samples_are_a_prefix(size):
    assert_same(SPEC.samples(0, size), SPEC.samples(0, 2600).take(slice(0, size)))


@pytest.mark.parametrize(("start", "stop"), [(5, 9), (1000, 1100), (1024, 2048), (2047, 2600)])
def test_a_range_is_a_slice(start, stop):
    assert_same(SPEC.samples(start, stop), SPEC.samples(0, 2600).take(slice(start, stop)))
    made = make_synthetic(
        stop - start, 800, 300, features_per_sample=25, labels_per_sample=3, start=start
    )
    assert_same(made, SPEC.samples(start, stop))


def test_one_seed_one_result_and_other_seeds_others():
    assert_same(SPEC.samples(0, 50), replace(SPEC).samples(0, 50))
    other = replace(SPEC, seed=1).samples(0, 50)
    assert (other.features != SPEC.samples(0, 50).features).nnz
    assert (other.labels != SPEC.samples(0, 50).labels).nnz


def test_train_and_test_share_no_sample():
    train = make_preset("small", num_samples=2000, seed=3).features
    test = make_preset("small", split="test", num_samples=2000, seed=3).features
    assert (train @ test.T).max() < 0.999


def nearest_centroid_precision(train, test):
    """P@1 of the label whose mean training sample is nearest, and of the commonest label."""
    centroids = normalize(train.labels.T @ train.features)
    guess = (test.features @ centroids.T).toarray().argmax(axis=1)
    hits = test.labels[np.arange(test.num_samples), guess]
    commonest = train.label_counts.argmax()
    return hits.mean(), test.labels[:, commonest].mean()


def test_the_structure_can_be_learned_and_generalises():
    train = make_preset("small", num_samples=10_000)
    learned, commonest = nearest_centroid_precision(
        train, make_preset("small", split="test", num_samples=1000)
    )
    assert commonest < 0.2
    assert learned > 0.85
    # The structure belongs to the seed: what was learned from one says nothing of another.
    foreign, commonest = nearest_centroid_precision(
        train, make_preset("small", split="test", num_samples=1000, seed=1)
    )
    assert foreign < 0.05


def test_noise_alone_cannot_be_learned():
    spec = replace(SPEC, noise=1.0, exponent=0.0)
    learned, _ = nearest_centroid_precision(
        spec.samples(0, 5000), spec.samples(TEST_START, TEST_START + 1000)
    )
    assert learned < 0.05  # chance is 0.01


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 1.5])
def test_labels_follow_the_power_law(exponent):
    spec = SyntheticSpec(10, 1000, features_per_sample=1, labels_per_sample=1, exponent=exponent)
    counts = np.sort(spec.samples(0, 200_000).label_counts)[::-1]
    ranks = np.arange(10, 200)
    slope = np.polyfit(np.log(ranks + 1), np.log(counts[ranks]), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.06)
    assert counts[-1] > 0 or exponent > 1


def test_equally_likely_labels():
    counts = SyntheticSpec(10, 100, 1, 1, exponent=0.0).samples(0, 100_000).label_counts
    np.testing.assert_allclose(counts, 1000, rtol=0.2)


def test_popular_labels_are_scattered_over_the_ids():
    counts = SyntheticSpec(10, 1000, 1, 1, exponent=1.0).samples(0, 100_000).label_counts
    quarters = counts.reshape(4, 250).sum(axis=1) / counts.sum()
    assert quarters.max() < 0.45
    head = np.sort(np.argsort(-counts)[:8])
    assert np.diff(head).min() > 20


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000, 4096])
@pytest.mark.parametrize("seed", [0, 5])
def test_scatter_is_one_to_one(size, seed):
    scatter = synthetic._Scatter(size, seed)
    ids = scatter.id(np.arange(size))
    np.testing.assert_array_equal(np.sort(ids), np.arange(size))
    np.testing.assert_array_equal(scatter.rank(ids), np.arange(size))


def test_scatter_does_not_overflow():
    size = 2**31 - 1
    ranks = np.array([0, 1, size // 2, size - 1])
    scatter = synthetic._Scatter(size, 7)
    np.testing.assert_array_equal(scatter.rank(scatter.id(ranks)), ranks)


@pytest.mark.parametrize(
    "spec",
    [
        SyntheticSpec(1, 1, 1, 1),
        SyntheticSpec(3, 2, 3, 2),
        SyntheticSpec(40, 40, 40, 40, exponent=6.0),  # by chance alone a row would never be full
        SyntheticSpec(40, 40, 20, 20, noise=0.0, prototype_size=1),
    ],
)
def test_narrow_shapes(spec):
    data = spec.samples(0, 200)
    assert data.features.shape == (200, spec.num_features)
    assert np.diff(data.labels.indptr).min() >= 1
    assert np.diff(data.labels.indptr).max() <= spec.num_labels
    np.testing.assert_array_equal(data.labels.data, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_features": 0}, "num_features is 0"),
        ({"num_labels": 0}, "num_labels is 0"),
        ({"features_per_sample": 0.5}, "features_per_sample is 0.5; it must lie between 1 and 800"),
        ({"features_per_sample": 801}, "features_per_sample is 801"),
        ({"labels_per_sample": 301}, "labels_per_sample is 301"),
        ({"exponent": -1}, "exponent is -1"),
        ({"noise": 1.5}, "noise is 1.5; it must lie between 0 and 1"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"prototype_size": 0}, "prototype_size is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_specs(arguments, message):
    with pytest.raises(ValueError, match=message):
        replace(SPEC, **arguments)


def test_bad_requests():
    with pytest.raises(ValueError, match="samples 5 to 3"):
        SPEC.samples(5, 3)
    with pytest.raises(ValueError, match="samples -1 to 3"):
        SPEC.samples(-1, 3)
    with pytest.raises(ValueError, match="no preset 'amazon'; there are 'amazon-670k'"):
        make_preset("amazon")
    with pytest.raises(ValueError, match="split is 'valid'"):
        make_preset("small", split="valid")
    with pytest.raises(ValueError, match="batch_size is 0"):
        synthetic_batches(SPEC, 10, 0)
    with pytest.raises(ValueError, match="num_samples is -1"):
        synthetic_batches(SPEC, -1, 5)


@pytest.mark.parametrize("drop_remainder", [False, True])
@pytest.mark.parametrize("chunk", [1, 8])
def test_batches_on_the_fly_are_the_same_samples(monkeypatch, drop_remainder, chunk):
    monkeypatch.setattr(synthetic, "_BLOCKS_PER_CHUNK", chunk)
    stream = synthetic_batches(SPEC, 2500, 400, start=TEST_START + 3, drop_remainder=drop_remainder)
    sizes = [400] * 6 + [100] * (not drop_remainder)
    expected = SPEC.samples(TEST_START + 3, TEST_START + 3 + sum(sizes))
    assert stream.cardinality().numpy() == len(sizes)
    for _ in range(2):
        pairs = list(stream)
        assert [y.nrows().numpy() for _, y in pairs] == sizes
        values = np.concatenate([x.values.numpy() for x, _ in pairs])
        columns = np.concatenate([x.indices.numpy()[:, 1] for x, _ in pairs])
        labels = np.concatenate([y.values.numpy() for _, y in pairs])
        np.testing.assert_array_equal(values, expected.features.data)
        np.testing.assert_array_equal(columns, expected.features.indices)
        np.testing.assert_array_equal(labels, expected.labels.indices)
    assert stream.element_spec[0].shape.as_list() == [None, 800]


def test_no_batches_on_the_fly():
    assert list(synthetic_batches(SPEC, 0, 32)) == []
