"""Samplers choose each sample's active set: the neurons that take part in a training step.

A sampler is a small description that can be saved. A layer turns it into a `Selector`, which holds
what changes during training: hash tables and their schedule.
"""

import functools
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_dslide._checks import require_one_of, require_positive
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveSet, Csr, SharedOffsets
from tf_dslide.hashing import HashFamily, SimHash


class Selection(NamedTuple):
    """The neurons that take part.

    Attributes:
        active: The active set.
        offsets: What the loss adds to its logits, `None` for nothing: to those of the rows' own
            neurons, `(nnz,)`, and to those of the shared ones.
    """

    active: ActiveSet
    offsets: tuple[tf.Tensor | None, SharedOffsets | None] = (None, None)


def no_labels(x: tf.Tensor) -> Csr:
    """Labels of the rows of `x` where there are none."""
    rows = tf.shape(x, tf.int64)[0]
    return Csr(tf.zeros([rows + 1], tf.int64), tf.zeros([0], tf.int32))


class Part(NamedTuple):
    """The neurons `[begin, end)` of a layer."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        """Number of neurons."""
        return self.end - self.begin


class Counts(NamedTuple):
    """Neurons of a sample that hashing picks (labels included), those of the head, random ones."""

    hashed: int
    head: int
    random: int


class Selector:
    """A sampler at work for one layer."""

    def select(
        self, x: tf.Tensor, labels: Csr | None, kernel: Any, bias: Any, step: tf.Tensor
    ) -> Selection:
        """Chooses neurons.

        Args:
            x: The layer's input, `(rows, d) float32`.
            labels: The rows' labels, all of which become active. `None` to predict: then only
                neurons likely to score high are wanted.
            kernel: The layer's weights, `(units, d)`.
            bias: The layer's biases, `(units,)`, or `None`.
            step: Number of training steps so far, `() int64`.

        Returns:
            A `Selection`, with the rows' labels among their own neurons.
        """
        raise NotImplementedError

    def invalidate(self) -> None:
        """Says that the weights were replaced: what was derived from them is stale."""

    def rebuild(self, kernel: Any, bias: Any, step: tf.Tensor) -> None:
        """Derives from the weights afresh what the choice needs."""

    def get_state(self) -> list[int]:
        """Counters to be saved with the layer."""
        return []

    def set_state(self, state: list[int]) -> None:
        """Restores `get_state`."""

    @property
    def learned(self) -> dict[str, tf.Variable]:
        """What was learned from data, by name, to be saved with the layer."""
        return {}


class Sampler:
    """Base of the samplers."""

    #: Whether every neuron is active, so that the layer may work densely.
    selects_all = False

    def selector(self, units: int, dim: int, part: Part | None = None) -> Selector:
        """The sampler at work for a layer of `units` neurons with inputs of length `dim`.

        With a `part`, for the neurons of that range alone, counted from its beginning: they get
        their share of the neurons that are active in the whole layer.
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

    def selector(self, units: int, dim: int, part: Part | None = None) -> Selector:
        """Nothing is to be selected."""
        return Selector()


