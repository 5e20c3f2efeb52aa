"""One training split over hosts with a slow network: step times, bytes, messages, waiting, memory.

`python benchmarks/scaling.py --hosts 1 2 --network 1gbit,0.2ms 100mbit,0.2ms` makes the hosts on
this machine (`netcluster/`, which needs root) and trains the model of throughput.py on them by
`fit`, a rank a host, a core a rank, in turns with the same training on one host with one core and
without a strategy. `--local` has the ranks on this machine without an emulated network. `--memory`
trains a model of 826 million weights on two ranks of this machine and prints their memory.

Emulated hosts share the machine's memory, and one core alone may use nearly all of its bandwidth.
So there is a second comparison: one host while the other cores train copies of the same, each for
itself ("a busy host"); what splitting costs is then not mixed with what sharing the memory costs.

Times are medians over the steps of all turns but each turn's first. A rank's waiting at an exchange
is the network's where it is the last to come, so the least of all ranks' is the network's share and
the rest is imbalance. Computing is the step without waiting; it has packing and the data pipeline,
which every rank runs in full, in it.

Hosts beyond the number of cores share cores, and their times mean little: for them, and for others
with `--model`, there is a modelled step. It is the slowest rank's step when it has the machine for
itself and its peers answer at once (`parallel_worker.py --echo`), and for each exchange the delay
and the bytes over the rate.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from environment import quiet
from netcluster.netcluster import (
    MPI_OVER_TCP,
    Cluster,
    ClusterError,
    Link,
    Traffic,
    beside_python,
    require,
)
from parallel_worker import SAMPLERS, Job, Place, add_training_options

quiet()

LOCAL = "local"


@dataclass(frozen=True)
class Setting:
    """What is trained, and on how many hosts."""

    sampler: str
    units: int
    hosts: int
    wire: str

    @property
    def name(self) -> str:
        return f"{self.sampler}, {self.units:,} units, {self.hosts} hosts, {self.wire}"

    def options(self, args: argparse.Namespace, ranks: int) -> list[str]:
        """Of parallel_worker.py."""
        chosen = {
            "ranks": ranks,
            "units": self.units,
            "sampler": self.sampler,
            "wire": self.wire,
            "hidden": args.hidden,
            "batch-size": args.batch_size,
            "active": args.active,
            "rounds": args.rounds,
            "steps": args.steps,
            "seed": args.seed,
        }
        return [word for name, value in chosen.items() for word in (f"--{name}", str(value))]


@dataclass
class Turns:
    """What the ranks of a job answered, turn by turn, and what their hosts' interfaces counted.

    Attributes:
        ranks: For each turn each rank's answer.
        traffic: For each turn and each host.
        shaper_seconds: CPU time of the emulation in all turns.
    """

    ranks: list[list[dict]] = field(default_factory=list)
    traffic: list[list[Traffic]] = field(default_factory=list)
    shaper_seconds: float = 0.0

    def step_seconds(self, rank: int = 0) -> list[float]:
        return [s for turn in self.ranks for s in differences(turn[rank]["ends"])]

    def cpu_seconds(self, rank: int = 0) -> list[float]:
        return [s for turn in self.ranks for s in differences(turn[rank]["cpu_ends"])]

    def steps(self, rank: int, first: int = 1) -> list[dict]:
        """Each step's counts by kind of exchange, from step `first` of each turn on."""
        return [step for turn in self.ranks for step in turn[rank]["exchanged"][first:]]


