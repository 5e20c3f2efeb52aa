"""Checkpoints: what a training needs to go on exactly, on as many ranks as before or on others.

A checkpoint is a folder:

- `rank-00000-of-00002.safetensors`, one a rank: its part of each variable of the model and of the
  optimizer, and its samplers' tables. What all ranks have alike is in the file of rank 0.
- `manifest.json`: format and versions, the configuration of the model, each variable's name, type
  and whole shape with the range that each file has of it, the samplers' schedules, the size and
  CRC-32 of each file, and the caller's notes of how far the training is.

It is written as a hidden folder beside its place, which takes its name when all is on disk.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide._checks import require_positive
from tf_dslide._version import __version__
from tf_dslide.layers import HashedLayer
from tf_dslide.parallel.communicator import LoneCommunicator, RankError
from tf_dslide.sharding import Shard, axis_of, shard_of

# Raised when the meaning of the files changes.
FORMAT = 1
MANIFEST = "manifest.json"

_MADE_BY = "tf_dslide checkpoint"
# What is in memory of a file at a time, beside the model.
_PIECE_BYTES = 1 << 24
_TYPE_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


class CheckpointError(RankError, ValueError):
    """A checkpoint could not be written, or does not fit; all ranks raise the same one."""


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: keras.Model,
    strategy: Any = None,
    progress: dict[str, Any] | None = None,
) -> None:
    """Writes a checkpoint. Collective: all ranks call it, between two steps.

    The training is not disturbed: it goes on as if nothing had been saved, and so does one that
    loads the checkpoint. An earlier checkpoint of the same name stays until the new one is whole.

    Args:
        folder: Where to; made, with its parents. All ranks need to see the same file system.
        model: A built model. The state of its optimizer is saved if it is compiled.
        strategy: The `MPIModelParallel` of its layers, or `None` for one process.
        progress: What `load_checkpoint` is to return, such as the number of epochs done; JSON must
            be able to express it.

    Raises:
        CheckpointError: A rank could not write its part, such as on a full disk, or `folder` is
            something else than a checkpoint. Every rank raises it, and it names the rank. Nothing
            is left of the new checkpoint.
        ValueError: The model is not built, or `progress` cannot be saved.
        ImportError: The package safetensors, without which nobody could load it, is missing.

    Memory: none of the size of the model; a copy of one variable at a time if its type is bfloat16
        or TensorFlow copies it on reading. Disk: that of weights, optimizer and tables, twice if an
        earlier checkpoint is replaced.

    Example:
    >>> import keras, tempfile
    >>> from tf_dslide import DSlideDense
    >>> from tf_dslide.parallel.checkpoints import load_checkpoint, save_checkpoint
    >>> model = keras.Sequential([keras.Input((16,)), DSlideDense(1000)])
    >>> folder = tempfile.mkdtemp() + "/epoch-0001"
    >>> save_checkpoint(folder, model, progress={"epoch": 1})
    >>> load_checkpoint(folder, model)
    {'epoch': 1}
    """
    _import_safetensors()
    ranks = _Ranks(strategy)
    place = _Place(Path(folder))
    state = _State.of(model)
    notes = _as_json(progress or {})
    ranks.communicator.agree("the model to be saved", state.fingerprint())
    try:
        ranks.together(f"{folder} was not saved", lambda: place.prepare() if ranks.first else None)
        written = ranks.together(f"{folder} was not saved", lambda: place.write_part(ranks, state))
        manifest = _manifest(model, state, written, notes)
        ranks.together(
            f"{folder} was not saved", lambda: place.finish(manifest) if ranks.first else None
        )
    except BaseException:
        if ranks.first:
            place.clear()
        raise


def load_checkpoint(
    folder: str | os.PathLike[str], model: keras.Model, strategy: Any = None
) -> dict[str, Any]:
    """Puts a model into the state of a checkpoint. Collective: all ranks call it.

    On as many ranks as wrote it, split the same way, training then goes on exactly as it would have
    without the pause: weights, optimizer, dropout, tables and their schedule are those that were
    saved. On other ranks, or with another sampler, tables are built afresh from the weights. What a
    `LearnedHash` has learned then comes from rank 0 for all ranks; with another sampler it learns
    anew from the next step on.

    Args:
        folder: What `save_checkpoint` made.
        model: A built model like the one saved, split over any number of ranks. If it is compiled,
            with the same kind of optimizer; otherwise the optimizer's state is left out.
        strategy: The `MPIModelParallel` of its layers, or `None` for one process.

    Returns:
        The `progress` that was saved.

    Raises:
        CheckpointError: A `ValueError`. `folder` is not a checkpoint, is of a newer version or of
            another model (it names the first variable that differs), or lacks a file, or a file is
            truncated, damaged or of another checkpoint. All this is found before the model changes.
        ImportError: The package safetensors is missing.

    Memory: some 50 MB beside the model. Time: that of reading the files; one rank checks each.

    Example: see `save_checkpoint`.
    """
    _import_safetensors()
    ranks = _Ranks(strategy)
    folder = Path(folder)

    def check() -> Manifest:
        manifest = Manifest.read(folder)
        manifest.require_state(_State.of(model))
        for index in range(ranks.rank, len(manifest.files), ranks.size):
            manifest.require_whole(index)
        return manifest

    checked: list[Manifest] = []
    ranks.together(f"{folder} cannot be loaded", lambda: checked.append(check()))
    manifest = checked[0]
    ranks.communicator.agree(f"{folder / MANIFEST}", manifest.crc32)
    ranks.together(
        f"{folder} could be loaded in part only: do not go on with this model",
        lambda: _Loading(manifest, ranks).load(_State.of(model)),
    )
    return manifest.progress


def export(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    model: keras.Model | None = None,
    training: bool = False,
) -> None:
    """Makes a `.keras` file for one process of a checkpoint of any number of ranks.

    Runs in one process, with or without MPI, and reads the checkpoint piece by piece.

    Args:
        folder: The checkpoint.
        path: The file, ending in `.keras`. An earlier one stays until the new one is whole.
        model: The model to put the weights into, made without a strategy; its weights are replaced.
            `None` builds it from the configuration in the checkpoint.
        training: Whether the file is to go on training: it is then compiled and has the optimizer's
            state. Otherwise it can predict, and `compile` it to do more.

    Raises:
        CheckpointError: As `load_checkpoint`; or the configuration was not saved, as that of some
            subclasses of `keras.Model`.
        ValueError: `path` does not end in `.keras`.
        OSError: The file cannot be written.

    Memory: what `keras.models.load_model` takes for that file: the weights, with `training` three
        times as much, and once more the largest variable.

    Example:
    >>> import keras, tempfile
    >>> from tf_dslide import DSlideDense
    >>> from tf_dslide.parallel.checkpoints import export, save_checkpoint
    >>> folder = tempfile.mkdtemp()
    >>> save_checkpoint(f"{folder}/a", keras.Sequential([keras.Input((16,)), DSlideDense(1000)]))
    >>> export(f"{folder}/a", f"{folder}/a.keras")
    >>> keras.models.load_model(f"{folder}/a.keras").output_shape
    (None, 1000)
    """
    target = Path(path)
    if target.suffix != ".keras":
        raise ValueError(f"`path` must end in .keras; received {str(path)!r}")
    if model is None:
        model = Manifest.read(Path(folder)).build_model(compiled=training)
    load_checkpoint(folder, model)
    unfinished = target.with_name(f".{target.stem}.unfinished.keras")
    try:
        model.save(unfinished)
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The last whole checkpoint that `Checkpoint` left in a folder, or `None`.

    Warns of later ones that lack a file or a part of one.

    Example:
    >>> import tempfile
    >>> from tf_dslide.parallel.checkpoints import latest
    >>> latest(tempfile.mkdtemp()) is None
    True
    """
    for place in reversed(_epochs_in(Path(folder))):
        try:
            manifest = Manifest.read(place)
            for index in range(len(manifest.files)):
                manifest.require_size(index)
        except CheckpointError as error:
            warnings.warn(f"{place} is left out: {error}", stacklevel=2)
        else:
            return place
    return None


