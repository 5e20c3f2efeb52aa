"""scikit-learn, which takes a second to import and is not there without the extra `cli`."""

from importlib import import_module
from typing import Any


def from_sklearn(module: str, name: str) -> Any:
    """A function or class of one of scikit-learn's modules.

    Args:
        module: The module's name in scikit-learn, such as `datasets`.
        name: What to take from it.

    Raises:
        ImportError: scikit-learn is not installed; the message names the extra that brings it.
    """
    try:
        return getattr(import_module(f"sklearn.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ImportError(
            f"`{name}` of scikit-learn is needed here: pip install 'tf-dslide[cli]'"
        ) from error