def differences(clock: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(clock)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2], help="1 is always there")
    parser.add_argument("--network", nargs="+", default=["1gbit,0.2ms", "100mbit,0.2ms"])
    parser.add_argument("--local", action="store_true", help="no emulated network")
    parser.add_argument("--sampler", nargs="+", choices=list(SAMPLERS), help="all if not given")
    parser.add_argument("--wire", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--units", type=int, nargs="+", default=[670_091])
    parser.add_argument("--model", action="store_true", help="model the step, 2 hosts' too")
    parser.add_argument("--memory", action="store_true", help="only the memory of a large model")
    add_training_options(parser)
    parser.add_argument("--out", type=Path, help="JSON file to add to; a table beside it")
    args = parser.parse_args()
    if args.memory:
        args.local, args.hosts, args.wire = True, [2], ["float32"]
        args.hidden, args.batch_size, args.rounds, args.steps = 1024, 256, 1, 5
        args.sampler = args.sampler or ["lsh"]
    args.sampler = args.sampler or list(SAMPLERS)
    args.hosts = sorted({hosts for hosts in args.hosts if hosts > 1})
    if not args.hosts:
        parser.error("--hosts needs a number above 1 to compare with one host")
    return args


def measure(setting: Setting, args: argparse.Namespace) -> dict:
    """Figures of one setting at each network."""
    cores = sorted(os.sched_getaffinity(0))
    links = {LOCAL: Link(0, 0)} if args.local else {text: Link.parse(text) for text in args.network}
    turns: dict[str, dict[str, Turns]] = {text: {} for text in links}
    words: dict[str, list[dict]] = {}
    with contextlib.ExitStack() as stack:
        cluster, place = prepare(setting.hosts, args.local, stack)
        for plans in plans_of(setting, args, place, cores):
            with start(plans, setting, cores) as jobs:
                for text, name in product(links, jobs):
                    turns[text][name] = Turns()
                for _, (text, link) in product(range(args.rounds), links.items()):
                    if cluster:
                        cluster.change(link)
                    for name, job in jobs.items():
                        take_turn(job, args.steps, cluster, turns[text][name])
                words |= {name: job.last_words() for name, job in jobs.items()}
    return {
        "setting": asdict(setting),
        "arguments": {k: getattr(args, k) for k in ("hidden", "batch_size", "active", "steps")},
        "networks": {
            text: figures(setting, args, link, turns[text]) for text, link in links.items()
        },
        "memory": {
            name: {k: [w[k] for w in said] for k in ("peak_mb", "resident_mb", "affinity")}
            for name, said in words.items()
        },
        "load": os.getloadavg(),
        "environment": words["split"][0]["environment"],
    }


def prepare(hosts: int, local: bool, stack: contextlib.ExitStack) -> tuple[Cluster | None, Place]:
    """The emulated hosts, if there are to be any, and where ranks run."""
    if local:
        return None, Place([beside_python("mpirun"), "-np", str(hosts)])
    cluster = stack.enter_context(Cluster(hosts, Link(0, 0)))
    # The program comes after what mpi_command makes of none.
    return cluster, Place(cluster.mpi_command([]), MPI_OVER_TCP, cluster.names)


class Plan(NamedTuple):
    """How a job is started."""

    options: list[str]
    processes: int
    place: Place


def plans_of(
    setting: Setting, args: argparse.Namespace, place: Place, cores: Sequence[int]
) -> list[dict[str, Plan]]:
    """The split training and what it is compared with: lists of those that take turns."""
    hosts = setting.hosts
    split = {"split": Plan(setting.options(args, hosts), hosts, place)}
    if args.memory:
        return [split]
    alone = setting.options(args, 0)
    others = {"one host": Plan(alone, 1, Place())}
    if args.model or hosts > len(cores):
        others["echo"] = Plan([*setting.options(args, hosts), "--echo"], 1, Place())
    if hosts > len(cores):
        return [split, others]  # all at once may need more memory than there is
    here = Place([beside_python("mpirun"), "-np", str(hosts)])
    return [{**split, **others, "busy host": Plan(alone, hosts, here)}]


@contextlib.contextmanager
def start(
    plans: dict[str, Plan], setting: Setting, cores: Sequence[int]
) -> Iterator[dict[str, Job]]:
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(Job(f"{setting.name}: {name}", *plan, cores))
            for name, plan in plans.items()
        }


def take_turn(job: Job, steps: int, cluster: Cluster | None, turns: Turns) -> None:
    before = cluster.traffic() if cluster else []
    shaper = cluster.shaper_seconds() if cluster else 0.0
    turns.ranks.append(job.train(1 + steps))
    if cluster:
        cluster.check()
        turns.shaper_seconds += cluster.shaper_seconds() - shaper
        after = cluster.traffic()
        turns.traffic.append([now.since(then) for now, then in zip(after, before, strict=True)])


