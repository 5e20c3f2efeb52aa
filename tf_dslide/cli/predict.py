"""`dslide predict`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from tf_dslide import _atomic
from tf_dslide.cli import console, inputs, options, outputs
from tf_dslide.cli.errors import CommandError, reporting

if TYPE_CHECKING:
    import numpy as np

    from tf_dslide.cli.models import Classifier

    Best = Iterator[tuple[np.ndarray, np.ndarray]]

K = Annotated[int, typer.Option("-k", min=1, metavar="K", help="Labels per sample.")]
Hashed = Annotated[
    bool,
    typer.Option(
        "--hashed",
        help="Look only at labels that the model's hash tables find: faster, but may miss some.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Where to write; standard output by default."),
]
Format = Annotated[
    Literal["text", "npz"] | None,
    typer.Option(
        help="text: a line `label:score label:score ...` per sample, separated by tabs where "
        "labels have names. npz: a SciPy CSR matrix (samples, labels) of scores, the default if "
        "FILE ends in .npz.",
    ),
]
Numbers = Annotated[
    bool, typer.Option("--numbers", help="Write labels as numbers even where they have names.")
]


@reporting
def predict(
    model: options.Model,
    data: options.Data,
    k: K = 5,
    hashed: Hashed = False,
    out: Out = None,
    format: Format = None,
    labels: options.Labels = None,
    label_names: options.LabelNames = None,
    numbers: Numbers = False,
    num_features: options.NumFeatures = None,
    num_labels: options.NumLabels = None,
    batch_size: options.BatchSize = 1024,
    threads: options.Threads = None,
    debug: options.Debug = False,
) -> None:
    """Write the best labels of each sample, the best first, with their scores (logits).

    Names of labels come from --label-names, or from the file that `dslide train` left beside the
    model.
    """
    format = format or ("npz" if out is not None and out.suffix == ".npz" else "text")
    if format == "npz" and out is None:
        raise typer.BadParameter("npz is binary: it needs --out FILE", param_hint=["--format"])
    inputs.require_file(model)
    source = inputs.Source(data, labels, num_features, num_labels)
    names_file = None if numbers else _names_file(model, label_names)
    if out is not None:
        outputs.require_writable(out)
    from tf_dslide.cli import tensorflow_setup

    tensorflow_setup.start(threads)
    from tf_dslide.cli import models, scoring

    classifier = models.load_classifier(model)
    if hashed:
        _require_tables(classifier)
    names = None
    if names_file is not None:
        names = inputs.read_label_names(names_file, classifier.num_labels, str(model))
    samples = source.read("test")
    inputs.require_size("features", data, samples.num_features, str(model), classifier.num_features)
    how = {"exact": False} if hashed else {}
    best = scoring.best_labels(classifier.hidden, classifier.layer, samples, k, batch_size, **how)
    if out is None:
        _write_text(best, names, sys.stdout)
        return
    with _atomic.new_file(out) as unfinished:
        if format == "npz":
            _write_csr(_with_progress(best, len(samples)), classifier.num_labels, unfinished)
        else:
            with unfinished.open("w", encoding="utf-8") as file:
                _write_text(_with_progress(best, len(samples)), names, file)


def _names_file(model: Path, given: Path | None) -> Path | None:
    """The file of label names: the one given, or the one beside the model, if there is one."""
    if given is not None:
        inputs.require_file(given)
        return given
    beside = outputs.label_names_file(model)
    return beside if beside.exists() else None


def _require_tables(classifier: "Classifier") -> None:
    from tf_dslide.samplers import LshSampler

    chooser = getattr(classifier.layer, "sampler", classifier.layer)
    if not isinstance(chooser, LshSampler):
        raise CommandError(
            "--hashed needs a model trained with --sampler lsh; "
            f"{classifier.path} has a {type(chooser).__name__}"
        )


def _with_progress(best: "Best", num_samples: int) -> "Best":
    with console.progress(console.messages()) as bar:
        task = bar.add_task("predicting", total=num_samples, note="")
        for found, scores in best:
            yield found, scores
            bar.update(task, advance=len(found))


def _write_text(best: "Best", names: tuple[str, ...] | None, file: TextIO) -> None:
    # Names may hold spaces.
    separator = " " if names is None else "\t"
    for found, scores in best:
        for row, row_scores in zip(found.tolist(), scores.tolist(), strict=True):
            pairs = (
                f"{label if names is None else names[label]}:{score:.6g}"
                for label, score in zip(row, row_scores, strict=True)
                if label >= 0
            )
            file.write(separator.join(pairs) + "\n")
        file.flush()


def _write_csr(best: "Best", num_labels: int, path: Path) -> None:
    import numpy as np
    from scipy import sparse

    blocks = []
    for found, scores in best:
        there = found >= 0
        row_ends = np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        shape = (len(found), num_labels)
        block = sparse.csr_matrix((scores[there], found[there], row_ends), shape)
        block.sort_indices()
        blocks.append(block)
    with path.open("wb") as file:
        sparse.save_npz(file, sparse.vstack(blocks, format="csr"))
