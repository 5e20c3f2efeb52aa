"""`dslide synth`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tf_dslide.cli import console, options, outputs
from tf_dslide.cli.errors import reporting

if TYPE_CHECKING:
    from tf_dslide.data import Dataset

_CUSTOM = "custom"
_SHAPE = "Shape of custom data"
_DEFAULT_SAMPLES = 10_000
_DEFAULT_NNZ, _DEFAULT_LABELS_PER_SAMPLE = 30.0, 3.0

Preset = Annotated[
    str,
    typer.Argument(
        show_default=False,
        help="amazon-670k, delicious-200k, text8 or small, as the known data sets are; or custom, "
        "with --features and --labels.",
    ),
]
Out = Annotated[
    Path, typer.Argument(show_default=False, help="The file to write; gzipped if it ends in .gz.")
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of samples; by default as many as the original has, or for custom "
        f"{_DEFAULT_SAMPLES:,}.",
    ),
]
Split = Annotated[
    Literal["train", "test"],
    typer.Option(help="The two splits share their structure and no sample."),
]
Features = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Width of the features.", rich_help_panel=_SHAPE),
]
Labels = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of labels.", rich_help_panel=_SHAPE)
]
Nnz = Annotated[
    float | None,
    typer.Option(
        metavar="MEAN",
        help=f"Non-zero features a sample; {_DEFAULT_NNZ:g} by default.",
        rich_help_panel=_SHAPE,
    ),
]
LabelsPerSample = Annotated[
    float | None,
    typer.Option(
        metavar="MEAN",
        help=f"Labels a sample; {_DEFAULT_LABELS_PER_SAMPLE:g} by default.",
        rich_help_panel=_SHAPE,
    ),
]


@reporting
def synth(
    preset: Preset,
    out: Out,
    samples: Samples = None,
    split: Split = "train",
    seed: options.Seed = 0,
    features: Features = None,
    labels: Labels = None,
    nnz: Nnz = None,
    labels_per_sample: LabelsPerSample = None,
    debug: options.Debug = False,
) -> None:
    """Write learnable synthetic data with a power law of labels, in the XMC repository's format."""
    shape = {
        "--features": features,
        "--labels": labels,
        "--nnz": nnz,
        "--labels-per-sample": labels_per_sample,
    }
    outputs.require_writable(out)
    with console.status(f"Making {preset} data"):
        if preset == _CUSTOM:
            data = _custom(shape, samples or _DEFAULT_SAMPLES, split, seed)
        else:
            data = _preset(preset, shape, samples, split, seed)
    from tf_dslide.data import write_xmc

    with console.status(f"Writing {out}"):
        write_xmc(out, data)
    console.output().print(
        f"Wrote {len(data):,} samples, {data.num_features:,} features and {data.num_labels:,} "
        f"labels to {out}"
    )


def _preset(
    name: str,
    shape: dict[str, float | None],
    samples: int | None,
    split: Literal["train", "test"],
    seed: int,
) -> "Dataset":
    from tf_dslide.data import PRESETS, make_preset

    if name not in PRESETS:
        known = ", ".join([*PRESETS, _CUSTOM])
        raise typer.BadParameter(f"{name!r} is none of {known}", param_hint=["PRESET"])
    for option, value in shape.items():
        if value is not None:
            raise typer.BadParameter(
                f"{value} would be ignored: {name} has a shape of its own; use {_CUSTOM}",
                param_hint=[option],
            )
    return make_preset(name, split=split, num_samples=samples, seed=seed)


def _custom(
    shape: dict[str, float | None], samples: int, split: Literal["train", "test"], seed: int
) -> "Dataset":
    from tf_dslide.data import TEST_START, make_synthetic

    widths = []
    for option in ("--features", "--labels"):
        width = shape[option]
        if width is None:
            raise typer.BadParameter(f"{_CUSTOM} data need it", param_hint=[option])
        widths.append(int(width))
    num_features, num_labels = widths
    data = make_synthetic(
        samples,
        num_features,
        num_labels,
        start=0 if split == "train" else TEST_START,
        features_per_sample=_mean(shape, "--nnz", _DEFAULT_NNZ, num_features),
        labels_per_sample=_mean(
            shape, "--labels-per-sample", _DEFAULT_LABELS_PER_SAMPLE, num_labels
        ),
        seed=seed,
    )
    return replace(data, name=f"{data.name}-{split}")


def _mean(shape: dict[str, float | None], option: str, default: float, width: int) -> float:
    value = shape[option]
    if value is None:
        return min(default, width)
    if not 1 <= value <= width:
        raise typer.BadParameter(f"{value} does not lie between 1 and {width}", param_hint=[option])
    return value
