"""All benchmarks in a form of about ten minutes, and one table of their figures.

`python benchmarks/bench.py` (or `make bench`) runs the other scripts one after the other and writes
`benchmarks/results/bench.json` and `bench.md`, with machine, versions and commit. Run it on a quiet
machine: medians tolerate other work, rates do not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from environment import quiet

quiet()

HERE = Path(__file__).resolve().parent


class Run(NamedTuple):
    """A script with its options; `{limits}` stands for what limits.py wrote."""

    title: str
    script: str
    options: str = ""


THROUGHPUT = "--rounds 3 --dense-steps 2"
RUNS = {
    "limits": Run("What the machine can do at best", "limits.py"),
    "parts": Run("A step in parts, batch 1,024", "parts.py", "--limits {limits}"),
    "batch 256": Run(
        "Throughput, batch 256, 3,000 active",
        "throughput.py",
        f"--batch-size 256 --steps 40 {THROUGHPUT} "
        "--methods lsh uniform tf-rowadam-all tf-sampled-sgd tf-dense",
    ),
    "batch 1024": Run(
        "Throughput, batch 1,024, 3,000 active",
        "throughput.py",
        f"--batch-size 1024 --steps 20 {THROUGHPUT} "
        "--methods lsh uniform tf-rowadam tf-rowadam-all",
    ),
    "active 8192": Run(
        "Throughput, batch 1,024, 8,192 active",
        "throughput.py",
        f"--batch-size 1024 --active 8192 --steps 12 {THROUGHPUT} --methods lsh tf-rowadam-all",
    ),
    "units 1e5": Run(
        "Throughput at 100,000 units, hidden 32",
        "throughput.py",
        f"--units 100000 --hidden 32 --batch-size 256 --steps 40 {THROUGHPUT} "
        "--methods lsh uniform",
    ),
    "units 1e7": Run(
        "Throughput at 10,000,000 units, hidden 32",
        "throughput.py",
        f"--units 10000000 --hidden 32 --batch-size 256 --steps 40 {THROUGHPUT} "
        "--methods lsh uniform",
    ),
    "cores": Run(
        "One core and all, batch 1,024",
        "throughput.py",
        f"--batch-size 1024 --steps 20 {THROUGHPUT} "
        "--methods lsh lsh-one-core uniform uniform-one-core",
    ),
    "search": Run("Search for the best five of 670,091", "top_k.py"),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder")
    return parser.parse_args()


def run(name: str, folder: Path) -> dict:
    out = folder / f"{name}.json"
    options = RUNS[name].options.replace("{limits}", str(folder / "limits.json")).split()
    command = [sys.executable, str(HERE / RUNS[name].script), *options, "--out", str(out)]
    print("$", *command[1:], flush=True)
    subprocess.run(command, check=True)
    result = json.loads(out.read_text())
    for path in ("out", "limits"):  # of a folder that is gone at the end
        result.get("arguments", {}).pop(path, None)
    return result


def rows(name: str, result: dict) -> Iterator[tuple[str, str]]:
    """Figures and their values, for the table."""
    if RUNS[name].script == "throughput.py":
        yield from throughput_rows(result)
    elif name == "parts":
        yield from part_rows(result)
    elif name == "search":
        yield from search_rows(result)
    else:
        for limits in result["limits"]:
            figures = (f"{k.replace('_', ' ')} {v:.3g}" for k, v in limits.items())
            yield f"{limits['threads']} threads", ", ".join(figures)


def throughput_rows(result: dict) -> Iterator[tuple[str, str]]:
    for method, figures in result["methods"].items():
        ratios = "".join(
            f", {ratio['samples_per_second']:.3g} x {bar}"
            for bar, ratio in figures.get("ratios", {}).items()
            if bar != method
        )
        yield (
            method,
            f"step {figures['median_seconds'] * 1e3:.1f} ms, "
            f"{figures['samples_per_second']:,.0f} samples/s, "
            f"{figures['samples_per_cpu_second']:,.0f} a CPU second, "
            f"peak {figures['peak_mb']:,.0f} MB{ratios}",
        )


def part_rows(result: dict) -> Iterator[tuple[str, str]]:
    step = {**result["step"], "seconds": result["step"]["step_seconds"]}
    for name, part in (
        *result["phases"].items(),
        ("a step of fit", step),
        *result["rebuild"].items(),
    ):
        yield (
            name,
            f"{part['seconds'] * 1e3:.2f} ms, limit {part['limit_seconds'] * 1e3:.2f} ms, "
            f"{part['share']:.0%}",
        )


def search_rows(result: dict) -> Iterator[tuple[str, str]]:
    for kind, figures in result["single"].items():
        yield f"one query, {kind}", ", ".join(f"{k} {v:.3g}" for k, v in figures.items())
    for kind, figures in result["batch"].items():
        yield f"a batch, {kind}", ", ".join(f"{k} {v:.4g}" for k, v in figures.items())


def table(results: dict[str, dict]) -> str:
    environment = next(iter(results.values()))["environment"]
    about = ", ".join(f"{key} {value}" for key, value in environment.items())
    lines = ["# Benchmarks", "", about, "", "| what | which | figures |", "| --- | --- | --- |"]
    for name, result in results.items():
        lines += [
            f"| {RUNS[name].title} | {which} | {what} |" for which, what in rows(name, result)
        ]
    lines += ["", "| what | command |", "| --- | --- |"]
    for name in results:
        title, script, options = RUNS[name]
        command = f"python benchmarks/{script} {options}".strip()
        lines.append(f"| {title} | `{command.replace('{limits}', 'LIMITS.json')}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    args = arguments()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = {name: run(name, Path(folder)) for name in args.only}
    args.results.mkdir(exist_ok=True)
    (args.results / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
    text = table(results)
    (args.results / "bench.md").write_text(text)
    print(text, f"{time.perf_counter() - begin:.0f} s in all", sep="\n")


if __name__ == "__main__":
    main()
