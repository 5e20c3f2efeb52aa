"""Draws README's picture from a result of bench.py.

`python benchmarks/figure.py benchmarks/results/batch_256.json -o docs/throughput.png`; needs
matplotlib, which the extra `baselines` brings. Samples a second are the batch over the median step.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Safe for the colour-blind (Okabe and Ito).
COLOURS = {
    "lsh": "#0072B2",
    "uniform": "#56B4E9",
    "tf-rowadam-all": "#009E73",
    "tf-dense": "#E69F00",
}
NAMES = {
    "lsh": "DSlideDense, LshSampler",
    "uniform": "DSlideDense, UniformSampler",
    "tf-rowadam-all": "sampled softmax in plain TensorFlow",
    "tf-dense": "Dense, Adam",
}
RUN = "batch 256"


def bars(axis, values: dict[str, float], title: str, form: str) -> None:
    methods = list(values)
    shown = axis.barh(
        [NAMES[m] for m in methods], list(values.values()), color=[COLOURS[m] for m in methods]
    )
    axis.bar_label(shown, [form.format(v) for v in values.values()], padding=4)
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_xlim(0, 1.25 * max(values.values()))
    axis.xaxis.set_visible(False)
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("-o", "--out", default="docs/throughput.png")
    args = parser.parse_args()
    run = json.loads(Path(args.result).read_text())[RUN]
    settings = run["arguments"]
    methods = {name: run["methods"][name] for name in NAMES}
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 2.6), sharey=True, layout="constrained")
    bars(
        left,
        {m: settings["batch_size"] / f["median_seconds"] for m, f in methods.items()},
        "Training samples a second",
        "{:,.0f}",
    )
    bars(
        right,
        {m: f["peak_mb"] / 1000 for m, f in methods.items()},
        "Peak memory",
        "{:.1f} GB",
    )
    left.invert_yaxis()
    environment = run["environment"]
    figure.supxlabel(
        f"670,091 classes, 135,909 sparse features, hidden {settings['hidden']}, batch "
        f"{settings['batch_size']}; {environment['processor']}, {environment['cores']} cores, "
        f"{environment['date']}",
        fontsize=8,
    )
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=150)


if __name__ == "__main__":
    main()
