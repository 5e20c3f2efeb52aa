"""A search for settings, one factor at a time, by paired comparison. Knows nothing of networks."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

# A choice is taken if it is better by this many standard errors: of a dozen choices that make no
# difference, about one in four searches then takes one.
_CERTAINTY = 2.0

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Outcome:
    """What came of training with some settings for a time.

    Attributes:
        hits: For each sample held out, whether the label ranked first is one of its own.
        samples: Samples trained on.
        seconds: Time that took.
    """

    hits: np.ndarray
    samples: int
    seconds: float

    @property
    def precision(self) -> float:
        """P@1 on the samples held out."""
        return float(np.mean(self.hits))

    @property
    def samples_per_second(self) -> float:
        """Samples trained on in a second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


def gain(hits: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """How much more precise one outcome is than another on the same samples.

    Returns:
        The difference of P@1, and its standard error: most samples are hit by both or by neither,
        so that it is far smaller than that of each.
    """
    difference = hits.astype(float) - other
    return float(difference.mean()), float(difference.std() / math.sqrt(len(difference)))


@dataclass(frozen=True)
class Choice(Generic[Settings]):
    """One trial of a search.

    Attributes:
        factor: What is varied; empty for the settings that the search begins with.
        value: How.
        settings: With this choice.
        outcome: What came of it; `None` if there was no time left.
        gain: Beside the best settings before, with its standard error; `None` without outcome.
        taken: Whether it became the best.
    """

    factor: str
    value: str
    settings: Settings
    outcome: Outcome | None = None
    gain: tuple[float, float] | None = None
    taken: bool = False


@dataclass(frozen=True)
class Factor(Generic[Settings]):
    """Something to vary: its name, and its values with the settings that have them."""

    name: str
    choices: list[tuple[str, Settings]]


def search(
    start: Settings,
    factors: Sequence[Callable[[Settings], Factor[Settings] | None]],
    trial: Callable[[Settings], Outcome],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Choice[Settings]]:
    """Varies one factor after the other, and keeps what is clearly better.

    Args:
        start: The settings to begin with.
        factors: For each, what gives its choices for the best settings so far, or `None` where they
            know no such factor.
        trial: Trains with some settings.
        seconds: After this time no trial is begun.
        clock: Tells the time.

    Yields:
        Each choice when its factor is decided; the settings to begin with first. The settings of
        the last one that was taken are the best.
    """
    end = clock() + seconds
    best = Choice("", "", start, trial(start), taken=True)
    yield best
    for factor_of in factors:
        factor = factor_of(best.settings)
        if factor is None:
            continue
        tried = [
            _try(factor.name, value, settings, best, trial, clock() < end)
            for value, settings in factor.choices
        ]
        taken = _best_of(tried)
        for number, choice in enumerate(tried):
            if number == taken:
                best = choice = replace(choice, taken=True)
            yield choice


def _try(
    factor: str,
    value: str,
    settings: Settings,
    best: Choice[Settings],
    trial: Callable[[Settings], Outcome],
    in_time: bool,
) -> Choice[Settings]:
    if not in_time:
        return Choice(factor, value, settings)
    outcome = trial(settings)
    assert best.outcome is not None
    return Choice(factor, value, settings, outcome, gain(outcome.hits, best.outcome.hits))


def _best_of(tried: list[Choice[Settings]]) -> int | None:
    """The place of the choice that gains most, of those that gain for certain."""
    certain = [
        (choice.gain[0], -place)
        for place, choice in enumerate(tried)
        if choice.gain is not None and choice.gain[0] > _CERTAINTY * choice.gain[1]
    ]
    return -max(certain)[1] if certain else None