@keras.saving.register_keras_serializable(package="tf_dslide")
class LshSampler(Sampler):
    """Active sets from hash tables, as in SLIDE and D-SLIDE (arXiv 2201.12667, section 3).

    The neurons' weights are hashed into L tables. A sample's hidden vector is hashed the same way;
    the neurons of its L buckets are those whose weights point its way: the ones that score high.
    They become active with the sample's labels, those found in most tables first.

    The other neurons matter too: together they are much of the softmax's sum. Hashing looks at
    directions and knows nothing of biases, so a part of the active set is the head: the neurons of
    the largest biases, those of the commonest labels, that are likely for every sample. Another
    part is drawn at random, uniformly, and stands for the rest: to the logit of each neuron drawn
    the logarithm of the number of neurons that it stands for is added. The sum over the active set
    then estimates the sum over all neurons without bias. Both parts are the same for the whole
    batch, so that they cost no more than a dense matrix product. (SLIDE has hashed neurons only, as
    have `random=0, head=0`.)

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
        active: Neurons active for a sample, labels and random ones included; fewer if the buckets
            hold fewer. `None`: a tenth of the units, from 64 to 3,000 of them.
        random: Share of `active` that is drawn at random, in [0, 1]; another draw for each step.
        head: Share of `active` that goes to the neurons of the largest biases, in [0, 1]; chosen
            when the tables are built. `random` and `head` together are at most 1.
        bucket_size: Neurons taken from one bucket at most; four times as many to predict.
        rebuild_every: Training steps until the first rebuild, n0 in SLIDE. A layer used on two
            inputs counts each use.
        rebuild_decay: Growth of the interval; 0 keeps it.
        bucket_policy: `"window"`, `"reservoir"` or `"fifo"`: what a long bucket gives.
        selection: `"frequency"`, `"union"` or `"threshold"`: which of the neurons found take part.
        threshold: Tables that must hold a neuron, for `selection="threshold"` alone.
        rehash_every: Rebuilds of the schedule from one draw of new hash functions to the next;
            `None` or 0 keeps them. Other rebuilds, of weights that were replaced or loaded or asked
            for, do not count, nor do those that `rebuild_on_drift` leaves out. Not with `Learned`.
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

    def __init__(
        self,
        hash: HashFamily | None = None,
        active: int | None = None,
        random: float = 0.8,
        head: float = 0.1,
        bucket_size: int = 64,
        rebuild_every: int = 25,
        rebuild_decay: float = 0.2,
        seed: int = 0,
        bucket_policy: str = "window",
        selection: str = "frequency",
        threshold: int = 2,
        rehash_every: int | None = None,
        rebuild_on_drift: float | None = None,
    ) -> None:
        if isinstance(hash, dict):
            hash = keras.saving.deserialize_keras_object(hash)
        if hash is not None and not isinstance(hash, HashFamily):
            raise ValueError(f"`hash` must be a HashFamily such as SimHash(); received {hash!r}")
        if not (0 <= random <= 1 and 0 <= head <= 1 and random + head <= 1):
            raise ValueError(
                "`random` and `head` must be in [0, 1], and so must their sum; received "
                f"{random!r} and {head!r}"
            )
        if not 0 <= rebuild_decay < math.inf:
            raise ValueError(
                f"`rebuild_decay` must be finite and not negative; received {rebuild_decay!r}"
            )
        if rebuild_on_drift is not None and not 0 <= rebuild_on_drift < 1:
            raise ValueError(
                f"`rebuild_on_drift` must be in [0, 1) or None; received {rebuild_on_drift!r}"
            )
        self.hash = hash or SimHash()
        self.active = None if active is None else require_positive("active", active)
        self.random = float(random)
        self.head = float(head)
        self.bucket_size = require_positive("bucket_size", bucket_size)
        self.rebuild_every = require_positive("rebuild_every", rebuild_every)
        self.rebuild_decay = float(rebuild_decay)
        self.seed = int(seed)
        self.bucket_policy = require_one_of(
            "bucket_policy", bucket_policy, ("window", "reservoir", "fifo")
        )
        self.selection = require_one_of("selection", selection, ("frequency", "union", "threshold"))
        self.threshold = require_positive("threshold", threshold)
        self.rehash_every = require_positive("rehash_every", rehash_every) if rehash_every else None
        if self.rehash_every and self.hash.learns:
            raise ValueError(
                f"`rehash_every` would throw away what {type(self.hash).__name__} has learned, "
                f"which each rebuild adapts to the weights; received {rehash_every!r}. Leave it "
                "out, or use SimHash"
            )
        if self.rehash_every and type(self.hash).draw is HashFamily.draw:
            raise ValueError(
                f"`rehash_every` needs a hash family that draws new functions; received "
                f"{rehash_every!r}, but {type(self.hash).__name__} has no method `draw`"
            )
        self.rebuild_on_drift = None if rebuild_on_drift is None else float(rebuild_on_drift)

    @property
    def _least_votes(self) -> int:
        """Tables that must hold a neuron; 0 to choose those that most hold."""
        return {"frequency": 0, "union": 1, "threshold": self.threshold}[self.selection]

    def counts_of(self, units: int) -> Counts:
        """How the neurons of a sample divide, in a layer of so many."""
        active = min(units, self.active or max(64, min(3000, units // 10)))
        head = round(self.head * active)
        random = min(active - head, round(self.random * active))
        return Counts(active - head - random, head, random)

    def selector(self, units: int, dim: int, part: Part | None = None) -> Selector:
        """Hash tables for one layer or a part of it, empty until they are first needed."""
        if part is not None and part.size == 0:
            return _NothingSelector()
        hash_family = self._hash_family(units, dim)
        if part is None:
            return self._make_selector(units, hash_family)
        return self._share(units, part)._make_selector(part.size, hash_family)

    def _hash_family(self, units: int, dim: int) -> HashFamily:
        """One of the layer's own: what `build` draws depends on the layer."""
        result = type(self.hash).from_config(self.hash.get_config())
        result.build(dim, units)
        return result

    def _make_selector(self, units: int, hash_family: HashFamily) -> "TableSelector":
        return TableSelector(self, units, hash_family)

    def _share(self, units: int, part: Part) -> "LshSampler":
        active = sum(self.counts_of(units))
        # The parts' shares add up to the whole.
        mine = active * part.end // units - active * part.begin // units
        # The whole layer's hash functions in tables with a part of its neurons: its buckets hold a
        # part of the layer's, and give that part of what they gave.
        bucket = max(1, round(self.bucket_size * part.size / units))
        changes = {"active": max(1, mine), "bucket_size": bucket, "seed": self.seed + part.begin}
        return type(self)(**{**self.get_config(), **changes})

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this sampler again."""
        return {
            "hash": keras.saving.serialize_keras_object(self.hash),
            "active": self.active,
            "random": self.random,
            "head": self.head,
            "bucket_size": self.bucket_size,
            "rebuild_every": self.rebuild_every,
            "rebuild_decay": self.rebuild_decay,
            "bucket_policy": self.bucket_policy,
            "selection": self.selection,
            "threshold": self.threshold,
            "rehash_every": self.rehash_every,
            "seed": self.seed,
            "rebuild_on_drift": self.rebuild_on_drift,
        }


class _NothingSelector(Selector):
    """For the part of a layer that has no neurons."""

    def select(
        self, x: tf.Tensor, labels: Csr | None, kernel: Any, bias: Any, step: tf.Tensor
    ) -> Selection:
        """Nothing."""
        return Selection(ActiveSet(no_labels(x), ops.no_neurons()))


# Neurons by whose codes drift is judged: with a share p of changed codes, one estimate is off by
# sqrt(p * (1 - p) / 256) at most, and by less with many tables.
_DRIFT_SAMPLE = 256


class TableSelector(Selector):
    """Hash tables of one layer's neurons, and when to rebuild them."""

    def __init__(self, sampler: LshSampler, units: int, hash_family: HashFamily) -> None:
        self._hash = hash_family
        self._sampler = sampler
        self._counts = sampler.counts_of(units)
        self._units = units
        with tf.init_scope():
            self._bucket_ptr = tf.Variable(
                tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
            )
            self._neuron_ids = tf.Variable(
                tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
            )
            self._head = tf.Variable(tf.zeros((0,), tf.int32), shape=(None,), trainable=False)
            self._next_rebuild = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._rebuilds = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._stale = tf.Variable(True, trainable=False)
            if sampler.rehash_every:
                self._hash.make_redrawable()
                self._generation = tf.Variable(0, dtype=tf.int64, trainable=False)
                self._rebuilds_since_draw = tf.Variable(0, dtype=tf.int64, trainable=False)
            if sampler.rebuild_on_drift is not None:
                self._sample_codes = tf.Variable(
                    tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
                )
        # Checkpoints save the variables among the attributes.
        for name, variable in hash_family.variables.items():
            setattr(self, f"_hash_{name}", variable)

    @property
    def learned(self) -> dict[str, tf.Variable]:
        """What the hash family learned."""
        return {f"hash_{name}": value for name, value in self._hash.variables.items()}

    def select(
        self, x: tf.Tensor, labels: Csr | None, kernel: Any, bias: Any, step: tf.Tensor
    ) -> Selection:
        """Looks the samples up, after a rebuild if one is due."""
        due = step >= self._next_rebuild
        seen = None if labels is None else x
        tf.cond(
            tf.logical_or(self._stale, due),
            lambda: self._renew(kernel, bias, step, due, seen),
            lambda: tf.constant(0, tf.int64),
        )
        if labels is None:
            return self._likely(x)
        # Without biases there is no head, and chance takes its place.
        random = self._counts.random + (self._counts.head if bias is None else 0)
        return self._choose(x, labels, random, step)

    def _likely(self, x: tf.Tensor) -> Selection:
        """The neurons likely to score high: to predict with, the same at each step."""
        counts, bucket_size = self._counts, self._sampler.bucket_size
        # What is missed here nobody finds, and there is no backward pass to pay for.
        own = self._found(
            x,
            no_labels(x),
            tf.constant(0, tf.int64),
            hashed=counts.hashed + counts.random,
            bucket_size=4 * bucket_size,
            by_code=True,
        )
        return Selection(ActiveSet(own, tf.convert_to_tensor(self._head)))

    def _found(
        self,
        x: tf.Tensor,
        labels: Csr,
        step: tf.Tensor,
        *,
        hashed: int,
        bucket_size: int,
        least_votes: int = 0,
        by_code: bool = False,
    ) -> Csr:
        """Each row's labels and what its buckets hold."""
        return ops.select_from_tables(
            self._hash.query_codes(x),
            self._bucket_ptr,
            self._neuron_ids,
            labels,
            self._head,
            step,
            hashed=hashed,
            bucket_size=bucket_size,
            seed=self._sampler.seed,
            from_start=self._sampler.bucket_policy != "window",
            least_votes=least_votes,
            by_code=by_code,
        )

    def _choose(self, x: tf.Tensor, labels: Csr, random: int, step: tf.Tensor) -> Selection:
        """The neurons to train, `random` of them by chance."""
        own = self._found(
            x,
            labels,
            step,
            hashed=self._counts.hashed,
            bucket_size=self._sampler.bucket_size,
            least_votes=self._sampler._least_votes,
        )
        return self._with_random(own, self._head, random, step)

    def _with_random(self, own: Csr, fixed: tf.Tensor, random: int, step: tf.Tensor) -> Selection:
        """Adds neurons by chance to those shared for certain, and what they stand for."""
        shared, drawn = ops.sample_neurons(
            step,
            fixed=fixed,
            units=self._units,
            count=random,
            distribution="uniform",
            seed=self._sampler.seed,
        )
        active = ActiveSet(own, shared)
        shares = ops.log_shares(active, drawn, self._units)
        return Selection(active, (None, SharedOffsets(shares, drawn)))

    def _renew(
        self, kernel: Any, bias: Any, step: tf.Tensor, due: tf.Tensor, x: tf.Tensor | None
    ) -> tf.Tensor:
        """Rebuilds, unless nothing but the schedule asks for it and the codes have not drifted."""

        def rebuild() -> tf.Tensor:
            if self._hash.learns and x is not None:
                # Weights that were replaced bring what was learned for them.
                tf.cond(due, lambda: self._learn(x, kernel, bias), lambda: tf.constant(False))
            return self._rebuild(kernel, bias, step)

        limit = self._sampler.rebuild_on_drift
        if limit is None:
            return rebuild()
        has_to = tf.logical_or(self._stale, tf.equal(self._rebuilds, 0))
        has_to = tf.cond(has_to, lambda: tf.constant(True), lambda: self._drift(kernel) > limit)
        return tf.cond(has_to, rebuild, lambda: self._schedule(step))

    def _learn(self, x: tf.Tensor, kernel: Any, bias: Any) -> tf.Tensor:
        bias = None if bias is None else tf.convert_to_tensor(bias)
        self._hash.learn(x, tf.convert_to_tensor(kernel), bias)
        return tf.constant(True)

    def _drift(self, kernel: Any) -> tf.Tensor:
        """Share of the codes of a sample of neurons that have changed since the last rebuild."""
        codes = self._hash.codes(tf.gather(tf.convert_to_tensor(kernel), self._sample_ids()))
        changed = tf.not_equal(codes, tf.convert_to_tensor(self._sample_codes))
        return tf.reduce_mean(tf.cast(changed, tf.float32))

    def _sample_ids(self) -> np.ndarray:
        """The neurons by which drift is judged."""
        rng = np.random.default_rng([abs(self._sampler.seed), self._units])
        count = min(self._units, _DRIFT_SAMPLE)
        return np.sort(rng.choice(self._units, count, replace=False)).astype(np.int32)

    def _rebuild(self, kernel: Any, bias: Any, step: tf.Tensor) -> tf.Tensor:
        if self._sampler.rehash_every:
            self._redraw_if_due(step)
        codes = self._hash.codes(tf.convert_to_tensor(kernel))
        bucket_ptr, neuron_ids = ops.build_tables(codes, self._hash.buckets)
        if self._sampler.bucket_policy != "window":
            neuron_ids = ops.arrange_buckets(
                bucket_ptr,
                neuron_ids,
                self._rebuilds,
                policy=self._sampler.bucket_policy,
                seed=self._sampler.seed,
            )
        self._bucket_ptr.assign(bucket_ptr)
        self._neuron_ids.assign(neuron_ids)
        if self._sampler.rebuild_on_drift is not None:
            self._sample_codes.assign(tf.gather(codes, self._sample_ids()))
        if bias is not None:
            head = tf.math.top_k(tf.convert_to_tensor(bias), self._counts.head).indices
            self._head.assign(tf.sort(head))
        self._stale.assign(False)
        self._schedule(step)
        return self._rebuilds.assign_add(1)

    def _schedule(self, step: tf.Tensor) -> tf.Tensor:
        """Sets the next rebuild, or the next look at drift."""
        interval = self._sampler.rebuild_every * tf.exp(
            self._sampler.rebuild_decay * tf.cast(self._rebuilds, tf.float32)
        )
        # An interval past any training's length would not fit the counter.
        steps = tf.cast(tf.minimum(interval, 1e12), tf.int64)
        return self._next_rebuild.assign(step + tf.maximum(steps, 1))

    def _redraw_if_due(self, step: tf.Tensor) -> None:
        # Only what the schedule brings counts: a training that was saved and loaded draws when the
        # one that was not does, and so do all ranks.
        scheduled = tf.logical_and(self._rebuilds > 0, step >= self._next_rebuild)
        since = self._rebuilds_since_draw.assign_add(tf.cast(scheduled, tf.int64))
        tf.cond(since >= self._sampler.rehash_every, self._redraw, lambda: tf.constant(0, tf.int64))

    def _redraw(self) -> tf.Tensor:
        self._rebuilds_since_draw.assign(0)
        self._hash.redraw(self._generation + 1)
        return self._generation.assign_add(1)

    def rebuild(self, kernel: Any, bias: Any, step: tf.Tensor) -> None:
        """Hashes all neurons now."""
        self._rebuild(kernel, bias, tf.convert_to_tensor(step))

    def invalidate(self) -> None:
        """Lets the next use rebuild."""
        self._stale.assign(True)

    def get_state(self) -> list[int]:
        """When the next rebuild is due, and how many there were.

        With `rehash_every`, the generation of hash functions too, and the rebuilds it has seen.
        """
        state = [int(self._next_rebuild), int(self._rebuilds)]
        if self._sampler.rehash_every:
            state += [int(self._generation), int(self._rebuilds_since_draw)]
        return state

    def set_state(self, state: list[int]) -> None:
        """Restores the schedule; the tables are rebuilt from the weights."""
        self._next_rebuild.assign(state[0])
        self._rebuilds.assign(state[1])
        if self._sampler.rehash_every:
            # A sampler without `rehash_every`, which saved two numbers, has the first generation.
            generation, since = state[2:] or (0, 0)
            self._generation.assign(generation)
            self._rebuilds_since_draw.assign(since)
            self._hash.redraw(generation)


