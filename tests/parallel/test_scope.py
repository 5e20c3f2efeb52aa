"""`with strategy.scope():` splits the layers made within."""

import keras
import numpy as np
import pytest

from tf_dslide import DSlideDense, DSlideHidden, SparseDense
from tf_dslide.layer_sharding import LayerSharding
from tf_dslide.parallel import MPIModelParallel
from tf_dslide.parallel.lone import LoneCommunicator
from tf_dslide.parallel.strategy import RankSharding
from tf_dslide.sharding import Shard, current_strategy


@pytest.fixture
def strategy():
    return MPIModelParallel(LoneCommunicator(), verbose=False)


def test_layers_made_within_are_split(strategy):
    with strategy.scope() as opened:
        assert opened is strategy
        model = keras.Sequential([keras.Input((6,)), SparseDense(4, "relu"), DSlideDense(9)])
    for layer, units in zip(model.layers, (4, 9), strict=True):
        assert layer.strategy is strategy
        assert type(layer._sharding) is RankSharding
        assert layer.shard == Shard(0, units, units)
    assert model.predict(np.ones((2, 6), "float32"), verbose=0).shape == (2, 9)


def test_a_scope_ends_also_after_an_error(strategy):
    with pytest.raises(RuntimeError), strategy.scope():
        raise RuntimeError
    assert current_strategy() is None
    layer = DSlideDense(9)
    layer.build((None, 3))
    assert layer.strategy is None
    assert type(layer._sharding) is LayerSharding


def test_the_inner_scope_and_the_argument_come_first(strategy):
    inner, given = (MPIModelParallel(LoneCommunicator(), verbose=False) for _ in range(2))
    with strategy.scope():
        with inner.scope():
            assert DSlideDense(9).strategy is inner
        assert DSlideDense(9).strategy is strategy
        assert DSlideDense(9, strategy=given).strategy is given


def test_a_layer_that_cannot_be_split_is_whole_on_each_rank(strategy):
    with strategy.scope():
        assert DSlideHidden(9).strategy is None
