"""The work of `dslide train`. Imports TensorFlow: the command imports it when all is checked."""

import json
import time
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import typer
from rich.progress import Progress

from tf_dslide import _atomic
from tf_dslide._version import __version__
from tf_dslide.checkpoints import Checkpoint, latest, load_checkpoint
from tf_dslide.checkpoints.manifest import Manifest
from tf_dslide.cli import console, inputs, outputs
from tf_dslide.cli.callbacks import (
    EpochReports,
    Pace,
    ScoringProgress,
    TrainingProgress,
    diverged,
)
from tf_dslide.cli.errors import INTERRUPTED, CommandError, describe
from tf_dslide.cli.network import build_network, count_steps
from tf_dslide.cli.scoring import TITLES, make_scorer, ranking_metrics
from tf_dslide.cli.settings import TrainSettings
from tf_dslide.data import Dataset, batches

_NDCG_PLACES = (5,)


class Training:
    """One training, from data to file.

    Args:
        settings: What to do.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self._console = console.output()
        self._log = RunLog(settings.log)

    def run(self) -> None:
        """Reads the data, trains, reports each epoch, and saves the model.

        Raises:
            typer.Exit: With status 130 after Ctrl-C, when the model so far is saved.
        """
        train, test, names = _read(self._settings)
        steps = count_steps(len(train), self._settings.batch_size, self._settings.epochs)
        with console.status("Building the network"):
            model = build_network(self._settings.network, train, steps, self._settings.batch_size)
        checkpoints = None
        if self._settings.checkpoint is not None:
            checkpoints = Checkpoints(self._settings, train)
        done = checkpoints.resume(model) if checkpoints else 0
        self._announce(train, test, model, done)
        propensity = {"label_counts": train.label_counts, "num_samples": len(train)}
        metrics = ranking_metrics(propensity, _NDCG_PLACES)
        interrupted = self._fit(model, train, test, metrics, checkpoints)
        taken = int(model.optimizer.iterations.numpy())
        if not taken:
            self._console.print("Interrupted before the first step: no model was saved")
            raise typer.Exit(INTERRUPTED)
        _save(model, metrics, self._settings.out, names)
        self._log.add("saved", model=str(self._settings.out), steps=taken)
        if interrupted:
            self._console.print(
                f"Interrupted after {taken:,} of {steps:,} steps: the model so far is saved in "
                f"{self._settings.out}"
            )
            raise typer.Exit(INTERRUPTED)
        self._console.print(f"Saved the model in {self._settings.out}")

    def _announce(
        self, train: Dataset, test: Dataset | None, model: keras.Model, done: int
    ) -> None:
        settings = self._settings
        scored = f", scored on {len(test):,}" if test is not None else ""
        self._console.print(
            f"{len(train):,} samples{scored}; {train.num_features:,} features, "
            f"{train.num_labels:,} labels; {model.count_params():,} weights"
        )
        if done:
            self._console.print(
                f"Resumed from {settings.checkpoint}: {done} of {settings.epochs} epochs are done"
            )
        titles = [TITLES[name] for name in _scored_names()] if test is not None else []
        columns = ["epoch", "loss", *titles, "seconds", "samples/s"]
        self._console.print(_row(columns))
        self._log.add(
            "start",
            version=__version__,
            data=settings.data.text,
            test=settings.test.text if settings.test else None,
            samples=len(train),
            test_samples=len(test) if test is not None else 0,
            features=train.num_features,
            labels=train.num_labels,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            threads=settings.threads,
            epochs_done=done,
            **asdict(settings.network),
        )

    def _fit(
        self,
        model: keras.Model,
        train: Dataset,
        test: Dataset | None,
        metrics: list[keras.metrics.Metric],
        checkpoints: "Checkpoints | None",
    ) -> bool:
        """Trains; returns whether Ctrl-C ended it."""
        settings = self._settings
        pace = Pace(len(train), settings.batch_size)
        done = checkpoints.epochs_done if checkpoints else 0
        data = batches(
            train, settings.batch_size, shuffle=True, seed=settings.network.seed, first_pass=done
        )
        with console.progress(self._console) as bar:
            reports = EpochReports(
                _scorer(model, test, metrics, settings.batch_size, bar),
                lambda *figures: self._report(pace, *figures),
            )
            callbacks = [TrainingProgress(bar, pace, done), reports]
            if checkpoints:
                callbacks.append(checkpoints.callback)
            try:
                # The data shuffle themselves; Keras warns if told to as well.
                model.fit(
                    data,
                    initial_epoch=done,
                    epochs=settings.epochs,
                    callbacks=callbacks,
                    shuffle=False,
                    verbose=0,
                )
            except KeyboardInterrupt:
                return True
            except tf.errors.InvalidArgumentError as error:
                # The data are finite, so what is not comes from the weights.
                if "finite" in error.message:
                    raise diverged(describe(error)) from error
                raise
        return False

    def _report(self, pace: Pace, epoch: int, loss: float, figures: dict[str, float]) -> None:
        shares = [f"{100 * figures[name]:.2f}" for name in _scored_names() if name in figures]
        rate = pace.samples_per_second
        self._console.print(
            _row([str(epoch), f"{loss:.4f}", *shares, f"{pace.seconds:.1f}", f"{rate:,.0f}"])
        )
        self._log.add(
            "epoch",
            epoch=epoch,
            loss=loss,
            **figures,
            seconds=pace.seconds,
            samples_per_second=rate,
        )


class Checkpoints:
    """Those of one training.

    Args:
        settings: The training.
        train: Its data, without what is held out.

    Attributes:
        callback: Saves one after each epoch.
        epochs_done: Those of the checkpoint that the training goes on from.
    """

    def __init__(self, settings: TrainSettings, train: Dataset) -> None:
        assert settings.checkpoint is not None
        self._settings, self._folder = settings, settings.checkpoint
        notes = {"training": _what_decides(settings, train)}
        self.callback = Checkpoint(self._folder, notes=notes)
        self.epochs_done = 0

    def resume(self, model: keras.Model) -> int:
        """Loads the last checkpoint, if that is wanted and there is one.

        Returns:
            The number of epochs done.

        Raises:
            CommandError: It is of a training with other settings or data.
            CheckpointError: It cannot be loaded.
        """
        place = latest(self._folder) if self._settings.resume else None
        if place is not None:
            self._require_same_training(place)
            self.epochs_done = int(load_checkpoint(place, model)["epoch"])
        if self.epochs_done > self._settings.epochs:
            raise CommandError(
                f"{place} has {self.epochs_done} epochs, more than --epochs {self._settings.epochs}"
            )
        return self.epochs_done

    def _require_same_training(self, place: Path) -> None:
        found = Manifest.read(place).progress.get("training")
        if not isinstance(found, dict):
            raise CommandError(f"{place} is not a checkpoint of `dslide train`")
        wanted = self.callback.notes["training"]
        differences = [
            f"{name} was {found.get(name)!r} and is now {wanted[name]!r}"
            for name in wanted
            if found.get(name) != wanted[name]
        ]
        if differences:
            raise CommandError(
                f"{place} is of another training: {'; '.join(differences)}; resume with the "
                "options it was begun with, or give another folder"
            )


def _what_decides(settings: TrainSettings, train: Dataset) -> dict[str, Any]:
    """What must be the same for a training to go on exactly."""
    network = asdict(settings.network)
    sampler = network.pop("sampler") or {"name": None}
    return {
        **{_option(name): value for name, value in network.items()},
        **{_option(name): value for name, value in sampler.items() if name != "name"},
        "--sampler": sampler["name"],
        "--batch-size": settings.batch_size,
        # With a schedule the end decides the rate of every step.
        "--epochs": "any" if network["schedule"] == "constant" else settings.epochs,
        "number of samples": len(train),
        "number of features": train.num_features,
        "number of labels": train.num_labels,
        "checksum of the data": _checksum(train),
    }


def _checksum(data: Dataset) -> int:
    checksum = 0
    for matrix in (data.features, data.labels):
        for array in (matrix.indptr, matrix.indices, matrix.data):
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    return checksum


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class RunLog:
    """A file of JSON lines, one an event, each written at once.

    Args:
        path: The file, appended to, or `None` to keep no log.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(self, event: str, **fields: Any) -> None:
        """Writes an event with the time."""
        if self._path is not None:
            line = json.dumps({"event": event, "time": time.time(), **fields})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _scored_names() -> list[str]:
    unreported = {f"ndcg_at_{k}" for k in (1, 3)}
    return [name for name in TITLES if name not in unreported]


