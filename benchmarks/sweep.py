"""Throughput against one setting of the task, the others as in throughput.py.

`python benchmarks/sweep.py units 10000 100000 1000000 10000000 --options "--hidden 32"` runs
throughput.py for each value, one after the other, and prints one table. Methods take turns at each
value; from value to value the machine may have changed, so compare methods rather than lines.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import quiet

quiet()

SETTINGS = ("units", "batch-size", "active", "hidden")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("setting", choices=SETTINGS)
    parser.add_argument("values", nargs="+", type=int)
    parser.add_argument("--methods", nargs="+", default=["lsh", "shared", "uniform", "tf-rowadam"])
    parser.add_argument("--options", default="", help="other options of throughput.py")
    parser.add_argument("--out", help="JSON file")
    return parser.parse_args()


def run(args: argparse.Namespace, value: int, folder: Path) -> dict:
    """What throughput.py measures at one value."""
    out = folder / f"{value}.json"
    script = str(Path(__file__).resolve().with_name("throughput.py"))
    command = [sys.executable, script, f"--{args.setting}", str(value), *args.options.split()]
    subprocess.run([*command, "--methods", *args.methods, "--out", str(out)], check=True)
    return json.loads(out.read_text())


def show(setting: str, results: dict[int, dict]) -> None:
    methods = list(next(iter(results.values()))["methods"])
    print(f"median step in ms (samples/s), by {setting}")
    print(f"{setting:>12s}" + "".join(f"{method:>24s}" for method in methods))
    for value, result in results.items():
        cells = (
            f"{figures['median_seconds'] * 1e3:.2f} "
            f"({result['arguments']['batch_size'] / figures['median_seconds']:,.0f})"
            for figures in result["methods"].values()
        )
        print(f"{value:12,d}" + "".join(f"{cell:>24s}" for cell in cells))


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        results = {value: run(args, value, Path(folder)) for value in args.values}
    show(args.setting, results)
    print(json.dumps(next(iter(results.values()))["environment"]))
    if args.out:
        Path(args.out).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