class Checkpoint(keras.callbacks.Callback):
    """Saves a checkpoint after epochs, in `folder/epoch-0003`, and finds the last one again.

    Give it to `fit` on every rank.

    Args:
        folder: Where the checkpoints are; made if missing.
        strategy: The `MPIModelParallel` of the model's layers, or `None` for one process.
        every_epochs: Save after each so many epochs, and after the last one.
        keep: How many checkpoints to keep; older ones are deleted. `None` keeps all.
        notes: What else to note in the progress of each checkpoint, beside `epoch` and `step`.

    Raises:
        CheckpointError: In training, as `save_checkpoint`.

    Example:

    ```python
    checkpoint = Checkpoint("run", strategy)
    done = checkpoint.resume(model)
    train = batches(data, 256, shuffle=True, seed=0, first_pass=done)
    model.fit(train, epochs=20, initial_epoch=done, callbacks=[checkpoint])
    ```
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        strategy: Any = None,
        every_epochs: int = 1,
        keep: int | None = 2,
        notes: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.strategy = strategy
        self.every_epochs = require_positive("every_epochs", every_epochs)
        self.keep = None if keep is None else require_positive("keep", keep)
        self.notes = _as_json(notes or {})

    def resume(self, model: keras.Model) -> int:
        """Loads the last whole checkpoint, if there is one.

        Args:
            model: As in `load_checkpoint`.

        Returns:
            The number of epochs done: the `initial_epoch` of `fit`, and the `first_pass` of
            `tf_dslide.data.batches`, so that the data go on in their order.

        Raises:
            CheckpointError: As `load_checkpoint`.
        """
        ranks = _Ranks(self.strategy)

        def find() -> str | None:
            place = latest(self.folder) if ranks.first else None
            return None if place is None else place.name

        # All ranks take what the first one finds.
        name = ranks.together(f"{self.folder} cannot be read", find)[0]
        if name is None:
            return 0
        progress = load_checkpoint(self.folder / name, model, self.strategy)
        return int(progress["epoch"])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Saves, if it is time."""
        done = epoch + 1
        if done % self.every_epochs and done != self.params.get("epochs"):
            return
        steps = int(self.model.optimizer.iterations)
        progress = {**self.notes, "epoch": done, "step": steps}
        place = self.folder / f"epoch-{done:04d}"
        save_checkpoint(place, self.model, self.strategy, progress)
        if self.keep is not None and _Ranks(self.strategy).first:
            self._delete_all_but(self.keep)

    def _delete_all_but(self, keep: int) -> None:
        for place in _epochs_in(self.folder)[:-keep]:
            try:
                # A checkpoint without a manifest is none, however far the deletion gets.
                (place / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(place)
            except OSError as error:
                warnings.warn(f"the old checkpoint {place} was not deleted: {error}", stacklevel=2)


def _epochs_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    numbers = {
        int(match[1]): place
        for place in folder.iterdir()
        if (match := re.fullmatch(r"epoch-(\d{4,})", place.name)) and place.is_dir()
    }
    return [numbers[number] for number in sorted(numbers)]


def _import_safetensors() -> Any:
    """The library, which the package can do without but for checkpoints."""
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "checkpoints need the package safetensors: pip install 'tf-dslide[mpi]'"
        ) from error
    return safetensors


