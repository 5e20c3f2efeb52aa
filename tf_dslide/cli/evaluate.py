"""`dslide evaluate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from tf_dslide.cli import console, options
from tf_dslide.cli.errors import reporting
from tf_dslide.cli.inputs import Source, require_file, require_size

if TYPE_CHECKING:
    from tf_dslide.cli.models import Classifier

_FAMILIES = {"P": "precision", "nDCG": "ndcg", "PSP": "psp"}

Train = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Take PSP's propensities from the label counts of these data, not the model's.",
        rich_help_panel=options.DATA,
    ),
]
TrainLabels = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Labels of --train, as --labels for DATA.",
        rich_help_panel=options.DATA,
    ),
]


@reporting
def evaluate(
    model: options.Model,
    data: options.Data,
    labels: options.Labels = None,
    train: Train = None,
    train_labels: TrainLabels = None,
    num_features: options.NumFeatures = None,
    num_labels: options.NumLabels = None,
    batch_size: options.BatchSize = 1024,
    threads: options.Threads = None,
    json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Score a model on data: P@k, nDCG@k, PSP@k and the loss, all exact.

    PSP needs to know how rare each label was in training: from --train, or else from the
    counts that `dslide train` stored in the model.
    """
    if train is None and train_labels is not None:
        raise typer.BadParameter("it needs --train DATA", param_hint=["--train-labels"])
    require_file(model)
    source = Source(data, labels, num_features, num_labels)
    counted = None if train is None else Source(train, train_labels, num_features, num_labels)
    from tf_dslide.cli import tensorflow_setup

    tensorflow_setup.start(threads)
    from tf_dslide.cli import models

    classifier = models.load_classifier(model)
    propensity, origin = _propensity(classifier, counted)
    report = _score(classifier, source, propensity, batch_size)
    report["propensities"] = origin
    if json:
        console.print_json(report)
    else:
        _print_report(report)


def _propensity(
    classifier: "Classifier", counted: Source | None
) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of the PSP metrics, and where they come from."""
    from tf_dslide.cli import models

    if counted is None:
        stored = models.stored_label_counts(classifier.path)
        return stored, None if stored is None else f"label counts stored in {classifier.path}"
    data = counted.read("train")
    require_size(
        "labels", counted.text, data.num_labels, str(classifier.path), classifier.num_labels
    )
    arguments = {"label_counts": data.label_counts, "num_samples": data.num_samples}
    return arguments, f"label counts of {counted.text}"


def _score(
    classifier: "Classifier", source: Source, propensity: dict[str, Any] | None, batch_size: int
) -> dict[str, Any]:
    from tf_dslide.cli.callbacks import Pace, ScoringProgress
    from tf_dslide.cli.scoring import TITLES, make_scorer, ranking_metrics
    from tf_dslide.data import batches

    data = source.read("test")
    owner = str(classifier.path)
    require_size("features", source.text, data.num_features, owner, classifier.num_features)
    require_size("labels", source.text, data.num_labels, owner, classifier.num_labels)
    scorer = make_scorer(classifier.model, ranking_metrics(propensity), with_loss=True)
    pace = Pace(data.num_samples, batch_size)
    with console.progress(console.messages()) as bar:
        figures = scorer.evaluate(
            batches(data, batch_size),
            callbacks=[ScoringProgress(bar, pace)],
            return_dict=True,
            verbose=0,
        )
    return {
        "model": owner,
        "data": source.text,
        "samples": data.num_samples,
        "loss": float(figures["loss"]),
        **{name: float(figures[name]) for name in TITLES if name in figures},
        "seconds": pace.seconds,
        "samples_per_second": pace.samples_per_second,
    }


def _print_report(report: dict[str, Any]) -> None:
    from tf_dslide.cli.scoring import PLACES

    table = Table("%", *(f"@{k}" for k in PLACES))
    for title, family in _FAMILIES.items():
        names = [f"{family}_at_{k}" for k in PLACES]
        if names[0] in report:
            table.add_row(title, *(f"{100 * report[name]:.2f}" for name in names))
    printer = console.output()
    printer.print(table)
    printer.print(
        f"loss {report['loss']:.4f}; {report['samples']:,} samples, "
        f"{report['samples_per_second']:,.0f} a second"
    )
    printer.print(
        f"PSP: propensities from the {report['propensities']}"
        if report["propensities"]
        else "PSP is left out: the model stores no label counts; give --train DATA"
    )
