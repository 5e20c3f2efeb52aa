"""One model over many ranks: model parallelism with mpi4py.

`MPIModelParallel` splits the layers of a model; see its docstring. The modules, from the bottom up:
`errors`, `statistics` and `protocol` (what ranks say), `communicator`, `lone` and `mpi` (bytes
between ranks), `faults` and `sentinel` (the end of a job), `messages` (matrices as bytes),
`exchanges` (as functions of tensors), `strategy`.
"""

from typing import Any

__all__ = ["MPIModelParallel"]


def __getattr__(name: str) -> Any:
    # The modules at the bottom need no TensorFlow, and must not wait for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tf_dslide.parallel import strategy

    return getattr(strategy, name)
