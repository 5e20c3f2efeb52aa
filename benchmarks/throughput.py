"""Training throughput of DSlideDense beside the best that TensorFlow offers.

`python benchmarks/throughput.py --batch-size 1024 --active 3000` trains on data of Amazon-670K's
shape (135,909 sparse features, 670,091 labels; other `--units` have the same samples otherwise).
Each method has a process of its own, and they take turns. What is timed is the whole loop, with the
data pipeline and the sparse input layer. Methods of Keras train by `fit`; the other ones of
TensorFlow in a loop around one `tf.function` that takes the batch from the same pipeline, which has
less overhead than `fit`.

Methods: output layer, negatives, optimizer.

- `lsh`: DSlideDense, LshSampler with `--active` neurons a sample, labels included; SparseAdam.
- `uniform`: UniformSampler, `--active` at random for the batch, own labels; SparseAdam.
- `tf-rowadam`, the bar: the same as `uniform`, in TensorFlow's own ops.
- `tf-rowadam-all`: the same negatives and the batch's labels, as `lsh` and `uniform` have.
- `tf-dense`: Keras Dense, all neurons; Keras Adam.
- `tf-sampled-sgd`: sampled_softmax_loss, `--active` at random for the batch, one label a row;
  sparse SGD.

A name that ends in `-one-core` is the same method held to one processor core.
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple, Protocol

from environment import describe, peak_megabytes, quiet
from workers import StepClock, StepTimer, add_worker_option, answer, requests, take_turns

quiet()

PRESET = "amazon-670k"
BARS = ("tf-rowadam", "tf-rowadam-all", "tf-dense")
ONE_CORE = "-one-core"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ["lsh", "uniform", "tf-dense", "tf-rowadam", "tf-sampled-sgd"]
    parser.add_argument("--methods", nargs="+", default=default, choices=list(METHODS))
    parser.add_argument("--units", type=int, default=670_091)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each method")
    parser.add_argument("--steps", type=int, default=40, help="steps a turn")
    parser.add_argument("--dense-steps", type=int, default=2, help="steps a turn of tf-dense")
    parser.add_argument("--huge-pages", action="store_true", help="ask malloc for them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="JSON file")
    add_worker_option(parser)
    return parser.parse_args()


class Trainer(Protocol):
    """A method that is being trained."""

    def train(self, steps: int, clock: Any) -> float:
        """Trains, tells the clock of each step, and returns a loss."""
        raise NotImplementedError


class Task(NamedTuple):
    """The settings and the data."""

    args: argparse.Namespace
    data: Any

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.data.num_features, self.args.hidden, self.args.units

    def stream(self) -> Any:
        from tf_dslide.data import batches

        seed = self.args.seed
        one_pass = batches(
            self.data, self.args.batch_size, shuffle=True, seed=seed, drop_remainder=True
        )
        return one_pass.repeat()


class FitTrainer:
    """A Keras model."""

    def __init__(self, task: Task, model: Any) -> None:
        self._model, self._stream = model, task.stream()

    def train(self, steps: int, clock: Any) -> float:
        settings = {"verbose": 0, "shuffle": False, "callbacks": [clock]}
        history = self._model.fit(self._stream, steps_per_epoch=steps, **settings)
        return history.history["loss"][-1]


class LoopTrainer:
    """A step on a batch, in a plain loop."""

    def __init__(self, step: Callable[[Any], Any], source: Any) -> None:
        self._step, self._source = step, source

    def train(self, steps: int, clock: StepClock) -> float:
        clock.clear()
        for _ in range(steps):
            clock.begin_step()
            loss = self._step(self._source)
            clock.end_step()
        return float(loss)


def dslide(sampler: str, size: str, task: Task) -> Trainer:
    from keras_models import dslide_model

    import tf_dslide

    if not hasattr(tf_dslide, sampler):
        raise SystemExit(f"this version of tf_dslide has no {sampler}")
    settings = {size: task.args.active, "seed": task.args.seed}
    return FitTrainer(task, dslide_model(*task.sizes, getattr(tf_dslide, sampler)(**settings)))


def tf_dense(task: Task) -> Trainer:
    from keras_models import dense_model

    return FitTrainer(task, dense_model(*task.sizes))


def tf_peer(make: Callable[[Any, Any], Any], task: Task) -> Trainer:
    """`make` is given the module `peers` and the shape."""
    import peers
    import tensorflow as tf

    peer = make(peers, peers.Shape(*task.sizes, task.args.active))

    @tf.function
    def step(source):
        return peer.step(*next(source))

    return LoopTrainer(step, iter(task.stream()))


METHODS: dict[str, Callable[[Task], Trainer]] = {
    "lsh": partial(dslide, "LshSampler", "active"),
    "uniform": partial(dslide, "UniformSampler", "num_sampled"),
    "tf-dense": tf_dense,
    "tf-rowadam": partial(tf_peer, lambda peers, shape: peers.RowAdamPeer(shape)),
    "tf-rowadam-all": partial(
        tf_peer, lambda peers, shape: peers.RowAdamPeer(shape, peers.softmax_of_all_candidates)
    ),
    "tf-sampled-sgd": partial(tf_peer, lambda peers, shape: peers.SampledSoftmaxPeer(shape)),
}
METHODS |= {name + ONE_CORE: METHODS[name] for name in ("lsh", "uniform")}


def make_data(args: argparse.Namespace) -> Any:
    """As many samples as the turns train on, but no more than the real data set has."""
    from tf_dslide.data import PRESETS

    preset = PRESETS[PRESET]
    spec = replace(preset.spec, num_labels=args.units, seed=args.seed)
    wanted = args.batch_size * (args.rounds * (args.steps + 1) + 2)
    return spec.samples(0, max(min(wanted, preset.num_train), args.batch_size))


def work(args: argparse.Namespace) -> None:
    """A method's process: it reads numbers, and for each takes so many steps and prints JSON."""
    if args.worker.endswith(ONE_CORE):
        # Before TensorFlow counts the cores for its threads.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    trainer = METHODS[args.worker](Task(args, make_data(args)))
    clock = StepTimer()
    for steps in requests():
        if steps == 0:
            answer({"peak_mb": peak_megabytes(), "environment": describe()})
            continue
        loss = trainer.train(steps, clock)
        if not math.isfinite(loss):
            raise SystemExit(f"{args.worker}: the loss is {loss}")
        answer({"loss": loss, "ends": clock.ends, "cpu_ends": clock.cpu_ends})


