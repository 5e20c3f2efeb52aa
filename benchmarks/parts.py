"""A training step taken apart: the time of each phase beside what the machine allows for it.

`python benchmarks/parts.py` trains on data of Amazon-670K's shape for a while, then runs the phases
of a step one after the other, in the step's order and on another batch each time, so that the
caches are as cold as in training. `roofline.py` derives what each phase must move and compute from
the counts of a batch, `limits.py` measures the time that the machine allows for it.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import limits
import numpy as np
from environment import describe, peak_megabytes, quiet
from keras_models import dslide_model
from roofline import (
    Counts,
    Share,
    Work,
    choice_work,
    input_work,
    output_work,
    rebuild_work,
    share,
)

quiet()

PRESET = "amazon-670k"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sampler", default="lsh", help="a name that tf_dslide.samplers.get knows")
    parser.add_argument("--units", type=int, default=670_091)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--active", type=int, default=3000)
    parser.add_argument("--warm", type=int, default=30, help="steps of training before")
    parser.add_argument("--steps", type=int, default=20, help="steps of fit that are timed")
    parser.add_argument("--repeats", type=int, default=9, help="batches that are taken apart")
    parser.add_argument("--rebuilds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limits", help="JSON file of limits.py; without it they are measured")
    parser.add_argument("--limits-megabytes", type=int, default=512)
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args(argv)


class Clock:
    """Seconds of each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - start)

    def median(self, name: str) -> float:
        return median(self.seconds[name])


# The phases that a sampler's ops belong to.
OPS_OF_SAMPLERS = {
    "sim_hash_codes": "hash",
    "select_from_tables": "select",
    "sample_neurons": "sample",
    "log_importance_weights": "sample",
}


class TimedOps:
    """The native ops as the sampler sees them: timed, and their last results kept.

    The sampler itself calls them, so that what is timed is what training does.
    """

    def __init__(self, clock: Clock) -> None:
        from tf_dslide._native import ops

        self._ops = ops
        self._clock = clock
        self._spent: dict[str, float] = {}
        self.results: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._ops, name)
        if name not in OPS_OF_SAMPLERS:
            return op

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            self.results[name] = op(*args, **kwargs)
            phase, seconds = OPS_OF_SAMPLERS[name], time.perf_counter() - start
            self._spent[phase] = self._spent.get(phase, 0.0) + seconds
            return self.results[name]

        return timed

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Times the sampler's ops; several of one phase add up."""
        from tf_dslide import hashing, selectors

        self._spent = {}
        with mock.patch.object(selectors, "ops", self), mock.patch.object(hashing, "ops", self):
            yield
        for phase, seconds in self._spent.items():
            self._clock.seconds[phase].append(seconds)


