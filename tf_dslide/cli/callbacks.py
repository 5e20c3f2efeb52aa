"""Keras callbacks that show and record training. Imports TensorFlow."""

import math
import time
from collections.abc import Callable
from typing import Any

import keras
from rich.progress import Progress

from tf_dslide.cli.errors import CommandError


class Pace:
    """Measures samples a second over a pass.

    The first step builds the graph, so it does not count where others follow.

    Args:
        num_samples: Samples of the pass.
        batch_size: Samples of a step, the last one apart.
    """

    def __init__(self, num_samples: int, batch_size: int) -> None:
        self._num_samples, self._batch_size = num_samples, batch_size
        self._begin = self._first_end = self._end = 0.0
        self._steps = 0

    def begin(self) -> None:
        """Starts a pass."""
        self._begin = self._end = time.perf_counter()
        self._steps = 0

    def step(self) -> None:
        """Notes the end of a step."""
        self._end = time.perf_counter()
        self._steps += 1
        if self._steps == 1:
            self._first_end = self._end

    @property
    def seconds(self) -> float:
        """Duration of the pass so far, the first step included."""
        return self._end - self._begin

    @property
    def samples_per_second(self) -> float:
        """The rate so far; 0 before the first step."""
        seen = min(self._num_samples, self._steps * self._batch_size)
        seconds = self.seconds
        if self._steps > 1:
            seen, seconds = seen - self._batch_size, self._end - self._first_end
        return seen / seconds if seconds > 0 else 0.0


def diverged(reason: str) -> CommandError:
    """The error for a training whose numbers are no longer finite."""
    return CommandError(f"training diverged: {reason}; lower --learning-rate")


class TrainingProgress(keras.callbacks.Callback):
    """Feeds a progress bar over all epochs, and stops a training that has diverged.

    Args:
        bar: The display.
        pace: Measures each epoch's steps.
        done: Epochs done before, of a training that is resumed.

    Raises:
        CommandError: In training, when the loss is no longer finite.
    """

    def __init__(self, bar: Progress, pace: Pace, done: int = 0) -> None:
        super().__init__()
        self._bar, self._pace, self._done = bar, pace, done
        self._task = bar.add_task("training", total=None, note="")

    def on_train_begin(self, logs: Any = None) -> None:
        """Sets the bar's length."""
        epochs, steps = self.params["epochs"], self.params["steps"]
        self._bar.update(self._task, total=epochs * steps, completed=self._done * steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Names the epoch."""
        title = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._bar.update(self._task, description=title)
        self._pace.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar."""
        self._pace.step()
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise diverged(f"the loss is {loss} at step {batch + 1} of an epoch")
        note = f"loss {loss:.4f}  {self._pace.samples_per_second:,.0f} samples/s"
        self._bar.update(self._task, advance=1, note=note)


class ScoringProgress(keras.callbacks.Callback):
    """Feeds a progress bar while `evaluate` runs.

    Args:
        bar: The display.
        pace: Measures the steps.
    """

    def __init__(self, bar: Progress, pace: Pace) -> None:
        super().__init__()
        self._bar, self._pace = bar, pace

    def on_test_begin(self, logs: Any = None) -> None:
        """Opens a bar."""
        self._task = self._bar.add_task("scoring", total=self.params["steps"], note="")
        self._pace.begin()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves it."""
        self._pace.step()
        note = f"{self._pace.samples_per_second:,.0f} samples/s"
        self._bar.update(self._task, advance=1, note=note)

    def on_test_end(self, logs: Any = None) -> None:
        """Takes it away."""
        self._bar.remove_task(self._task)


class EpochReports(keras.callbacks.Callback):
    """Scores the model after each epoch and hands the figures on.

    Args:
        score: Gives the figures of the model as it is.
        receive: Called with the epoch, counted from 1, its loss, and the figures.
    """

    def __init__(
        self,
        score: Callable[[], dict[str, float]],
        receive: Callable[[int, float, dict[str, float]], None],
    ) -> None:
        super().__init__()
        self._score, self._receive = score, receive

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Scores and reports."""
        self._receive(epoch + 1, float(logs["loss"]), self._score())
