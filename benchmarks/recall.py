"""How many of the neurons that score highest each hash family finds, and what it costs to train.

`python benchmarks/recall.py` trains one network with each family on data of Delicious-200K's shape;
`python benchmarks/recall.py TRAIN TEST` does so on files in the format of the Extreme
Classification Repository. Families have the same bits, tables, bucket size and active neurons.
Printed for rows that were held out: the share of the 100 neurons of the highest logits that the
buckets give with the budget of training (hashed neurons and the head) and with that of prediction,
which also has the place of the random ones and larger windows; and the time of `fit`. Because each
family trains its own network, and the one that `LearnedHash` trained is hashed by the others too.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import keras
import numpy as np
from environment import describe, quiet
from keras_models import dslide_model

quiet()

import tensorflow as tf  # noqa: E402

from tf_dslide import (  # noqa: E402
    DWTA,
    WTA,
    DSlideDense,
    HashFamily,
    LearnedHash,
    LshSampler,
    MinHash,
    SimHash,
)
from tf_dslide.data import PRESETS, batches, make_preset, read_xmc  # noqa: E402
from tf_dslide.hashing import address_bits_for  # noqa: E402
from tf_dslide.selectors import TableSelector, no_labels  # noqa: E402

TOP = 100


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="TRAIN TEST", help="instead of a preset")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="delicious-200k")
    parser.add_argument("--train", type=int, default=20_480, help="samples of the preset")
    parser.add_argument(
        "--families",
        nargs="+",
        choices=["simhash", "wta", "dwta", "minhash", "learned"],
        default=["simhash", "dwta", "learned"],
    )
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--active", type=int, help="default: that of the sampler")
    parser.add_argument("--bits", type=int, help="default: by the number of neurons")
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--bucket-size", type=int, default=64)
    parser.add_argument("--rebuild-on-drift", type=float)
    parser.add_argument("--rows", type=int, default=512, help="held-out rows to judge by")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file; a table in Markdown lies beside it")
    args = parser.parse_args()
    if len(args.files) not in (0, 2):
        parser.error(f"name a training and a test file, or neither; received {args.files}")
    return args


def data(args: argparse.Namespace):
    if args.files:
        train, test = (read_xmc(name) for name in args.files)
    else:
        train = make_preset(args.preset, num_samples=args.train, seed=args.seed)
        test = make_preset(args.preset, split="test", num_samples=args.rows, seed=args.seed)
    return train, test.take(slice(0, args.rows))


def family(name: str, bits: int, args: argparse.Namespace) -> HashFamily:
    if name == "simhash":
        return SimHash(bits=bits, tables=args.tables, seed=args.seed)
    if name == "learned":
        return LearnedHash(bits=bits, tables=args.tables, seed=args.seed)
    if name == "minhash":
        return MinHash(tables=args.tables, address_bits=bits, seed=args.seed)
    winner_take_all = WTA if name == "wta" else DWTA
    bins = -(-bits // 3)
    return winner_take_all(bins=bins, tables=args.tables, address_bits=bits, seed=args.seed)


def sampler(name: str, bits: int, args: argparse.Namespace) -> LshSampler:
    return LshSampler(
        hash=family(name, bits, args),
        active=args.active,
        bucket_size=args.bucket_size,
        seed=args.seed,
        rebuild_on_drift=args.rebuild_on_drift,
    )


def trained(name: str, bits: int, train, args: argparse.Namespace) -> tuple[keras.Model, float]:
    """A model, and the seconds of `fit` without those of tracing."""
    keras.utils.set_random_seed(args.seed)
    sizes = (train.num_features, args.hidden, train.num_labels)
    model = dslide_model(*sizes, sampler(name, bits, args), args.learning_rate)
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed)
    model.fit(stream.take(1), verbose=0)
    # The first rebuild of the schedule is a part of the time.
    model.layers[-1]._sampled_weights.step.assign(0)
    model.layers[-1]._sampled_weights.selector.set_state([0, 0])
    start = time.perf_counter()
    model.fit(stream, epochs=args.epochs, verbose=0, shuffle=False)
    return model, time.perf_counter() - start


def recalls(selector: TableSelector, layer: DSlideDense, hidden: tf.Tensor) -> dict[str, float]:
    """Share of the best neurons that are found, with the two budgets."""
    wanted = layer.top_k(hidden, k=min(TOP, layer.units))[1].numpy()
    counts, bucket_size = selector._settings.counts, selector._settings.bucket_size
    nothing, head = no_labels(hidden), selector._head.numpy()
    step = tf.constant(0, tf.int64)
    found = {
        "training": (counts.hashed, bucket_size, False),
        "prediction": (counts.hashed + counts.random, 4 * bucket_size, True),
    }
    result = {}
    for budget, (hashed, size, by_code) in found.items():
        own = selector._found(
            hidden, nothing, step, hashed=hashed, bucket_size=size, by_code=by_code
        )
        splits, ids = own.row_splits.numpy(), own.ids.numpy()
        rows = [np.append(ids[a:b], head) for a, b in itertools.pairwise(splits)]
        hits = [np.isin(best, row).mean() for best, row in zip(wanted, rows, strict=True)]
        result[budget] = float(np.mean(hits))
    return result


def hashed_by(name: str, bits: int, layer: DSlideDense, args: argparse.Namespace) -> TableSelector:
    """Fresh tables of another family for a layer's weights."""
    other = sampler(name, bits, args).selector(*layer.kernel.shape)
    other.rebuild(layer.kernel, layer.bias, tf.constant(0, tf.int64))
    return other


