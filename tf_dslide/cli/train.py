"""`dslide train`."""

import importlib.util
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from tf_dslide.cli import options, outputs, settings
from tf_dslide.cli.errors import CommandError, reporting
from tf_dslide.cli.inputs import Source, require_file

_NETWORK, _NEURONS, _TRAINING, _OUTPUT = "Network", "Active neurons", "Training", "Output"
_VALIDATION_SPLIT = 0.05


def _option(*names: str, panel: str, help: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


Test = Annotated[
    str | None,
    _option(panel=options.DATA, metavar="DATA", help="Data to score on after each epoch."),
]
TestLabels = Annotated[
    Path | None,
    _option(panel=options.DATA, metavar="FILE", help="Labels of --test, as --labels for DATA."),
]
ValidationSplit = Annotated[
    float | None,
    _option(
        panel=options.DATA,
        metavar="SHARE",
        help="Without --test: the share of DATA to hold out and score on, 0 for none; "
        f"{_VALIDATION_SPLIT} by default.",
    ),
]
Hidden = Annotated[
    list[int],
    _option(
        panel=_NETWORK,
        min=0,
        metavar="N",
        help="Width of the hidden layer; repeat for several. 0 for none: a DSlideLinear, with "
        "weights for words and labels that occur together, which is best for bags of words.",
    ),
]
Dropout = Annotated[
    float,
    _option(panel=_NETWORK, metavar="P", help="Share of the hidden neurons to drop in training."),
]
Sampler = Annotated[
    settings.SamplerName | None,
    _option(
        "--sampler",
        panel=_NEURONS,
        help="Which output neurons take part in a step: those that hashing finds for each "
        "sample, those of a sampled softmax, or all.",
    ),
]
Active = Annotated[
    int | None,
    _option(
        panel=_NEURONS,
        min=1,
        metavar="N",
        help="lsh: active neurons per sample; by default a tenth of all, 64 to 3,000.",
    ),
]
Hash = Annotated[
    settings.HashName | None,
    _option(panel=_NEURONS, help="lsh: family of hash functions; simhash by default."),
]
Bits = Annotated[
    int | None,
    _option(
        panel=_NEURONS,
        min=1,
        max=24,
        metavar="K",
        help="lsh: bits of a hash code; by default for buckets of about 64 neurons.",
    ),
]
Tables = Annotated[
    int | None,
    _option(panel=_NEURONS, min=1, metavar="L", help="lsh: hash tables; 50 by default."),
]
RebuildEvery = Annotated[
    int | None,
    _option(
        panel=_NEURONS,
        min=1,
        metavar="STEPS",
        help="lsh: steps to the first rebuild of the tables, 25 by default; later "
        "rebuilds are further and further apart.",
    ),
]
NumSampled = Annotated[
    int | None,
    _option(
        panel=_NEURONS,
        min=1,
        metavar="N",
        help="uniform, log_uniform: neurons drawn per step; 1,024 by default.",
    ),
]
Epochs = Annotated[
    int | None,
    _option(
        panel=_TRAINING,
        min=1,
        metavar="N",
        help="Passes over the training data; 5 by default, 2 without a hidden layer.",
    ),
]
LearningRate = Annotated[
    float | None,
    _option(
        panel=_TRAINING,
        metavar="RATE",
        help="Learning rate of the first step; 0.005 by default (SparseAdam), 1 without a hidden "
        "layer (SparseAdagrad).",
    ),
]
Schedule = Annotated[
    settings.ScheduleName,
    _option(
        panel=_TRAINING, help="How the learning rate falls: to 0 at the end, unless it is constant."
    ),
]
WeightDecay = Annotated[
    float,
    _option(
        panel=_TRAINING,
        metavar="RATE",
        help="Decoupled weight decay of the rows that a step updates.",
    ),
]
Out = Annotated[
    Path,
    _option(
        panel=_OUTPUT,
        metavar="FILE",
        help="Where to save the model (.keras). An earlier file stays until it is complete.",
    ),
]
Log = Annotated[
    Path | None,
    _option(panel=_OUTPUT, metavar="FILE", help="Append one line of JSON per epoch to this file."),
]
Checkpoint = Annotated[
    Path | None,
    _option(
        panel=_OUTPUT,
        metavar="DIR",
        help="Save a checkpoint in this folder after each epoch, and keep the last two.",
    ),
]
Resume = Annotated[
    bool,
    _option(
        "--resume",
        panel=_OUTPUT,
        help="Continue exactly from the last checkpoint in --checkpoint; start if there is none.",
    ),
]


@reporting
def train(
    data: options.Data,
    test: Test = None,
    labels: options.Labels = None,
    test_labels: TestLabels = None,
    label_names: options.LabelNames = None,
    num_features: options.NumFeatures = None,
    num_labels: options.NumLabels = None,
    cache: options.Cache = None,
    validation_split: ValidationSplit = None,
    hidden: Hidden = [256],  # noqa: B006 - Typer wants the default here and copies it
    dropout: Dropout = 0.0,
    sampler: Sampler = None,
    active: Active = None,
    hash: Hash = None,
    bits: Bits = None,
    tables: Tables = None,
    rebuild_every: RebuildEvery = None,
    num_sampled: NumSampled = None,
    epochs: Epochs = None,
    batch_size: options.BatchSize = 256,
    learning_rate: LearningRate = None,
    schedule: Schedule = "linear",
    weight_decay: WeightDecay = 0.0,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    out: Out = Path("model.keras"),
    log: Log = None,
    checkpoint: Checkpoint = None,
    resume: Resume = False,
    debug: options.Debug = False,
) -> None:
    """Train a classifier on sparse data and save it.

    Prints the loss, and P@k, nDCG@k and PSP@k on held-out data, after each epoch. These figures
    rank all labels, exactly. Ctrl-C ends the training and saves the model so far.

    A training with --checkpoint that was killed continues, as if nothing had happened, when the
    same command is given again with --resume.
    """
    linear = 0 in hidden
    if learning_rate is None:
        learning_rate = 1.0 if linear else 5e-3
    options.require_trainable(dropout, learning_rate, weight_decay)
    source = Source(data, labels, num_features, num_labels, cache)
    chosen = settings.SamplerSettings(
        sampler or "lsh", hash, bits, tables, active, rebuild_every, num_sampled
    )
    if linear:
        given = asdict(chosen) | {"name": None, "sampler": sampler}
        _check_linear(hidden, given | {"dropout": dropout, "weight_decay": weight_decay})
    else:
        _check_sampler(chosen)
    checked = settings.TrainSettings(
        data=source,
        test=None if test is None else replace(source, text=test, labels=test_labels),
        validation_split=_validation_share(validation_split, test, test_labels),
        label_names=label_names,
        network=settings.NetworkSettings(
            hidden=() if linear else tuple(hidden),
            dropout=dropout,
            sampler=None if linear else chosen,
            learning_rate=learning_rate,
            schedule=schedule,
            weight_decay=weight_decay,
            seed=seed,
        ),
        epochs=epochs or (2 if linear else 5),
        batch_size=batch_size,
        threads=threads,
        out=out,
        log=log,
        checkpoint=checkpoint,
        resume=resume,
    )
    _check_files(checked)
    _run(checked)


def _run(checked: settings.TrainSettings) -> None:
    from tf_dslide.cli import tensorflow_setup

    tensorflow_setup.start(checked.threads)
    from tf_dslide.cli.training import Training

    Training(checked).run()


def _check_linear(hidden: list[int], given: dict[str, Any]) -> None:
    """Refuses options that belong to a network, where there is no hidden layer."""
    options.require(
        hidden == [0], "--hidden", hidden, "either 0 alone, for none, or widths from 1 on"
    )
    for name, value in given.items():
        if value:
            raise typer.BadParameter(
                f"{value!r} has no effect with --hidden 0; it belongs to networks with a hidden "
                "layer",
                param_hint=[f"--{name.replace('_', '-')}"],
            )


def _check_sampler(chosen: settings.SamplerSettings) -> None:
    """Refuses options that the chosen sampler would ignore."""
    belongs: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("hash", "bits", "tables", "active", "rebuild_every"), ("lsh",)
    )
    belongs["num_sampled"] = ("uniform", "log_uniform")
    for name, samplers in belongs.items():
        value = getattr(chosen, name)
        if value is not None and chosen.name not in samplers:
            raise typer.BadParameter(
                f"{value!r} has no effect with --sampler {chosen.name}; it belongs to --sampler "
                f"{' or '.join(samplers)}",
                param_hint=[f"--{name.replace('_', '-')}"],
            )


