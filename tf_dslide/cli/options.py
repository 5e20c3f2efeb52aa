"""Options that several commands share, each defined once."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

DATA = "Data"

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="A file in the format of the Extreme Classification Repository, plain or gzipped, or "
        "synth:NAME[:SAMPLES] for synthetic data (see `dslide synth`).",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", show_default=False, help="A .keras file written by `dslide train`."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="Labels of DATA, if they are in another file (a header `N L`, lines `label:1`).",
        rich_help_panel=DATA,
    ),
]
NumFeatures = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of features, for files without a header.",
        rich_help_panel=DATA,
    ),
]
NumLabels = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of labels, for files without a header.",
        rich_help_panel=DATA,
    ),
]
LabelNames = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Names of the labels, one per line.", rich_help_panel=DATA),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep parsed files in this folder, and map them into memory from there next time.",
        rich_help_panel=DATA,
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Samples per step.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of threads; one for each core by default."),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0,
        max=2**31 - 1,
        metavar="N",
        help="Seed of everything random: the same seed, the same result.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def require(holds: bool, option: str, value: Any, expected: str) -> None:
    """Refuses the value of an option."""
    if not holds:
        raise typer.BadParameter(f"{value!r} is not {expected}", param_hint=[option])


def require_trainable(dropout: float, learning_rate: float, weight_decay: float) -> None:
    """Refuses values that nothing can be trained with."""
    require(0 <= dropout < 1, "--dropout", dropout, "a share from 0 to below 1")
    require(0 < learning_rate < math.inf, "--learning-rate", learning_rate, "a positive number")
    require(0 <= weight_decay < math.inf, "--weight-decay", weight_decay, "0 or more")
