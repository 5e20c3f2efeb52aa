"""When to evaluate and when to stop."""

import math
from dataclasses import dataclass


@dataclass
class Plan:
    """Cuts a training into stretches of steps, each followed by an evaluation or the end.

    With `epochs` there is an evaluation after each. With `seconds` alone there are `evaluations` of
    them in equal distances of time; then the first steps make stretches of their own, to find how
    long one takes. At least `fewest` steps are trained, however long they take.

    Args:
        steps_per_epoch: Steps of a pass over the data.
        epochs: Passes, or `None`.
        seconds: Seconds of training, or `None`; with both, the first reached ends the training.
        evaluations: How many, if only `seconds` is given.
        fewest: Steps.
    """

    steps_per_epoch: int
    epochs: int | None
    seconds: float | None
    evaluations: int = 5
    fewest: int = 3

    def __post_init__(self) -> None:
        if self.epochs is None and self.seconds is None:
            raise ValueError("a training needs a number of epochs or of seconds")
        self._marks = 0

    @property
    def total_steps(self) -> int | None:
        """Steps of the whole training, if they are known beforehand."""
        return None if self.epochs is None else self.epochs * self.steps_per_epoch

    def next(self, steps: int, seconds: float, rate: float | None) -> int:
        """Steps to train now; 0 at the end.

        Args:
            steps: Trained so far.
            seconds: Taken so far.
            rate: Seconds of a usual step, or `None` if that is unknown yet.
        """
        if self._is_over(steps, seconds):
            return 0
        stretch = math.inf
        if self.epochs is not None:
            stretch = self.steps_per_epoch - steps % self.steps_per_epoch
        if self.seconds is not None:
            stretch = min(stretch, self._steps_to_mark(steps, seconds, rate))
        return int(stretch)

    def evaluates(self, steps: int, seconds: float) -> bool:
        """Whether it is time to evaluate, after a stretch."""
        if self._is_over(steps, seconds):
            return True
        if self.epochs is not None:
            return steps % self.steps_per_epoch == 0
        due = False
        # The last mark is the end, which may lie further off: `fewest` steps take their time.
        while self._marks < self.evaluations - 1 and seconds >= self._mark():
            self._marks, due = self._marks + 1, True
        return due

    def _is_over(self, steps: int, seconds: float) -> bool:
        if self.total_steps is not None and steps >= self.total_steps:
            return True
        return self.seconds is not None and seconds >= self.seconds and steps >= self.fewest

    def _mark(self) -> float:
        assert self.seconds is not None
        parts = self.evaluations if self.epochs is None else 1
        return self.seconds * (self._marks + 1) / parts

    def _steps_to_mark(self, steps: int, seconds: float, rate: float | None) -> int:
        if rate is None:
            return 1
        left = max(self._mark() - seconds, 0.0)
        return max(1, self.fewest - steps, math.floor(left / rate) if rate else 1)
