"""The best classes of a query: exact, hashed, and by TensorFlow.

`python benchmarks/top_k.py` trains a short while on data of Amazon-670K's shape, then asks for the
best five classes of single samples and of batches. Exact search reads all weights: its figure is
the share of the memory bandwidth (single queries) or of the rate of TensorFlow's matrix product
(batches) that it reaches. Hashed search is judged by its time and by how many of the exact best
five it finds.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from environment import describe, quiet
from keras_models import dslide_model

quiet()

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from tf_dslide import DSlideDense, LshSampler, SimHash  # noqa: E402
from tf_dslide.data import PRESETS, batches, make_preset  # noqa: E402

PRESET = "amazon-670k"
TURN = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--bits", type=int)
    parser.add_argument("--train", type=int, default=51_200, help="samples to train on")
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--queries", type=int, default=512, help="single queries")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def trained(args: argparse.Namespace) -> tuple[keras.Model, tf.Tensor]:
    """A model, and the hidden vectors of test samples."""
    keras.utils.set_random_seed(args.seed)
    spec = PRESETS[PRESET].spec
    sampler = LshSampler(
        hash=SimHash(args.bits, tables=args.tables), active=args.active, seed=args.seed
    )
    sizes = (spec.num_features, args.hidden, spec.num_labels)
    model = dslide_model(*sizes, sampler, args.learning_rate)
    train = make_preset(PRESET, num_samples=args.train, seed=args.seed)
    model.fit(batches(train, args.batch_size, shuffle=True), verbose=0, shuffle=False)
    count = max(args.queries, 4 * args.batch_size)
    test = make_preset(PRESET, split="test", num_samples=count, seed=args.seed)
    return model, tf.concat([model.layers[0](x) for x, _ in batches(test, 256)], axis=0)


def seconds_of(ask: Callable[[int], object], times: int) -> list[float]:
    ask(0)  # traces and allocates
    taken = []
    for number in range(times):
        start = time.perf_counter()
        ask(number)
        taken.append(time.perf_counter() - start)
    return taken


def single_queries(layer: DSlideDense, hidden: tf.Tensor, args: argparse.Namespace) -> dict:
    """Latency of one query at a time, exact and hashed, in turns of a few queries.

    Each turn's first query finds the caches as the other search left them.
    """
    found: dict[bool, list[np.ndarray]] = {True: [], False: []}
    taken: dict[bool, list[float]] = {True: [], False: []}
    layer.rebuild()
    for exact in (True, False):
        layer.top_k(hidden[:1], args.k, exact=exact)
    for first in range(0, args.queries, TURN):
        for exact in (True, False):
            for number in range(first, min(first + TURN, args.queries)):
                query = hidden[number : number + 1]
                start = time.perf_counter()
                _, labels = layer.top_k(query, args.k, exact=exact)
                taken[exact].append(time.perf_counter() - start)
                found[exact].append(labels.numpy()[0])
    hits = [len(np.intersect1d(a, b)) for a, b in zip(found[True], found[False], strict=True)]
    milliseconds = {
        name: {f"p{q}_ms": float(np.percentile(taken[exact], q) * 1e3) for q in (50, 99)}
        for name, exact in (("exact", True), ("hashed", False))
    }
    milliseconds["exact"]["gb_per_second"] = (
        4e-9 * np.prod(layer.kernel.shape) / median(taken[True])
    )
    milliseconds["hashed"]["recall"] = float(np.mean(hits) / args.k)
    return milliseconds


def whole_batches(layer: DSlideDense, hidden: tf.Tensor, args: argparse.Namespace) -> dict:
    """Exact search for batches beside TensorFlow's matrix product alone and with top_k."""
    size = args.batch_size

    def batch(number: int) -> tf.Tensor:
        begin = number % 4 * size
        return hidden[begin : begin + size]

    kernel, bias = layer.kernel.value, layer.bias.value

    def dense(number: int) -> tf.Tensor:
        return tf.matmul(batch(number), kernel, transpose_b=True)

    methods = {
        "exact": lambda number: layer.top_k(batch(number), args.k),
        "hashed": lambda number: layer.top_k(batch(number), args.k, exact=False),
        "tf matmul": dense,
        "tf matmul and top_k": lambda number: tf.math.top_k(dense(number) + bias, args.k),
    }
    flops = 2.0 * size * np.prod(layer.kernel.shape)
    result = {}
    for name, ask in methods.items():
        seconds = median(seconds_of(ask, 5))
        result[name] = {"ms": seconds * 1e3, "gflops": flops / seconds / 1e9}
    return result


def main() -> None:
    args = arguments()
    model, hidden = trained(args)
    layer = model.layers[-1]
    single, batch = single_queries(layer, hidden, args), whole_batches(layer, hidden, args)
    print(f"{PRESET}: top {args.k} of {layer.units}, hidden {args.hidden}")
    print(
        f"one query, exact : p50 {single['exact']['p50_ms']:8.2f} ms, p99 "
        f"{single['exact']['p99_ms']:8.2f} ms, {single['exact']['gb_per_second']:.1f} GB/s"
    )
    print(
        f"one query, hashed: p50 {single['hashed']['p50_ms']:8.2f} ms, p99 "
        f"{single['hashed']['p99_ms']:8.2f} ms, recall@{args.k} {single['hashed']['recall']:.3f}"
    )
    for name, figures in batch.items():
        print(f"{args.batch_size} queries, {name:20s}: {figures['ms']:8.1f} ms", end="")
        print("" if name == "hashed" else f", {figures['gflops']:6.1f} GFLOP/s")
    if args.out:
        result = {"arguments": vars(args), "environment": describe(), "single": single}
        Path(args.out).write_text(json.dumps({**result, "batch": batch}, indent=1))


if __name__ == "__main__":
    main()
