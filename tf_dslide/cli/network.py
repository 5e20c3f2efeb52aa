"""Builds what `dslide train` trains. Imports TensorFlow: import it when needed."""

import math
from typing import Any

import keras

from tf_dslide.cli.settings import NetworkSettings, SamplerSettings
from tf_dslide.data import Dataset
from tf_dslide.hashing import DWTA, WTA, HashFamily, LearnedHash, MinHash, SimHash
from tf_dslide.initializers import LabelPrior
from tf_dslide.layers import DSlideDense, SparseDense
from tf_dslide.linear import DSlideLinear, usual_optimizer
from tf_dslide.losses import SlideBinaryCrossentropy, SlideCrossentropy
from tf_dslide.optimizers import SparseAdam
from tf_dslide.samplers import (
    AllNeurons,
    LogUniformSampler,
    LshSampler,
    Sampler,
    UniformSampler,
)

# Of a bin of WTA's and DWTA's usual size.
_BITS_PER_BIN = 3


def build_network(
    settings: NetworkSettings, train: Dataset, num_steps: int, batch_size: int
) -> keras.Sequential:
    """Builds and compiles the network.

    Args:
        settings: What to build.
        train: The training data: as many inputs and outputs, whose biases start from the label
            counts, or whose connections are those of features and labels that occur together.
        num_steps: Length of the training, for the schedule.
        batch_size: Samples a step.

    Returns:
        A `Sequential` of `SparseDense`, further hidden layers, and `DSlideDense`, or of
        `DSlideLinear` alone; compiled with its loss alone.
    """
    keras.utils.set_random_seed(settings.seed)
    model = keras.Sequential([keras.Input((train.num_features,), sparse=True, name="features")])
    rate = _learning_rate(settings, num_steps)
    if settings.sampler is None:
        return _build_linear(model, train, rate, batch_size)
    for place, width in enumerate(settings.hidden):
        kind = keras.layers.Dense if place else SparseDense
        model.add(kind(width, activation="relu", name=f"hidden_{place + 1}"))
        if settings.dropout:
            model.add(keras.layers.Dropout(settings.dropout))
    sampler = _make_sampler(settings.sampler, settings.seed)
    prior = LabelPrior(train.label_counts)
    model.add(DSlideDense(train.num_labels, sampler=sampler, bias_initializer=prior, name="labels"))
    optimizer = SparseAdam(rate, weight_decay=settings.weight_decay or None)
    model.compile(optimizer=optimizer, loss=loss_of(model.layers[-1]))
    return model


def loss_of(layer: DSlideDense | DSlideLinear) -> keras.losses.Loss:
    """The loss that `dslide train` trains an output layer with."""
    return SlideBinaryCrossentropy() if isinstance(layer, DSlideLinear) else SlideCrossentropy()


def _build_linear(
    model: keras.Sequential, train: Dataset, rate: Any, batch_size: int
) -> keras.Sequential:
    layer = DSlideLinear(train.num_labels, name="labels")
    layer.adapt(train)
    model.add(layer)
    model.compile(optimizer=usual_optimizer(rate, batch_size), loss=loss_of(layer))
    return model


def count_steps(num_samples: int, batch_size: int, epochs: int) -> int:
    """Number of steps of a training."""
    return math.ceil(num_samples / batch_size) * epochs


def _make_sampler(settings: SamplerSettings, seed: int) -> Sampler:
    if settings.name == "all":
        return AllNeurons()
    if settings.name == "lsh":
        schedule: dict[str, Any] = {}
        if settings.rebuild_every is not None:
            schedule["rebuild_every"] = settings.rebuild_every
        family = _make_hash(settings, seed)
        return LshSampler(hash=family, active=settings.active, seed=seed, **schedule)
    kind = UniformSampler if settings.name == "uniform" else LogUniformSampler
    if settings.num_sampled is None:
        return kind(seed=seed)
    return kind(num_sampled=settings.num_sampled, seed=seed)


def _make_hash(settings: SamplerSettings, seed: int) -> HashFamily:
    tables: dict[str, Any] = {} if settings.tables is None else {"tables": settings.tables}
    if settings.hash == "minhash":
        return MinHash(address_bits=settings.bits, seed=seed, **tables)
    if settings.hash not in ("wta", "dwta"):
        directions = LearnedHash if settings.hash == "learned" else SimHash
        return directions(bits=settings.bits, seed=seed, **tables)
    family = WTA if settings.hash == "wta" else DWTA
    if settings.bits is None:
        return family(seed=seed, **tables)
    bins = math.ceil(settings.bits / _BITS_PER_BIN)
    return family(bins=bins, address_bits=settings.bits, seed=seed, **tables)


def _learning_rate(
    settings: NetworkSettings, num_steps: int
) -> float | keras.optimizers.schedules.LearningRateSchedule:
    schedules = keras.optimizers.schedules
    if settings.schedule == "linear":
        return schedules.PolynomialDecay(settings.learning_rate, num_steps, end_learning_rate=0.0)
    if settings.schedule == "cosine":
        return schedules.CosineDecay(settings.learning_rate, num_steps)
    return settings.learning_rate
