"""The training that all neural methods share: stretches of steps, clocks, evaluation, record."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baselines.plan import Plan
from baselines.ranks import Ranks, bytes_on_interface
from baselines.task import Task
from reports.records import RunWriter
from tf_dslide.data import Dataset

if TYPE_CHECKING:
    import tensorflow as tf

_CUTS = (1, 3, 5)
_ROWS_AT_ONCE = 256
_COMPILING = 2


class Exchanged(NamedTuple):
    """What a rank has exchanged with others so far.

    `source` is `counted` or `computed`, as in the run record.
    """

    bytes_sent: float = 0.0
    messages: float = 0.0
    seconds_waiting: float = 0.0
    source: str = "counted"


@dataclass
class Session:
    """One process of a run.

    Attributes:
        task: What to train.
        ranks: The processes.
        train: All training data.
        test: All rows to evaluate.
        record: Where rank 0 writes; `None` elsewhere.
    """

    task: Task
    ranks: Ranks
    train: Dataset
    test: Dataset
    record: RunWriter | None

    def measure(self, **figures: Any) -> None:
        """Records and shows how far the training is."""
        if self.record:
            self.record.measure(**figures)
            epoch, p1 = figures.get("epoch"), figures.get("p1")
            said = "" if p1 is None else f"  P@1 {100 * p1:.2f}"
            where = "" if epoch is None else f"epoch {epoch:.2f}  "
            print(
                f"{self.task.method}: {where}step {figures['step']}, "
                f"{figures['train_seconds']:.1f} s of training{said}",
                flush=True,
            )


class Method(ABC):
    """A way of training, in one process of a run."""

    @abstractmethod
    def train(self, session: Session) -> None:
        """Trains to the end of the task and records it."""


class StepMethod(Method):
    """A method that trains step by step.

    Attributes:
        scores_together: Whether all ranks are needed to score a row. Otherwise each scores a part.
    """

    scores_together = False

    @abstractmethod
    def step(self) -> float:
        """Trains on the next batch; the loss."""

    def prepare(self) -> None:
        """What must be done once, and belongs to the time of training."""

    @abstractmethod
    def best(self, features: "tf.SparseTensor", k: int) -> np.ndarray:
        """The `k` labels with the highest scores of each row, `(rows, k)`."""

    def exchanged(self) -> Exchanged:
        """What this process has exchanged so far."""
        return Exchanged()

    def train(self, session: Session) -> None:
        """Trains in the stretches of a `Plan`; rank 0's clock decides."""
        task, ranks = session.task, session.ranks
        per_epoch = steps_per_epoch(session.train, task)
        plan = Plan(per_epoch, task.epochs, task.seconds)
        clock = Clock(task.interface)
        with clock:
            self.prepare()
        while stretch := ranks.agreed(plan.next(clock.steps, clock.seconds, clock.rate)):
            with clock:
                losses = [clock.timed(self) for _ in range(stretch)]
            if ranks.agreed(plan.evaluates(clock.steps, clock.seconds)):
                started = time.perf_counter()
                precisions = self.precisions(session)
                session.measure(
                    epoch=clock.steps / per_epoch,
                    step=clock.steps,
                    samples=clock.steps * task.batch_size,
                    train_seconds=clock.seconds,
                    loss=fmean(losses),
                    evaluation_seconds=time.perf_counter() - started,
                    **precisions,
                )
        record_steps(session, clock, per_epoch)

    def precisions(self, session: Session) -> dict[str, float]:
        """P@1, P@3, P@5 and PSP@5 of the test rows."""
        ranks, test = session.ranks, session.test
        part = test
        if not self.scores_together:
            part = test.take(np.arange(ranks.rank, test.num_samples, ranks.size))
        worth, hits = worth_of(session.train), Hits()
        for begin in range(0, part.num_samples, _ROWS_AT_ONCE):
            hits += self._hits(part.take(slice(begin, begin + _ROWS_AT_ONCE)), worth)
        if not self.scores_together:
            hits = sum(ranks.gathered(hits), Hits())
        return hits.precisions(test.num_samples)

    def _hits(self, data: Dataset, worth: np.ndarray) -> "Hits":
        from tf_dslide.data import to_sparse_tensor

        best = self.best(to_sparse_tensor(data.features), min(max(_CUTS), data.num_labels))
        return Hits.of(data, best, worth)


def worth_of(train: Dataset) -> np.ndarray:
    """What a hit of each label counts in propensity-scored precision, `(labels,)`."""
    from tf_dslide import propensities

    return 1 / propensities(train.label_counts, train.num_samples)


@dataclass
class Hits:
    """True labels among the best ones of some rows; of several parts they add up.

    Attributes:
        counts: How many of the first 1, 3 and 5 are true.
        worth: What those among the first 5 count by their propensity.
        most_worth: What they could count at most.
    """

    counts: np.ndarray = field(default_factory=lambda: np.zeros(len(_CUTS)))
    worth: float = 0.0
    most_worth: float = 0.0

    @classmethod
    def of(cls, data: Dataset, best: np.ndarray, worth: np.ndarray) -> "Hits":
        """Those of `best` `(rows, k)`, whose ids below 0 stand for none."""
        rows, last = np.arange(data.num_samples)[:, None], max(_CUTS)
        found = np.asarray(data.labels[rows, np.maximum(best, 0)].todense()) * (best >= 0)
        worths = (found * worth[np.maximum(best, 0)])[:, :last].sum()
        ends = zip(data.labels.indptr, data.labels.indptr[1:], strict=False)
        most = sum(
            np.sort(worth[data.labels.indices[begin:end]])[-last:].sum() for begin, end in ends
        )
        return cls(np.array([found[:, :k].sum() for k in _CUTS]), float(worths), float(most))

    def __add__(self, other: "Hits") -> "Hits":
        return Hits(
            self.counts + other.counts,
            self.worth + other.worth,
            self.most_worth + other.most_worth,
        )

    def precisions(self, rows: int) -> dict[str, float]:
        """Fractions of 1, by the record's names."""
        plain = {
            f"p{k}": float(count / (rows * k)) for k, count in zip(_CUTS, self.counts, strict=True)
        }
        return plain | {"psp5": self.worth / self.most_worth if self.most_worth else 0.0}


