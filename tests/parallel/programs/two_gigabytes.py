"""Run under mpirun on two ranks: rank 1 gets a message of more bytes than an int of C counts."""

import light  # noqa: F401
import numpy as np

from tf_dslide.parallel.mpi import MPICommunicator

SIZE = 2**31 + 100
# Around the limit, at the beginning and at the end.
PLACES = [0, 2**31 - 1, 2**31, SIZE - 1]

comm = MPICommunicator(timeout=60)
message = np.zeros(SIZE if comm.rank == 0 else 0, np.uint8)
if comm.rank == 0:
    message[PLACES] = [1, 2, 3, 4]
nothing = message[:0]
received = comm.alltoallv("large", [nothing, message] if comm.rank == 0 else [nothing, nothing])[0]
if comm.rank == 1:
    assert len(received) == SIZE
    assert received[PLACES].tolist() == [1, 2, 3, 4]
    assert received.sum(dtype=np.int64) == 10
    print("whole", flush=True)
