"""Hashed training against training with all neurons: same network, data, epochs, seed, optimizer.

`python benchmarks/accuracy.py TRAIN TEST --epochs 5` prints P@k of both, the time of both, and the
share of neurons that were active, and writes them as JSON.
"""

import argparse
import json
import time

import keras
import numpy as np
from environment import describe, quiet

quiet()

from tf_dslide import (  # noqa: E402
    DWTA,
    AllNeurons,
    DSlideDense,
    LshSampler,
    PrecisionAtK,
    SimHash,
    SlideCrossentropy,
    SparseAdam,
    SparseDense,
    UniformSampler,
)
from tf_dslide.data import batches, read_xmc  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--methods", nargs="+", default=["lsh", "all"])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--active", type=int, help="default: a tenth of the neurons")
    parser.add_argument("--hash", choices=["simhash", "dwta"], default="simhash")
    parser.add_argument("--bits", type=int, help="bits (simhash) or bins (dwta) of a table")
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--bucket-size", type=int, default=128)
    parser.add_argument("--rebuild-every", type=int, default=100)
    parser.add_argument("--rebuild-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def sampler_of(method: str, args: argparse.Namespace, units: int):
    active = args.active or units // 10
    if method == "all":
        return AllNeurons()
    if method == "uniform":
        return UniformSampler(active, seed=args.seed)
    family = {"simhash": SimHash, "dwta": DWTA}[args.hash](args.bits, tables=args.tables)
    return LshSampler(
        family,
        active,
        bucket_size=args.bucket_size,
        rebuild_every=args.rebuild_every,
        rebuild_decay=args.rebuild_decay,
        seed=args.seed,
    )


def train_and_test(method: str, args: argparse.Namespace, train, test) -> dict:
    keras.utils.set_random_seed(args.seed)
    sampler = sampler_of(method, args, train.num_labels)
    model = keras.Sequential(
        [
            keras.Input((train.num_features,), sparse=True),
            SparseDense(args.hidden, activation="relu"),
            keras.layers.Dropout(args.dropout, seed=args.seed),
            DSlideDense(train.num_labels, sampler=sampler),
        ]
    )
    steps = -(-train.num_samples // args.batch_size) * args.epochs
    rate = keras.optimizers.schedules.PolynomialDecay(args.learning_rate, steps, 0.0)
    model.compile(
        SparseAdam(rate), SlideCrossentropy(), metrics=[PrecisionAtK(k) for k in (1, 3, 5)]
    )
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed)
    held_out = batches(test, args.batch_size)
    epochs, seconds = [], 0.0
    for epoch in range(args.epochs):
        start = time.perf_counter()
        history = model.fit(stream, epochs=1, verbose=0)
        seconds += time.perf_counter() - start
        figures = model.evaluate(held_out, verbose=0, return_dict=True)
        figures.update(
            epoch=epoch + 1, seconds=round(seconds, 2), train_loss=history.history["loss"][0]
        )
        epochs.append(figures)
        print(method, json.dumps({k: round(float(v), 4) for k, v in figures.items()}), flush=True)
    return {
        "method": method,
        "active_per_sample": active_per_sample(model, train, args),
        "epochs": epochs,
    }


def active_per_sample(model: keras.Model, train, args: argparse.Namespace) -> float:
    """Mean size of the active sets of one batch, labels included, under the final weights."""
    from tf_dslide import labels as label_forms

    layer = model.layers[-1]
    if layer.sampler.selects_all:
        return float(layer.units)
    x, y = next(iter(batches(train, args.batch_size)))
    hidden = model.layers[0](x)
    _, active, _ = layer._at_work.sampled_logits(hidden, label_forms.to_csr(y, layer.units))
    return float(np.mean(active.row_lengths()))


def main() -> None:
    args = arguments()
    train, test = read_xmc(args.train), read_xmc(args.test)
    runs = [train_and_test(method, args, train, test) for method in args.methods]
    result = {"arguments": vars(args), "environment": describe(), "runs": runs}
    for run in runs:
        last = run["epochs"][-1]
        print(
            f"{run['method']:8s} P@1 {100 * last['precision_at_1']:.2f} "
            f"P@3 {100 * last['precision_at_3']:.2f} P@5 {100 * last['precision_at_5']:.2f} "
            f"training {last['seconds']:.0f} s, active {run['active_per_sample']:.0f} of "
            f"{train.num_labels} ({100 * run['active_per_sample'] / train.num_labels:.1f} %)"
        )
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
