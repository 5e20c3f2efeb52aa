"""tf_dslide: Keras layers for classifiers with 10^4 to 10^7 outputs on ordinary CPUs."""

import sys

from tf_dslide._version import __version__


def _is_command_line() -> bool:
    """Whether this import is the first act of the program `dslide` or `python -m tf_dslide.cli`."""
    return sys.argv[0].rpartition("/")[2] == "dslide" or "tf_dslide.cli" in sys.orig_argv[1:4]


# The command line answers `--help` and mistakes in its options before it starts TensorFlow, which
# takes seconds; it imports what it needs itself. Everybody else gets all names at once, and with
# them the registration that `keras.models.load_model` relies on.
if not _is_command_line():
    from tf_dslide._native import build_info
    from tf_dslide.hashing import DWTA, HashFamily, SimHash
    from tf_dslide.initializers import LabelPrior
    from tf_dslide.layers import DSlideDense, SparseDense
    from tf_dslide.losses import SlideCrossentropy
    from tf_dslide.metrics import (
        NDCGAtK,
        PrecisionAtK,
        PropensityScoredPrecisionAtK,
        propensities,
    )
    from tf_dslide.optimizers import SparseAdam
    from tf_dslide.samplers import (
        AllNeurons,
        LogUniformSampler,
        LshSampler,
        Sampler,
        UniformSampler,
    )

__all__ = [
    "DWTA",
    "AllNeurons",
    "DSlideDense",
    "HashFamily",
    "LabelPrior",
    "LogUniformSampler",
    "LshSampler",
    "NDCGAtK",
    "PrecisionAtK",
    "PropensityScoredPrecisionAtK",
    "Sampler",
    "SimHash",
    "SlideCrossentropy",
    "SparseAdam",
    "SparseDense",
    "UniformSampler",
    "__version__",
    "build_info",
    "propensities",
]
