"""D-SLIDE: this project's layers, on one process or split over ranks."""

from typing import TYPE_CHECKING, Any

import numpy as np

from baselines.ranks import Ranks
from baselines.task import Task
from baselines.training import Exchanged, Session, StepMethod, rate_of, stream_of

if TYPE_CHECKING:
    import tensorflow as tf


class DSlide(StepMethod):
    """A `SparseDense` and a `DSlideDense`, trained as by `fit`.

    Args:
        session: The run.
        sampler: The name of a sampler.
        family: That of a hash family; `None` for the sampler's own choice.
    """

    scores_together = True

    def __init__(self, session: Session, sampler: str, family: str | None = None) -> None:
        import keras

        import tf_dslide

        task, train = session.task, session.train
        self._strategy = strategy_of(session.ranks, task.wire)
        keras.utils.set_random_seed(task.seed)
        self._layers = [
            tf_dslide.SparseDense(task.hidden, activation="relu", strategy=self._strategy),
            tf_dslide.DSlideDense(
                train.num_labels,
                sampler=sampler_of(task, sampler, family),
                bias_initializer=tf_dslide.LabelPrior(train.label_counts),
                strategy=self._strategy,
            ),
        ]
        model = keras.Sequential([keras.Input((train.num_features,), sparse=True), *self._layers])
        model.compile(tf_dslide.SparseAdam(schedule(session)), tf_dslide.SlideCrossentropy())
        self._model, self._stream = model, stream_of(session)
        model.make_train_function()

    def step(self) -> float:
        """One step of `fit`."""
        return step_of_fit(self._model, self._stream)

    def best(self, features: "tf.SparseTensor", k: int) -> np.ndarray:
        """Exact, over all ranks' labels."""
        sparse, output = self._layers
        return output.top_k(sparse(features), k)[1].numpy()

    def exchanged(self) -> Exchanged:
        """As the strategy counts it."""
        if self._strategy is None:
            return Exchanged()
        counts = self._strategy.stats.total.values()
        return Exchanged(
            sum(count.bytes_sent for count in counts),
            sum(count.messages_sent for count in counts),
            sum(count.seconds_waiting for count in counts),
        )


def step_of_fit(model: Any, stream: Any) -> float:
    """What `fit` does for each batch; the batch's loss."""
    model.reset_metrics()
    return float(model.train_function(stream)["loss"])


def sampler_of(task: Task, name: str, family: str | None) -> Any:
    """A sampler with the task's number of active neurons."""
    import tf_dslide

    kind = getattr(tf_dslide, name)
    if name == "AllNeurons":
        return kind()
    if name == "UniformSampler":
        return kind(num_sampled=task.active, seed=task.seed)
    hash_family = getattr(tf_dslide, family)(seed=task.seed) if family else None
    return kind(hash=hash_family, active=task.active, seed=task.seed)


def strategy_of(ranks: Ranks, wire: str) -> Any:
    """What splits the layers, if there is more than one rank."""
    if ranks.size == 1:
        return None
    from tf_dslide.parallel import MPIModelParallel

    return MPIModelParallel(wire=wire, verbose=False)


def schedule(session: Session) -> Any:
    """The learning rate, as Keras takes it."""
    import keras

    rate = rate_of(session)
    if rate.total_steps is None:
        return rate.highest
    return keras.optimizers.schedules.PolynomialDecay(rate.highest, rate.total_steps, 0.0)