def figures(
    setting: Setting, args: argparse.Namespace, link: Link, turns: dict[str, Turns]
) -> dict:
    """What is to be reported of one setting at one network."""
    split = turns["split"]
    seconds = split.step_seconds()
    result = {
        "steps": len(seconds),
        "median_seconds": median(seconds),
        "mean_seconds": fmean(seconds),
        "samples_per_second": args.batch_size / median(seconds),
        "ranks": [rank_figures(split, rank) for rank in range(setting.hosts)],
        "waiting": shares(split, setting.hosts),
        "bytes_sent": max(mean_of(split, r, "bytes_sent") for r in range(setting.hosts)),
        "bytes_sent_range": range_of_bytes(split, setting.hosts),
        "messages_per_pair": messages_per_pair(split, setting.hosts),
        "loss": split.ranks[-1][0]["loss"],
    }
    for base in {"one host", "busy host"} & turns.keys():
        taken = [
            s for rank in range(len(turns[base].ranks[0])) for s in turns[base].step_seconds(rank)
        ]
        result[base] = {
            "median_seconds": median(taken),
            "mean_seconds": fmean(taken),
            "speedup": median(taken) / median(seconds),
            "mean_speedup": fmean(taken) / fmean(seconds),
        }
    if split.traffic:
        result["interface"] = interface_figures(split, setting.hosts)
    if "echo" in turns:
        result["modelled"] = modelled(turns["echo"], split, setting.hosts, link)
        if "one host" in turns:
            ratio = result["one host"]["median_seconds"] / result["modelled"]["seconds"]
            result["modelled"]["speedup"] = ratio
    return result


def waiting(step: dict) -> float:
    return sum(counts["seconds_waiting"] for counts in step.values())


def mean_of(turns: Turns, rank: int, count: str) -> float:
    """Mean of a count over all kinds and steps, by step."""
    steps = turns.steps(rank)
    return fmean(sum(counts[count] for counts in step.values()) for step in steps)


def range_of_bytes(turns: Turns, hosts: int) -> list[int]:
    """Fewest and most that a rank sent in a step: it depends on how many activations are zero."""
    sent = [
        sum(counts["bytes_sent"] for counts in step.values())
        for rank in range(hosts)
        for step in turns.steps(rank)
    ]
    return [min(sent), max(sent)]


def rank_figures(turns: Turns, rank: int) -> dict:
    steps = turns.steps(rank)
    seconds = turns.step_seconds(rank)
    return {
        "seconds_computing": median(s - waiting(w) for s, w in zip(seconds, steps, strict=True)),
        "seconds_waiting": median(map(waiting, steps)),
        "cpu_seconds": median(turns.cpu_seconds(rank)),
        "bytes_sent": {kind: fmean(s[kind]["bytes_sent"] for s in steps) for kind in steps[0]},
    }


def shares(turns: Turns, hosts: int) -> dict[str, dict[str, float]]:
    """By kind of exchange what the network took, and what ranks waited for slower ones."""
    by_step = list(zip(*(turns.steps(rank) for rank in range(hosts)), strict=True))
    result = {}
    for kind in by_step[0][0]:
        waits = [[rank[kind]["seconds_waiting"] for rank in step] for step in by_step]
        result[kind] = {
            "network": median(min(step) for step in waits),
            "imbalance": median(fmean(step) - min(step) for step in waits),
        }
    return result


def messages_per_pair(turns: Turns, hosts: int) -> float:
    """Messages between two ranks in a step, both directions together."""
    sent = sum(mean_of(turns, rank, "messages_sent") for rank in range(hosts))
    return sent / (hosts * (hosts - 1) / 2)


def interface_figures(turns: Turns, hosts: int) -> dict:
    """What the hosts' interfaces have counted, beside our own count of the same turns."""
    ours = sum(
        counts["bytes_sent"]
        for rank in range(hosts)
        for step in turns.steps(rank, first=0)
        for counts in step.values()
    )
    host_steps = hosts * len(turns.steps(0, first=0))
    counted = sum(t.bytes_sent for turn in turns.traffic for t in turn)
    framed = sum(t.frame_bytes_sent for turn in turns.traffic for t in turn)
    if counted < ours:
        raise SystemExit(
            f"the interfaces sent {counted:,} bytes, the ranks {ours:,}: MPI uses another way"
        )
    return {
        "bytes_sent": counted / host_steps,
        "overhead_percent": 100 * (counted / ours - 1),
        "frame_bytes_sent": framed / host_steps,
        "frame_overhead_percent": 100 * (framed / ours - 1),
        "emulation_cpu_seconds": turns.shaper_seconds / len(turns.steps(0, first=0)),
    }