def _row(cells: list[str]) -> str:
    first, second, *others = cells
    return (
        f"{first:>5} {second:>9}"
        + "".join(f" {cell:>7}" for cell in others[:-1])
        + (f" {others[-1]:>10}")
    )


def _read(settings: TrainSettings) -> tuple[Dataset, Dataset | None, tuple[str, ...] | None]:
    """The training data, what to score on, and the names of the labels."""
    train, test = settings.data.read("train"), None
    names = None
    if settings.label_names is not None:
        names = inputs.read_label_names(settings.label_names, train.num_labels, settings.data.text)
    if settings.test is not None:
        test = settings.test.read("test")
        for what in ("features", "labels"):
            found, expected = getattr(test, f"num_{what}"), getattr(train, f"num_{what}")
            inputs.require_size(what, settings.test.text, found, settings.data.text, expected)
    elif settings.validation_split:
        train, test = inputs.hold_out(train, settings.validation_split, settings.network.seed)
    return train, test, names


def _scorer(
    model: keras.Model,
    test: Dataset | None,
    metrics: list[keras.metrics.Metric],
    batch_size: int,
    bar: Progress,
) -> Any:
    """A function that scores the model as it is on `test`."""
    if test is None:
        return dict
    scorer = make_scorer(model, metrics, with_loss=False)
    data = batches(test, batch_size)
    callback = ScoringProgress(bar, Pace(len(test), batch_size))

    def score() -> dict[str, float]:
        figures = scorer.evaluate(data, callbacks=[callback], return_dict=True, verbose=0)
        return {name: float(figures[name]) for name in TITLES if name in figures}

    return score


def _save(
    model: keras.Model,
    metrics: list[keras.metrics.Metric],
    path: Path,
    names: tuple[str, ...] | None,
) -> None:
    """Saves the model, compiled with the metrics so that `evaluate` gives them, and the names."""
    model.compile(optimizer=model.optimizer, loss=model.loss, metrics=metrics)
    with console.status(f"Saving {path}"), _atomic.new_file(path) as unfinished:
        model.save(unfinished)
    if names is not None:
        with _atomic.new_file(outputs.label_names_file(path)) as unfinished:
            unfinished.write_text("".join(name + "\n" for name in names), encoding="utf-8")
