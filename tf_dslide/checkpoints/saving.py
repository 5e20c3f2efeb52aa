"""Writing a checkpoint."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import keras

from tf_dslide import _atomic
from tf_dslide.checkpoints import shards
from tf_dslide.checkpoints.manifest import MADE_BY, MANIFEST, describe
from tf_dslide.checkpoints.ranks import CheckpointError, Ranks
from tf_dslide.checkpoints.state import State


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
    >>> from tf_dslide.checkpoints import load_checkpoint, save_checkpoint
    >>> model = keras.Sequential([keras.Input((16,)), DSlideDense(1000)])
    >>> folder = tempfile.mkdtemp() + "/epoch-0001"
    >>> save_checkpoint(folder, model, progress={"epoch": 1})
    >>> load_checkpoint(folder, model)
    {'epoch': 1}
    """
    shards.import_safetensors()
    ranks = Ranks(strategy)
    place = Place(Path(folder))
    state = State.of(model)
    notes = as_json(progress or {})
    ranks.communicator.agree("the model to be saved", state.fingerprint())
    try:
        ranks.together(f"{folder} was not saved", lambda: place.prepare() if ranks.first else None)
        written = ranks.together(f"{folder} was not saved", lambda: place.write_part(ranks, state))
        manifest = describe(model, state, written, notes)
        ranks.together(
            f"{folder} was not saved", lambda: place.finish(manifest) if ranks.first else None
        )
    except BaseException:
        if ranks.first:
            place.clear()
        raise


def as_json(progress: dict[str, Any]) -> dict[str, Any]:
    """A copy as JSON would give it back."""
    try:
        return json.loads(json.dumps(progress))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`progress` must be what JSON can express ({error}); received {progress!r}"
        ) from error


class Place:
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

    def write_part(self, ranks: Ranks, state: State) -> dict[str, Any]:
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
            "made_by": MADE_BY,
            "rank": str(ranks.rank),
            "ranks": str(ranks.size),
            "model": state.fingerprint(),
            "step": str(_steps_of(state)),
        }
        size, crc32 = shards.write_tensors(
            self._unfinished / name, state.tensors_of(ranks.first), about
        )
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
            _atomic.flush_to_disk(file)
        _atomic.flush_folder(self._unfinished)
        shutil.rmtree(self._replaced, ignore_errors=True)
        self._replaced.mkdir()
        _atomic.put_folder(self._unfinished, self._folder, self._replaced)
        _atomic.flush_folder(self._folder.parent)
        shutil.rmtree(self._replaced, ignore_errors=True)


def _steps_of(state: State) -> int:
    return 0 if state.optimizer is None else int(state.optimizer.iterations)
