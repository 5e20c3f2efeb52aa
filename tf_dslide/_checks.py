"""Checks of arguments that several modules share."""

import operator
from collections.abc import Sequence
from typing import Any


def require_positive(name: str, value: Any) -> int:
    """Returns `value` as an int, or raises an error that names the argument and the value."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"`{name}` must be a positive integer; received {value!r}")
    return number


def require_one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """Returns `value`, or raises an error that names the argument, the value and the choices."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {list(choices)}; received {value!r}")
    return str(value)


def of_format(owner: str, config: dict[str, Any], expected: int) -> dict[str, Any]:
    """A saved configuration without its format, which must be the one that is expected."""
    found = config.get("format")
    if found != expected:
        raise ValueError(
            f"this {owner} was saved in format {found!r}, but this version of tf_dslide reads "
            f"format {expected}: load it with the version that saved it"
        )
    return {name: value for name, value in config.items() if name != "format"}
