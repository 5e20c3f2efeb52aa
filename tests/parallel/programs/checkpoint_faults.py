"""Saves a checkpoint on several ranks, and then a fault befalls the next one on rank 1.

Arguments: the folder, and `disk` or `kill`. Before a disk is full, a file is found to be truncated.
"""

import os
import resource
import signal
import sys
from pathlib import Path
from unittest import mock

import tests.fewer_imports  # noqa: F401

# isort: split
from tests.parallel.checkpoint_cases import build
from tf_dslide import _atomic
from tf_dslide.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from tf_dslide.parallel import MPIModelParallel

folder, fault = Path(sys.argv[1]), sys.argv[2]
strategy = MPIModelParallel(verbose=False)
model = build(strategy, units=2000)
save_checkpoint(folder / "epoch-0001", model, strategy, {"epoch": 1})
if fault == "disk":
    save_checkpoint(folder / "broken", model, strategy, {"epoch": 1})
    if strategy.rank == 1:
        os.truncate(folder / "broken" / "rank-00001-of-00002.safetensors", 1000)
    strategy.communicator.barrier()
    try:
        load_checkpoint(folder / "broken", model, strategy)
    except CheckpointError as error:
        sys.stdout.write(f"{error}\n")
        sys.stdout.flush()
    if strategy.rank == 1:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
strategy.communicator.barrier()


def die_half_way(file):
    if strategy.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


flush = die_half_way if fault == "kill" else _atomic.flush_to_disk
with mock.patch.object(_atomic, "flush_to_disk", flush):
    save_checkpoint(folder / "epoch-0002", model, strategy, {"epoch": 2})
print("not reached")