def measure(name: str, bits: int, train, test, args: argparse.Namespace) -> dict:
    model, seconds = trained(name, bits, train, args)
    layer = model.layers[-1]
    layer.rebuild()
    hidden = tf.concat([model.layers[0](x) for x, _ in batches(test, 256)], axis=0)
    selector = layer._sampled_weights.selector
    result = {
        "family": name,
        "seconds": seconds,
        "rebuilds": int(selector.get_state()[1]),
        "recall": recalls(selector, layer, hidden),
    }
    if name == "learned":
        result["same_network"] = {
            other: recalls(hashed_by(other, bits, layer, args), layer, hidden)
            for other in args.families
            if other != "learned"
        }
    return result


def table(runs: list[dict]) -> str:
    """The runs in Markdown."""
    same = next((run["same_network"] for run in runs if "same_network" in run), {})
    base = runs[0]["seconds"]
    lines = [
        f"| family | recall@{TOP}, training's budget | prediction's budget | on Learned's network "
        "| seconds of fit | beside the first |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs:
        both = [f"{100 * run['recall'][budget]:.1f} %" for budget in ("training", "prediction")]
        again = same.get(run["family"], run["recall"] if "same_network" in run else None)
        both.append(
            " / ".join(f"{100 * value:.1f} %" for value in again.values()) if again else "-"
        )
        times = [f"{run['seconds']:.1f}", f"{run['seconds'] / base:.2f}"]
        lines.append(f"| {' | '.join([run['family'], *both, *times])} |")
    return "\n".join(lines)


def main() -> None:
    args = arguments()
    train, test = data(args)
    bits = args.bits or address_bits_for(train.num_labels)
    counts = LshSampler(active=args.active).counts_of(train.num_labels)
    print(
        f"{train.num_samples} samples, {train.num_labels} labels, {args.epochs} epochs; {bits} "
        f"bits, {args.tables} tables, buckets of {args.bucket_size}; {counts.hashed} hashed, "
        f"{counts.head} head, {counts.random} random neurons"
    )
    runs = []
    for name in args.families:
        runs.append(measure(name, bits, train, test, args))
        print(json.dumps(runs[-1]), flush=True)
    print(table(runs))
    if args.out:
        result = {"arguments": vars(args), "environment": describe(), "bits": bits, "runs": runs}
        Path(args.out).write_text(json.dumps(result, indent=1))
        Path(args.out).with_suffix(".md").write_text(table(runs) + "\n")


if __name__ == "__main__":
    main()
