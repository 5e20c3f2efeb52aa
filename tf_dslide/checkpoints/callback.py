"""Checkpoints in `fit`: after epochs, and the last one found again."""

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import keras

from tf_dslide._checks import require_positive
from tf_dslide.checkpoints.loading import load_checkpoint
from tf_dslide.checkpoints.manifest import MANIFEST, Manifest, epochs_in
from tf_dslide.checkpoints.ranks import CheckpointError, Ranks
from tf_dslide.checkpoints.saving import as_json, save_checkpoint


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The last whole checkpoint that `Checkpoint` left in a folder, or `None`.

    Warns of later ones that lack a file or a part of one.

    Example:
    >>> import tempfile
    >>> from tf_dslide.checkpoints import latest
    >>> latest(tempfile.mkdtemp()) is None
    True
    """
    for place in reversed(epochs_in(Path(folder))):
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
        self.notes = as_json(notes or {})

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
        ranks = Ranks(self.strategy)

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
        if self.keep is not None and Ranks(self.strategy).first:
            self._delete_all_but(self.keep)

    def _delete_all_but(self, keep: int) -> None:
        for place in epochs_in(self.folder)[:-keep]:
            try:
                # A checkpoint without a manifest is none, however far the deletion gets.
                (place / MANIFEST).unlink(missing_ok=True)
                shutil.rmtree(place)
            except OSError as error:
                warnings.warn(f"the old checkpoint {place} was not deleted: {error}", stacklevel=2)
