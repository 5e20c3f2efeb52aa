"""Settings for all tests."""

import os
import zlib

import numpy as np
import pytest

# Before TensorFlow is imported: its start-up notes would drown what a test prints.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone, not on the tests that ran before."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