class Step:
    """The phases of a training step of `SparseDense` and `DSlideDense`, one call each."""

    def __init__(self, model: Any, clock: Clock) -> None:
        from tf_dslide._native import loader, ops

        self.ops, self.raw = ops, loader.load()
        self.clock = clock
        self.timed = TimedOps(clock)
        self.optimizer = model.optimizer
        self.input, self.output = model.layers
        self.sampled = self.output._sampled_weights

    def run(self, batch: tuple[Any, Any], number: int) -> Counts:
        """All phases on a batch; step `number` since the last rebuild decides what is random."""
        self.forward(batch, self.sampled.step + number)
        self.backward()
        self.update()
        return self.counts()

    def forward(self, batch: tuple[Any, Any], step: Any) -> None:
        from tf_dslide import labels

        sampled, ops, phase = self.sampled, self.ops, self.clock.phase
        self.x, y = batch
        with phase("input forward"):
            self.hidden = self.input.call(self.x)
        with phase("labels"):
            self.labels = labels.to_csr(y, sampled.units)
        with self.timed.watch():
            self.selection = sampled.selector.select(
                self.hidden, self.labels, sampled.kernel, sampled.bias, step
            )
        active = self.selection.active
        with phase("transpose"):
            self.view = ops.csc_from_csr(active, sampled.units)
        # In training one op does both.
        self.own_view = ops.csc_from_csr(active._replace(shared=ops.no_neurons()), sampled.units)
        with phase("forward own"):
            own = self.logits(self.own_view).own
        no_own = ops.Csr(active.own.row_splits * 0, ops.no_neurons())
        shared_view = ops.csc_from_csr(active._replace(own=no_own), sampled.units)
        with phase("forward shared"):
            shared = self.logits(shared_view).shared
        self.softmax(ops.ActiveLogits(own, shared))

    def logits(self, view: Any) -> Any:
        return self.ops.active_logits(self.hidden, view, self.sampled.kernel, self.sampled.bias)

    def softmax(self, logits: Any) -> None:
        """The loss and its gradient by the logits: the mean over the batch."""
        import tensorflow as tf

        rows = self.hidden.shape[0]
        upstream = tf.fill([rows], 1 / rows)
        active = self.selection.active
        with self.clock.phase("softmax"):
            adjustment = self.selection.logit_adjustment[1]
            _, own, shared = self.raw.dslide_softmax_crossentropy(
                **self.ops.softmax_inputs(logits, active, self.labels, adjustment)
            )
            coef = self.ops.scale_rows(
                self.ops.ActiveLogits(own, shared), active.own.row_splits, upstream
            )
        self.factors = self.ops.GradientFactors(self.hidden, *coef, self.view)

    def backward(self) -> None:
        with self.clock.phase("hidden gradient"):
            self.hidden_gradient = self.raw.dslide_active_mat_mul(
                coef=self.factors.coef,
                shared_coef=self.factors.shared_coef,
                **self.view._asdict(),
                like=self.hidden,
                kernel=self.ops.handle(self.sampled.kernel),
            )

    def update(self) -> None:
        """What the optimizer does, in the order of the model's variables from the output on."""
        import tensorflow as tf

        ops, phase = self.ops, self.clock.phase
        with phase("output update"):
            self.apply(self.sampled.kernel, self.view.neurons, factors=self.factors)
        with phase("bias update"):
            sums = self.raw.dslide_entry_sums(**self.factors.inputs())
            self.apply(self.sampled.bias, self.view.neurons, values=sums)
        features = ops.csr_from_sparse(self.x, self.input.kernel.shape[0])
        with phase("input update"):
            gradient = self.hidden_gradient * tf.cast(self.hidden > 0, tf.float32)
            by_feature = ops.csc_from_csr(
                ops.ActiveSet(features, ops.no_neurons()), self.input.kernel.shape[0]
            )
            nothing = tf.zeros([gradient.shape[0], 0])
            factors = ops.GradientFactors(gradient, self.x.values, nothing, by_feature)
            self.apply(self.input.kernel, by_feature.neurons, factors=factors)
            self.optimizer.update_step(
                tf.reduce_sum(gradient, axis=0), self.input.bias, self.optimizer.learning_rate
            )
        self.features_seen = by_feature.neurons.shape[0]

    def apply(self, variable: Any, rows: Any, values: Any = None, factors: Any = None) -> None:
        """The optimizer's own step on the rows of a variable."""
        import tensorflow as tf

        if values is None:
            values = tf.zeros([0, *variable.shape[1:]])  # never looked at: the factors tell all
        shape = tf.constant(variable.shape)
        gradient = self.ops.FactoredSlices(values, rows, shape, factors)
        self.optimizer.update_step(gradient, variable, self.optimizer.learning_rate)

    def counts(self) -> Counts:
        """Those of the batch that ran last."""
        selector, active = self.sampled.selector, self.selection.active
        rows, dim = self.hidden.shape
        pointers = selector._bucket_ptr.numpy()
        tables = np.arange(len(pointers))
        codes = self.timed.results["sim_hash_codes"].numpy()
        found = pointers[tables, codes + 1] - pointers[tables, codes]
        return Counts(
            rows=rows,
            dim=dim,
            units=self.sampled.units,
            features=self.input.kernel.shape[0],
            nonzeros=self.x.values.shape[0],
            features_seen=self.features_seen,
            labels=self.labels.ids.shape[0],
            entries=active.own.ids.shape[0],
            own_neurons=self.own_view.neurons.shape[0],
            shared=active.shared.shape[0],
            neurons=self.view.neurons.shape[0],
            tables=len(pointers),
            buckets=selector._hash.buckets,
            products=selector._hash._numbers[0].size,
            votes=int(np.minimum(found, self.output.sampler.bucket_size).sum()),
        )

    def rebuild(self) -> None:
        """Derives tables from the weights as the sampler does, without replacing its own."""
        import tensorflow as tf

        hash_family = self.sampled.selector._hash
        with self.clock.phase("hash weights"):
            codes = hash_family.codes(tf.convert_to_tensor(self.sampled.kernel))
        with self.clock.phase("build tables"):
            self.ops.build_tables(codes, hash_family.buckets)


def make_model(args: argparse.Namespace, features: int) -> Any:
    import keras

    from tf_dslide import samplers

    keras.utils.set_random_seed(args.seed)
    sampler = type(samplers.get(args.sampler))(active=args.active, seed=args.seed)
    return dslide_model(features, args.hidden, args.units, sampler)


def make_data(args: argparse.Namespace) -> Any:
    """Enough samples that no batch comes twice."""
    from tf_dslide.data import PRESETS

    spec = replace(PRESETS[PRESET].spec, num_labels=args.units, seed=args.seed)
    steps = max(args.warm + args.steps, args.repeats) + 2
    return spec.samples(0, steps * args.batch_size)


def timed_batches(pipeline: Any, count: int, clock: Clock) -> list[tuple[Any, Any]]:
    """Batches as fast as the pipeline makes them; the first ones fill it."""
    source = iter(pipeline)
    for _ in range(2):
        next(source)
    result = []
    for _ in range(count):
        with clock.phase("pipeline"):
            result.append(next(source))
    return result


