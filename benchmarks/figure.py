"""Draws README's picture from a result of step_time.py.

`python benchmarks/figure.py benchmarks/results/step_time.json -o docs/step_time.png`; needs
matplotlib, which the extra `baselines` brings.
"""

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Safe for the colour-blind (Okabe and Ito).
COLOURS = {"lsh": "#0072B2", "dense": "#E69F00"}
NAMES = {"lsh": "DSlideDense", "dense": "Dense, Adam"}


def bars(axis, values: dict[str, float], title: str, form: str) -> None:
    methods = list(values)
    shown = axis.barh(
        [NAMES[m] for m in methods], list(values.values()), color=[COLOURS[m] for m in methods]
    )
    axis.bar_label(shown, [form.format(v) for v in values.values()], padding=4)
    axis.set_title(title, loc="left", fontsize=11)
    axis.set_xlim(0, 1.25 * max(values.values()))
    axis.xaxis.set_visible(False)
    axis.invert_yaxis()
    for side in ("top", "right", "bottom"):
        axis.spines[side].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result")
    parser.add_argument("-o", "--out", default="docs/step_time.png")
    args = parser.parse_args()
    run = json.loads(Path(args.result).read_text())
    methods, settings = run["methods"], run["arguments"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.2), layout="constrained")
    bars(
        left,
        {m: f["samples_per_second"] for m, f in methods.items()},
        "Training samples a second",
        "{:,.0f}",
    )
    bars(
        right,
        {m: f["peak_mb"] / 1000 for m, f in methods.items()},
        "Peak memory",
        "{:.1f} GB",
    )
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
