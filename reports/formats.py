"""Numbers as text for people."""

import math
from typing import Any

NOTHING = "-"


def seconds(value: float) -> str:
    """A duration, readable at any size."""
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 1e3 else f"{value:,.0f} s"


def size(value: float) -> str:
    """A number of bytes, in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} bytes"


def megabytes(value: float) -> str:
    """A number of MB."""
    return size(value * 1e6)


def number(value: float) -> str:
    """A number with three digits or all digits before the point, as 0.0123, 86.7 and 17,100."""
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def times(ratio: float) -> str:
    """A ratio in words."""
    return f"{number(ratio)} times"


def fraction(value: float) -> str:
    """A fraction of 1 in percent."""
    return f"{100 * value:.2f} %"


def percent(value: float) -> str:
    """A percentage with as many digits as tell it from 100."""
    digits = 1 if value < 99 else 2 if value < 99.9 else 4
    return f"{value:.{digits}f} %"


def points(value: float) -> str:
    """A difference of percentages, with its sign."""
    return f"{value:+.2f}"


def yes_no(value: Any) -> str:
    """A truth value in a word."""
    return "yes" if value else "no"


def moment(value: str) -> str:
    """An ISO time to the minute; UTC is not named."""
    date, _, clock = value.partition("T")
    zone = clock[8:].removeprefix("+00:00").removeprefix("Z")
    return f"{date} {clock[:5]}{zone}" if clock else value


def text(value: Any) -> str:
    """Anything else; whole numbers with thousands apart."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def is_missing(value: Any) -> bool:
    """Whether a cell of a table holds nothing."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