def time_fit(model: Any, pipeline: Any, steps: int) -> list[float]:
    """Seconds from one step of `fit` to the next: all that the loop does, waits included.

    The first step, which fills the pipeline, is left out.
    """
    import keras

    ends: list[float] = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    model.fit(pipeline, steps_per_epoch=steps + 1, verbose=0, shuffle=False, callbacks=[note])
    return np.diff(ends).tolist()


def take_apart(args: argparse.Namespace, clock: Clock) -> tuple[Counts, float]:
    """Times all phases, and gives the last batch's counts and the median step of `fit`.

    Half of the steps of `fit` run before the phases and half after, so that both see the same
    machine.
    """
    from tf_dslide.data import batches

    data = make_data(args)
    pipeline = batches(data, args.batch_size, shuffle=True, seed=args.seed, drop_remainder=True)
    stream = pipeline.repeat()
    model = make_model(args, data.num_features)
    time_fit(model, stream, args.warm)
    half = -(-args.steps // 2)
    seconds = time_fit(model, stream, half)
    step = Step(model, clock)
    step.output.rebuild()
    for number, batch in enumerate(timed_batches(pipeline, args.repeats, clock)):
        # Never so many steps that the sampler would rebuild.
        counts = step.run(batch, number % step.output.sampler.rebuild_every)
    for _ in range(args.rebuilds):
        step.rebuild()
    seconds += time_fit(model, stream, half)
    return counts, median(seconds)


def summary(phases: dict[str, Share], step_seconds: float) -> dict[str, float]:
    """A whole step beside the sum of its phases' limits."""
    limit = sum(phase.limit_seconds for phase in phases.values())
    strict = sum(phase.strict_seconds for phase in phases.values())
    return {
        "step_seconds": step_seconds,
        "phases_seconds": sum(phase.seconds for phase in phases.values()),
        "limit_seconds": limit,
        "share": limit / step_seconds,
        "strict_limit_seconds": strict,
        "strict_share": strict / step_seconds,
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The whole benchmark."""
    if args.limits:
        all_limits = limits.read(args.limits)
    else:
        all_limits = limits.measure(megabytes=args.limits_megabytes, row_bytes=4 * args.hidden)
    at_best = all_limits[-1]
    clock = Clock()
    counts, step_seconds = take_apart(args, clock)

    def shares(work: dict[str, Work]) -> dict[str, Share]:
        return {
            name: share(clock.median(name), part, counts.dim, at_best)
            for name, part in work.items()
        }

    phases = shares(in_order(counts))
    rebuild = shares(rebuild_work(counts))
    return {
        "arguments": vars(args),
        "environment": describe(),
        "limits": asdict(at_best),
        "counts": asdict(counts),
        "phases": {name: phase._asdict() for name, phase in phases.items()},
        "step": summary(phases, step_seconds),
        "samples_per_second": args.batch_size / step_seconds,
        "rebuild": {name: phase._asdict() for name, phase in rebuild.items()},
        "peak_mb": peak_megabytes(),
    }


def in_order(counts: Counts) -> dict[str, Work]:
    """The work of a step's phases, as they follow one another."""
    work = input_work(counts) | choice_work(counts) | output_work(counts)
    work["input update"] = work.pop("input update")
    return work


def print_table(result: dict[str, Any]) -> None:
    form = "{:16s} {:>9} {:>9} {:>9} {:>9} {:>6}  {}"
    print(form.format("phase", "ms", "MB", "MFLOP", "limit ms", "share", "bound by"))
    for group in ("phases", "rebuild"):
        for name, phase in result[group].items():
            numbers = (phase["seconds"] * 1e3, phase["bytes"] / 1e6, phase["flops"] / 1e6)
            cells = [f"{number:.2f}" for number in (*numbers, phase["limit_seconds"] * 1e3)]
            print(form.format(name, *cells, f"{phase['share']:.0%}", phase["bound"]))
        if group == "phases":
            print_step(result)


def print_step(result: dict[str, Any]) -> None:
    step = {
        name: value * 1e3 if name.endswith("seconds") else value
        for name, value in result["step"].items()
    }
    print(
        f"a step of fit {step['step_seconds']:.1f} ms "
        f"({result['samples_per_second']:.0f} samples/s); its phases apart "
        f"{step['phases_seconds']:.1f} ms; the sum of their limits "
        f"{step['limit_seconds']:.1f} ms: {step['share']:.0%} of the roofline\n"
        "if what phases hand to each other never left the cache: "
        f"{step['strict_limit_seconds']:.1f} ms, {step['strict_share']:.0%}\n"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    result = measure(arguments(argv))
    print_table(result)
    print(json.dumps(result["environment"]))
    if out := result["arguments"]["out"]:
        Path(out).write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
