"""Bringing a checkpoint back into a model."""

import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_dslide.checkpoints import shards
from tf_dslide.checkpoints.manifest import MANIFEST, Manifest, SavedSampler, SavedVariable
from tf_dslide.checkpoints.ranks import Ranks
from tf_dslide.checkpoints.state import Entry, SamplerEntry, State


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
    shards.import_safetensors()
    ranks = Ranks(strategy)
    folder = Path(folder)

    def check() -> Manifest:
        manifest = Manifest.read(folder)
        manifest.require_state(State.of(model))
        for index in range(ranks.rank, len(manifest.files), ranks.size):
            manifest.require_whole(index)
        return manifest

    checked: list[Manifest] = []
    ranks.together(f"{folder} cannot be loaded", lambda: checked.append(check()))
    manifest = checked[0]
    ranks.communicator.agree(f"{folder / MANIFEST}", manifest.crc32)
    ranks.together(
        f"{folder} could be loaded in part only: do not go on with this model",
        lambda: Loading(manifest, ranks).load(State.of(model)),
    )
    return manifest.progress


class Loading:
    """Brings the content of a checkpoint into a model's variables."""

    def __init__(self, manifest: Manifest, ranks: Ranks) -> None:
        self._manifest, self._ranks = manifest, ranks

    def load(self, state: State) -> None:
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

    def _fill(self, saved: SavedVariable, entry: Entry) -> None:
        """Loads this rank's part from whatever files have some of it."""
        if saved.axis is None and entry.shard is None:
            self._fill_whole(0, saved.key, entry.variable)
            return
        shape = shards.shape_of(entry.variable)
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
        if shape != shards.shape_of(variable):
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
        rows = max(1, shards.PIECE_BYTES // max(1, others * variable.dtype.size))
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

    def _restore(self, saved: SavedSampler, sampler: SamplerEntry) -> None:
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

    def _file(self, index: int) -> Any:
        return shards.opened(self._manifest.folder / self._manifest.files[index]["name"])
