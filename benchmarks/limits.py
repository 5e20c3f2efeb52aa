"""What this machine can do at best: memory bandwidth, random rows of weights, multiply-adds.

`python benchmarks/limits.py` compiles `limits.cc` for the processor that it runs on and measures
with one thread and with all cores. Run it on a quiet machine: the limits of `parts.py` are computed
from these figures.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from environment import describe, quiet

quiet()

SOURCE = Path(__file__).resolve().with_name("limits.cc")
FLAGS = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-Wall", "-pthread"]


@dataclass(frozen=True)
class Limits:
    """Medians for so many threads together.

    Attributes:
        threads: Number of threads.
        row_bytes: Length of a random row.
        read_gb_per_second: Summing an array far larger than the cache.
        update_gb_per_second: Changing it in place; what is read and what is written both count.
        row_read_ns: Wall time divided by the number of random rows read.
        row_update_ns: The same for random rows read, changed and written.
        gflop_per_second: Multiply-adds between registers, two operations each.
    """

    threads: int
    row_bytes: int
    read_gb_per_second: float
    update_gb_per_second: float
    row_read_ns: float
    row_update_ns: float
    gflop_per_second: float


def measure(
    threads: Sequence[int] = (), megabytes: int = 512, row_bytes: int = 512, repeats: int = 9
) -> list[Limits]:
    """One `Limits` for each number of threads; for 1 and for all cores if none are named."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise SystemExit(f"limits.py needs a C++ compiler; $CXX names {compiler!r}: not found")
    numbers = [megabytes, row_bytes, repeats, *(threads or default_threads())]
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/limits"
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", program], check=True)
        output = subprocess.run(
            [program, *map(str, numbers)], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    return [Limits(**json.loads(line)) for line in output.splitlines()]


def default_threads() -> list[int]:
    return sorted({1, os.cpu_count() or 1})


def write(limits: list[Limits], path: str) -> None:
    result = {"environment": describe(), "limits": [asdict(one) for one in limits]}
    Path(path).write_text(json.dumps(result, indent=1) + "\n")


def read(path: str) -> list[Limits]:
    """What `write` wrote."""
    return [Limits(**one) for one in json.loads(Path(path).read_text())["limits"]]


def print_table(limits: list[Limits]) -> None:
    for field in fields(Limits):
        values = (f"{getattr(one, field.name):>10.4g}" for one in limits)
        print(f"{field.name:22s}", *values)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=default_threads())
    parser.add_argument("--megabytes", type=int, default=512, help="size of the array")
    parser.add_argument("--row-bytes", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", help="JSON file")
    args = parser.parse_args(argv)
    limits = measure(args.threads, args.megabytes, args.row_bytes, args.repeats)
    print_table(limits)
    if args.out:
        write(limits, args.out)


if __name__ == "__main__":
    main()
