"""Makes learnable extreme-classification data of any shape, sample by sample from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse

from tf_dslide.data.dataset import Dataset
from tf_dslide.data.pipeline import stream

if TYPE_CHECKING:
    import tensorflow as tf

# The first sample of the test split: no training set reaches so far.
TEST_START = 1 << 40

# Samples are drawn a block at a time, always whole blocks, so that a sample does not depend on
# which range it is asked for in. Larger blocks leave the cache, smaller ones are overhead.
_BLOCK = 1024
_BLOCKS_PER_CHUNK = 8
# After so many rounds of drawing again what a row has already, take the next free id instead.
_ROUNDS_BY_CHANCE = 64


@dataclass(frozen=True)
class SyntheticSpec:
    """The rule behind a synthetic data set: a planted structure, and samples numbered from 0.

    Labels follow a power law: the label of popularity rank `r` is drawn with a probability
    proportional to `(r + 1) ** -exponent`, and the ranks are scattered over the ids. Each label has
    `prototype_size` prototype features, computed from `(seed, label)` by a hash, so that no table
    is kept. A sample has `1 + Poisson` distinct labels and `1 + Poisson` distinct features; a
    feature is a random prototype feature of one of its labels, or, with probability `noise`, a
    word that says nothing, drawn by Zipf's law. Values are those of TF-IDF (positive, higher
    for rarer features), scaled to rows of unit length.

    A sample depends on the spec and its number alone: 100 samples are the first 100 of 1,000, and
    samples of any range share one planted structure.

    Args:
        num_features: Width of the features.
        num_labels: Number of labels.
        features_per_sample: Mean number of non-zero features of a sample, at least 1.
        labels_per_sample: Mean number of labels of a sample, at least 1. Samples whose number
            would exceed the width are cut to it.
        exponent: Of the power law of the labels; 0 makes them equally likely.
        noise: Share of the features that have nothing to do with the labels, in [0, 1].
        prototype_size: Prototype features of a label; `None` takes about twice as many as a
            sample shows of each of its labels.
        seed: Decides structure and samples; a non-negative integer. The draws are NumPy's, which
            promises the same ones for one version of NumPy.

    Raises:
        ValueError: An argument is out of its range.

    Example:
    >>> spec = SyntheticSpec(num_features=1000, num_labels=200, features_per_sample=20)
    >>> spec.samples(0, 50)
    Dataset('synthetic-200': 50 samples, 1000 features, 200 labels)
    >>> later = spec.samples(40, 60)
    >>> bool((spec.samples(0, 50).features[45] != later.features[5]).nnz)
    False
    """

    num_features: int
    num_labels: int
    features_per_sample: float = 75.7
    labels_per_sample: float = 5.45
    exponent: float = 0.8
    noise: float = 0.5
    prototype_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        self._require("num_features", 1, math.inf)
        self._require("num_labels", 1, math.inf)
        self._require("features_per_sample", 1, self.num_features)
        self._require("labels_per_sample", 1, self.num_labels)
        self._require("exponent", 0, math.inf)
        self._require("noise", 0, 1)
        self._require("seed", 0, math.inf)
        if self.prototype_size is not None:
            self._require("prototype_size", 1, math.inf)

    def samples(self, start: int, stop: int) -> Dataset:
        """Make the samples `start` to `stop - 1`.

        Some 40,000 samples a second with 75.7 features each, on one core.

        Args:
            start: Number of the first sample, not negative.
            stop: One past the last.

        Returns:
            A `Dataset` of `stop - start` samples.

        Raises:
            ValueError: `start` is negative or exceeds `stop`.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"samples {start} to {stop}: need 0 <= start <= stop")
        features = [sparse.csr_matrix((0, self.num_features), dtype=np.float32)]
        labels = [sparse.csr_matrix((0, self.num_labels), dtype=np.float32)]
        for block in range(start // _BLOCK, -(-stop // _BLOCK)):
            first = block * _BLOCK
            rows = slice(max(start - first, 0), min(stop - first, _BLOCK))
            block_features, block_labels = self._block(block)
            features.append(block_features[rows])
            labels.append(block_labels[rows])
        return Dataset(
            sparse.vstack(features, format="csr"),
            sparse.vstack(labels, format="csr"),
            name=f"synthetic-{self.num_labels}",
        )

    def _require(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise ValueError(f"{name} is {value}; it must lie between {least} and {most}")

    @cached_property
    def _label_of_rank(self) -> _Scatter:
        return _Scatter(self.num_labels, self.seed)

    @cached_property
    def _word_of_rank(self) -> _Scatter:
        return _Scatter(self.num_features, self.seed + 1)

    @cached_property
    def _prototype_size(self) -> int:
        if self.prototype_size is not None:
            return self.prototype_size
        shown = (1 - self.noise) * self.features_per_sample / self.labels_per_sample
        return max(2, round(2 * shown))

    def _block(self, block: int) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
        rng = np.random.default_rng([self.seed, block])
        label_counts = _counts(rng, self.labels_per_sample, self.num_labels)
        feature_counts = _counts(rng, self.features_per_sample, self.num_features)

        def draw_labels(rows: np.ndarray) -> np.ndarray:
            return self._label_of_rank.id(_zipf(rng, len(rows), self.num_labels, self.exponent))

        labels = _distinct(label_counts, self.num_labels, draw_labels)

        def draw_features(rows: np.ndarray) -> np.ndarray:
            which = (rng.random(len(rows)) * label_counts[rows]).astype(np.int64)
            shown = labels.indices[labels.indptr[rows] + which]
            drawn = self._prototype(shown, rng.integers(self._prototype_size, size=len(rows)))
            noisy = rng.random(len(rows)) < self.noise
            drawn[noisy] = self._word_of_rank.id(
                _zipf(rng, int(noisy.sum()), self.num_features, 1.0)
            )
            return drawn

        features = _distinct(feature_counts, self.num_features, draw_features)
        features.data = self._tf_idf(rng, features)
        return features, labels

    def _prototype(self, labels: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return the feature at a position of each label's prototype."""
        counter = labels.astype(np.uint64) * np.uint64(self._prototype_size)
        counter += position.astype(np.uint64) + _mix(np.array([self.seed], np.uint64))
        return (_mix(counter) % np.uint64(self.num_features)).astype(np.int64)

    def _tf_idf(self, rng: np.random.Generator, features: sparse.csr_matrix) -> np.ndarray:
        """Give each entry a term frequency of its own and its feature's rarity, and unit rows."""
        rarity = 1 + np.log1p(self._word_of_rank.rank(features.indices))
        frequency = 1 + 0.5 * rng.standard_exponential(features.nnz)
        values = rarity * frequency
        norms = np.sqrt(np.add.reduceat(values**2, features.indptr[:-1]))
        return (values / np.repeat(norms, np.diff(features.indptr))).astype(np.float32)


def make_synthetic(
    num_samples: int,
    num_features: int,
    num_labels: int,
    *,
    start: int = 0,
    **settings: Any,
) -> Dataset:
    """Make a learnable data set of any shape in memory.

    Args:
        num_samples: How many samples.
        num_features: Width of the features.
        num_labels: Number of labels.
        start: Number of the first sample. Data sets of the same settings and disjoint ranges share
            their planted structure and no sample: take `start=TEST_START` for a test set.
        **settings: `features_per_sample`, `labels_per_sample`, `exponent`, `noise`,
            `prototype_size` and `seed` of `SyntheticSpec`, which says what is made.

    Returns:
        A `Dataset` of `num_samples` samples.

    Raises:
        ValueError: An argument is out of its range.

    Example:
    >>> train = make_synthetic(100, 500, 50, features_per_sample=10, labels_per_sample=2)
    >>> test = make_synthetic(
    ...     20, 500, 50, features_per_sample=10, labels_per_sample=2, start=TEST_START
    ... )
    >>> train, test
    (Dataset('synthetic-50': 100 samples, 500 features, 50 labels), \
Dataset('synthetic-50': 20 samples, 500 features, 50 labels))
    """
    return SyntheticSpec(num_features, num_labels, **settings).samples(start, start + num_samples)


def synthetic_batches(
    spec: SyntheticSpec,
    num_samples: int,
    batch_size: int,
    *,
    start: int = 0,
    drop_remainder: bool = False,
    prefetch: int = 2,
) -> tf.data.Dataset:
    """Make synthetic data on the fly, batch by batch, holding some thousand samples at a time.

    Every iteration yields the same samples in the same order.

    Args:
        spec: What to make; that of a preset is `PRESETS[name].spec`.
        num_samples: How many samples an iteration yields.
        batch_size: Samples a batch.
        start: Number of the first sample, as in `make_synthetic`.
        drop_remainder: Whether to leave out a last batch of fewer samples.
        prefetch: How many batches to prepare ahead, in a thread of TensorFlow.

    Returns:
        A `tf.data.Dataset` of the same pairs as that of `tf_dslide.data.batches`.

    Raises:
        ValueError: An argument is out of its range.

    Example:
    >>> spec = SyntheticSpec(1000, 200, features_per_sample=20)
    >>> features, labels = next(iter(synthetic_batches(spec, num_samples=100, batch_size=32)))
    >>> features.shape, labels.shape
    (TensorShape([32, 1000]), TensorShape([32, None]))
    """
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    if num_samples < 0 or start < 0:
        raise ValueError(f"num_samples is {num_samples} and start {start}; neither may be negative")
    num_batches = num_samples // batch_size if drop_remainder else -(-num_samples // batch_size)
    stop = start + min(num_samples, num_batches * batch_size)
    # Whole batches, and enough of them that few blocks are made twice.
    chunk = batch_size * -(-_BLOCKS_PER_CHUNK * _BLOCK // batch_size)

    def one_pass() -> Iterator[tuple[sparse.csr_matrix, sparse.csr_matrix]]:
        for begin in range(start, stop, chunk):
            data = spec.samples(begin, min(begin + chunk, stop))
            for row in range(0, data.num_samples, batch_size):
                rows = slice(row, row + batch_size)
                yield data.features[rows], data.labels[rows]

    return stream(one_pass, spec.num_features, num_batches, prefetch=prefetch)


@dataclass(frozen=True)
class Preset:
    """The shape of a known data set: a spec and the sizes of its splits."""

    spec: SyntheticSpec
    num_train: int
    num_test: int


# Widths, sizes and means are the published ones. Exponents are chosen to put the commonest label on
# about as large a share of the samples as in the originals.
PRESETS: dict[str, Preset] = {
    "amazon-670k": Preset(
        SyntheticSpec(135_909, 670_091, 75.7, 5.45, exponent=0.5), 490_449, 153_025
    ),
    "delicious-200k": Preset(
        SyntheticSpec(782_585, 205_443, 301.17, 75.54, exponent=0.7), 196_606, 100_095
    ),
    # Skip-gram: one word in, the words around it out; words follow Zipf's law.
    "text8": Preset(
        SyntheticSpec(253_855, 253_855, 1.0, 4.0, exponent=1.0, noise=0.1), 13_604_165, 3_401_042
    ),
    "small": Preset(SyntheticSpec(5_000, 3_000, 30.0, 3.0), 20_000, 4_000),
}


def make_preset(
    name: str,
    *,
    split: Literal["train", "test"] = "train",
    num_samples: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Make synthetic data of the shape of a known data set.

    The train and the test split of one seed share their planted structure and no sample.
    `amazon-670k` in full takes about 10 s and 0.7 GB; for sets beyond memory use
    `synthetic_batches(PRESETS[name].spec, ...)`.

    Args:
        name: One of `PRESETS`: `"amazon-670k"`, `"delicious-200k"`, `"text8"`, `"small"`.
        split: `"train"` or `"test"`.
        num_samples: How many samples; `None` for as many as the original's split has.
        seed: Decides structure and samples.

    Returns:
        A `Dataset`.

    Raises:
        ValueError: There is no such preset or split, or a number is negative.

    Example:
    >>> make_preset("amazon-670k", split="test", num_samples=100)
    Dataset('amazon-670k-test': 100 samples, 135909 features, 670091 labels)
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(map(repr, PRESETS))}")
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}; it must be 'train' or 'test'")
    preset = PRESETS[name]
    start, size = (0, preset.num_train) if split == "train" else (TEST_START, preset.num_test)
    stop = start + (size if num_samples is None else num_samples)
    data = replace(preset.spec, seed=seed).samples(start, stop)
    return replace(data, name=f"{name}-{split}")


class _Scatter:
    """A fixed one-to-one map between popularity ranks and ids that look random.

    Ids of neighbouring ranks lie far apart, so that equal ranges of ids are about equally popular.
    """

    def __init__(self, size: int, seed: int):
        self._size = size
        self._factor = next(
            factor for factor in count(int(size * 0.618) + 1) if math.gcd(factor, size) == 1
        )
        self._inverse = pow(self._factor, -1, size)
        self._shift = int(_mix(np.array([seed], np.uint64))[0] % np.uint64(size))

    def id(self, rank: np.ndarray) -> np.ndarray:
        return (rank.astype(np.int64) * self._factor + self._shift) % self._size

    def rank(self, id_: np.ndarray) -> np.ndarray:
        return (id_.astype(np.int64) - self._shift) * self._inverse % self._size


def _mix(x: np.ndarray) -> np.ndarray:
    """Hash `uint64` to `uint64` one to one (the finaliser of SplitMix64)."""
    x = (x + np.uint64(0x9E3779B97F4A7C15)).copy()
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _counts(rng: np.random.Generator, mean: float, most: int) -> np.ndarray:
    """Draw how many ids each row of a block has: at least one, `mean` on average."""
    return np.minimum(1 + rng.poisson(mean - 1, size=_BLOCK), most)


def _zipf(rng: np.random.Generator, size: int, n: int, exponent: float) -> np.ndarray:
    """Draw ranks in `[0, n)`, rank `r` in proportion to `(r + 1) ** -exponent`.

    The continuous law is inverted and cut to integers: exact for the tail and close at the head,
    and no table of `n` entries is needed.
    """
    uniform = rng.random(size)
    if exponent == 1:
        drawn = np.exp(uniform * math.log(n + 1))
    else:
        power = 1 - exponent
        drawn = (1 + uniform * ((n + 1) ** power - 1)) ** (1 / power)
    return np.minimum(drawn.astype(np.int64) - 1, n - 1)


def _distinct(
    counts: np.ndarray, width: int, draw: Callable[[np.ndarray], np.ndarray]
) -> sparse.csr_matrix:
    """Draw distinct ids for each row; what a row has already is drawn again.

    Args:
        counts: How many ids each row gets, at most `width`.
        width: Ids lie in `[0, width)`.
        draw: Maps row numbers `(m,)` to one drawn id for each.

    Returns:
        CSR `(len(counts), width)` of ones, sorted and unique in each row.
    """
    row_numbers = np.arange(len(counts))
    keys = np.empty(0, np.int64)
    missing = counts
    for attempt in count():
        rows = np.repeat(row_numbers, missing)
        if attempt < _ROUNDS_BY_CHANCE:
            ids = draw(rows)
        else:
            rows = row_numbers[missing > 0]
            ids = np.full(len(rows), (attempt - _ROUNDS_BY_CHANCE) % width)
        # np.unique hashes, which is ten times as slow here; timsort merges the sorted keys.
        keys = np.sort(np.concatenate([keys, np.sort(rows * width + ids)]), kind="stable")
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
        found = np.bincount(keys // width, minlength=len(counts))
        missing = counts - found
        if not missing.any():
            break
    indptr = np.concatenate([[0], np.cumsum(counts)])
    shape = (len(counts), width)
    return sparse.csr_matrix((np.ones(len(keys), np.float32), keys % width, indptr), shape)
