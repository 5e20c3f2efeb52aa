"""Which rank holds which part of a layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

_ATTRIBUTE = "_dslide_shard"


# The strategies whose scopes are open, the innermost last.
_scopes: list[Any] = []


@contextmanager
def strategy_scope(strategy: Any) -> Iterator[Any]:
    """Splits the layers made within by `strategy`, as if each had been given it."""
    _scopes.append(strategy)
    try:
        yield strategy
    finally:
        _scopes.pop()


def current_strategy() -> Any:
    """The strategy of the innermost open scope, or `None`."""
    return _scopes[-1] if _scopes else None


@dataclass(frozen=True)
class Shard:
    """The part `[begin, end)` of `total` units.

    Attributes:
        begin: First unit held here.
        end: One past the last unit held here; `begin` if there is none.
        total: Units of all ranks together.
    """

    begin: int
    end: int
    total: int

    @property
    def units(self) -> int:
        """Number of units held here."""
        return self.end - self.begin


def equal_ranges(units: int, ranks: int) -> list[tuple[int, int]]:
    """Contiguous ranges whose sizes differ by at most one; some are empty if `units < ranks`.

    Example:
    >>> from tf_dslide.sharding import equal_ranges
    >>> equal_ranges(7, 3)
    [(0, 3), (3, 5), (5, 7)]
    """
    sizes = [units // ranks + (rank < units % ranks) for rank in range(ranks)]
    ends = np.cumsum(sizes).tolist()
    return list(zip([0, *ends[:-1]], ends, strict=True))


def balanced_ranges(unit_load: Any, ranks: int) -> list[tuple[int, int]]:
    """Contiguous ranges of about equal total unit_load.

    Frequent labels are active oftener, and they often lie side by side, so ranges of equal size may
    have very unequal work.

    Args:
        unit_load: Expected unit_load of each unit, `(units,)`, such as its number of training
            samples plus the share of steps in which it is drawn as a negative.
        ranks: Number of ranges.

    Raises:
        ValueError: An unit_load is negative or not finite.

    Example:
    >>> from tf_dslide.sharding import balanced_ranges
    >>> balanced_ranges([8, 1, 1, 1, 1, 1, 1, 1, 1], 2)
    [(0, 1), (1, 9)]
    """
    unit_load = np.asarray(unit_load, np.float64)
    if unit_load.ndim != 1 or not (np.isfinite(unit_load).all() and (unit_load >= 0).all()):
        raise ValueError(
            "`unit_load` must be a vector of finite numbers from 0 on, one a unit; received shape "
            f"{unit_load.shape}"
        )
    total = np.concatenate([[0.0], np.cumsum(unit_load)])
    wanted = total[-1] * np.arange(1, ranks) / ranks
    # The border nearest to each wanted sum.
    after = np.searchsorted(total, wanted).clip(1, len(unit_load))
    borders = np.where(total[after] - wanted <= wanted - total[after - 1], after, after - 1)
    ends = [*np.maximum.accumulate(borders).tolist(), len(unit_load)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


def imbalance(unit_load: Any, ranges: Sequence[tuple[int, int]]) -> float:
    """The busiest range's unit_load over the mean: 1 is perfect, and all wait for the busiest.

    Example:
    >>> from tf_dslide.sharding import equal_ranges, imbalance
    >>> imbalance([3, 1, 1, 1], equal_ranges(4, 2))
    1.3333333333333333
    """
    unit_load = np.asarray(unit_load, np.float64)
    sums = [unit_load[begin:end].sum() for begin, end in ranges]
    mean = np.mean(sums)
    return float(max(sums) / mean) if mean > 0 else 1.0


def mark(variable: Any, shard: Shard, axis: int) -> None:
    """Notes on a variable which part of the whole it holds, and on which of its axes."""
    setattr(variable, _ATTRIBUTE, (shard, axis))


def shard_of(variable: Any) -> Shard | None:
    """The part that a variable holds, or `None` if each rank has all of it."""
    return getattr(variable, _ATTRIBUTE, (None, None))[0]


def axis_of(variable: Any) -> int | None:
    """The axis of a variable that is split over ranks, or `None` if each rank has all of it."""
    return getattr(variable, _ATTRIBUTE, (None, None))[1]


@dataclass(frozen=True)
class LayerPlan:
    """How one layer is split: the ranges of all ranks, and the numbers of a unit.

    Attributes:
        name: The layer's name.
        ranges: `[begin, end)` of each rank.
        parameters: Weights of one unit.
    """

    name: str
    ranges: Sequence[tuple[int, int]]
    parameters: int


def plan_table(plans: Sequence[LayerPlan], bytes_a_parameter: int = 12) -> str:
    """Ranges, parameters and bytes of each rank, as text.

    `bytes_a_parameter` counts the weight and what the optimizer keeps of it.
    """
    ranks = len(plans[0].ranges) if plans else 0
    header = ["rank", *(plan.name for plan in plans), "parameters", "MB"]
    lines = [header]
    for rank in range(ranks):
        spans = [plan.ranges[rank] for plan in plans]
        parameters = sum(
            (end - begin) * plan.parameters for (begin, end), plan in zip(spans, plans, strict=True)
        )
        lines.append(
            [
                str(rank),
                *(f"{begin:,} to {end:,}" for begin, end in spans),
                f"{parameters:,}",
                f"{parameters * bytes_a_parameter / 1e6:,.1f}",
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