class _Ranks:
    """The ranks that save or load together."""

    def __init__(self, strategy: Any) -> None:
        self.communicator = LoneCommunicator() if strategy is None else strategy.communicator
        self.rank, self.size = self.communicator.rank, self.communicator.size
        self.first = self.rank == 0

    def together(self, failed: str, work: Callable[[], Any]) -> list[Any]:
        """The results of all ranks' work, for each rank.

        Raises:
            CheckpointError: A rank's work failed; all ranks raise it with the same words.
        """
        outcome: dict[str, Any] = {}
        try:
            outcome["result"] = work()
        except (OSError, CheckpointError) as error:
            outcome["error"] = str(error)
        outcomes = self.communicator.gather(outcome)
        errors = {
            rank: outcome["error"] for rank, outcome in enumerate(outcomes) if "error" in outcome
        }
        if errors:
            raise CheckpointError(f"{failed}: {self._listed(errors)}")
        return [outcome["result"] for outcome in outcomes]

    def _listed(self, errors: dict[int, str]) -> str:
        if len(errors) == self.size and len(set(errors.values())) == 1:
            return errors[0]
        return "; ".join(f"rank {rank} of {self.size}: {text}" for rank, text in errors.items())


@dataclass(frozen=True)
class _Entry:
    """A variable of the model or of its optimizer.

    Attributes:
        key: Its name in the files.
        path: Its name for people.
        variable: The TensorFlow variable, this rank's part.
        shard: Which part; `None` if each rank has all of it.
        axis: The axis that is split, or `None`.
    """

    key: str
    path: str
    variable: tf.Variable
    shard: Shard | None
    axis: int | None

    @property
    def dtype(self) -> str:
        return self.variable.dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole's."""
        shape = _shape_of(self.variable)
        if self.shard is not None and self.axis is not None:
            shape[self.axis] = self.shard.total
        return tuple(shape)


