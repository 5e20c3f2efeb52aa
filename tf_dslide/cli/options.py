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
    typer.Argument(metavar="MODEL", show_default=False, help="A .keras file of `dslide train`."),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="Labels of DATA where they are a file of their own (a header `N L`, lines `label:1`).",
        rich_help_panel=DATA,
    ),
]
NumFeatures = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Width of the features in files without header.",
        rich_help_panel=DATA,
    ),
]
NumLabels = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Number of labels in files without header.", rich_help_panel=DATA
    ),
]
LabelNames = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Readable names of the labels, one a line.", rich_help_panel=DATA
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Keep what is read of the files in this folder, and next time map it from there.",
        rich_help_panel=DATA,
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, metavar="N", help="Samples a step.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads to work with; all cores by default."),
]
Seed = Annotated[
    int,
    typer.Option(min=0, max=2**31 - 1, metavar="N", help="One seed gives one result."),
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
