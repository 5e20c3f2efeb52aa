"""One model split over ranks."""

import json
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide import lazy, selectors, sharding
from tf_dslide._checks import require_positive
from tf_dslide._native import ops
from tf_dslide._native.ops import ActiveLogits, Csr, SoftmaxTotals
from tf_dslide._version import __version__
from tf_dslide.layer_sharding import LayerSharding
from tf_dslide.parallel import messages
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.exchanges import Exchanges, labels_within
from tf_dslide.parallel.faults import install_fault_handlers
from tf_dslide.parallel.lone import LoneCommunicator
from tf_dslide.parallel.mpi import MPICommunicator
from tf_dslide.parallel.statistics import Statistics


class MPIModelParallel:
    """Splits `SparseDense` and `DSlideDense` over MPI ranks (D-SLIDE, arXiv 2201.12667).

    Every rank runs the same program on the same batches and holds a range of each layer's units:
    weights, moments, hash functions and tables of that range live nowhere else. In a step the ranks
    exchange the hidden activations, three numbers a row for the softmax, and the hidden gradient;
    nothing of the size of a weight matrix. Loss, metrics, `evaluate`, `predict` and `top_k` are
    those of the whole model, on every rank.

    Make one strategy at the start of the program, before TensorFlow is used: it sets the threads a
    rank may use to its share of the machine's cores. An exception on any rank ends them all.

    Args:
        comm: An `mpi4py.MPI.Comm`; `None` is `COMM_WORLD`. It is duplicated. Or a `Communicator`
            such as `LoneCommunicator()`, which needs no MPI.
        wire: How activations and their gradients travel: `"float32"`, or `"bfloat16"` for half the
            bytes.
        unit_load: Expected unit_load of the output units, `(units,)`, such as label counts: their
            ranges then have about equal unit_load. `None`: equal sizes.
        check_every: Every so many steps the ranks compare fingerprints of their batches.
        timeout: Seconds after which a rank that others wait for counts as lost.
        verbose: Whether rank 0 prints how the model is split.

    Attributes:
        rank: This rank, from 0 on.
        size: Number of ranks.
        communicator: The `Communicator`.
        stats: Bytes, messages and seconds waited, by kind of exchange.

    Raises:
        ValueError: `wire` is neither of the two.
        RankError: Ranks run different versions, or are given different models or batches; it says
            which.

    Randomness: as without a strategy. Initial weights are the slices of one and the same matrix, so
        all ranks need the same seed (`keras.utils.set_random_seed`). With `AllNeurons` and the
        random samplers R ranks compute what one does, to rounding; with hash tables, what one
        process does whose tables are split in the same ranges (`LearnedHash` learns each range).

    Memory: a rank's share of the weights, moments and tables, and once while building the whole of
        a kernel.

    Example:

    ```python
    # mpirun -np 4 python train.py
    from tf_dslide.parallel import MPIModelParallel

    strategy = MPIModelParallel()
    model = keras.Sequential([keras.Input((135_909,), sparse=True)])
    with strategy.scope():
        model.add(SparseDense(128, activation="relu"))
        model.add(DSlideDense(670_091))
    ```
    """

    def __init__(
        self,
        comm: Any = None,
        wire: str = "float32",
        unit_load: Any = None,
        check_every: int = 16,
        timeout: float = 600.0,
        verbose: bool = True,
    ) -> None:
        if wire not in messages.FORMATS:
            raise ValueError(f"`wire` must be one of {list(messages.FORMATS)}; received {wire!r}")
        check_every = require_positive("check_every", check_every)
        self.communicator = (
            comm if isinstance(comm, Communicator) else MPICommunicator(comm, timeout=timeout)
        )
        self.rank, self.size = self.communicator.rank, self.communicator.size
        self.exchanges = Exchanges(self.communicator, wire, check_every)
        self.wire = wire
        self._unit_load = unit_load
        self._verbose = verbose and self.rank == 0
        self._plans: list[sharding.LayerPlan] = []
        if not isinstance(self.communicator, LoneCommunicator):
            install_fault_handlers(self.communicator)
        self.communicator.agree("versions and settings", self._settings())
        self._share_cores()
        if self.rank != 0:
            keras.config.disable_interactive_logging()

    @property
    def stats(self) -> Statistics:
        """Bytes, messages and seconds waited, by kind of exchange."""
        return self.communicator.stats

    def _settings(self) -> dict[str, Any]:
        return {
            "tf_dslide": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "wire": self.wire,
        }

    def _share_cores(self) -> None:
        """Threads for this rank: its part of the cores that it shares with others of its host."""
        cores = len(os.sched_getaffinity(0))
        places = self.communicator.allgather([os.uname().nodename, sorted(os.sched_getaffinity(0))])
        together = sum(place == places[self.rank] for place in places)
        self.threads = max(1, cores // together)
        if together == 1:
            return
        try:
            tf.config.threading.set_intra_op_parallelism_threads(self.threads)
            # An exchange holds a thread while it waits.
            tf.config.threading.set_inter_op_parallelism_threads(max(2, self.threads))
        except RuntimeError:
            warnings.warn(
                f"TensorFlow was used before MPIModelParallel() and keeps its {cores} threads, "
                f"although {together} ranks share these cores. Make the strategy first.",
                stacklevel=4,
            )

    def ranges_of(self, units: int, is_output: bool) -> list[tuple[int, int]]:
        """`[begin, end)` of each rank's units of a layer."""
        if self._unit_load is None or not is_output:
            return sharding.equal_ranges(units, self.size)
        if len(self._unit_load) != units:
            raise ValueError(
                f"`unit_load` names {len(self._unit_load)} units but the output layer has {units}"
            )
        return sharding.balanced_ranges(self._unit_load, self.size)

    def scope(self) -> AbstractContextManager["MPIModelParallel"]:
        """Within it, each new `SparseDense` and `DSlideDense` is split by this strategy.

        Example:

        ```python
        with strategy.scope():
            model.add(SparseDense(128, activation="relu"))
            model.add(DSlideDense(670_091))
        ```
        """
        return sharding.strategy_scope(self)

    def shard(self, layer: Any, units: int, parameters: int, is_output: bool) -> "RankSharding":
        """Where a layer's units are, once all ranks agree on the layer.

        Args:
            layer: The layer; its configuration must be the same on all ranks.
            units: Units of the whole layer.
            parameters: Weights of one unit.
            is_output: Whether `unit_load` speaks of its units.
        """
        config = {k: v for k, v in layer.get_config().items() if k != "name"}
        text = json.dumps(config, sort_keys=True, default=str)
        self.communicator.agree(
            f"layer {layer.name}",
            text if len(text) < 2000 else [text[:1000], zlib.crc32(text.encode())],
        )
        ranges = self.ranges_of(units, is_output)
        self._plans.append(sharding.LayerPlan(layer.name, ranges, parameters))
        if is_output and self._verbose:
            self._print_plan()
        return RankSharding(self, ranges, units)

    def _print_plan(self) -> None:
        print(
            f"{self.size} ranks, {self.threads} threads each, {self.wire} on the wire\n"
            f"{self.plan()}",
            file=sys.stderr,
            flush=True,
        )

    def plan(self) -> str:
        """A table of the ranges, parameters and bytes of each rank.

        With `unit_load`, also how unequal the ranks' work is expected to be.
        """
        table = sharding.plan_table(self._plans)
        if self._unit_load is None or not self._plans:
            return table
        ranges = self._plans[-1].ranges
        equal = sharding.equal_ranges(ranges[-1][1], self.size)
        return (
            f"{table}\nactivity of the busiest rank over the mean: "
            f"{sharding.imbalance(self._unit_load, ranges):.2f}, with equal ranges "
            f"{sharding.imbalance(self._unit_load, equal):.2f}"
        )


class RankSharding(LayerSharding):
    """The units of a layer that is split over ranks.

    Attributes:
        strategy: The strategy.
        ranges: `[begin, end)` of each rank.
        shard: The units of this rank.
    """

    def __init__(
        self, strategy: MPIModelParallel, ranges: Sequence[tuple[int, int]], total: int
    ) -> None:
        super().__init__(total)
        self.strategy = strategy
        self.ranges = ranges
        self.shard = sharding.Shard(*ranges[strategy.rank], total)

    @property
    def columns(self) -> list[int]:
        """How many units each rank has."""
        return [end - begin for begin, end in self.ranges]

    def initializer(self, whole: Any, shape: tuple[int, ...], axis: int, name: str) -> Any:
        """The slice of what an initializer makes of the whole variable."""
        return _SliceOf(self, keras.initializers.get(whole), shape, axis, name)

    def mark(self, variable: Any, axis: int) -> None:
        """Notes which part of the whole a variable holds."""
        sharding.mark(variable, self.shard, axis)

    def activated(
        self, outputs: tf.Tensor, activation: Callable[..., Any], seen: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """The activations of all ranks' units."""
        dtype, leading, width = outputs.dtype, tf.shape(outputs)[:-1], outputs.shape[-1]
        alone = activation in _OF_EACH_VALUE
        if alone:
            outputs = activation(outputs)
        local = tf.cast(outputs, tf.float32)
        if outputs.shape.rank != 2:
            local = tf.reshape(local, [-1, width])
        # Where a ReLU gives 0 its gradient is 0.
        sparse = activation is keras.activations.relu
        whole = self.strategy.exchanges.gather_columns(local, self.columns, sparse, seen).whole
        if outputs.shape.rank != 2:
            whole = tf.reshape(whole, tf.concat([leading, [self.shard.total]], axis=0))
        whole = tf.cast(whole, dtype)
        return whole if alone else activation(whole)

    def enter(self, x: tf.Tensor) -> tf.Tensor:
        """An input that all ranks hold, for the layer whose units are split."""
        if isinstance(x, tf.SparseTensor):
            x = tf.sparse.to_dense(x)
        return self.strategy.exchanges.to_split(x)

    def gather_logits(self, local: tf.Tensor) -> tf.Tensor:
        """The dense logits of all units from those of this rank's; nothing if nobody uses them."""
        flat = tf.reshape(local, [-1, self.shard.units])
        whole = self.strategy.exchanges.gather_logits(tf.cast(flat, tf.float32), self.columns)
        shape = tf.concat([tf.shape(local)[:-1], [self.shard.total]], axis=0)
        whole = tf.cast(tf.reshape(whole, shape), local.dtype)
        whole.set_shape([*local.shape[:-1], self.shard.total])
        return whole

    def top_k(
        self, weights: lazy.SampledWeights, x: tf.Tensor, k: int, exact: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The best `k` of all ranks' units for each row of `x`."""
        if not exact:
            ids, scores = weights.likely_top_k(x, k)
        elif self.shard.units:
            ids, scores = weights.exact_top_k(x, min(k, self.shard.units))
        else:
            nothing = tf.zeros([tf.shape(x)[0], 0])
            ids, scores = tf.cast(nothing, tf.int32), nothing
        return self.strategy.exchanges.best(ids, scores, k, self.shard.begin)

    def lazy_logits(self, *arguments: Any) -> "RankLogits":
        """Lazy logits of all ranks' units; arguments of `lazy.DenseLogits`."""
        return RankLogits(self, *arguments)


# Activations that look at each value alone: a rank can apply them to its own columns.
_OF_EACH_VALUE = (
    keras.activations.linear,
    keras.activations.relu,
    keras.activations.tanh,
    keras.activations.sigmoid,
    keras.activations.gelu,
    keras.activations.silu,
    keras.activations.elu,
    keras.activations.selu,
    keras.activations.softplus,
)


class _SliceOf(keras.initializers.Initializer):
    """Initial values of a part: the whole is made, compared between ranks, and cut."""

    def __init__(
        self, layer: RankSharding, whole: Any, shape: tuple[int, ...], axis: int, name: str
    ) -> None:
        self._layer, self._whole, self._shape, self._axis = layer, whole, shape, axis
        self._name = name

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        # The part's place in memory, taken before the whole's: TensorFlow keeps what it frees, and
        # with nothing behind the whole's place both moments of the optimizer fit there.
        place = tf.raw_ops.Empty(shape=shape, dtype=dtype or "float32")
        values = self._make(dtype)
        self._layer.strategy.communicator.agree(
            f"initial values of {self._name} (set the same seed on all ranks, as by "
            "keras.utils.set_random_seed)",
            zlib.crc32(tf.reshape(values, [-1])[:4096].numpy().tobytes()),
        )
        del place
        cut = slice(self._layer.shard.begin, self._layer.shard.end)
        # A slice of rows is a view, which would keep the whole in memory.
        return tf.raw_ops.DeepCopy(x=values[cut] if self._axis == 0 else values[:, cut])

    def _make(self, dtype: Any) -> tf.Tensor:
        """The values of the whole."""

        def values() -> tf.Tensor:
            return tf.convert_to_tensor(self._whole(self._shape, dtype=dtype))

        if not isinstance(self._whole, _RANDOM):
            return values()  # perhaps made in NumPy, and a graph holds no large constants
        # A graph works in one buffer where eager random ops take two or three; but the optimizer
        # of graphs would make the values once more, to see whether they are a small constant.
        options = tf.config.optimizer
        name = "disable_meta_optimizer"
        before = options.get_experimental_options().get(name, False)
        options.set_experimental_options({name: True})
        try:
            return tf.function(values, jit_compile=False)()
        finally:
            options.set_experimental_options({name: before})


_RANDOM = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
    keras.initializers.VarianceScaling,
)


class RankLogits(lazy.DenseLogits):
    """Lazy logits of a layer whose units are on several ranks."""

    _sharding: RankSharding

    @property
    def units(self) -> int:
        """Number of classes, of all ranks."""
        return self._sharding.shard.total

    @property
    def _exchanges(self) -> Exchanges:
        return self._sharding.strategy.exchanges

    def _mine(self, labels: Csr) -> Csr:
        return labels_within(labels, self._sharding.shard.begin, self._sharding.shard.end)

    def _loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        if binary:
            raise ValueError(
                "SlideBinaryCrossentropy is not split over ranks; use SlideCrossentropy under an "
                "MPIModelParallel"
            )
        return super()._loss(labels, binary)

    def _full_crossentropy(self, labels: Csr) -> tf.Tensor:
        weights = self._weights
        mine = self._mine(labels)
        parts = ops.full_softmax_parts(
            tf.stop_gradient(self._x), mine, weights.kernel, weights.bias
        )
        losses, totals = self._exchanges.join_softmax(parts, mine, labels)
        return ops.crossentropy_of_parts(
            losses, self._x, mine, weights.kernel, weights.bias, totals
        )

    def _sampled_loss(self, labels: Csr, binary: bool) -> tf.Tensor:
        mine = self._mine(labels)
        logits, selection = self._weights.sampled_logits(
            self._x, mine, selectors.mean_labels(labels)
        )
        active = selection.active
        self._sampled = (ActiveLogits(*map(tf.stop_gradient, logits)), active)
        own_adjustment, shared_adjustment = selection.logit_adjustment
        if own_adjustment is not None:
            logits = logits._replace(own=logits.own + own_adjustment)

        @tf.custom_gradient
        def crossentropy(own: tf.Tensor, shared: tf.Tensor) -> Any:
            given = ActiveLogits(own, shared)
            parts = ops.softmax_parts(given, active, mine, shared_adjustment)
            losses, totals = self._exchanges.join_softmax(parts, mine, labels)

            def gradient(upstream: tf.Tensor) -> ActiveLogits:
                return ops.softmax_gradient(
                    given, active, mine, shared_adjustment, SoftmaxTotals(*totals), upstream
                )

            return losses, gradient

        return crossentropy(*logits)

    def _best_sampled(self, k: int) -> tf.Tensor:
        assert self._sampled is not None
        ids, scores = ops.active_top_k(*self._sampled, k=k)
        return self._exchanges.best(ids, scores, k, self._sharding.shard.begin)[0]
