"""What a layer holds to choose each sample's active set.

A `Selector` is made by a sampler and has what changes in training: hash tables, when they are
rebuilt, what was learned.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from tf_dslide._checks import require_one_of, require_positive
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveSet, Csr, SharedAdjustment
from tf_dslide.hashing import HashFamily, SimHash
from tf_dslide.sharding import Shard


class Selection(NamedTuple):
    """The neurons that take part.

    Attributes:
        active: The active set.
        logit_adjustment: What the loss adds to the logits (log importance weights, or minus log q),
            `None` for nothing: to those of the rows' own neurons, `(nnz,)`, and to those of the
            shared ones.
    """

    active: ActiveSet
    logit_adjustment: tuple[tf.Tensor | None, SharedAdjustment | None] = (None, None)


def no_labels(x: tf.Tensor) -> Csr:
    """Labels of the rows of `x` where there are none."""
    rows = tf.shape(x, tf.int64)[0]
    return Csr(tf.zeros([rows + 1], tf.int64), tf.zeros([0], tf.int32))


def mean_labels(labels: Csr) -> tf.Tensor:
    """The mean number of labels of the rows that have some, `() float32`; 1 if none has."""
    rows = tf.math.count_nonzero(labels.row_lengths(), dtype=tf.float32)
    return tf.maximum(tf.cast(tf.size(labels.ids), tf.float32), 1.0) / tf.maximum(rows, 1.0)


class Counts(NamedTuple):
    """Neurons of a sample that hashing picks (labels included), those of the head, random ones."""

    hashed: int
    head: int
    random: int


class Selector:
    """Chooses the active sets of one layer."""

    def select(
        self,
        x: tf.Tensor,
        labels: Csr | None,
        kernel: Any,
        bias: Any,
        step: tf.Tensor,
        labels_per_row: tf.Tensor | None = None,
    ) -> Selection:
        """Chooses neurons.

        Args:
            x: The layer's input, `(rows, d) float32`.
            labels: The rows' labels, all of which become active. `None` to predict: then only
                neurons likely to score high are wanted.
            kernel: The layer's weights, `(units, d)`.
            bias: The layer's biases, `(units,)`, or `None`.
            step: Number of training steps so far, `() int64`.
            labels_per_row: `mean_labels` of the whole batch, where `labels` are those of a shard.

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

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All that changes in training, by name, for a checkpoint to go on from exactly."""
        return {}


class NothingSelector(Selector):
    """For a shard without neurons."""

    def select(
        self,
        x: tf.Tensor,
        labels: Csr | None,
        kernel: Any,
        bias: Any,
        step: tf.Tensor,
        labels_per_row: tf.Tensor | None = None,
    ) -> Selection:
        """Nothing."""
        return Selection(ActiveSet(no_labels(x), ops.no_neurons()))


@dataclass(kw_only=True, eq=False)
class TableOptions:
    """What a sampler says of its tables and of the parts of its active sets; see `LshSampler`."""

    hash: Any = None
    active: int | None = None
    random: float = 0.9
    head: float = 0.0
    batch_labels: bool = True
    importance: float | None = None
    bucket_size: int = 64
    bucket_policy: str = "window"
    selection: str = "frequency"
    threshold: int = 2
    rebuild_every: int = 25
    rebuild_decay: float = 0.2
    rehash_every: int | None = None
    rebuild_on_drift: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            ValueError: One of them, or two together, make no sense.
        """
        self._check_hash()
        self._check_parts()
        self.bucket_size = require_positive("bucket_size", self.bucket_size)
        self.threshold = require_positive("threshold", self.threshold)
        require_one_of("bucket_policy", self.bucket_policy, ("window", "reservoir", "fifo"))
        require_one_of("selection", self.selection, ("frequency", "union", "threshold"))
        self._check_rebuilds()
        self.seed = int(self.seed)

    def _check_hash(self) -> None:
        if isinstance(self.hash, dict):
            self.hash = keras.saving.deserialize_keras_object(self.hash)
        self.hash = SimHash() if self.hash is None else self.hash
        if not isinstance(self.hash, HashFamily):
            raise ValueError(
                f"`hash` must be a HashFamily such as SimHash(); received {self.hash!r}"
            )

    def _check_parts(self) -> None:
        if self.active is not None:
            self.active = require_positive("active", self.active)
        random, head = self.random, self.head
        if not (0 <= random <= 1 and 0 <= head <= 1 and random + head <= 1):
            raise ValueError(
                "`random` and `head` must be in [0, 1], and so must their sum; received "
                f"{random!r} and {head!r}"
            )
        if self.importance is not None and not 0 <= self.importance <= 1:
            raise ValueError(
                f"`importance` must be in [0, 1] or None; received {self.importance!r}"
            )
        self.random, self.head = float(random), float(head)
        self.batch_labels = bool(self.batch_labels)

    def _check_rebuilds(self) -> None:
        self.rebuild_every = require_positive("rebuild_every", self.rebuild_every)
        if not 0 <= self.rebuild_decay < math.inf:
            raise ValueError(
                f"`rebuild_decay` must be finite and not negative; received {self.rebuild_decay!r}"
            )
        drift, rehash, family = self.rebuild_on_drift, self.rehash_every, type(self.hash)
        if drift is not None and not 0 <= drift < 1:
            raise ValueError(f"`rebuild_on_drift` must be in [0, 1) or None; received {drift!r}")
        self.rehash_every = require_positive("rehash_every", rehash) if rehash else None
        if rehash and self.hash.learns:
            raise ValueError(
                f"`rehash_every` would throw away what {family.__name__} has learned, "
                f"which each rebuild adapts to the weights; received {rehash!r}. Leave it "
                "out, or use SimHash"
            )
        if rehash and family.draw is HashFamily.draw:
            raise ValueError(
                f"`rehash_every` needs a hash family that draws new functions; received "
                f"{rehash!r}, but {family.__name__} has no method `draw`"
            )

    def counts_of(self, units: int) -> Counts:
        """How the neurons of a sample divide, in a layer of so many."""
        active = min(units, self.active or max(64, min(3000, units // 10)))
        head = round(self.head * active)
        random = min(active - head, round(self.random * active))
        return Counts(active - head - random, head, random)

    @property
    def min_collisions(self) -> int:
        """Tables that must hold a neuron; 0 to choose those that most hold."""
        return {"frequency": 0, "union": 1, "threshold": self.threshold}[self.selection]


class Schedule:
    """When tables are rebuilt: at intervals that grow, and when the weights were replaced.

    Args:
        every: Steps until the first rebuild.
        decay: Growth of the interval with each.

    Attributes:
        next: The step of the next rebuild, or look at drift.
        rebuilds: How many there were.
        stale: Whether the tables belong to weights that were replaced.
    """

    def __init__(self, every: int, decay: float) -> None:
        self._every, self._decay = every, decay
        with tf.init_scope():
            self.next = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.rebuilds = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.stale = tf.Variable(True, trainable=False)

    def due(self, step: tf.Tensor) -> tf.Tensor:
        """Whether the interval is over."""
        return step >= self.next

    def must(self) -> tf.Tensor:
        """Whether the tables cannot be used as they are."""
        return tf.logical_or(self.stale, tf.equal(self.rebuilds, 0))

    def wait(self, step: tf.Tensor) -> tf.Tensor:
        """Begins the next interval."""
        interval = self._every * tf.exp(self._decay * tf.cast(self.rebuilds, tf.float32))
        # An interval past any training's length would not fit the counter.
        steps = tf.cast(tf.minimum(interval, 1e12), tf.int64)
        return self.next.assign(step + tf.maximum(steps, 1))

    def rebuilt(self, step: tf.Tensor) -> tf.Tensor:
        """Notes a rebuild."""
        self.stale.assign(False)
        self.wait(step)
        return self.rebuilds.assign_add(1)


class Redraws:
    """New hash functions at every so many rebuilds of the schedule.

    Args:
        every: How many.
        hash_family: What draws them.
    """

    def __init__(self, every: int, hash_family: HashFamily) -> None:
        self._every, self._hash = every, hash_family
        hash_family.make_redrawable()
        with tf.init_scope():
            self.generation = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.since = tf.Variable(0, dtype=tf.int64, trainable=False)

    def note(self, scheduled: tf.Tensor) -> None:
        """Counts a rebuild, if the schedule brought it, and draws if it is time.

        Only what the schedule brings counts: a training that was saved and loaded draws when the
        one that was not does, and so do all ranks.
        """
        since = self.since.assign_add(tf.cast(scheduled, tf.int64))
        tf.cond(since >= self._every, self._draw, lambda: tf.constant(0, tf.int64))

    def _draw(self) -> tf.Tensor:
        self.since.assign(0)
        self._hash.redraw(self.generation + 1)
        return self.generation.assign_add(1)

    def restore(self, generation: int, since: int) -> None:
        """Draws a generation again."""
        self.generation.assign(generation)
        self.since.assign(since)
        self._hash.redraw(generation)


# Neurons by whose codes drift is judged: with a share p of changed codes, one estimate is off by
# sqrt(p * (1 - p) / 256) at most, and by less with many tables.
_DRIFT_SAMPLE = 256


class Drift:
    """How far codes have changed since the tables were built, judged by some neurons.

    Args:
        hash_family: What makes the codes.
        units: Neurons of the layer.
        seed: Decides which are looked at.
    """

    def __init__(self, hash_family: HashFamily, units: int, seed: int) -> None:
        self._hash = hash_family
        rng = np.random.default_rng([abs(seed), units])
        chosen = rng.choice(units, min(units, _DRIFT_SAMPLE), replace=False)
        self._ids = np.sort(chosen).astype(np.int32)
        with tf.init_scope():
            self.codes = tf.Variable(
                tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
            )

    def note(self, codes: tf.Tensor) -> None:
        """Keeps the codes `(units, tables)` that tables are built of."""
        self.codes.assign(tf.gather(codes, self._ids))

    def share(self, kernel: Any) -> tf.Tensor:
        """The share of codes that are others now."""
        codes = self._hash.codes(tf.gather(tf.convert_to_tensor(kernel), self._ids))
        changed = tf.not_equal(codes, tf.convert_to_tensor(self.codes))
        return tf.reduce_mean(tf.cast(changed, tf.float32))


# With so many labels a row, drawn neurons stand for themselves alone unless a sampler says
# otherwise; with more, for more and more of those left out. Chosen on held-out training rows of
# data with 1.0, 2.4, 5.9 and 11.2 labels a row.
_FEW_LABELS = 2.0


class TableSelector(Selector):
    """Hash tables of one layer's neurons, and when to rebuild them."""

    def __init__(self, options: TableOptions, units: int, hash_family: HashFamily) -> None:
        self._hash = hash_family
        self._options = options
        self._counts = options.counts_of(units)
        self._units = units
        with tf.init_scope():
            self._bucket_ptr = tf.Variable(
                tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
            )
            self._neuron_ids = tf.Variable(
                tf.zeros((0, 0), tf.int32), shape=(None, None), trainable=False
            )
            self._head = tf.Variable(tf.zeros((0,), tf.int32), shape=(None,), trainable=False)
        self._schedule = Schedule(options.rebuild_every, options.rebuild_decay)
        self._redraws = self._drift = None
        if options.rehash_every is not None:
            self._redraws = Redraws(options.rehash_every, hash_family)
        if options.rebuild_on_drift is not None:
            self._drift = Drift(hash_family, units, options.seed)

    @property
    def learned(self) -> dict[str, tf.Variable]:
        """What the hash family learned."""
        return {f"hash_{name}": value for name, value in self._hash.variables.items()}

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Tables, their schedule, and what was learned."""
        kept = {
            "bucket_ptr": self._bucket_ptr,
            "neuron_ids": self._neuron_ids,
            "head": self._head,
            "next_rebuild": self._schedule.next,
            "rebuilds": self._schedule.rebuilds,
            "stale": self._schedule.stale,
            **self.learned,
        }
        if self._redraws is not None:
            kept["generation"] = self._redraws.generation
            kept["rebuilds_since_draw"] = self._redraws.since
        if self._drift is not None:
            kept["sample_codes"] = self._drift.codes
        return kept

    def select(
        self,
        x: tf.Tensor,
        labels: Csr | None,
        kernel: Any,
        bias: Any,
        step: tf.Tensor,
        labels_per_row: tf.Tensor | None = None,
    ) -> Selection:
        """Looks the samples up, after a rebuild if one is due."""
        due = self._schedule.due(step)
        seen = None if labels is None else x
        tf.cond(
            tf.logical_or(self._schedule.stale, due),
            lambda: self._renew(kernel, bias, step, due, seen),
            lambda: tf.constant(0, tf.int64),
        )
        if labels is None:
            return self._likely(x)
        # Without biases there is no head, and chance takes its place.
        random = self._counts.random + (self._counts.head if bias is None else 0)
        if labels_per_row is None:
            labels_per_row = mean_labels(labels)
        return self._choose(x, labels, random, step, labels_per_row)

    def _likely(self, x: tf.Tensor) -> Selection:
        """The neurons likely to score high: to predict with, the same at each step."""
        counts, bucket_size = self._counts, self._options.bucket_size
        # What is missed here nobody finds, and there is no backward pass to pay for.
        own = self._found(
            x,
            no_labels(x),
            tf.convert_to_tensor(self._head),
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
        shared: tf.Tensor,
        step: tf.Tensor,
        *,
        hashed: int,
        bucket_size: int,
        min_collisions: int = 0,
        by_code: bool = False,
    ) -> Csr:
        """Each row's labels and what its buckets hold beside the shared neurons."""
        return ops.select_from_tables(
            self._hash.query_codes(x),
            self._bucket_ptr,
            self._neuron_ids,
            labels,
            shared,
            step,
            hashed=hashed,
            bucket_size=bucket_size,
            seed=self._options.seed,
            from_start=self._options.bucket_policy != "window",
            min_collisions=min_collisions,
            by_code=by_code,
        )

    def _choose(
        self, x: tf.Tensor, labels: Csr, random: int, step: tf.Tensor, labels_per_row: tf.Tensor
    ) -> Selection:
        """The neurons to train, `random` of them by chance."""
        fixed = tf.convert_to_tensor(self._head)
        if self._options.batch_labels:
            fixed = ops.union(fixed, labels.ids, self._units)
        own = self._found(
            x,
            labels,
            fixed,
            step,
            hashed=self._counts.hashed,
            bucket_size=self._options.bucket_size,
            min_collisions=self._options.min_collisions,
        )
        shared, drawn = ops.sample_neurons(
            step,
            fixed=fixed,
            units=self._units,
            count=random,
            distribution="uniform",
            seed=self._options.seed,
        )
        active = ActiveSet(own, shared)
        importance: Any = self._options.importance
        if importance == 0:
            return Selection(active)
        if importance is None:
            importance = tf.maximum(1.0 - _FEW_LABELS / labels_per_row, 0.0)
        weights = importance * ops.log_importance_weights(active, drawn, self._units)
        return Selection(active, (None, SharedAdjustment(weights, drawn)))

    def _renew(
        self, kernel: Any, bias: Any, step: tf.Tensor, due: tf.Tensor, x: tf.Tensor | None
    ) -> tf.Tensor:
        """Rebuilds, unless nothing but the schedule asks for it and the codes have not drifted."""

        def rebuild() -> tf.Tensor:
            if self._hash.learns and x is not None:
                # Weights that were replaced bring what was learned for them.
                tf.cond(due, lambda: self._learn(x, kernel, bias), lambda: tf.constant(False))
            return self._rebuild(kernel, bias, step)

        if self._drift is None:
            return rebuild()
        drift, limit = self._drift, self._options.rebuild_on_drift
        must = self._schedule.must()
        must = tf.cond(must, lambda: tf.constant(True), lambda: drift.share(kernel) > limit)
        return tf.cond(must, rebuild, lambda: self._schedule.wait(step))

    def _learn(self, x: tf.Tensor, kernel: Any, bias: Any) -> tf.Tensor:
        bias = None if bias is None else tf.convert_to_tensor(bias)
        self._hash.learn(x, tf.convert_to_tensor(kernel), bias)
        return tf.constant(True)

    def _rebuild(self, kernel: Any, bias: Any, step: tf.Tensor) -> tf.Tensor:
        schedule, options = self._schedule, self._options
        if self._redraws is not None:
            self._redraws.note(tf.logical_and(schedule.rebuilds > 0, schedule.due(step)))
        codes = self._hash.codes(tf.convert_to_tensor(kernel))
        bucket_ptr, neuron_ids = ops.build_tables(codes, self._hash.buckets)
        if options.bucket_policy != "window":
            neuron_ids = ops.arrange_buckets(
                bucket_ptr,
                neuron_ids,
                schedule.rebuilds,
                policy=options.bucket_policy,
                seed=options.seed,
            )
        self._bucket_ptr.assign(bucket_ptr)
        self._neuron_ids.assign(neuron_ids)
        if self._drift is not None:
            self._drift.note(codes)
        if bias is not None:
            head = tf.math.top_k(tf.convert_to_tensor(bias), self._counts.head).indices
            self._head.assign(tf.sort(head))
        return schedule.rebuilt(step)

    def rebuild(self, kernel: Any, bias: Any, step: tf.Tensor) -> None:
        """Hashes all neurons now."""
        self._rebuild(kernel, bias, tf.convert_to_tensor(step))

    def invalidate(self) -> None:
        """Lets the next use rebuild."""
        self._schedule.stale.assign(True)

    def get_state(self) -> list[int]:
        """When the next rebuild is due, and how many there were.

        With `rehash_every`, the generation of hash functions too, and the rebuilds it has seen.
        """
        state = [int(self._schedule.next), int(self._schedule.rebuilds)]
        if self._redraws is not None:
            state += [int(self._redraws.generation), int(self._redraws.since)]
        return state

    def set_state(self, state: list[int]) -> None:
        """Restores the schedule; the tables are rebuilt from the weights."""
        self._schedule.next.assign(state[0])
        self._schedule.rebuilds.assign(state[1])
        if self._redraws is not None:
            # A sampler without `rehash_every`, which saved two numbers, has the first generation.
            generation, since = state[2:] or (0, 0)
            self._redraws.restore(generation, since)


class RandomDraws(Protocol):
    """What a sampler says of its draws."""

    num_sampled: int
    batch_labels: bool
    subtract_log_q: bool
    distribution: str
    seed: int

    def log_expected_count(self, ids: tf.Tensor, units: int) -> tf.Tensor:
        """Logarithm of the expected number of times that each id is drawn in a step."""
        ...


class RandomSelector(Selector):
    """Neurons drawn for each step, the same for the whole batch."""

    def __init__(self, sampler: RandomDraws, shard: Shard) -> None:
        self._sampler = sampler
        self._shard = shard

    def select(
        self,
        x: tf.Tensor,
        labels: Csr | None,
        kernel: Any,
        bias: Any,
        step: tf.Tensor,
        labels_per_row: tf.Tensor | None = None,
    ) -> Selection:
        """Draws once for the batch and adds each row's labels."""
        drawn, _ = ops.sample_neurons(
            step,
            units=self._shard.total,
            count=self._sampler.num_sampled,
            distribution=self._sampler.distribution,
            seed=self._sampler.seed,
        )
        # The shards of a layer draw the same neurons, and each takes those that it has.
        begin, end = self._shard.begin, self._shard.end
        edges = tf.searchsorted(drawn, [begin, end])
        drawn = drawn[edges[0] : edges[1]] - begin
        own = no_labels(x) if labels is None else labels
        if self._sampler.batch_labels:
            drawn = ops.union(drawn, own.ids, self._shard.units)
        active = ActiveSet(own, drawn)
        if not self._sampler.subtract_log_q:
            return Selection(active)
        own_log, drawn_log = (
            self._sampler.log_expected_count(ids + begin, self._shard.total)
            for ids in (own.ids, drawn)
        )
        every_row = tf.ones(tf.shape(own.row_splits)[:1] - 1)
        return Selection(active, (-own_log, SharedAdjustment(every_row, -drawn_log)))
