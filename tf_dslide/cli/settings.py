"""What `dslide train` was told, checked. Light, so that checking needs no TensorFlow."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tf_dslide.cli.inputs import Source

SamplerName = Literal["lsh", "uniform", "log_uniform", "all"]
HashName = Literal["simhash", "wta", "dwta", "minhash", "learned"]
ScheduleName = Literal["linear", "cosine", "constant"]


@dataclass(frozen=True)
class SamplerSettings:
    """What chooses the neurons of a training step; `None` leaves a choice to the sampler.

    Attributes:
        name: The kind of sampler.
        hash: Family of hash functions, of `lsh` as are the next four.
        bits: Bits of a hash code.
        tables: Number of hash tables.
        active: Neurons active for a sample.
        rebuild_every: Steps until the tables are first rebuilt.
        num_sampled: Neurons drawn a step, of `uniform` and `log_uniform`.
    """

    name: SamplerName
    hash: HashName | None = None
    bits: int | None = None
    tables: int | None = None
    active: int | None = None
    rebuild_every: int | None = None
    num_sampled: int | None = None


@dataclass(frozen=True)
class NetworkSettings:
    """The network and how it learns.

    Attributes:
        hidden: Widths of the hidden layers. Without any, features vote for labels directly.
        dropout: Share of the hidden neurons to drop in training.
        sampler: For the output layer; `None` without hidden layers.
        learning_rate: Of the first step.
        schedule: How it falls.
        weight_decay: Decoupled, of the rows touched.
        seed: Decides weights, hash functions, draws and the order of the data.
    """

    hidden: tuple[int, ...]
    dropout: float
    sampler: SamplerSettings | None
    learning_rate: float
    schedule: ScheduleName
    weight_decay: float
    seed: int


@dataclass(frozen=True)
class TrainSettings:
    """A training, from data to file.

    Attributes:
        data: What to train on.
        test: What to score on after each epoch.
        validation_split: Share of `data` to hold out and score on instead.
        label_names: A file of names.
        network: What to train.
        epochs: Passes over the data.
        batch_size: Samples a step.
        threads: Threads to work with; `None` for all cores.
        out: Where to save the model.
        log: Where to append a line for each epoch.
        checkpoint: A folder to save a checkpoint in after each epoch.
        resume: Whether to go on from the last one there, if there is one.
    """

    data: Source
    test: Source | None
    validation_split: float
    label_names: Path | None
    network: NetworkSettings
    epochs: int
    batch_size: int
    threads: int | None
    out: Path
    log: Path | None
    checkpoint: Path | None = None
    resume: bool = False


@dataclass(frozen=True)
class TuneSettings:
    """A search for settings.

    Attributes:
        data: What to train on and, a part of it, to score on.
        network: The network, with the settings that the search begins with.
        batch_size: Samples a step.
        seconds: Time for the whole search.
        held_out: Samples to score on, at most; a tenth of the data if that is less.
        threads: Threads to work with; `None` for all cores.
        as_json: Whether to print JSON.
    """

    data: Source
    network: NetworkSettings
    batch_size: int
    seconds: float
    held_out: int
    threads: int | None
    as_json: bool
