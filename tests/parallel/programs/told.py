"""Run under mpirun: the cases of `fault_cases.py`, each on a communicator of its own.

Rank 0 prints what the ranks have raised, in their order, by case, as one line of JSON. Then the job
fails, as one does whose exchanges have failed.
"""

import json

import light  # noqa: F401
from mpi4py import MPI

from tests.parallel.fault_cases import TOLD
from tf_dslide.parallel.errors import RankError
from tf_dslide.parallel.mpi import MPICommunicator

errors = {}
for case in TOLD:
    try:
        case(MPICommunicator(timeout=20))
    except RankError as error:
        errors[case.__name__] = str(error)
everyone = MPI.COMM_WORLD.gather(errors)
if everyone:
    print(
        json.dumps({name: [of_rank.get(name) for of_rank in everyone] for name in errors}),
        flush=True,
    )
# Whoever is at its end first ends all.
MPI.COMM_WORLD.barrier()
