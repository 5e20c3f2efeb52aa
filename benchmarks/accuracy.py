"""Hashed training against training with all neurons: same network, data, epochs, seed, optimizer.

`python benchmarks/accuracy.py TRAIN TEST --epochs 5` prints P@k of both, the time of both, and the
share of neurons that were active, and writes them as JSON.

With `--cosine` the network has a linear hidden layer, its logits are scaled cosines, it starts from
the labels' centroids and is trained by Adagrad: `--cosine --learning-rate 0.05 --batch-size 512
--epochs 2 --prior` is a good beginning for short texts with TF-IDF features.
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
    LabelPrior,
    LshSampler,
    PrecisionAtK,
    PropensityScoredPrecisionAtK,
    SimHash,
    SlideCrossentropy,
    SparseAdagrad,
    SparseAdam,
    SparseDense,
    UniformSampler,
    UnitRows,
    start_from_centroids,
)
from tf_dslide.data import batches, read_xmc  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train")
    parser.add_argument("test")
    parser.add_argument("--methods", nargs="+", default=["lsh", "all"], help="of: lsh uniform all")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--cosine", action="store_true")
    parser.add_argument("--scale", type=float, default=15.0, help="of the cosines")
    parser.add_argument("--test-rows", type=int, help="evaluate the first ones only")
    parser.add_argument("--active", type=int, help="default: a tenth of the neurons")
    parser.add_argument("--hash", choices=["simhash", "dwta"], default="simhash")
    parser.add_argument("--bits", type=int, help="bits (simhash) or bins (dwta) of a table")
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--bucket-size", type=int, default=64)
    parser.add_argument("--random", type=float, default=0.9)
    parser.add_argument("--head", type=float, default=0.0)
    parser.add_argument("--prior", action="store_true", help="start from the labels' frequencies")
    parser.add_argument("--rebuild-every", type=int, default=25)
    parser.add_argument("--rebuild-decay", type=float, default=0.2)
    parser.add_argument("--each-epoch", action="store_true", help="evaluate after each epoch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def sampler_of(method: str, args: argparse.Namespace, units: int):
    active = args.active or units // 10
    if method == "all":
        return AllNeurons()
    if method == "uniform":
        return UniformSampler(num_sampled=active, seed=args.seed)
    if args.hash == "dwta":
        family = DWTA(bins=args.bits, tables=args.tables)
    else:
        family = SimHash(bits=args.bits, tables=args.tables)
    return LshSampler(
        hash=family,
        active=active,
        random=args.random,
        head=args.head,
        bucket_size=args.bucket_size,
        rebuild_every=args.rebuild_every,
        rebuild_decay=args.rebuild_decay,
        seed=args.seed,
    )


def prior(args: argparse.Namespace, train):
    return LabelPrior(train.label_counts) if args.prior else "zeros"


def network(sampler, args: argparse.Namespace, train) -> keras.Model:
    output = DSlideDense(
        train.num_labels,
        sampler=sampler,
        bias_initializer=prior(args, train),
        kernel_constraint=UnitRows() if args.cosine else None,
    )
    if args.cosine:
        random = keras.initializers.RandomNormal(stddev=args.hidden**-0.5, seed=args.seed)
        hidden = [
            SparseDense(args.hidden, use_bias=False, kernel_initializer=random),
            keras.layers.UnitNormalization(),
            keras.layers.Rescaling(args.scale),
        ]
    else:
        hidden = [SparseDense(args.hidden, activation="relu")]
    dropout = keras.layers.Dropout(args.dropout, seed=args.seed)
    inputs = keras.Input((train.num_features,), sparse=True)
    model = keras.Sequential([inputs, *hidden, dropout, output])
    if args.cosine:
        start_from_centroids(model, train)
    return model


def train_and_test(method: str, args: argparse.Namespace, train, test) -> dict:
    keras.utils.set_random_seed(args.seed)
    sampler = sampler_of(method, args, train.num_labels)
    started = time.perf_counter(), time.process_time()
    model = network(sampler, args, train)
    steps = -(-train.num_samples // args.batch_size) * args.epochs
    rate = keras.optimizers.schedules.PolynomialDecay(args.learning_rate, steps, 0.0)
    optimizer = SparseAdagrad if args.cosine else SparseAdam
    model.compile(optimizer(rate), SlideCrossentropy())
    # The metrics have a model of their own on the same layers: training is timed without them.
    judge = keras.Sequential(model.layers)
    metrics = [PrecisionAtK(k) for k in (1, 3, 5)]
    metrics.append(PropensityScoredPrecisionAtK(5, train.label_counts, train.num_samples))
    judge.compile(loss=SlideCrossentropy(), metrics=metrics)
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed)
    held_out = batches(test, args.batch_size)
    epochs = []
    seconds, cpu_seconds = time.perf_counter() - started[0], time.process_time() - started[1]
    for epoch in range(1, args.epochs + 1):
        start, cpu_start = time.perf_counter(), time.process_time()
        history = model.fit(stream, epochs=1, verbose=0, shuffle=False)
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        figures = {"epoch": epoch, "seconds": seconds, "cpu_seconds": cpu_seconds}
        figures["train_loss"] = history.history["loss"][0]
        if args.each_epoch or epoch == args.epochs:
            figures.update(judge.evaluate(held_out, verbose=0, return_dict=True))
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
    x, y = next(iter(batches(train, args.batch_size, shuffle=True)))
    hidden = x
    for hidden_layer in model.layers[:-1]:
        hidden = hidden_layer(hidden)
    _, selection = layer._sampled_weights.sampled_logits(hidden, label_forms.to_csr(y, layer.units))
    own, shared = selection.active
    # A shared neuron that is among a row's own is one neuron.
    doubled = np.isin(own.ids, shared).sum()
    return len(shared) + float(len(own.ids) - doubled) / len(own.row_lengths())


def main() -> None:
    args = arguments()
    train, test = read_xmc(args.train), read_xmc(args.test)
    test = test.take(slice(args.test_rows))
    runs = [train_and_test(method, args, train, test) for method in args.methods]
    result = {"arguments": vars(args), "environment": describe(), "runs": runs}
    for run in runs:
        last, active = run["epochs"][-1], run["active_per_sample"]
        print(
            f"{run['method']:8s} P@1 {100 * last['precision_at_1']:.2f} "
            f"P@3 {100 * last['precision_at_3']:.2f} P@5 {100 * last['precision_at_5']:.2f} "
            f"training {last['seconds']:.0f} s, {last['cpu_seconds']:.0f} CPU s, "
            f"active {active:.0f} of {train.num_labels} ({100 * active / train.num_labels:.1f} %)"
        )
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