@dataclass(frozen=True)
class _SamplerEntry:
    """The sampler of a layer at work.

    Attributes:
        key: Begins the names of its variables in the files.
        layer: The layer.
    """

    key: str
    layer: HashedLayer

    @property
    def selector(self) -> Any:
        return self.layer._sampled_weights.selector

    @property
    def units(self) -> tuple[int, int]:
        """Those of this rank."""
        shard = shard_of(self.layer.kernel)
        return (0, int(self.layer.kernel.shape[0])) if shard is None else (shard.begin, shard.end)

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """Tables, their schedule, and whether they are stale, by name in the files."""
        kept = {} if self.selector is None else self.selector.variables
        return {f"{self.key}/{name}": variable for name, variable in kept.items()}

    @property
    def learned(self) -> dict[str, tf.Variable]:
        """What was learned from data, by name in the files."""
        kept = {} if self.selector is None else self.selector.learned
        return {f"{self.key}/{name}": variable for name, variable in kept.items()}

    @property
    def config(self) -> Any:
        """The sampler, as JSON has it."""
        return json.loads(json.dumps(keras.saving.serialize_keras_object(self.layer.sampler)))

    @property
    def schedule(self) -> list[int]:
        state = [] if self.selector is None else self.selector.get_state()
        return [int(self.layer._sampled_weights.step), *map(int, state)]

    def restore_schedule(self, schedule: Sequence[int]) -> None:
        """Sets the schedule alone; the tables are built when they are needed."""
        self.layer._sampled_weights.step.assign(schedule[0])
        if self.selector is None:
            return
        self.selector.invalidate()
        if schedule[1:]:
            self.selector.set_state(list(schedule[1:]))


@dataclass(frozen=True)
class _State:
    """All that a training changes.

    Attributes:
        variables: Those of the model.
        optimizer: The optimizer, or `None`.
        slots: Those of the optimizer.
        samplers: Those at work.
    """

    variables: list[_Entry]
    optimizer: Any
    slots: list[_Entry]
    samplers: list[_SamplerEntry]

    @classmethod
    def of(cls, model: keras.Model) -> "_State":
        """The state of a model.

        Raises:
            ValueError: It is not built.
        """
        if not model.built or not model.variables:
            raise ValueError(
                f"the model {model.name!r} is not built: call it on an input, or begin it with "
                "keras.Input"
            )
        variables = [
            _Entry(f"model/{number}/{v.name}", v.path, v._value, shard_of(v), axis_of(v))
            for number, v in enumerate(model.variables)
        ]
        layers = [layer for layer in model._flatten_layers() if isinstance(layer, HashedLayer)]
        samplers = [_SamplerEntry(f"sampler/{i}", layer) for i, layer in enumerate(layers)]
        optimizer = getattr(model, "optimizer", None)
        slots = [] if optimizer is None else _slots_of(optimizer, model)
        return cls(variables, optimizer, slots, samplers)

    @property
    def entries(self) -> list[_Entry]:
        return [*self.variables, *self.slots]

    def fingerprint(self) -> str:
        """The same for models of the same variables, however they are split."""
        kinds = [[e.key, e.dtype, e.shape] for e in self.variables]
        return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()[:16]

    def tensors_of(self, first: bool) -> dict[str, tf.Variable]:
        """What a rank writes: the first one also what all have."""
        tensors = {e.key: e.variable for e in self.entries if first or e.shard is not None}
        for sampler in self.samplers:
            tensors.update(sampler.variables)
        return tensors


def _slots_of(optimizer: Any, model: keras.Model) -> list[_Entry]:
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    owners = _owners_of_slots(optimizer)
    return [
        _Entry(f"optimizer/{number}", v.path, v._value, shard_of(owner), axis_of(owner))
        for number, v in enumerate(optimizer.variables)
        for owner in [owners.get(id(v))]
    ]


