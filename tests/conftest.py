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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by folder and keeps each folder's order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, not on the tests that ran before."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
