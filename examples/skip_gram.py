"""Word embeddings of any text, by the skip-gram task of Text8.

Each word of the text is a sample, the words around it are its labels; the network has as many
inputs and as many classes as there are words. The rows of its first layer are the embeddings.
Every hundredth piece of the text is held out. Files may be compressed with gzip.

    python examples/skip_gram.py text8
    python examples/skip_gram.py /usr/share/dictd/gcide.dict.dz --words house river green
"""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from rich.console import Console
from rich.table import Table

from tf_dslide import (
    DSlideDense,
    LabelPrior,
    LshSampler,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
)
from tf_dslide.data import Dataset, batches, read_skip_gram

LETTERS = r"[^\W\d_]+"
# Words held out together: were they single ones, their neighbours' labels would tell of them.
PIECE = 500
# The neighbours are shown of words that are neither "the" and "of" nor rare.
SHOWN_RANKS = (200, 2000)


class Epoch(NamedTuple):
    """What an epoch has brought: losses in nats a label.

    Attributes:
        number: Epochs so far; 0 is before training, when the biases alone know something.
        active: Mean loss of the steps, over active sets.
        training: Loss over the whole vocabulary on some of the training words.
        held_out: The same on words that were held out.
        seconds: Of training.
    """

    number: int
    active: float
    training: float
    held_out: float
    seconds: float


def hold_out(data: Dataset) -> tuple[Dataset, Dataset]:
    """Splits into training and held-out words: every hundredth piece, or of a short text the last.

    Labels reach a few words over the edges of a piece.
    """
    if data.num_samples <= PIECE:
        raise SystemExit(
            f"{data.num_samples} words are too few: {PIECE} are held out, and others learned from"
        )
    pieces = np.arange(data.num_samples) // PIECE
    held = pieces % 100 == min(99, pieces[-1])
    return data.take(~held), data.take(held)