@keras.saving.register_keras_serializable(package="tf_dslide")
class SharedLshSampler(LshSampler):
    """One active set for the whole batch, from hash tables, so that all arithmetic is dense.

    As `LshSampler`, but the neurons that hashing picks are those that the buckets of most samples
    of the batch hold, and they are active in every sample, as are the labels of all samples of the
    batch. Forward and backward pass are then matrix products; but what suits the batch suits a
    single sample less. `selection` counts the buckets of all samples together, and takes any
    neurons held by one of them (`"union"`) or by `threshold` of them (`"threshold"`) by chance.

    Args:
        hash: A `HashFamily`; `None` is `SimHash()`.
        active: Neurons active for a sample besides the batch's labels. `None`: a tenth of the
            units, from 64 to 3,000 of them.
        random: Share of `active` that is drawn at random, as in `LshSampler`.
        head: Share of `active` that goes to the neurons of the largest biases.
        bucket_size: Neurons taken from one bucket at most.
        rebuild_every: Training steps until the first rebuild.
        rebuild_decay: Growth of the interval; 0 keeps it.
        bucket_policy: What a long bucket gives, as in `LshSampler`.
        selection: Which of the neurons found take part: `"frequency"`, `"union"`, `"threshold"`.
        threshold: Buckets that must hold a neuron, for `selection="threshold"` alone.
        rehash_every: Rebuilds from one draw of new hash functions to the next; `None` keeps them.
        rebuild_on_drift: Rebuild only if more than this share of codes has changed.
        seed: Integer that fixes windows, reservoirs and random neurons.

    Memory: as `LshSampler`, and 16 bytes a neuron in a step. Time a step: the buckets that the
    batch's codes name, and 4 sums a neuron.

    Example:

    >>> from tf_dslide import DSlideDense, SharedLshSampler
    >>> layer = DSlideDense(100_000, sampler=SharedLshSampler(active=4096))
    """

    def _make_selector(self, units: int, hash_family: HashFamily) -> TableSelector:
        return _SharedTableSelector(self, units, hash_family)


