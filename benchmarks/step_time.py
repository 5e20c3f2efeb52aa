"""A training step of DSlideDense beside TensorFlow's dense softmax with Adam, and peak memory.

`python benchmarks/step_time.py` trains on data of Amazon-670K's shape (135,909 sparse features,
670,091 labels). Each method lives in a process of its own, so that peak memory is its own; they
take turns, so that both see the same machine.
"""

import argparse
import json
import time
from statistics import median

from environment import describe, peak_megabytes, quiet
from keras_models import dense_model, dslide_model
from workers import StepTimer, add_worker_option, answer, requests, take_turns

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
    add_worker_option(parser)
    return parser.parse_args()


def work(args: argparse.Namespace) -> None:
    """A method's process: for each number on standard input so many steps and a line of JSON."""
    import keras

    from tf_dslide import LshSampler, PrecisionAtK
    from tf_dslide.data import PRESETS, batches, make_preset

    keras.utils.set_random_seed(args.seed)
    spec = PRESETS[PRESET].spec
    sizes = (spec.num_features, args.hidden, spec.num_labels)
    build = {
        "lsh": lambda: dslide_model(*sizes, LshSampler(active=args.active, seed=args.seed)),
        "dense": lambda: dense_model(*sizes),
    }
    model = build[args.worker]()
    samples = args.batch_size * args.rounds * args.steps
    train = make_preset(PRESET, num_samples=samples, seed=args.seed)
    stream = batches(train, args.batch_size, shuffle=True, seed=args.seed).repeat()
    timer = StepTimer()
    for request in requests():
        if request > 0:
            model.fit(stream, steps_per_epoch=request, verbose=0, shuffle=False, callbacks=[timer])
            figures = {"seconds": timer.seconds}
        else:
            figures = {"peak_mb_training": peak_megabytes()}
            if args.worker == "lsh" and args.evaluate:
                model.compile(model.optimizer, model.loss, metrics=[PrecisionAtK(1)])
                test = make_preset(PRESET, split="test", num_samples=args.evaluate, seed=args.seed)
                start = time.perf_counter()
                model.evaluate(batches(test, args.batch_size), verbose=0)
                figures["evaluate_seconds"] = time.perf_counter() - start
            figures["peak_mb"] = peak_megabytes()
            figures["environment"] = describe()
        answer(figures)


def measure(args: argparse.Namespace) -> dict:
    # The first step of a turn refills the caches and the pipeline.
    steps = {m: 1 + (args.dense_steps if m == "dense" else args.steps) for m in args.methods}
    result = {}
    for method, answers in take_turns(steps, args.rounds).items():
        seconds = [s for turn in answers.turns for s in turn["seconds"][1:]]
        result[method] = {
            "steps": len(seconds),
            "median_seconds": median(seconds),
            "mean_seconds": sum(seconds) / len(seconds),
            "samples_per_second": args.batch_size / median(seconds),
            **answers.last,
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
