"""What a checkpoint says of itself."""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tf_dslide._version import __version__
from tf_dslide.checkpoints import shards
from tf_dslide.checkpoints.ranks import CheckpointError
from tf_dslide.checkpoints.state import Entry, State

# Raised when the meaning of the files changes.
FORMAT = 1
MANIFEST = "manifest.json"
MADE_BY = "tf_dslide checkpoint"


def describe(
    model: keras.Model, state: State, written: Sequence[dict[str, Any]], progress: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of a checkpoint, from what each rank has written."""
    ranges = [part["ranges"] for part in written]
    described = [
        {
            "key": entry.key,
            "path": entry.path,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "axis": entry.axis,
            # For each file that has some of it: its number, and from where to where.
            "parts": None
            if entry.shard is None
            else [[rank, *of_rank[number]] for rank, of_rank in enumerate(ranges)],
        }
        for number, entry in enumerate(state.entries)
    ]
    optimizer = None
    if state.optimizer is not None:
        optimizer = {
            "class": class_of(state.optimizer),
            "config": _config_of(state.optimizer),
            "variables": described[len(state.variables) :],
        }
    return {
        "made_by": MADE_BY,
        "format": FORMAT,
        "versions": {
            "tf_dslide": __version__,
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
        },
        "progress": progress,
        "files": [part["file"] for part in written],
        "model": {
            "fingerprint": state.fingerprint(),
            "variables": described[: len(state.variables)],
            "config": _config_of(model),
        },
        "optimizer": optimizer,
        "samplers": [
            {
                "key": sampler.key,
                "layer": sampler.layer.path,
                "sampler": sampler.config,
                "schedule": sampler.schedule,
                "variables": list(sampler.variables),
                "parts": [part["units"][number] for part in written],
            }
            for number, sampler in enumerate(state.samplers)
        ],
    }


def class_of(thing: Any) -> str:
    """The name under which Keras knows a class."""
    return keras.saving.get_registered_name(type(thing))


def _config_of(thing: Any) -> Any:
    """How to make a model or optimizer again; `None` if it does not say."""
    try:
        config = keras.saving.serialize_keras_object(thing)
        json.dumps(config)
    except (NotImplementedError, TypeError, ValueError):
        return None
    return config


@dataclass(frozen=True)
class SavedVariable:
    """A variable of the model or the optimizer, in the files.

    Attributes:
        key: Its name there.
        path: Its name for people.
        dtype: Its type.
        shape: The whole's.
        axis: Axis along which it is split, or `None`.
        parts: Number of a file, begin and end, for each file with a part; `None` if it is whole, in
            the first file.
    """

    key: str
    path: str
    dtype: str
    shape: list[int]
    axis: int | None
    parts: list[list[int]] | None

    def require_covered(self) -> None:
        """Checks that the parts make up the whole."""
        if self.axis is None or self.parts is None:
            return
        reached = 0
        for _, begin, end in sorted(self.parts, key=lambda part: part[1:]):
            if begin != reached:
                break
            reached = end
        if reached != self.shape[self.axis]:
            raise CheckpointError(
                f"the manifest has {self.path} up to {reached} of {self.shape[self.axis]} only"
            )

    def differs(self, entry: Entry) -> bool:
        """Whether it is another variable than the model's.

        Names of layers are often made up by Keras and may differ.
        """
        other_axis = entry.axis is not None and self.axis not in (None, entry.axis)
        same = (self.key, self.dtype, tuple(self.shape)) == (entry.key, entry.dtype, entry.shape)
        return other_axis or not same


@dataclass(frozen=True)
class SavedSampler:
    """A layer's sampler, in the files."""

    key: str
    layer: str
    sampler: Any
    schedule: list[int]
    variables: list[str]
    parts: list[list[int]]


class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        folder: The checkpoint.
        crc32: Of the manifest.
        progress: The notes of who saved it.
        files: Name, bytes and crc32 of each file.
        variables: Those of the model.
        optimizer: Class and configuration, or `None`.
        slots: Variables of the optimizer.
        samplers: Of the layers that have one.
        config: Of the model, or `None`.
    """

    def __init__(self, folder: Path, text: bytes) -> None:
        content = json.loads(text)
        self.folder = folder
        self.crc32 = zlib.crc32(text)
        self.progress: dict[str, Any] = content["progress"]
        self.files: list[dict[str, Any]] = content["files"]
        self.fingerprint: str = content["model"]["fingerprint"]
        self.config: Any = content["model"]["config"]
        self.variables = [SavedVariable(**v) for v in content["model"]["variables"]]
        self.optimizer: dict[str, Any] | None = content["optimizer"]
        slots = self.optimizer["variables"] if self.optimizer else []
        self.slots = [SavedVariable(**v) for v in slots]
        self.samplers = [SavedSampler(**s) for s in content["samplers"]]
        for variable in (*self.variables, *self.slots):
            variable.require_covered()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Reads it.

        Raises:
            CheckpointError: There is none, or it is damaged or of a newer format.
        """
        text = _read_manifest(folder)
        try:
            content = json.loads(text)
            made_by, found = content["made_by"], content["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"its {MANIFEST} is damaged ({error!r})") from error
        if made_by != MADE_BY:
            raise CheckpointError(f"it is not a checkpoint of tf_dslide, but of {made_by!r}")
        if found != FORMAT:
            raise CheckpointError(
                f"it is in format {found!r}, made by tf_dslide "
                f"{content.get('versions', {}).get('tf_dslide')}, but this version "
                f"({__version__}) reads format {FORMAT}: load it with the version that saved it"
            )
        try:
            return cls(folder, text)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"its {MANIFEST} is damaged ({error!r})") from error

    def require_state(self, state: State) -> None:
        """Checks that it is of such a model.

        Raises:
            CheckpointError: It is of another one; says how they differ.
        """
        _require_same(self.variables, state.variables, "the model")
        if len(self.samplers) != len(state.samplers):
            raise CheckpointError(
                f"it is of another model: it has {len(self.samplers)} layers with a sampler, this "
                f"model has {len(state.samplers)}"
            )
        if self.optimizer is None or state.optimizer is None:
            return
        found, wanted = self.optimizer["class"], class_of(state.optimizer)
        if found != wanted:
            raise CheckpointError(
                f"it was saved with the optimizer {found}, but this model is compiled with {wanted}"
            )
        _require_same(self.slots, state.slots, "the optimizer")

    def require_size(self, index: int) -> None:
        """Checks that a file is there and as long as it was.

        Raises:
            CheckpointError: It is not.
        """
        file = self.files[index]
        path = self.folder / file["name"]
        if not path.is_file():
            raise CheckpointError(
                f"the file {file['name']} is missing; {len(self.files)} ranks wrote one each"
            )
        size = path.stat().st_size
        if size != file["bytes"]:
            relation = "is truncated" if size < file["bytes"] else "is another one"
            raise CheckpointError(
                f"the file {file['name']} {relation}: it has {size:,} bytes and should have "
                f"{file['bytes']:,}{self._origin(path)}"
            )

    def require_whole(self, index: int) -> None:
        """Checks that a file is what was written, to the last bit.

        Raises:
            CheckpointError: It is not.
        """
        self.require_size(index)
        file = self.files[index]
        path = self.folder / file["name"]
        crc32 = shards.checksum(path)
        if crc32 != file["crc32"]:
            raise CheckpointError(
                f"the file {file['name']} is damaged or of another checkpoint: its checksum is "
                f"{crc32:08x} and should be {file['crc32']:08x}{self._origin(path)}"
            )

    def _origin(self, path: Path) -> str:
        """What a file says of itself, where that is of interest."""
        try:
            with shards.opened(path) as tensors:
                about = tensors.metadata() or {}
        except CheckpointError:
            return ""
        if about.get("made_by") != MADE_BY:
            return "; it was not made by tf_dslide"
        kind = "this" if about.get("model") == self.fingerprint else "another"
        return (
            f"; it says that it is of rank {about.get('rank')} of {about.get('ranks')} at step "
            f"{about.get('step')} of {kind} model"
        )

    def build_model(self, compiled: bool) -> keras.Model:
        """The model, whole, with new weights.

        Raises:
            CheckpointError: It could not say how it is made when it was saved.
        """
        if self.config is None:
            raise CheckpointError(
                f"{self.folder} does not say how to build its model, since the model has no "
                "`get_config`: pass `model`, built without a strategy"
            )
        config = dict(self.config)
        if not compiled:
            config.pop("compile_config", None)
        return keras.saving.deserialize_keras_object(config)


def _read_manifest(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        pass
    except NotADirectoryError as error:
        raise CheckpointError("it is not a folder") from error
    if not folder.is_dir():
        raise CheckpointError("there is no such folder")
    epochs = epochs_in(folder)
    if epochs:
        raise CheckpointError(
            f"it is a folder of checkpoints: load one of them, such as {epochs[-1]}"
        )
    raise CheckpointError(f"it is not a checkpoint: it has no {MANIFEST}")


def epochs_in(folder: Path) -> list[Path]:
    """The folders of checkpoints that `Checkpoint` leaves in a folder, in their order."""
    if not folder.is_dir():
        return []
    numbers = {
        int(match[1]): place
        for place in folder.iterdir()
        if (match := re.fullmatch(r"epoch-(\d{4,})", place.name)) and place.is_dir()
    }
    return [numbers[number] for number in sorted(numbers)]


def _require_same(saved: Sequence[SavedVariable], entries: Sequence[Entry], of: str) -> None:
    for number, (found, wanted) in enumerate(zip(saved, entries, strict=False)):
        if found.differs(wanted):
            raise CheckpointError(
                f"it is of another model: variable {number} of {of} is {found.path}, {found.dtype} "
                f"{tuple(found.shape)}, in the checkpoint, but {wanted.path}, {wanted.dtype} "
                f"{wanted.shape}, here"
            )
    if len(saved) != len(entries):
        longer: Sequence[Any] = max(saved, entries, key=len)
        raise CheckpointError(
            f"it is of another model: {of} has {len(saved)} variables in the checkpoint, but "
            f"{len(entries)} here; {longer[min(len(saved), len(entries))].path} is among the others"
        )
