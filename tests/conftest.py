"""Settings for all tests."""

import os
import zlib
from pathlib import PurePath
from typing import Any

import numpy as np
import pytest

# Before TensorFlow is imported: its start-up notes would drown what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


# Where the longest tests are: those that start jobs of several processes. They come first, so that
# of two workers (`make test`) none has long to wait for the other at the end.
LONGEST = ("parallel", "baselines", "native", "tests", "reports", "cli", "keras")
# Each test of these files starts processes of its own and may run on any worker.
ON_ANY_WORKER = ("test_compare", "test_checkpoints_on_ranks", "test_faults", "test_parity")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests by folder and keeps each folder's order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a module share a worker, for its fixtures, and all of the command line do."""
    from xdist.scheduler import LoadScopeScheduling

    class Modules(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = PurePath(nodeid.partition("::")[0])
            if path.stem in ON_ANY_WORKER:
                return nodeid
            return "cli" if path.parent.name == "cli" else str(path)

    config.option.loadscopereorder = False  # `items` have an order
    return Modules(config, log)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, not on the tests that ran before."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
