"""Samplers choose each sample's active set: the neurons that take part in a training step.

A sampler is a small description that can be saved. A layer turns it into a `Selector`.
"""

import dataclasses
import functools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide._checks import require_positive
from tf_dslide.hashing import HashFamily
from tf_dslide.selectors import (
    NothingSelector,
    RandomSelector,
    Selector,
    TableOptions,
    TableSelector,
)
from tf_dslide.sharding import Shard


class Sampler:
    """Base of the samplers."""

    #: Whether every neuron is active, so that the layer may work densely.
    selects_all = False

    def selector(self, shard: Shard, dim: int) -> Selector:
        """What chooses active sets for a layer with inputs of length `dim`.

        It does so for the neurons of the shard, counted from its beginning: they get their share of
        the neurons that are active in the whole layer.
        """
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this sampler again."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Sampler":
        """A sampler from `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tf_dslide")
class AllNeurons(Sampler):
    """Every neuron is active: exact dense training, in blocks, and the oracle of the tests.

    Example:
    >>> from tf_dslide import AllNeurons, DSlideDense
    >>> layer = DSlideDense(1000, sampler=AllNeurons())
    """

    selects_all = True

    def selector(self, shard: Shard, dim: int) -> Selector:
        """Nothing is to be selected."""
        return Selector()


@keras.saving.register_keras_serializable(package="tf_dslide")
class LshSampler(TableOptions, Sampler):
    """Active sets from hash tables, as in SLIDE and D-SLIDE (arXiv 2201.12667, section 3).

    The neurons' weights are hashed into L tables. A sample's hidden vector is hashed the same way;
    the neurons of its L buckets are those whose weights point its way: the ones that score high.
    They become active with the sample's labels, those found in most tables first.

    The other neurons matter too: together they are much of the softmax's sum. So three more parts
    are active, the same ones for the whole batch, so that they cost no more than a dense matrix
    product: the labels of the batch's other samples; neurons drawn at random, uniformly; and with
    `head` those of the largest biases, which hashing, that looks at directions alone, does not
    know. (SLIDE has hashed neurons only, as have `random=0, head=0, batch_labels=False`.)

    A neuron drawn can stand for all those that were not: to its logit `importance` times the
    logarithm of their number is added. With 1 the sum over the active set estimates that over all
    neurons without bias; with 0 the loss tells a sample's labels from the active set alone, which
    learns faster where a sample has one label or two, and less well where it has many. So by
    default it is `1 - 2 / l` in a batch with `l` labels a sample, and 0 up to two of them.

    The tables are rebuilt inside the training graph after `rebuild_every` steps, then at intervals
    that grow by the factor `exp(rebuild_decay)`. What a bucket longer than `bucket_size` gives is
    `bucket_policy`: by `"window"` the neurons beside each other at a random place, another one for
    each sample and step. SLIDE cuts its buckets when it fills them instead, where a window loses no
    neuron for good: by `"reservoir"` a bucket keeps any of its neurons with equal probability until
    the next rebuild, by `"fifo"` those that came last, which are those of the highest numbers.

    Which of the neurons found take part in a training step is `selection`, as in SLIDE (arXiv
    1903.03129): by `"frequency"` those found in most tables (its top-k sampling); by `"union"` any,
    from one table after the other in a random order until there are enough (its vanilla sampling,
    the cheapest); by `"threshold"` those found in at least `threshold` tables, again until there
    are enough (its hard thresholding). To predict it is always `"frequency"`.

    Hash functions that part a sample from its best neurons do so until others are drawn, which
    `rehash_every` has done at every so many rebuilds of the schedule.

    Args:
        hash: A `HashFamily`; `None` is `SimHash()`.
        active: Neurons active for a sample, its labels and random ones included but not the other
            labels of the batch; fewer if the buckets hold fewer. `None`: a tenth of the units, from
            64 to 3,000 of them.
        random: Share of `active` that is drawn at random, in [0, 1]; another draw for each step.
        head: Share of `active` that goes to the neurons of the largest biases, in [0, 1]; chosen
            when the tables are built. `random` and `head` together are at most 1.
        batch_labels: Whether the labels of all samples of the batch are active in each.
        importance: How far a neuron drawn stands for those that were not, in [0, 1]; `None`
            follows the number of labels a sample.
        bucket_size: Neurons taken from one bucket at most; four times as many to predict.
        rebuild_every: Training steps until the first rebuild, n0 in SLIDE. A layer used on two
            inputs counts each use.
        rebuild_decay: Growth of the interval; 0 keeps it.
        bucket_policy: `"window"`, `"reservoir"` or `"fifo"`: what a long bucket gives.
        selection: `"frequency"`, `"union"` or `"threshold"`: which of the neurons found take part.
        threshold: Tables that must hold a neuron, for `selection="threshold"` alone.
        rehash_every: Rebuilds of the schedule from one draw of new hash functions to the next;
            `None` or 0 keeps them. Other rebuilds, of weights that were replaced or loaded or asked
            for do not count, nor do those that `rebuild_on_drift` leaves out. Not with learning.
        rebuild_on_drift: Rebuild only if more than this share of codes, in [0, 1), has changed
            since the tables were built; the intervals then say when to look. Looking hashes 256
            neurons, always the same, drawn by `seed`. (MONGOOSE, Chen et al., ICLR 2021, has a
            scheduler to the same end.) `None` rebuilds each time.
        seed: Integer that fixes windows, reservoirs and random neurons.

    Memory: 4 bytes for each neuron and table, the same again while rebuilding, and one byte a
    neuron and thread. Time a sample: `tables * bucket_size` lookups and `units / 64` words.

    Example:

    >>> from tf_dslide import DSlideDense, LshSampler, SimHash
    >>> sampler = LshSampler(hash=SimHash(bits=9, tables=50), active=1000)
    >>> layer = DSlideDense(100_000, sampler=sampler)
    """

    def selector(self, shard: Shard, dim: int) -> Selector:
        """Hash tables for a layer's shard, empty until they are first needed."""
        if shard.units == 0:
            return NothingSelector()
        hash_family = self._hash_family(shard.total, dim)
        return TableSelector(self._share(shard), shard.units, hash_family)

    def _hash_family(self, units: int, dim: int) -> HashFamily:
        """One of the layer's own: what `build` draws depends on the layer."""
        result = type(self.hash).from_config(self.hash.get_config())
        result.build(dim, units)
        return result

    def _share(self, shard: Shard) -> "LshSampler":
        active = sum(self.counts_of(shard.total))
        # The shards' parts add up to the whole.
        mine = active * shard.end // shard.total - active * shard.begin // shard.total
        # The whole layer's hash functions in tables with a part of its neurons: its buckets hold a
        # part of the layer's, and give that part of what they gave.
        bucket = max(1, round(self.bucket_size * shard.units / shard.total))
        return dataclasses.replace(
            self, active=max(1, mine), bucket_size=bucket, seed=self.seed + shard.begin
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this sampler again."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**options, "hash": keras.saving.serialize_keras_object(self.hash)}


class _SampledSoftmax(Sampler):
    """What the two classic samplers share: one random set a step for the whole batch."""

    distribution = ""

    def __init__(
        self,
        num_sampled: int = 1024,
        *,
        batch_labels: bool | None = None,
        subtract_log_q: bool = False,
        seed: int = 0,
    ) -> None:
        self.num_sampled = require_positive("num_sampled", num_sampled)
        self.subtract_log_q = bool(subtract_log_q)
        self.batch_labels = not subtract_log_q if batch_labels is None else bool(batch_labels)
        if self.batch_labels and self.subtract_log_q:
            raise ValueError(
                "`subtract_log_q` is right for neurons drawn, not for the labels of other samples; "
                "use `batch_labels=False` with it"
            )
        self.seed = int(seed)

    def selector(self, shard: Shard, dim: int) -> Selector:
        """Draws for a layer's shard."""
        return RandomSelector(self, shard)

    def log_expected_count(self, ids: tf.Tensor, units: int) -> tf.Tensor:
        """Logarithm of the expected number of times that each id is drawn in a step."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this sampler again."""
        return {
            "num_sampled": self.num_sampled,
            "batch_labels": self.batch_labels,
            "subtract_log_q": self.subtract_log_q,
            "seed": self.seed,
        }


@keras.saving.register_keras_serializable(package="tf_dslide")
class UniformSampler(_SampledSoftmax):
    """The classic sampled softmax with uniform negatives, one set a step for the whole batch.

    All true labels are active, and a drawn neuron that is a sample's label counts once, as its
    label (no accidental hits).

    Args:
        num_sampled: Neurons drawn a step, distinct.
        batch_labels: Whether the labels of all samples of the batch are active in each; `None`:
            unless `subtract_log_q`.
        subtract_log_q: Subtract the logarithm of the expected count from the logits, labels too,
            as `tf.nn.sampled_softmax_loss` does. Not with `batch_labels`.
        seed: Integer that fixes the draws.

    Example:
    >>> from tf_dslide import DSlideDense, UniformSampler
    >>> layer = DSlideDense(100_000, sampler=UniformSampler(4096))
    """

    distribution = "uniform"

    def log_expected_count(self, ids: tf.Tensor, units: int) -> tf.Tensor:
        """The same for all neurons."""
        share = min(self.num_sampled, units) / units
        return tf.fill(tf.shape(ids), tf.constant(math.log(share), tf.float32))


@keras.saving.register_keras_serializable(package="tf_dslide")
class LogUniformSampler(_SampledSoftmax):
    """The classic sampled softmax with log-uniform (Zipf-like) negatives.

    For labels numbered by falling frequency, as words of a vocabulary often are.

    Args:
        num_sampled: Neurons drawn a step, distinct.
        batch_labels: Whether the labels of all samples of the batch are active in each; `None`:
            unless `subtract_log_q`.
        subtract_log_q: Subtract the logarithm of the expected count from the logits, labels too.
            The expectation takes the draws as independent, and their number as the one that gives
            `num_sampled` distinct ids on average.
        seed: Integer that fixes the draws.

    Example:
    >>> from tf_dslide import DSlideDense, LogUniformSampler
    >>> layer = DSlideDense(100_000, sampler=LogUniformSampler(4096, subtract_log_q=True))
    """

    distribution = "log_uniform"

    def log_expected_count(self, ids: tf.Tensor, units: int) -> tf.Tensor:
        """`log(1 - (1 - P(id)) ^ draws)`: the probability to be among the distinct ids."""
        rank = tf.cast(ids, tf.float32) + 1.0
        miss = tf.math.log1p(-tf.math.log1p(1.0 / rank) / math.log1p(units))
        return tf.math.log(-tf.math.expm1(self._draws(units) * miss))

    @functools.cache  # noqa: B019 - samplers are few and live as long as their layers
    def _draws(self, units: int) -> float:
        """The number of draws that gives `num_sampled` distinct ids in expectation."""
        if self.num_sampled >= units:
            return 1e9
        miss = np.log1p(-np.log1p(1.0 / np.arange(1, units + 1)) / math.log1p(units))
        low, high = float(self.num_sampled), 1e9
        while high - low > 1e-3 * low:
            middle = math.sqrt(low * high)
            enough = -np.expm1(middle * miss).sum() >= self.num_sampled
            low, high = (low, middle) if enough else (middle, high)
        return high


def get(identifier: Any) -> Sampler:
    """A sampler from an object, a saved configuration, a name, or `None` for the default.

    Args:
        identifier: A `Sampler`, what `keras.saving.serialize_keras_object` made of one, `"lsh"`,
            `"uniform"`, `"log_uniform"`, `"all"`, or `None`.

    Raises:
        ValueError: It is none of these.
    """
    names = {
        "lsh": LshSampler,
        "uniform": UniformSampler,
        "log_uniform": LogUniformSampler,
        "all": AllNeurons,
    }
    if identifier is None:
        return LshSampler()
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, str) and identifier in names:
        return names[identifier]()
    if not isinstance(identifier, Sampler):
        raise ValueError(
            f"`sampler` must be a tf_dslide sampler or one of {sorted(names)}; "
            f"received {identifier!r}"
        )
    return identifier