def build(train: Dataset, args: argparse.Namespace) -> keras.Model:
    """Embeddings and a hashed output layer, compiled for training."""
    keras.utils.set_random_seed(args.seed)
    model = keras.Sequential(
        [
            keras.Input((train.num_features,), sparse=True),
            SparseDense(args.units, use_bias=False),
            DSlideDense(
                train.num_labels,
                # A batch has thousands of labels: too many to be active in all of its rows.
                sampler=LshSampler(
                    hash=SimHash(tables=20),
                    active=args.active,
                    batch_labels=False,
                    seed=args.seed,
                ),
                bias_initializer=LabelPrior(train.label_counts),
            ),
        ]
    )
    steps = args.epochs * -(-train.num_samples // args.batch_size)
    rate = keras.optimizers.schedules.PolynomialDecay(args.rate, steps, end_learning_rate=0.0)
    model.compile(optimizer=SparseAdam(rate), loss=SlideCrossentropy())
    return model


def epochs_of(
    model: keras.Model, train: Dataset, held: Dataset, args: argparse.Namespace, verbose: int
) -> Iterator[Epoch]:
    """Trains, and says after each epoch what it has brought; first how it stands before."""
    every = max(1, train.num_samples // max(1, args.tested))
    samples = [train.take(slice(None, None, every)), held.take(slice(args.tested))]
    exact = [batches(sample, args.batch_size) for sample in samples]
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed)
    active, seconds = float("nan"), 0.0
    for number in range(args.epochs + 1):
        if number:
            start = time.perf_counter()
            history = model.fit(
                stream,
                initial_epoch=number - 1,
                epochs=number,
                shuffle=False,  # the pipeline shuffles
                verbose=verbose,
            )
            active, seconds = history.history["loss"][0], time.perf_counter() - start
        losses = [model.evaluate(part, verbose=0) for part in exact]
        yield Epoch(number, active, *losses, seconds)


def neighbours(
    embeddings: np.ndarray, ids: np.ndarray, k: int, among: int
) -> tuple[np.ndarray, np.ndarray]:
    """The words whose embeddings point most nearly the same way.

    Args:
        embeddings: `(vocabulary, units)`.
        ids: The words asked for, `(n,)`.
        k: How many neighbours to find.
        among: How many of the most frequent words to look at; rare ones have learned little.

    Returns:
        Ids `(n, k)` and cosines `(n, k)`, the nearest first, without the word itself.
    """
    # What all words have in common tells nothing of one.
    centred = embeddings - embeddings[:among].mean(axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    cosines = unit[ids] @ unit[:among].T
    own = ids < among
    cosines[np.flatnonzero(own), ids[own]] = -np.inf
    best = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return best, np.take_along_axis(cosines, best, axis=1)


def words_to_show(data: Dataset, wanted: list[str], number: int = 16) -> np.ndarray:
    """Ids of the words asked for, or of frequent ones at equal steps of rank."""
    names = data.label_names
    if not wanted:
        long = [i for i in range(*slice(*SHOWN_RANKS).indices(len(names))) if len(names[i]) > 3]
        long = long or list(range(len(names)))
        return np.array(long[:: max(1, len(long) // number)][:number])
    unknown = [word for word in wanted if word.lower() not in names]
    if unknown:
        raise SystemExit(f"not among the {len(names):,} words known: {', '.join(unknown)}")
    return np.array([names.index(word.lower()) for word in wanted])


def table_of_losses(epochs: list[Epoch], words: int) -> Table:
    """The course of the training."""
    table = Table(
        "Epoch", "Loss of the steps", "Loss, training words", "Loss, held-out words", "Words/s"
    )
    for epoch in epochs:
        step = f"{epoch.active:.3f}" if epoch.number else ""
        rate = f"{words / epoch.seconds:,.0f}" if epoch.number else ""
        losses = f"{epoch.training:.3f}", f"{epoch.held_out:.3f}"
        table.add_row(str(epoch.number), step, *losses, rate)
    return table


def table_of_neighbours(embeddings: np.ndarray, data: Dataset, args: argparse.Namespace) -> Table:
    """Words and the words nearest to them."""
    ids = words_to_show(data, args.words)
    table = Table("Word", "Nearest words (cosine)")
    for word, row, cosines in zip(ids, *neighbours(embeddings, ids, 6, args.among), strict=True):
        near = [f"{data.label_names[i]} ({c:.2f})" for i, c in zip(row, cosines, strict=True)]
        table.add_row(data.label_names[word], ", ".join(near))
    return table


def markdown(table: Table) -> str:
    """A table of `rich` in Markdown."""
    heads = [str(column.header) for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_report(path: Path, facts: str, tables: list[Table]) -> None:
    """What was printed, with the command, the machine, the versions and the commit."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from benchmarks.environment import describe, peak_megabytes

    found = ", ".join(f"{name} {value}" for name, value in describe().items())
    command = shlex.join(["python", "examples/skip_gram.py", *sys.argv[1:]])
    text = [
        "# Word embeddings",
        f"```\n{command}\n```",
        f"{facts} Losses are in nats a label: those of the steps over active sets, the others over "
        "the whole vocabulary. Epoch 0 is before training, when the biases alone know something: "
        "how frequent the words are.",
        *map(markdown, tables),
        f"Peak memory {peak_megabytes():,.0f} MB. Run on: {found}.",
    ]
    path.write_text("\n\n".join(text) + "\n")


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", nargs="+", type=Path, help="files, perhaps compressed with gzip")
    parser.add_argument("--vocabulary", type=int, default=253_855, help="most frequent words known")
    parser.add_argument("--window", type=int, default=5, help="words on each side to learn")
    parser.add_argument(
        "--subsample", type=float, default=1e-4, help="thin out words more frequent than this share"
    )
    parser.add_argument("--units", type=int, default=128, help="length of an embedding")
    parser.add_argument("--active", type=int, default=1000, help="classes active for a word")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--rate", type=float, default=5e-3, help="learning rate at the beginning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tested", type=int, default=5000, help="words to compute losses on")
    parser.add_argument("--among", type=int, default=20_000, help="words that can be neighbours")
    parser.add_argument("--words", nargs="+", default=[], help="words to show the neighbours of")
    parser.add_argument("--save", type=Path, help="write words and embeddings to this .npz file")
    parser.add_argument("--report", type=Path, help="write what is printed to this .md file")
    return parser.parse_args(words)


def main() -> None:
    """Reads, trains, shows, saves."""
    args = arguments()
    console = Console()
    data = read_skip_gram(
        *args.text,
        vocabulary=args.vocabulary,
        window=args.window,
        word=LETTERS,
        subsample=args.subsample,
        seed=args.seed,
        errors="replace",
    )
    words_to_show(data, args.words)  # a word that is not known is better told of now
    train, held = hold_out(data)
    facts = (
        f"A vocabulary of {data.num_labels:,} words; {train.num_samples:,} words of the text to "
        f"learn, {held.num_samples:,} held out, {train.labels.nnz / train.num_samples:.1f} labels "
        f"each (a window of {args.window}, words more frequent than {args.subsample:g} thinned "
        f"out)."
    )
    console.print(facts)
    model = build(train, args)
    epochs = []
    for epoch in epochs_of(model, train, held, args, 1 if console.is_terminal else 2):
        epochs.append(epoch)
        console.print(f"after epoch {epoch.number}: held-out loss {epoch.held_out:.3f}")
    embeddings = model.layers[0].kernel.numpy()
    tables = [table_of_losses(epochs, train.num_samples)]
    tables.append(table_of_neighbours(embeddings, data, args))
    console.print(*tables)
    if args.save:
        np.savez(args.save, words=np.array(data.label_names), embeddings=embeddings)
    if args.report:
        write_report(args.report, facts, tables)


if __name__ == "__main__":
    main()
