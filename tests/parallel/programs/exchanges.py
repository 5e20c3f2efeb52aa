"""Run under mpirun, or as one rank without it: all cases of `exchange_cases.py`.

The argument is `mpi` or `lone`. Rank 0 prints the names of the cases that hold on all ranks.
"""

import sys

import light  # noqa: F401

from tests.parallel.exchange_cases import CASES
from tf_dslide.parallel.communicator import Communicator
from tf_dslide.parallel.lone import LoneCommunicator
from tf_dslide.parallel.mpi import MPICommunicator

comm: Communicator = LoneCommunicator() if sys.argv[1] == "lone" else MPICommunicator(timeout=20)
for name, case in CASES.items():
    case(comm)
    comm.barrier()
    if comm.rank == 0:
        print(name, flush=True)
assert ("mpi4py" in sys.modules) == (sys.argv[1] == "mpi")
assert "tensorflow" not in sys.modules