class _SharedTableSelector(TableSelector):
    """Tables that a batch asks together."""

    def _choose(self, x: tf.Tensor, labels: Csr, random: int, step: tf.Tensor) -> Selection:
        given, _ = tf.unique(tf.sort(tf.concat([self._head, labels.ids], axis=0)))
        fixed = ops.select_for_batch(
            self._hash.query_codes(x),
            self._bucket_ptr,
            self._neuron_ids,
            given,
            step,
            hashed=self._counts.hashed,
            bucket_size=self._sampler.bucket_size,
            seed=self._sampler.seed,
            from_start=self._sampler.bucket_policy != "window",
            least_votes=self._sampler._least_votes,
        )
        return self._with_random(labels, fixed, random, step)


class _SampledSoftmax(Sampler):
    """What the two classic samplers share: one random set a step for the whole batch."""

    distribution = ""

    def __init__(self, num_sampled: int = 1024, correction: bool = False, seed: int = 0) -> None:
        self.num_sampled = require_positive("num_sampled", num_sampled)
        self.correction = bool(correction)
        self.seed = int(seed)

    def selector(self, units: int, dim: int, part: Part | None = None) -> Selector:
        """The sampler at work."""
        return _RandomSelector(self, units, part or Part(0, units))

    def log_expected_count(self, ids: tf.Tensor, units: int) -> tf.Tensor:
        """Logarithm of the expected number of times that each id is drawn in a step."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this sampler again."""
        return {
            "num_sampled": self.num_sampled,
            "correction": self.correction,
            "seed": self.seed,
        }