def _owners_of_slots(optimizer: Any) -> dict[int, Any]:
    """The split variables whose slots these are: what a rank keeps of a part is a part likewise.

    Keras' optimizers have a list of slots a kind, one for each variable in order.

    Raises:
        CheckpointError: There is state of a variable that is split that has not its shape.
    """
    # LossScaleOptimizer has another one at work.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    owners = list(optimizer._trainable_variables)
    split: dict[int, Any] = {}
    for name, slots in vars(optimizer).items():
        if name in ("_variables", "_trainable_variables") or not isinstance(slots, list | tuple):
            continue
        for slot, owner in zip(slots, owners, strict=False):
            if not isinstance(slot, keras.Variable) or shard_of(owner) is None:
                continue
            if len(slots) != len(owners) or tuple(slot.shape) != tuple(owner.shape):
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps {slot.path} of shape {tuple(slot.shape)} "
                    f"for {owner.path} of shape {tuple(owner.shape)}, which is split over ranks: "
                    "such state cannot be saved"
                )
            split[id(slot)] = owner
    return split


def _as_json(progress: dict[str, Any]) -> dict[str, Any]:
    """A copy as JSON would give it back."""
    try:
        return json.loads(json.dumps(progress))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`progress` must be what JSON can express ({error}); received {progress!r}"
        ) from error