def steps_per_epoch(train: Dataset, task: Task) -> int:
    """A last batch that is not full is left out; there is one step at least."""
    return max(1, train.num_samples // task.batch_size)


class Clock:
    """Time, steps and traffic of a training, without what lies between the stretches."""

    def __init__(self, interface: str | None) -> None:
        self._interface = interface
        self.seconds = 0.0
        self.step_seconds: list[float] = []
        self.sent_by_interface: int | None = None
        self.exchanged: list[Exchanged] = []

    @property
    def steps(self) -> int:
        """Steps so far."""
        return len(self.step_seconds)

    @property
    def unusual(self) -> int:
        """How many of the first steps are not typical, because they compile."""
        return _COMPILING if self.steps > _COMPILING else 0

    @property
    def usual(self) -> list[float]:
        """Seconds of each step without the first ones, which compile, if there are others."""
        return self.step_seconds[self.unusual :]

    @property
    def rate(self) -> float | None:
        """Seconds of a usual step; `None` while there are only those that compile."""
        return fmean(self.usual) if self.unusual else None

    def timed(self, method: StepMethod) -> float:
        """Has a method take a step, and returns its loss."""
        before, begin = method.exchanged(), time.perf_counter()
        loss = method.step()
        self.step_seconds.append(time.perf_counter() - begin)
        after = method.exchanged()
        self.exchanged.append(
            Exchanged(
                after.bytes_sent - before.bytes_sent,
                after.messages - before.messages,
                after.seconds_waiting - before.seconds_waiting,
                after.source,
            )
        )
        return loss

    def __enter__(self) -> None:
        self._sent = bytes_on_interface(self._interface)
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._begin
        if self._sent is not None:
            sent = bytes_on_interface(self._interface)
            assert sent is not None
            self.sent_by_interface = (self.sent_by_interface or 0) + sent - self._sent

    def rank_figures(self, rank: int) -> dict[str, Any]:
        """The part of this process in the event `steps`."""
        from benchmarks.environment import peak_megabytes

        parts = self.exchanged[self.unusual :]
        sent, source = fmean(part.bytes_sent for part in parts), parts[-1].source
        if self.sent_by_interface is not None:
            sent, source = self.sent_by_interface / self.steps, "interface"
        waiting = fmean(part.seconds_waiting for part in parts)
        return {
            "rank": rank,
            "host": os.uname().nodename,
            "bytes_sent_per_step": sent,
            "bytes_source": source,
            "messages_per_step": fmean(part.messages for part in parts),
            "seconds_computing": max(0.0, fmean(self.usual) - waiting),
            "seconds_waiting": waiting,
            "peak_mb": peak_megabytes(),
        }


def record_steps(session: Session, clock: Clock, per_epoch: int) -> None:
    """Writes the event `steps`."""
    figures: Sequence[dict] = session.ranks.gathered(clock.rank_figures(session.ranks.rank))
    if session.record is None:
        return
    mean = fmean(clock.usual)
    session.record.steps(
        steps=clock.steps,
        median_step_seconds=median(clock.usual),
        mean_step_seconds=mean,
        samples_per_second=session.task.batch_size / mean,
        epoch_seconds=mean * per_epoch,
        epoch_measured=clock.steps >= per_epoch,
        ranks=figures,
    )


@dataclass
class Rate:
    """A learning rate that falls to 0 over a training of known length, else stays.

    Call it with the number of steps done, as a float tensor or a number.
    """

    highest: float
    total_steps: int | None = field(default=None)

    def __call__(self, step: Any) -> Any:
        """The rate of the next step."""
        if self.total_steps is None:
            return self.highest
        return self.highest * (1.0 - step / self.total_steps)


def rate_of(session: Session) -> Rate:
    """The learning rate of a task."""
    epochs = session.task.epochs
    steps = None if epochs is None else epochs * steps_per_epoch(session.train, session.task)
    return Rate(session.task.learning_rate, steps)


def stream_of(session: Session, own_part: bool = False) -> "tf.data.Iterator":
    """Batches without end.

    Args:
        session: The run.
        own_part: Whether this process has a part of the rows for itself, and of each batch.

    Raises:
        ValueError: The batch cannot be cut into equal parts.
    """
    from tf_dslide.data import batches

    task, ranks, data = session.task, session.ranks, session.train
    size = task.batch_size
    if own_part:
        if size % ranks.size:
            raise ValueError(
                f"a batch of {size} samples cannot be cut into {ranks.size} equal parts; choose a "
                "batch size that the number of ranks divides"
            )
        size //= ranks.size
        data = data.take(np.arange(ranks.rank, data.num_samples, ranks.size))
    enough = data.num_samples >= size
    stream = batches(data, size, shuffle=True, seed=task.seed, drop_remainder=enough)
    return iter(stream.repeat())
