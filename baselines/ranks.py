"""The processes of a run: one alone, or MPI's ranks."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import RANK_VARIABLES, launched_rank


class Ranks:
    """What the processes of a run tell each other about its course.

    Args:
        comm: An `mpi4py` communicator, or `None` for one process.
    """

    def __init__(self, comm: Any = None) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank() if comm else 0
        self.size: int = comm.Get_size() if comm else 1

    def agreed(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        return self._comm.bcast(value, root=0) if self._comm else value

    def gathered(self, value: Any) -> list[Any]:
        """All ranks' values, on all ranks."""
        return self._comm.allgather(value) if self._comm else [value]


def outer_hosts() -> list[str] | None:
    """Hosts of the ranks that mpirun started this program on.

    One name if there is no mpirun; `None` on all ranks but the first, which have nothing to do. MPI
    is left at once, for the jobs to be started need it.
    """
    here = os.uname().nodename
    if not any(name in os.environ for name in RANK_VARIABLES):
        return [here]
    from mpi4py import MPI

    hosts = MPI.COMM_WORLD.allgather(here)
    rank = launched_rank()
    MPI.Finalize()
    return hosts if rank == 0 else None


def without_launcher(environment: dict[str, str]) -> dict[str, str]:
    """The variables without those by which a launcher tells a process that it is a rank."""
    ours = ("PMI_", "PMIX_", "MPI_LOCAL", "OMPI_", "HYDI_", "HYDRA_", "MPICH_", "MPIR_", "GFORTRAN")
    return {k: v for k, v in environment.items() if not k.startswith(ours)}


def bytes_on_interface(name: str | None) -> int | None:
    """Bytes that this host's interface has sent so far; `None` without an interface."""
    if name is None:
        return None
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        device, _, counts = line.partition(":")
        if device.strip() == name:
            return int(counts.split()[8])
    return None


def pin(cores: Sequence[Sequence[int]] | None, rank: int) -> None:
    """Holds this process to its cores; to be called before TensorFlow counts them."""
    if cores:
        os.sched_setaffinity(0, cores[rank % len(cores)])
