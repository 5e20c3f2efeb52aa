"""A training step of DSlideDense beside TensorFlow's dense softmax with Adam, and peak memory.

`python benchmarks/step_time.py` trains on data of Amazon-670K's shape (135,909 sparse features,
670,091 labels). Each method lives in a process of its own, so that peak memory is its own; they
take turns, so that both see the same machine.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from environment import describe, peak_megabytes, quiet

quiet()

PRESET = "amazon-670k"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["lsh", "dense"])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each method")
    parser.add_argument("--steps", type=int, default=60, help="hashed steps a turn")
    parser.add_argument("--dense-steps", type=int, default=3, help="dense steps a turn")
    parser.add_argument("--evaluate", type=int, default=1024, help="test samples to evaluate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def hashed_model(args: argparse.Namespace, features: int, labels: int):
    import keras

    from tf_dslide import DSlideDense, LshSampler, SlideCrossentropy, SparseAdam, SparseDense

    model = keras.Sequential(
        [
            keras.Input((features,), sparse=True),
            SparseDense(args.hidden, activation="relu"),
            DSlideDense(labels, sampler=LshSampler(active=args.active, seed=args.seed)),
        ]
    )
    model.compile(SparseAdam(1e-3), SlideCrossentropy())
    return model


def dense_model(args: argparse.Namespace, features: int, labels: int):
    """Stock Keras with a loss that takes label ids: dense label arrays would slow it down."""
    import keras
    import tensorflow as tf

    def crossentropy(y_true: tf.RaggedTensor, logits: tf.Tensor) -> tf.Tensor:
        rows = y_true.value_rowids()
        picked = tf.gather_nd(logits, tf.stack([rows, y_true.values], axis=1))
        mean = tf.math.segment_mean(picked, rows)
        return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - mean)

    class DenseModel(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return crossentropy(y, y_pred)

    model = DenseModel(
        [
            keras.Input((features,), sparse=True),
            keras.layers.Dense(args.hidden, activation="relu"),
            keras.layers.Dense(labels),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
    return model


class StepTimer:
    """A Keras callback that notes the seconds of each step."""

    def __new__(cls):
        import keras

        class Timer(keras.callbacks.Callback):
            seconds: list[float]

            def on_train_begin(self, logs=None):
                self.seconds = []

            def on_train_batch_begin(self, batch, logs=None):
                self.start = time.perf_counter()

            def on_train_batch_end(self, batch, logs=None):
                self.seconds.append(time.perf_counter() - self.start)

        return Timer()


def work(args: argparse.Namespace) -> None:
    """A method's process: for each number on standard input so many steps and a line of JSON."""
    import keras

    from tf_dslide import PrecisionAtK
    from tf_dslide.data import PRESETS, batches, make_preset

    keras.utils.set_random_seed(args.seed)
    spec = PRESETS[PRESET].spec
    build = {"lsh": hashed_model, "dense": dense_model}[args.worker]
    model = build(args, spec.num_features, spec.num_labels)
    samples = args.batch_size * args.rounds * args.steps
    train = make_preset(PRESET, num_samples=samples, seed=args.seed)
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed).repeat()
    timer = StepTimer()
    for request in requests():
        if request > 0:
            model.fit(stream, steps_per_epoch=request, verbose=0, shuffle=False, callbacks=[timer])
            answer = {"seconds": timer.seconds}
        else:
            answer = {"peak_mb_training": peak_megabytes()}
            if args.worker == "lsh" and args.evaluate:
                model.compile(model.optimizer, model.loss, metrics=[PrecisionAtK(1)])
                test = make_preset(PRESET, split="test", num_samples=args.evaluate, seed=args.seed)
                start = time.perf_counter()
                model.evaluate(batches(test, args.batch_size), verbose=0)
                answer["evaluate_seconds"] = time.perf_counter() - start
            answer["peak_mb"] = peak_megabytes()
            answer["environment"] = describe()
        print(json.dumps(answer), flush=True)


def requests() -> Iterator[int]:
    for line in sys.stdin:
        yield int(line)


class Worker:
    """A method's process, seen from the outside."""

    def __init__(self, method: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker", method],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, steps: int) -> dict:
        assert self.process.stdin
        assert self.process.stdout
        print(steps, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended early with status {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(args: argparse.Namespace) -> dict:
    workers = {method: Worker(method) for method in args.methods}
    steps = {m: args.dense_steps if m == "dense" else args.steps for m in args.methods}
    seconds: dict[str, list[float]] = {method: [] for method in args.methods}
    for method, worker in workers.items():
        worker.ask(2)  # the first step compiles; the first of hashed training builds the tables
        print(f"{method} is ready", file=sys.stderr, flush=True)
    for _ in range(args.rounds):
        for method, worker in workers.items():
            # The first step of a turn refills the caches and the pipeline.
            seconds[method] += worker.ask(steps[method] + 1)["seconds"][1:]
    result = {}
    for method, worker in workers.items():
        figures = worker.ask(0)
        worker.close()
        result[method] = {
            "steps": len(seconds[method]),
            "median_seconds": median(seconds[method]),
            "mean_seconds": sum(seconds[method]) / len(seconds[method]),
            "samples_per_second": args.batch_size / median(seconds[method]),
            **figures,
        }
    return result


def main() -> None:
    args = arguments()
    if args.worker:
        work(args)
        return
    methods = measure(args)
    environment = next(iter([m.pop("environment") for m in methods.values()]))
    print(f"{PRESET}: batch {args.batch_size}, hidden {args.hidden}, {args.active} active")
    for method, figures in methods.items():
        print(
            f"{method:6s} median step {figures['median_seconds'] * 1e3:9.1f} ms, "
            f"mean with rebuilds {figures['mean_seconds'] * 1e3:9.1f} ms, "
            f"{figures['samples_per_second']:8.0f} samples/s, peak {figures['peak_mb']:6.0f} MB "
            f"({figures['steps']} steps)"
        )
    if {"lsh", "dense"} <= methods.keys():
        ratio = methods["dense"]["median_seconds"] / methods["lsh"]["median_seconds"]
        mean = methods["dense"]["mean_seconds"] / methods["lsh"]["mean_seconds"]
        print(f"dense / lsh: {ratio:.1f} by medians, {mean:.1f} by means, rebuilds included")
    print(json.dumps(environment))
    if args.out:
        with open(args.out, "w") as file:
            json.dump(
                {"arguments": vars(args), "environment": environment, "methods": methods},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