def measure(args: argparse.Namespace) -> dict[str, dict]:
    """Figures of each method. The first step of a turn, which fills the pipeline, counts for none.

    A step is timed from the end of the one before to its own end.
    """
    steps = {m: 1 + (args.dense_steps if m == "tf-dense" else args.steps) for m in args.methods}
    environment = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"} if args.huge_pages else None
    result = {}
    for method, answers in take_turns(steps, args.rounds, environment).items():
        seconds = [s for turn in answers.turns for s in differences(turn["ends"])]
        cpu = [s for turn in answers.turns for s in differences(turn["cpu_ends"])]
        result[method] = {
            "steps": len(seconds),
            "median_seconds": median(seconds),
            "samples_per_second": args.batch_size * len(seconds) / sum(seconds),
            "median_cpu_seconds": median(cpu),
            "samples_per_cpu_second": args.batch_size * len(cpu) / sum(cpu),
            "loss": answers.turns[-1]["loss"],
            **answers.last,
        }
    return result


def differences(clock: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(clock)]


def add_ratios(methods: dict[str, dict]) -> None:
    """How many times the bars' samples each method trains on, by wall clock and by CPU time."""
    for bar in BARS:
        for figures in methods.values() if bar in methods else ():
            for kind in ("samples_per_second", "samples_per_cpu_second"):
                ratio = figures[kind] / methods[bar][kind]
                figures.setdefault("ratios", {}).setdefault(bar, {})[kind] = ratio


def show(args: argparse.Namespace, methods: dict[str, dict]) -> None:
    print(
        f"{args.units:,} units, hidden {args.hidden}, batch {args.batch_size}, "
        f"{args.active} active; rebuilds of the tables count where they fell into the turns"
    )
    bars = [bar for bar in BARS if bar in methods]
    titles = "".join(f"  x {bar:14s}" for bar in bars)
    print(f"{'method':18s}  step, ms  samples/s  /CPU second  peak, MB{titles}  (wall, CPU)")
    for method, figures in methods.items():
        ratios = (figures["ratios"][bar] for bar in bars)
        shown = "".join(
            f"  {r['samples_per_second']:7.4g} {r['samples_per_cpu_second']:8.4g}" for r in ratios
        )
        print(
            f"{method:18s} {figures['median_seconds'] * 1e3:9.1f} "
            f"{figures['samples_per_second']:10.0f} {figures['samples_per_cpu_second']:12.0f} "
            f"{figures['peak_mb']:9.0f}{shown}"
        )


def main() -> None:
    args = arguments()
    if args.worker:
        work(args)
        return
    begin = time.perf_counter()
    methods = measure(args)
    add_ratios(methods)
    environment = [figures.pop("environment") for figures in methods.values()].pop()
    show(args, methods)
    print(json.dumps(environment), f"{time.perf_counter() - begin:.0f} s in all")
    if args.out:
        settings = {k: v for k, v in vars(args).items() if k != "worker"}
        with open(args.out, "w") as file:
            json.dump(
                {"arguments": settings, "environment": environment, "methods": methods},
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
