"""One model over many ranks: model parallelism with mpi4py.

`MPIModelParallel` splits the layers of a model; see its docstring. The other modules, from the
bottom up: `sharding` (who holds what), `communicator`, `statistics` and `faults` (bytes between
ranks), `parcels` (matrices as bytes), `exchanges` (as functions of tensors), `strategy`,
`checkpoints`.
"""
