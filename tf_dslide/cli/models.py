"""Loads a model and finds its parts. Imports TensorFlow: commands import this when they need it."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

import tf_dslide._public  # noqa: F401 - registers what a saved model may name
from tf_dslide.cli.errors import CommandError, one_line
from tf_dslide.cli.inputs import require_file
from tf_dslide.layers import DSlideDense
from tf_dslide.linear import DSlideLinear
from tf_dslide.metrics import PropensityScoredPrecisionAtK

_LONGEST_REASON = 300


@dataclass(frozen=True)
class Classifier:
    """A model that ends in a `DSlideDense` or is a `DSlideLinear`.

    Attributes:
        path: Its file.
        model: The whole, features `(batch, num_features)` to logits `(batch, num_labels)`.
        hidden: The same weights, up to the input of `layer`.
        layer: The output layer.
    """

    path: Path
    model: keras.Model
    hidden: keras.Model
    layer: DSlideDense | DSlideLinear

    @property
    def num_features(self) -> int:
        """Width of the features that the model takes."""
        return int(self.model.inputs[0].shape[-1])

    @property
    def num_labels(self) -> int:
        """Number of labels."""
        return self.layer.units


def load_classifier(path: Path) -> Classifier:
    """Loads a model without its optimizer.

    Raises:
        CommandError: The file is missing, not a `.keras` file, of another version, or holds another
            kind of model; the message says which.
    """
    _require_archive(path)
    try:
        model = keras.models.load_model(path, compile=False)
    except Exception as error:
        raise CommandError(f"{path} cannot be loaded: {_reason(error)}") from error
    layer = _output_layer(path, model)
    return Classifier(path, model, keras.Model(model.inputs, layer.input), layer)


def stored_label_counts(path: Path) -> dict[str, Any] | None:
    """The arguments of the propensity-scored metrics that a model was compiled with.

    They are read from the file's configuration, which spares loading the optimizer.

    Returns:
        `label_counts` (packed), `num_samples`, `a` and `b`, or `None` if there is no such metric.
    """
    with zipfile.ZipFile(path) as archive:
        compiled = json.loads(archive.read("config.json")).get("compile_config")
    found = _find_config(compiled, PropensityScoredPrecisionAtK.__name__)
    return found and {name: found[name] for name in ("label_counts", "num_samples", "a", "b")}


def _require_archive(path: Path) -> None:
    require_file(path)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if "config.json" in archive.namelist():
                return
    raise CommandError(
        f"{path} is not a .keras file, or is damaged: expected one written by `dslide train`"
    )


def _reason(error: Exception) -> str:
    """Takes the cause out of Keras' long messages, which quote whole configurations."""
    # Nested layers wrap each other's messages; the innermost one comes last.
    cause = str(error).rpartition("Exception encountered: ")[2]
    reason = one_line(cause.partition("\n\nconfig=")[0])
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "..."


def _output_layer(path: Path, model: Any) -> DSlideDense | DSlideLinear:
    kinds_of_output = (DSlideDense, DSlideLinear)
    layers = [layer for layer in getattr(model, "layers", []) if isinstance(layer, kinds_of_output)]
    if not layers:
        kinds = ", ".join(dict.fromkeys(type(layer).__name__ for layer in model.layers)) or "none"
        raise CommandError(
            f"{path} has no DSlideDense or DSlideLinear among its layers (they are: {kinds})"
        )
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    if not inputs or not outputs:
        raise CommandError(
            f"{path} holds a {type(model).__name__} without fixed inputs and outputs; expected a "
            "Sequential or functional model"
        )
    layer = layers[-1]
    if len(inputs) != 1 or len(outputs) != 1 or outputs[0] is not layer.output:
        raise CommandError(
            f"{path} has {len(inputs)} inputs and {len(outputs)} outputs; expected one of each, "
            f"the output being that of its {type(layer).__name__}"
        )
    if len(inputs[0].shape) != 2 or len(outputs[0].shape) != 2:
        raise CommandError(
            f"{path} takes inputs of shape {inputs[0].shape} and gives outputs of shape "
            f"{outputs[0].shape}; expected (batch, features) and (batch, labels)"
        )
    return layer


def _find_config(saved: Any, class_name: str) -> dict[str, Any] | None:
    """Finds the configuration of an object of a class, however deep in a saved structure."""
    if isinstance(saved, dict):
        if saved.get("class_name") == class_name:
            return saved["config"]
        saved = list(saved.values())
    if isinstance(saved, list):
        return next(filter(None, (_find_config(part, class_name) for part in saved)), None)
    return None
