"""Trains the same classifier by each method, one after the other, and keeps a record of each.

    mpirun -np 2 python baselines/compare.py
    python baselines/compare.py --ranks 2 --data amazon-670k --seconds 60 --network 1gbit,0.2ms
    python baselines/compare.py --ranks 1 --ranks 2 --methods dslide-lsh --network 1gbit,0.2ms
    python -m reports runs -o report

Each method is a job of its own, started by this program with as many ranks as it was started with
itself: its memory is its own, and if it fails, or the memory does not suffice for it, the others
go on. Methods of one process run on one of the hosts. With several `--ranks` a rank has as many
cores in each run, so that the runs say what more hosts bring. With `--network` the ranks are on
hosts that this machine emulates, one core each if there are not more, with that rate and delay
between them (needs root). Ctrl-C ends the comparison and keeps what was measured.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if Path(sys.path[0]).resolve() == ROOT / "baselines":
    sys.path[0] = str(ROOT)

from baselines.ranks import outer_hosts  # noqa: E402

if __name__ == "__main__":
    # Before TensorFlow is loaded: all ranks but one have nothing to do.
    hosts = outer_hosts()
    if hosts is not None:
        from baselines.command import start

        start(hosts)
