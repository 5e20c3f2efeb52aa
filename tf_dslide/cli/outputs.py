"""Files that the commands write: checked before the work, and never half written."""

import tempfile
from pathlib import Path

from tf_dslide.cli.errors import CommandError


def require_writable(path: Path) -> None:
    """Checks that a file can be written, before work is done whose result it is to hold.

    Raises:
        CommandError: The folder is missing or not writable, or the path is something else than a
            file.
    """
    folder = path.resolve().parent
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} cannot be written: it exists and is not a file")
    if not folder.is_dir():
        raise CommandError(f"{path} cannot be written: there is no folder {folder}")
    try:
        # Only an attempt tells: permissions say nothing of read-only file systems or of root.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {folder}: {error.strerror}") from error


def require_folder(folder: Path) -> None:
    """Makes a folder, with its parents, and checks that files can be written there.

    Raises:
        CommandError: They cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(f"{folder} cannot be written to: {error.strerror}") from error


def label_names_file(model: Path) -> Path:
    """Where `dslide train` leaves the names of a model's labels."""
    return model.with_suffix(".labels.txt")


def require_no_stale_names(model: Path, label_names: Path | None) -> None:
    """Checks that a new model without names will not be read with those of an earlier one.

    Raises:
        CommandError: There are names beside the model to be written, and no new ones.
    """
    names = label_names_file(model)
    if label_names is None and names.exists():
        raise CommandError(
            f"{names} names the labels of an earlier model: move it away, or pass `--label-names "
            f"{names}` if they are the same"
        )
