"""Builds the network that `dslide train` trains. Imports TensorFlow: import it when needed."""

import math
from typing import Any

import keras
import numpy as np

from tf_dslide.cli.settings import NetworkSettings, SamplerSettings
from tf_dslide.hashing import DWTA, WTA, HashFamily, Learned, MinHash, SimHash
from tf_dslide.initializers import LabelPrior
from tf_dslide.layers import DSlideDense, SparseDense
from tf_dslide.losses import SlideCrossentropy
from tf_dslide.optimizers import SparseAdam
from tf_dslide.samplers import (
    AllNeurons,
    LogUniformSampler,
    LshSampler,
    Sampler,
    SharedLshSampler,
    UniformSampler,
)

# Of a bin of WTA's and DWTA's usual size.
_BITS_PER_BIN = 3


def build_network(
    settings: NetworkSettings, num_features: int, label_counts: np.ndarray, num_steps: int
) -> keras.Sequential:
    """Builds and compiles the network.

    Args:
        settings: What to build.
        num_features: Width of the sparse input.
        label_counts: Training samples of each label; as many outputs, whose biases start from
            them.
        num_steps: Length of the training, for the schedule.

    Returns:
        A `Sequential` of `SparseDense`, further hidden layers, and `DSlideDense`; compiled with its
        loss alone.
    """
    keras.utils.set_random_seed(settings.seed)
    model = keras.Sequential([keras.Input((num_features,), sparse=True, name="features")])
    for place, width in enumerate(settings.hidden):
        kind = keras.layers.Dense if place else SparseDense
        model.add(kind(width, activation="relu", name=f"hidden_{place + 1}"))
        if settings.dropout:
            model.add(keras.layers.Dropout(settings.dropout))
    sampler = _make_sampler(settings.sampler, settings.seed)
    prior = LabelPrior(label_counts)
    model.add(
        DSlideDense(len(label_counts), sampler=sampler, bias_initializer=prior, name="labels")
    )
    optimizer = SparseAdam(
        _learning_rate(settings, num_steps), weight_decay=settings.weight_decay or None
    )
    model.compile(optimizer=optimizer, loss=SlideCrossentropy())
    return model


def count_steps(num_samples: int, batch_size: int, epochs: int) -> int:
    """Number of steps of a training."""
    return math.ceil(num_samples / batch_size) * epochs


def _make_sampler(settings: SamplerSettings, seed: int) -> Sampler:
    if settings.name == "all":
        return AllNeurons()
    if settings.name in ("lsh", "shared-lsh"):
        lsh = LshSampler if settings.name == "lsh" else SharedLshSampler
        schedule: dict[str, Any] = {}
        if settings.rebuild_every is not None:
            schedule["rebuild_every"] = settings.rebuild_every
        return lsh(hash=_make_hash(settings, seed), active=settings.active, seed=seed, **schedule)
    kind = UniformSampler if settings.name == "uniform" else LogUniformSampler
    if settings.num_sampled is None:
        return kind(seed=seed)
    return kind(settings.num_sampled, seed=seed)


def _make_hash(settings: SamplerSettings, seed: int) -> HashFamily:
    tables: dict[str, Any] = {} if settings.tables is None else {"tables": settings.tables}
    if settings.hash == "minhash":
        return MinHash(address_bits=settings.bits, seed=seed, **tables)
    if settings.hash not in ("wta", "dwta"):
        directions = Learned if settings.hash == "learned" else SimHash
        return directions(settings.bits, seed=seed, **tables)
    family = WTA if settings.hash == "wta" else DWTA
    if settings.bits is None:
        return family(seed=seed, **tables)
    bins = math.ceil(settings.bits / _BITS_PER_BIN)
    return family(bins, address_bits=settings.bits, seed=seed, **tables)


def _learning_rate(
    settings: NetworkSettings, num_steps: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    schedules = keras.optimizers.schedules
    if settings.schedule == "linear":
        return schedules.PolynomialDecay(settings.learning_rate, num_steps, end_learning_rate=0.0)
    if settings.schedule == "cosine":
        return schedules.CosineDecay(settings.learning_rate, num_steps)
    return settings.learning_rate