class _RandomSelector(Selector):
    def __init__(self, sampler: _SampledSoftmax, units: int, part: Part) -> None:
        self._sampler = sampler
        self._units = units
        self._part = part

    def select(
        self, x: tf.Tensor, labels: Csr | None, kernel: Any, bias: Any, step: tf.Tensor
    ) -> Selection:
        """Draws once for the batch and adds each row's labels."""
        drawn, _ = ops.sample_neurons(
            step,
            units=self._units,
            count=self._sampler.num_sampled,
            distribution=self._sampler.distribution,
            seed=self._sampler.seed,
        )
        # The parts of a layer draw the same neurons, and each takes those that it has.
        begin, end = self._part
        edges = tf.searchsorted(drawn, [begin, end])
        drawn = drawn[edges[0] : edges[1]] - begin
        own = no_labels(x) if labels is None else labels
        active = ActiveSet(own, drawn)
        if not self._sampler.correction:
            return Selection(active)
        own_log, drawn_log = (
            self._sampler.log_expected_count(ids + begin, self._units) for ids in (own.ids, drawn)
        )
        every_row = tf.ones(tf.shape(own.row_splits)[:1] - 1)
        return Selection(active, (-own_log, SharedOffsets(every_row, -drawn_log)))


@keras.saving.register_keras_serializable(package="tf_dslide")
class UniformSampler(_SampledSoftmax):
    """The classic sampled softmax with uniform negatives, one set a step for the whole batch.

    All true labels are active, and a drawn neuron that is a sample's label counts once, as its
    label (no accidental hits).

    Args:
        num_sampled: Neurons drawn a step, distinct.
        correction: Subtract the logarithm of the expected count from the logits, labels included,
            as `tf.nn.sampled_softmax_loss` does.
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

    For labels numbered by falling frequency, as words of a vocabulary often are:
    `P(id) = log(1 + 1 / (id + 1)) / log(1 + units)`.

    Args:
        num_sampled: Neurons drawn a step, distinct.
        correction: Subtract the logarithm of the expected count from the logits, labels included.
            The expectation takes the draws as independent, and their number as the one that gives
            `num_sampled` distinct ids on average.
        seed: Integer that fixes the draws.

    Example:
    >>> from tf_dslide import DSlideDense, LogUniformSampler
    >>> layer = DSlideDense(100_000, sampler=LogUniformSampler(4096, correction=True))
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
            `"shared_lsh"`, `"uniform"`, `"log_uniform"`, `"all"`, or `None`.

    Raises:
        ValueError: It is none of these.
    """
    names = {
        "lsh": LshSampler,
        "shared_lsh": SharedLshSampler,
        "uniform": UniformSampler,
        "log_uniform": LogUniformSampler,
        "all": AllNeurons,
    }
    if identifier is None:
        return SharedLshSampler()
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
