"""Run files for the tests of reports: the stored ones, all made up, and ones made on the spot."""

import json
from pathlib import Path

RUNS = Path(__file__).parent / "runs"
NETWORK = "1gbit,0.2ms"
LSH = "made-up.dslide-lsh.1gbit-0.2ms.2.jsonl"
SHARED = "made-up.dslide-shared_lsh.1gbit-0.2ms.2.jsonl"
HOROVOD = "made-up.horovod-dense.1gbit-0.2ms.2.jsonl"
DENSE = "made-up.tf-dense.local.1.jsonl"


def run_values(**changes):
    """Valid arguments of `RunWriter.run`."""
    values = {
        "method": "dslide-lsh",
        "title": "D-SLIDE, LSH per sample",
        "model": {"hidden": 8, "units": 500, "parameters": 4900},
        "data": {"name": "made-up", "num_features": 50, "num_labels": 500, "num_train": 1000},
        "settings": {"batch_size": 100, "learning_rate": 0.01, "decay": None},
        "ranks": 2,
        "hosts": ["host0", "host1"],
        "threads_per_rank": 1,
        "network": NETWORK,
        "seed": 0,
        "environment": {"processor": "made-up processor", "commit": "0000000"},
        "command": "made up for tests",
    }
    return values | changes


def copied(name, to, changes=None, **run_changes):
    """A stored run file copied to `to`, with changes to its first event."""
    lines = (RUNS / name).read_text().splitlines(keepends=True)
    first = json.loads(lines[0])
    for key, value in (changes or {}).items():
        first[key] |= value
    first |= run_changes
    to.write_text(json.dumps(first) + "\n" + "".join(lines[1:]))
    return to
