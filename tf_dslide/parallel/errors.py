"""What ranks say when they cannot go on together."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

_SHOWN_CHARACTERS = 200


class RankError(RuntimeError):
    """The ranks of a job cannot go on together: one differs from the others, or has left."""


def disagreement(what: str, values: list) -> str:
    """Which ranks have which value."""
    parts = [_leaves(value) for value in values]
    differences = []
    for name in dict.fromkeys(name for part in parts for name in part):
        ranks: dict[str, list[int]] = {}
        for rank, part in enumerate(parts):
            ranks.setdefault(part.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            cases = [f"{shortened(text)} ({named(who)})" for text, who in ranks.items()]
            differences.append(name + ", ".join(cases))
    received = shortened("; ".join(differences), 10 * _SHOWN_CHARACTERS)
    return f"{what} must be the same on all ranks; received {received}"


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """The values in nested dicts, as JSON, by `outer.inner: `."""
    if not (isinstance(value, dict) and value):
        return {path and f"{path}: ": as_json(value)}
    leaves: dict[str, str] = {}
    for key, inner in value.items():
        leaves |= _leaves(inner, f"{path}.{key}" if path else key)
    return leaves


def named(ranks: Sequence[int]) -> str:
    """`rank 3` or `ranks 0, 1, 2`."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' * (len(ranks) != 1)} {shown}"


def shortened(text: str, most: int = _SHOWN_CHARACTERS) -> str:
    """The beginning of a text that is too long to show."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def as_json(value: Any) -> str:
    """A value as text, the same for equal dicts.

    Raises:
        TypeError: JSON cannot express it.
    """
    return json.dumps(value, sort_keys=True, default=plain)


def plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"ranks exchange values that JSON can express; received {value!r}")
