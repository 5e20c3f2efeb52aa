"""The data of a comparison: presets by name, files by path."""

import re
from pathlib import Path
from typing import NamedTuple

from tf_dslide.data import (
    PRESETS,
    Dataset,
    cached,
    load_places,
    make_preset,
    read_skip_gram,
    read_xmc,
    save_dataset,
    tf_idf,
)

SKIP_GRAM = "skipgram:"
TF_IDF = "tf-idf:"
PLACES = re.compile(r"places(?::([1-9]\d*))?")


class Split(NamedTuple):
    """Training and test data, their name, and what they are."""

    train: Dataset
    test: Dataset
    name: str
    source: str


class Stored(NamedTuple):
    """Folders that the processes of all runs map into memory."""

    train: str
    test: str


def load(where: str, seed: int, train_rows: int | None, test_rows: int) -> Split:
    """The data that a `--data` names.

    Args:
        where: A preset (`PRESETS`); a folder with `train.txt` and `test.txt` in the XMC
            repository's format, perhaps with the suffix `.gz`, or `tf-idf:FOLDER` to weight its
            features, which are counts; `places` or `places:N` for spellings of all places or of
            the N most populous ones (`load_places`); or `skipgram:FILE` for the words of a text
            file and the words around them, every tenth of them for testing.
        seed: Of the presets, and of the choice of rows.
        train_rows: How many training rows to take at most; `None` for all.
        test_rows: How many test rows to take at most: the first ones.

    Raises:
        ValueError: There is no such preset, folder or file, train and test do not belong together,
            or features to be weighted are not counts.
    """
    require(where)
    if where.startswith(SKIP_GRAM):
        split = _skip_gram(Path(where.removeprefix(SKIP_GRAM)), test_rows)
    elif places := PLACES.fullmatch(where):
        most = None if places[1] is None else int(places[1])
        task = load_places(max_places=most)
        split = Split(task.train, task.test, where.replace(":", "-"), "spellings of places")
    elif where in PRESETS:
        tested = min(test_rows, PRESETS[where].num_test)
        split = Split(
            make_preset(where, num_samples=train_rows, seed=seed),
            make_preset(where, split="test", num_samples=tested, seed=seed),
            where,
            "synthetic preset",
        )
    elif where.startswith(TF_IDF):
        split = _weighed(_folder(Path(where.removeprefix(TF_IDF))))
    else:
        split = _folder(Path(where))
    train, test = split.train, split.test
    if train_rows is not None and train_rows < train.num_samples:
        train = train.take(slice(train_rows))
    if train.num_samples == 0 or test.num_samples == 0:
        raise ValueError(
            f"{where} has {train.num_samples} training and {test.num_samples} test rows; a "
            "comparison needs some of both"
        )
    return split._replace(train=train, test=test.take(slice(test_rows)))


def store(split: Split, folder: Path) -> Stored:
    """Keeps the data where the processes of all runs find it."""
    stored = Stored(str(folder / "train"), str(folder / "test"))
    save_dataset(stored.train, split.train)
    save_dataset(stored.test, split.test)
    return stored


def require(where: str) -> None:
    """Checks that there is what `--data` names, before anything is trained.

    Raises:
        ValueError: There is no such preset, folder or file.
    """
    if where.startswith(SKIP_GRAM):
        if not Path(where.removeprefix(SKIP_GRAM)).is_file():
            raise ValueError(f"{where}: no such file")
    elif where not in PRESETS and not PLACES.fullmatch(where):
        folder = Path(where.removeprefix(TF_IDF))
        if not folder.is_dir():
            raise ValueError(
                f"no data {str(folder)!r}: neither a preset ({', '.join(PRESETS)}) nor places:N, "
                f"nor a folder with train.txt.gz and test.txt.gz, nor {SKIP_GRAM}FILE"
            )
        _file(folder, "train"), _file(folder, "test")


def _weighed(split: Split) -> Split:
    train, test = tf_idf(split.train, split.test)
    return split._replace(train=train, test=test, source=f"{split.source}, TF-IDF of its counts")


def _folder(folder: Path) -> Split:
    train, test = _part(folder, "train"), _part(folder, "test")
    widths = [(part.num_features, part.num_labels) for part in (train, test)]
    if widths[0] != widths[1]:
        raise ValueError(
            f"{folder}: train and test have {widths[0]} and {widths[1]} features and labels; their "
            "headers must agree"
        )
    return Split(train, test, folder.resolve().name, "files in the XMC repository's format")


def _part(folder: Path, name: str) -> Dataset:
    return cached(Path.home() / ".cache/tf_dslide/baselines", read_xmc, _file(folder, name))


def _file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.txt", folder / f"{name}.txt.gz"):
        if path.exists():
            return path
    raise ValueError(f"{folder} has neither {name}.txt nor {name}.txt.gz")


def _skip_gram(path: Path, test_rows: int) -> Split:
    data = read_skip_gram(path)
    tested = min(test_rows, data.num_samples // 10)
    return Split(
        data.take(slice(data.num_samples - tested)),
        data.take(slice(data.num_samples - tested, None)),
        path.stem,
        "skip-gram of a text file",
    )