def modelled(echo: Turns, split: Turns, hosts: int, link: Link) -> dict:
    """The step on hosts that share no cores: computing alone, then each exchange's transfer."""
    computing = [median(echo.step_seconds(rank)) for rank in range(hosts)]
    sent = [rank_figures(split, rank)["bytes_sent"] for rank in range(hosts)]
    transfers = [
        link.delay + (8 * max(rank[kind] for rank in sent) / link.rate if link.rate else 0.0)
        for kind in sent[0]
    ]
    seconds = max(computing) + sum(transfers)
    return {"seconds": seconds, "computing": computing, "communicating": sum(transfers)}


Row = dict[str, str]


def table(results: Sequence[dict]) -> str:
    """A line a setting and network, as Markdown."""
    rows = [
        row_of(result, text, found)
        for result in results
        for text, found in result["networks"].items()
    ]
    titles = list(dict.fromkeys(title for row in rows for title in row))
    lines = [titles, ["---"] * len(titles)]
    lines += [[row.get(title, "") for title in titles] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def row_of(result: dict, network: str, found: dict) -> Row:
    setting, hosts = result["setting"], result["setting"]["hosts"]
    cores = result["environment"]["cores"]
    row = {
        "sampler": setting["sampler"],
        "units": f"{setting['units']:,}",
        "hidden": f"{result['arguments']['hidden']:,}",
        "hosts": f"{hosts}" if hosts <= cores else f"{hosts} on {cores} cores",
        "wire": setting["wire"],
        "network": network,
        "step, ms": milliseconds(found["median_seconds"]),
        "samples/s": f"{found['samples_per_second']:,.0f}",
    }
    for base in ("one host", "busy host"):
        if base in found:
            row[f"{base}, ms"] = milliseconds(found[base]["median_seconds"])
            row[f"x {base}"] = f"{found[base]['speedup']:.2f}"
    ranks = found["ranks"]
    row["computing"] = " ".join(milliseconds(r["seconds_computing"]) for r in ranks)
    row["waiting"] = " ".join(milliseconds(r["seconds_waiting"]) for r in ranks)
    row["of it network"] = milliseconds(sum(w["network"] for w in found["waiting"].values()))
    least, most = (f"{sent / 1e6:.3f}" for sent in found["bytes_sent_range"])
    row["MB sent a rank"] = f"{found['bytes_sent'] / 1e6:.3f} ({least} to {most})"
    row["messages a pair"] = f"{found['messages_per_pair']:g}"
    if "interface" in found:
        row["interface, MB"] = f"{found['interface']['bytes_sent'] / 1e6:.3f}"
        row["overhead in frames"] = f"{found['interface']['frame_overhead_percent']:.1f} %"
    if "modelled" in found:
        row["modelled, ms"] = milliseconds(found["modelled"]["seconds"])
        if "speedup" in found["modelled"]:
            row["modelled x one host"] = f"{found['modelled']['speedup']:.2f}"
    row["peak MB a rank"] = " ".join(f"{mb:,.0f}" for mb in result["memory"]["split"]["peak_mb"])
    return row


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    for units, hosts, sampler, wire in product(args.units, args.hosts, args.sampler, args.wire):
        yield Setting(sampler, units, hosts, wire)


def write(path: Path, results: Sequence[dict]) -> None:
    """Adds to what the file has; a setting that was measured before is replaced."""
    old = json.loads(path.read_text()) if path.exists() else []
    merged = {
        json.dumps([result["setting"], result["arguments"]["hidden"]]): result
        for result in [*old, *results]
    }
    path.write_text(json.dumps(list(merged.values()), indent=1) + "\n")
    environment = ", ".join(f"{k} {v}" for k, v in results[0]["environment"].items())
    text = f"# Scaling\n\n{environment}\n\n{table(list(merged.values()))}\n"
    path.with_suffix(".md").write_text(text)


def main() -> None:
    args = arguments()
    begin = time.perf_counter()
    results: list[dict[str, Any]] = []
    try:
        if not args.local:
            require()
        for setting in settings(args):
            results.append(measure(setting, args))
            print(table(results[-1:]), flush=True)
            if args.out:
                write(args.out, results)
    except ClusterError as error:
        sys.exit(f"scaling.py: {error} (--local measures without an emulated network)")
    print(json.dumps(results[-1]["environment"]), f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
