"""Settings for all tests."""

import os
import zlib

import numpy as np
import pytest

# Before TensorFlow is imported: its start-up notes would drown what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# Where the longest tests are: those that start jobs of several processes. They come first, so that
# of two workers (`make test`) none has long to wait for the other at the end.
LONGEST = ("parallel", "baselines", "native", "keras", "cli")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by folder, keeps each folder's order, and says which share a worker.

    Those of a module do, for its fixtures; but what starts a job of its own goes anywhere.
    """
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))
    for item in items:
        alone = item.get_closest_marker("mpi") or item.get_closest_marker("comparison")
        if not alone and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, not on the tests that ran before."""
    path, _, name = request.node.location  # the id may have the group's name at its end
    return np.random.default_rng(zlib.crc32(f"{path}::{name}".encode()))