class _Place:
    """A folder that comes into being whole or not at all."""

    def __init__(self, folder: Path) -> None:
        # As long as no other rank may be writing into it, names need not be unique: what a killed
        # training left is found and removed.
        self._folder = folder.absolute()
        self._unfinished = self._folder.with_name(f".{folder.name}.unfinished")
        self._replaced = self._folder.with_name(f".{folder.name}.replaced")

    def prepare(self) -> None:
        """Makes the hidden folder. By the first rank.

        Raises:
            CheckpointError: Something else than a checkpoint has the name.
        """
        if self._folder.exists() and not (self._folder / MANIFEST).is_file():
            raise CheckpointError(
                "it exists and is not a checkpoint: choose another folder, or delete it"
            )
        self._unfinished.parent.mkdir(parents=True, exist_ok=True)
        self.clear()
        self._unfinished.mkdir()

    def clear(self) -> None:
        """Removes the hidden folder."""
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def write_part(self, ranks: _Ranks, state: _State) -> dict[str, Any]:
        """Writes a rank's file.

        Returns:
            Name, bytes and crc32 of the file; `[begin, end)` of each variable in order, `None` of
            those that are not split; and `[begin, end)` of the units of each layer with a sampler.
        """
        if not self._unfinished.is_dir():
            raise CheckpointError(
                f"it does not see {self._unfinished}, which rank 0 has made: a checkpoint needs a "
                "folder on a file system that all ranks share"
            )
        name = f"rank-{ranks.rank:05d}-of-{ranks.size:05d}.safetensors"
        about = {
            "made_by": _MADE_BY,
            "rank": str(ranks.rank),
            "ranks": str(ranks.size),
            "model": state.fingerprint(),
            "step": str(_steps_of(state)),
        }
        size, crc32 = _write_tensors(self._unfinished / name, state.tensors_of(ranks.first), about)
        return {
            "file": {"name": name, "bytes": size, "crc32": crc32},
            "ranges": [
                None if e.shard is None else (e.shard.begin, e.shard.end) for e in state.entries
            ],
            "units": [sampler.units for sampler in state.samplers],
        }

    def finish(self, manifest: dict[str, Any]) -> None:
        """Adds the manifest and gives the folder its name. By the first rank."""
        with (self._unfinished / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            _flush_to_disk(file)
        _flush_folder(self._unfinished)
        if self._folder.exists():
            # A folder cannot take the place of another one in one step; the earlier checkpoint is
            # complete under its hidden name in the instant between.
            shutil.rmtree(self._replaced, ignore_errors=True)
            os.replace(self._folder, self._replaced)
        os.replace(self._unfinished, self._folder)
        _flush_folder(self._folder.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)


def _steps_of(state: _State) -> int:
    return 0 if state.optimizer is None else int(state.optimizer.iterations)


def _flush_to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have no such call for folders.
        if error.errno not in (errno.EINVAL, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def _write_tensors(
    path: Path, variables: dict[str, tf.Variable], about: dict[str, str]
) -> tuple[int, int]:
    """Writes a safetensors file, one variable after the other; returns its size and CRC-32.

    The library's own `save_file` wants all tensors at once, and a variable may have to be copied
    to be read.
    """
    # The widest types first, as the library does, so that every tensor is aligned.
    order = sorted(variables, key=lambda key: (-variables[key].dtype.size, key))
    size, crc32 = 0, 0
    with path.open("wb") as file:
        for piece in _pieces(variables, order, about):
            file.write(piece)
            crc32 = zlib.crc32(piece, crc32)
            size += len(piece)
        _flush_to_disk(file)
    return size, crc32


def _pieces(
    variables: dict[str, tf.Variable], order: Sequence[str], about: dict[str, str]
) -> Iterator[Any]:
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for key in order:
        shape, dtype = _shape_of(variables[key]), variables[key].dtype
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * dtype.size
        code = _TYPE_CODES.get(dtype.name)
        if code is None:
            raise CheckpointError(f"{key} is of type {dtype.name}, which cannot be saved")
        header[key] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for key in order:
        content = _bytes_of(variables[key])
        for begin in range(0, len(content), _PIECE_BYTES):
            yield content[begin : begin + _PIECE_BYTES]


def _shape_of(variable: tf.Variable) -> list[int]:
    """The shape now, also where a variable may change it."""
    return tf.raw_ops.VariableShape(input=variable.handle, out_type=tf.int64).numpy().tolist()


def _bytes_of(variable: tf.Variable) -> np.ndarray:
    """A variable's content as a vector of bytes, where possible without a copy."""
    tensor = variable.read_value()
    # Python's buffers, which need no copy, know nothing of bfloat16.
    content = tensor if tensor.dtype == tf.bfloat16 else memoryview(tensor)
    return np.asarray(content).reshape(-1).view(np.uint8)


def _manifest(
    model: keras.Model, state: _State, written: Sequence[dict[str, Any]], progress: dict[str, Any]
) -> dict[str, Any]:
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
            "class": _class_of(state.optimizer),
            "config": _config_of(state.optimizer),
            "variables": described[len(state.variables) :],
        }
    return {
        "made_by": _MADE_BY,
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


def _class_of(thing: Any) -> str:
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
class _SavedVariable:
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

    def differs(self, entry: _Entry) -> bool:
        """Whether it is another variable than the model's.

        Names of layers are often made up by Keras and may differ.
        """
        other_axis = entry.axis is not None and self.axis not in (None, entry.axis)
        same = (self.key, self.dtype, tuple(self.shape)) == (entry.key, entry.dtype, entry.shape)
        return other_axis or not same


@dataclass(frozen=True)
class _SavedSampler:
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
        self.variables = [_SavedVariable(**v) for v in content["model"]["variables"]]
        self.optimizer: dict[str, Any] | None = content["optimizer"]
        slots = self.optimizer["variables"] if self.optimizer else []
        self.slots = [_SavedVariable(**v) for v in slots]
        self.samplers = [_SavedSampler(**s) for s in content["samplers"]]
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
        if made_by != _MADE_BY:
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

    def require_state(self, state: _State) -> None:
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
        found, wanted = self.optimizer["class"], _class_of(state.optimizer)
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
        crc32 = 0
        with path.open("rb") as content:
            while piece := content.read(_PIECE_BYTES):
                crc32 = zlib.crc32(piece, crc32)
        if crc32 != file["crc32"]:
            raise CheckpointError(
                f"the file {file['name']} is damaged or of another checkpoint: its checksum is "
                f"{crc32:08x} and should be {file['crc32']:08x}{self._origin(path)}"
            )

    def _origin(self, path: Path) -> str:
        """What a file says of itself, where that is of interest."""
        safetensors = _import_safetensors()
        try:
            with safetensors.safe_open(path, framework="np") as tensors:
                about = tensors.metadata() or {}
        except safetensors.SafetensorError:
            return ""
        if about.get("made_by") != _MADE_BY:
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
    epochs = _epochs_in(folder)
    if epochs:
        raise CheckpointError(
            f"it is a folder of checkpoints: load one of them, such as {epochs[-1]}"
        )
    raise CheckpointError(f"it is not a checkpoint: it has no {MANIFEST}")


def _require_same(saved: Sequence[_SavedVariable], entries: Sequence[_Entry], of: str) -> None:
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


class _Loading:
    """Brings the content of a checkpoint into a model's variables."""

    def __init__(self, manifest: Manifest, ranks: _Ranks) -> None:
        self._manifest, self._ranks = manifest, ranks

    def load(self, state: _State) -> None:
        """Loads all that this rank has a part of."""
        saved = list(self._manifest.variables)
        entries = list(state.variables)
        if self._manifest.optimizer is not None and state.optimizer is not None:
            saved += self._manifest.slots
            entries += state.slots
        for found, entry in zip(saved, entries, strict=True):
            self._fill(found, entry)
        for sampler, into in zip(self._manifest.samplers, state.samplers, strict=True):
            self._restore(sampler, into)

    def _fill(self, saved: _SavedVariable, entry: _Entry) -> None:
        """Loads this rank's part from whatever files have some of it."""
        if saved.axis is None and entry.shard is None:
            self._fill_whole(0, saved.key, entry.variable)
            return
        shape = _shape_of(entry.variable)
        axis = (saved.axis if entry.axis is None else entry.axis) or 0
        here = (0, shape[axis]) if entry.shard is None else (entry.shard.begin, entry.shard.end)
        for file, begin, end in saved.parts or [[0, 0, saved.shape[axis]]]:
            first, last = max(begin, here[0]), min(end, here[1])
            if first < last:
                source = [slice(0, n) for n in shape]
                source[axis] = slice(first - begin, last - begin)
                self._copy(file, saved.key, entry.variable, source, axis, begin - here[0])

    def _fill_whole(self, file: int, key: str, variable: tf.Variable) -> None:
        """Loads a tensor of one file, whose shape the variable may yet have to take."""
        with self._file(file) as tensors:
            shape = tensors.get_slice(key).get_shape()
            if not shape:
                variable.assign(tensors.get_tensor(key))
                return
        if shape != _shape_of(variable):
            variable.assign(tf.zeros(shape, variable.dtype))
        self._copy(file, key, variable, [slice(0, length) for length in shape], 0, 0)

    def _copy(
        self,
        file: int,
        key: str,
        variable: tf.Variable,
        source: list[slice],
        axis: int,
        moved: int,
    ) -> None:
        """Copies a block of a file's tensor, which lies elsewhere along `axis`, row by row."""
        others = int(np.prod([s.stop - s.start for s in source[1:]], dtype=np.int64))
        rows = max(1, _PIECE_BYTES // max(1, others * variable.dtype.size))
        for begin in range(source[0].start, source[0].stop, rows):
            block = [slice(begin, min(begin + rows, source[0].stop)), *source[1:]]
            if any(s.start == s.stop for s in block):
                continue
            # Opened anew, the file's pages do not stay in memory.
            with self._file(file) as tensors:
                values = tensors.get_slice(key)[tuple(block)]
            offsets = [moved if number == axis else 0 for number in range(len(block))]
            # In place: the assignment of a slice of a tf.Variable would first copy that slice.
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=variable.handle,
                begin=[s.start + offset for s, offset in zip(block, offsets, strict=True)],
                end=[s.stop + offset for s, offset in zip(block, offsets, strict=True)],
                strides=[1] * len(block),
                value=values,
            )

    def _restore(self, saved: _SavedSampler, sampler: _SamplerEntry) -> None:
        rank = self._ranks.rank
        same_place = (
            len(saved.parts) == self._ranks.size and tuple(saved.parts[rank]) == sampler.units
        )
        variables = sampler.variables
        if saved.sampler != sampler.config or set(saved.variables) != set(variables):
            # A hash that is to learn anew does so at the first rebuild of a schedule.
            restart = [saved.schedule[0], 0, 0]
            sampler.restore_schedule(restart if sampler.learned else saved.schedule)
            return
        sampler.restore_schedule(saved.schedule)
        if not same_place:
            # What one rank learned from its units serves for others; its tables do not.
            rank, variables = 0, sampler.learned
        for key, variable in variables.items():
            self._fill_whole(rank, key, variable)
        if sampler.selector is not None:
            # Ranks that rebuild when their codes have drifted have schedules of their own.
            sampler.selector.set_state(sampler.selector.get_state())

    @contextlib.contextmanager
    def _file(self, index: int) -> Iterator[Any]:
        safetensors = _import_safetensors()
        name = self._manifest.files[index]["name"]
        try:
            with safetensors.safe_open(self._manifest.folder / name, framework="np") as tensors:
                yield tensors
        except safetensors.SafetensorError as error:
            raise CheckpointError(f"the file {name} cannot be read: {error}") from error
