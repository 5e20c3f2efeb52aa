"""`dslide tune`."""

import math
from typing import Annotated

import typer

from tf_dslide.cli import options, settings
from tf_dslide.cli.errors import reporting
from tf_dslide.cli.inputs import Source
from tf_dslide.cli.train import Dropout, Hidden, WeightDecay

Seconds = Annotated[
    float, typer.Option(metavar="S", help="Time for the whole search, reading the data left out.")
]
HeldOut = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", help="Samples to hold out and score on; a tenth of DATA if it has less."
    ),
]
LearningRate = Annotated[
    float, typer.Option(metavar="RATE", help="Of the first step; falls to 0 in each trial.")
]


@reporting
def tune(
    data: options.Data,
    labels: options.Labels = None,
    num_features: options.NumFeatures = None,
    num_labels: options.NumLabels = None,
    cache: options.Cache = None,
    seconds: Seconds = 600.0,
    held_out: HeldOut = 4096,
    hidden: Hidden = [256],  # noqa: B006 - Typer wants the default here and copies it
    dropout: Dropout = 0.0,
    batch_size: options.BatchSize = 256,
    learning_rate: LearningRate = 1e-2,
    weight_decay: WeightDecay = 0.0,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Find out which sampler, hash functions, tables and active set suit some data.

    Trains the network that `dslide train` trains again and again, each time from the beginning and
    for the same time, and scores it on samples held out. One setting is varied after the other; a
    choice is taken if it is better by two standard errors of the difference. Prints each choice
    with its reason, and the `dslide train` command that uses what was found.

    Time decides, so that two searches on one machine may end differently where choices are nearly
    equal.
    """
    options.require(0 < seconds < math.inf, "--seconds", seconds, "a positive number")
    options.require(
        0 not in hidden, "--hidden", hidden, "widths from 1 on: only a network is tuned"
    )
    options.require_trainable(dropout, learning_rate, weight_decay)
    checked = settings.TuneSettings(
        data=Source(data, labels, num_features, num_labels, cache),
        network=settings.NetworkSettings(
            hidden=tuple(hidden),
            dropout=dropout,
            sampler=settings.SamplerSettings("lsh"),
            learning_rate=learning_rate,
            schedule="constant",  # falls with the time, not with the steps
            weight_decay=weight_decay,
            seed=seed,
        ),
        batch_size=batch_size,
        seconds=seconds,
        held_out=held_out,
        threads=threads,
        as_json=json,
    )
    from tf_dslide.cli import tensorflow_setup

    tensorflow_setup.start(threads)
    from tf_dslide.cli.tuning import Tuning

    Tuning(checked).run()
