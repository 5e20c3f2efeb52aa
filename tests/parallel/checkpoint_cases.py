"""Models split over ranks within one process, each rank a thread, and what the tests compare."""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

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
from tf_dslide.parallel.communicator import Communicator, LoneCommunicator
from tf_dslide.parallel.exchanges import Exchanges
from tf_dslide.parallel.strategy import RankSharding

FEATURES, HIDDEN, UNITS = 30, 5, 17


class ThreadCommunicator(Communicator):
    """Ranks that are threads: messages lie on a board that all of them see."""

    def __init__(self, rank: int, board: list, barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(board)
        self._board, self._barrier = board, barrier

    @classmethod
    def make(cls, size: int) -> list["ThreadCommunicator"]:
        board, barrier = [None] * size, threading.Barrier(size, timeout=20)
        return [cls(rank, board, barrier) for rank in range(size)]

    def _exchange(self, kind: str, messages: list) -> list:
        self._board[self.rank] = messages
        self._barrier.wait()
        received = [messages[self.rank].copy() for messages in self._board]
        self._barrier.wait()
        return received

    def close(self, reason: str = "") -> None:
        pass

    def abort(self, code: int = 1) -> None:
        pass


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


def build(strategy: Any = None, units: int = UNITS, **changes: Any) -> keras.Model:
    sampler = LshSampler(hash=SimHash(bits=2, tables=3), active=8, rebuild_every=5)
    settings = {"hidden": HIDDEN, "optimizer": SparseAdam, "sampler": sampler, **changes}
    keras.utils.set_random_seed(settings.get("seed", 1))
    inputs = keras.Input((FEATURES,), sparse=True)
    x = SparseDense(settings["hidden"], activation="relu", strategy=strategy)(inputs)
    x = keras.layers.Dropout(0.2)(keras.layers.Dense(6)(x))
    output = DSlideDense(units, sampler=settings["sampler"], strategy=strategy)
    model = keras.Model(inputs, output(x))
    if settings["optimizer"]:
        model.compile(settings["optimizer"](0.03), SlideCrossentropy())
    return model


def train(model: keras.Model, first: int, last: int, seed: int = 7, **settings: Any) -> list[float]:
    """Trains from one epoch to another; returns the losses."""
    data = make_synthetic(
        150, FEATURES, model.output_shape[-1], features_per_sample=6, labels_per_sample=2
    )
    stream = batches(data, 16, shuffle=True, seed=seed, first_pass=first)
    settings = {"initial_epoch": first, "epochs": last, "verbose": 0, "shuffle": False, **settings}
    return model.fit(stream, **settings).history["loss"]


class Parts:
    """A model over several ranks of one process."""

    def __init__(self, ranks: int, cut: Callable = sharding.equal_ranges, **changes: Any) -> None:
        self.strategies = [StandIn(rank, ranks, cut) for rank in range(ranks)]
        self.models = [build(strategy, **changes) for strategy in self.strategies]
        communicators = ThreadCommunicator.make(ranks)
        for strategy, communicator in zip(self.strategies, communicators, strict=True):
            strategy.communicator = communicator

    def on_all(self, work: Callable) -> list:
        """Calls `work(model, strategy)` on every rank; gives results, or errors raised."""
        results: list = [None] * len(self.models)

        def run(rank: int) -> None:
            try:
                results[rank] = work(self.models[rank], self.strategies[rank])
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def succeed(self, work: Callable) -> list:
        results = self.on_all(work)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


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
    if shard is None:
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
