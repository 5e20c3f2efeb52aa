"""One file for one process of a checkpoint of any number of ranks."""

import os
from pathlib import Path

import keras

from tf_dslide import _atomic
from tf_dslide.checkpoints.loading import load_checkpoint
from tf_dslide.checkpoints.manifest import Manifest


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
    >>> from tf_dslide.checkpoints import export, save_checkpoint
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
    with _atomic.new_file(target) as unfinished:
        model.save(unfinished)
