"""What the Keras tests share besides `keras_cases`."""

from collections.abc import Iterator

import pytest
import tensorflow as tf


@pytest.fixture(params=["eager", pytest.param("graph", marks=pytest.mark.slow)])
def eager_or_graph(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the test twice; `make test` only eagerly: a graph takes a second, a step some ms."""
    tf.config.run_functions_eagerly(request.param == "eager")
    yield
    tf.config.run_functions_eagerly(False)
