"""Models split over ranks within one process, each rank a thread, and what the tests compare."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tests.parallel.threads import run_threads, succeed
from tf_dslide import (
    DSlideDense,
    LshSampler,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    sharding,
)
from tf_dslide.data import batches, make_synthetic
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.exchanges import Exchanges
from tf_dslide.parallel.lone import LoneCommunicator
from tf_dslide.parallel.strategy import RankSharding

FEATURES, HIDDEN, UNITS = 30, 5, 17


class StandIn:
    """As much of a strategy as it takes to build and save a rank's part."""

    def __init__(self, rank: int, size: int, cut: Callable) -> None:
        # Models are built one after the other: there is nobody to exchange with.
        self.communicator: Communicator = LoneCommunicator()
        self.communicator.rank, self.communicator.size = rank, size
        self.exchanges = Exchanges(self.communicator, "float32", 16)
        self.rank, self.size, self._cut = rank, size, cut

    def shard(self, layer: Any, units: int, parameters: int, is_output: bool) -> RankSharding:
        return RankSharding(self, self._cut(units, self.size), units)


def uneven(units: int, ranks: int) -> list[tuple[int, int]]:
    """Ranges of very unequal size, each longer than the one before."""
    edges = [units * n * n // ranks**2 for n in range(ranks + 1)]
    return list(itertools.pairwise(edges))


@keras.saving.register_keras_serializable("tests")
class Drawn(keras.initializers.Initializer):
    """Random values by NumPy: TensorFlow's take most of the time of building a small model."""

    def __call__(self, shape: Any, dtype: Any = None) -> np.ndarray:
        return np.random.uniform(-0.5, 0.5, shape).astype("float32")  # noqa: NPY002

    def get_config(self) -> dict[str, Any]:
        return {}


def build(strategy: Any = None, units: int = UNITS, **changes: Any) -> keras.Model:
    sampler = LshSampler(hash=SimHash(bits=2, tables=3), active=8, rebuild_every=5)
    settings = {"hidden": HIDDEN, "optimizer": SparseAdam, "sampler": sampler, "eager": True}
    settings |= changes
    keras.utils.set_random_seed(settings.get("seed", 1))
    inputs = keras.Input((FEATURES,), sparse=True)
    common = {"strategy": strategy, "kernel_initializer": Drawn()}
    x = SparseDense(settings["hidden"], activation="relu", **common)(inputs)
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(6, kernel_initializer=Drawn())(x))
    output = DSlideDense(units, sampler=settings["sampler"], **common)
    model = keras.Model(inputs, output(x))
    if settings["optimizer"]:
        optimizer = settings["optimizer"](0.03)
        model.compile(optimizer, SlideCrossentropy(), run_eagerly=settings["eager"])
    return model


def train(model: keras.Model, first: int, last: int, seed: int = 7, **settings: Any) -> list[float]:
    """Trains from one epoch to another; returns the losses."""
    units = model.output_shape[-1]
    data = make_synthetic(48, FEATURES, units, features_per_sample=6, labels_per_sample=2)
    stream = batches(data, 16, shuffle=True, seed=seed, first_pass=first)
    settings = {"initial_epoch": first, "epochs": last, "verbose": 0, "shuffle": False, **settings}
    return model.fit(stream, **settings).history["loss"]


class Parts:
    """A model over several ranks of one process."""

    def __init__(self, ranks: int, cut: Callable = sharding.equal_ranges, **changes: Any) -> None:
        self.strategies = [StandIn(rank, ranks, cut) for rank in range(ranks)]
        self.models = [build(strategy, **changes) for strategy in self.strategies]

    def _on_ranks(self, work: Callable) -> Callable:
        def run(communicator: Communicator) -> Any:
            strategy = self.strategies[communicator.rank]
            strategy.communicator = communicator
            return work(self.models[communicator.rank], strategy)

        return run

    def on_all(self, work: Callable) -> list:
        """Calls `work(model, strategy)` on every rank; gives results, or errors raised."""
        return run_threads(len(self.models), self._on_ranks(work))

    def succeed(self, work: Callable) -> list:
        """The same of ranks none of which may fail."""
        return succeed(len(self.models), self._on_ranks(work))


def state_of(model: keras.Model) -> list[tuple[np.ndarray, Any]]:
    """All values of a model and its optimizer, each with the variable whose part it is like."""
    pairs = [(v.numpy(), v) for v in model.variables]
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return pairs
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    by_name = {v.path.replace("/", "_"): v for v in model.trainable_variables}
    for slot in optimizer.variables:
        name = slot.path.partition("/")[2]
        owner = [v for path, v in by_name.items() if name.startswith(path)]
        pairs.append((slot.numpy(), owner[0] if owner else None))
    return pairs


def set_state(model: keras.Model, wanted: Sequence[np.ndarray]) -> None:
    """Gives a model its part of whole values."""
    owners = [owner for _, owner in state_of(model)]
    targets = [*model.variables, *(model.optimizer.variables if model.optimizer else [])]
    for variable, value, owner in zip(targets, wanted, owners, strict=True):
        variable.assign(cut_out(value, owner))


def cut_out(value: np.ndarray, owner: Any) -> np.ndarray:
    shard = sharding.shard_of(owner)
    # A number for each row is whole where the columns are split.
    if shard is None or sharding.axis_of(owner) >= value.ndim:
        return value
    return np.take(value, range(shard.begin, shard.end), axis=sharding.axis_of(owner))


def random_state(model: keras.Model, seed: int = 0) -> list[np.ndarray]:
    """Values for all variables of a whole model and its optimizer."""
    rng = np.random.default_rng(seed)
    values = [value for value, _ in state_of(model)]
    return [(rng.normal(size=v.shape) * 100).astype(v.dtype) for v in values]


def require_state(model: keras.Model, wanted: Sequence[np.ndarray]) -> None:
    """Checks that a model's values are its part of `wanted`, to the bit."""
    found = state_of(model)
    assert len(found) == len(wanted)
    for (value, owner), whole in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, cut_out(whole, owner))


def tables_of(model: keras.Model) -> dict[str, np.ndarray]:
    selector = model.layers[-1]._sampled_weights.selector
    return {name: variable.numpy() for name, variable in selector.variables.items()}
