"""The DATA argument of the commands: a file, a pair of files, or synthetic data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tf_dslide.cli.console import status
from tf_dslide.cli.errors import CommandError

if TYPE_CHECKING:
    from tf_dslide.data import Dataset

_SYNTHETIC = "synth:"


@dataclass(frozen=True)
class Source:
    """Data named on the command line. Making one checks what can be checked without reading.

    Args:
        text: The argument: a path, or `synth:NAME[:SAMPLES]`.
        labels: The file of labels, where it is one of its own.
        num_features: Width of the features of a file without header.
        num_labels: Number of labels of a file without header.
        cache: A folder to keep what was read, for the next time.

    Raises:
        CommandError: A file is missing or is not a file, or `text` has the wrong form.
    """

    text: str
    labels: Path | None = None
    num_features: int | None = None
    num_labels: int | None = None
    cache: Path | None = None

    def __post_init__(self) -> None:
        if not self._is_synthetic:
            require_file(Path(self.text))
            if self.labels is not None:
                require_file(self.labels)
            if self.cache is not None and self.cache.exists() and not self.cache.is_dir():
                raise CommandError(f"{self.cache} is a file; expected a folder for --cache")
            return
        if self.labels or self.num_features or self.num_labels or self.cache:
            raise CommandError(
                f"{self.text} is synthetic and brings its own labels and sizes: leave out files of "
                "labels, --num-features, --num-labels and --cache"
            )
        self._preset()

    def words(self) -> list[str]:
        """The argument and the options that name these data, to be typed in a shell."""
        options = {
            "--labels": self.labels,
            "--num-features": self.num_features,
            "--num-labels": self.num_labels,
            "--cache": self.cache,
        }
        given = {name: value for name, value in options.items() if value is not None}
        pairs = [f"{name} {shlex.quote(str(value))}" for name, value in given.items()]
        return [shlex.quote(self.text), *pairs]

    def read(self, split: Literal["train", "test"]) -> Dataset:
        """Reads or makes the data.

        Args:
            split: Which samples of synthetic data: the two splits share none. Files are read whole.

        Raises:
            DataFormatError: The file breaks the format.
            CommandError: There are no samples, no features or no labels.
        """
        with status(f"Reading {self.text}"):
            data = self._read(split)
        sizes = {
            "samples": data.num_samples,
            "features": data.num_features,
            "labels": data.num_labels,
        }
        for what, size in sizes.items():
            if size == 0:
                raise CommandError(f"{self.text} has no {what}: nothing can be done with it")
        return data

    def _read(self, split: Literal["train", "test"]) -> Dataset:
        from tf_dslide import data

        if self._is_synthetic:
            name, samples = self._preset()
            return data.make_preset(name, split=split, num_samples=samples)
        read: Callable[..., Dataset] = data.read_xmc
        files: list[str | Path] = [self.text]
        if self.labels is not None:
            read = data.read_xmc_pair
            files.append(self.labels)
        sizes = {"num_features": self.num_features, "num_labels": self.num_labels}
        if self.cache is None:
            return read(*files, **sizes)
        return data.cached(self.cache, read, *files, **sizes)

    @property
    def _is_synthetic(self) -> bool:
        return self.text.startswith(_SYNTHETIC)

    def _preset(self) -> tuple[str, int | None]:
        name, colon, samples = self.text.removeprefix(_SYNTHETIC).partition(":")
        if not colon:
            return name, None
        if not (samples.isascii() and samples.isdigit()) or int(samples) < 1:
            raise CommandError(
                f"{self.text} asks for {samples!r} samples; expected synth:NAME or "
                "synth:NAME:SAMPLES with a positive number, such as synth:small:5000"
            )
        return name, int(samples)


def require_file(path: Path) -> None:
    """Checks that a file can be read.

    Raises:
        CommandError: It is missing, is not a file, or cannot be read.
    """
    if not path.exists():
        raise CommandError(f"{path}: no such file")
    if path.is_dir():
        raise CommandError(f"{path} is a folder; expected a file")
    if not os.access(path, os.R_OK):
        raise CommandError(f"{path} cannot be read: permission denied")


def read_label_names(path: Path, num_labels: int, owner: str) -> tuple[str, ...]:
    """Reads names, one for each label of `owner`.

    Raises:
        CommandError: There are more or fewer names than labels.
    """
    from tf_dslide.data import read_names

    names = read_names(path)
    if len(names) != num_labels:
        raise CommandError(
            f"{path} has {len(names):,} names but {owner} has {num_labels:,} labels; expected one "
            "name a line for each label"
        )
    return names


def require_size(what: str, name: str, found: int, owner: str, expected: int) -> None:
    """Checks that data fit what they are to be used with.

    Raises:
        CommandError: The numbers differ.
    """
    if found != expected:
        raise CommandError(
            f"{name} has {found:,} {what} but {owner} has {expected:,}: both must come from the "
            "same vocabulary"
        )


def hold_out(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Splits data at random into a part to train on and a part to score on.

    Args:
        data: The whole.
        share: Of the part to score on, which has one sample at least.
        seed: Decides which samples.

    Raises:
        CommandError: Nothing would be left to train on.
    """
    import numpy as np

    held = max(1, round(share * len(data)))
    if held >= len(data):
        raise CommandError(
            f"{data.name} has {len(data):,} samples, too few to hold out a share of {share:g}: "
            "give more data, or to `dslide train` --test DATA or --validation-split 0"
        )
    order = np.random.default_rng(seed).permutation(len(data))
    return data.take(np.sort(order[held:])), data.take(np.sort(order[:held]))