def _validation_share(share: float | None, test: str | None, test_labels: Path | None) -> float:
    if test is None and test_labels is not None:
        raise typer.BadParameter("it needs --test DATA", param_hint=["--test-labels"])
    if share is None:
        return 0.0 if test is not None else _VALIDATION_SPLIT
    if test is not None:
        raise typer.BadParameter(
            "nothing is held out with --test: give one of the two",
            param_hint=["--validation-split"],
        )
    options.require(0 <= share < 1, "--validation-split", share, "a share from 0 to below 1")
    return share


def _check_files(checked: settings.TrainSettings) -> None:
    """Finds out before the work whether its result can be kept."""
    if checked.resume and checked.checkpoint is None:
        raise typer.BadParameter("it needs --checkpoint DIR", param_hint=["--resume"])
    if checked.out.suffix != ".keras":
        raise typer.BadParameter(f"{checked.out} does not end in .keras", param_hint=["--out"])
    outputs.require_writable(checked.out)
    if checked.log is not None:
        outputs.require_writable(checked.log)
    if checked.label_names is not None:
        require_file(checked.label_names)
    outputs.require_no_stale_names(checked.out, checked.label_names)
    if checked.checkpoint is not None:
        _check_checkpoints(checked.checkpoint, checked.resume)


def _check_checkpoints(folder: Path, resume: bool) -> None:
    if importlib.util.find_spec("safetensors") is None:
        raise CommandError(
            "--checkpoint needs the package safetensors: pip install 'tf-dslide[mpi]'"
        )
    if folder.exists() and not folder.is_dir():
        raise CommandError(f"{folder} is not a folder")
    if not resume and any(folder.glob("epoch-*")):
        raise CommandError(
            f"{folder} holds checkpoints of an earlier training: add --resume to go on with it, or "
            "give another folder"
        )
    outputs.require_folder(folder)
