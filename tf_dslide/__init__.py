"""tf_dslide: Keras layers for classifiers with 10^4 to 10^7 outputs on ordinary CPUs."""

from tf_dslide._native import build_info
from tf_dslide._version import __version__
from tf_dslide.hashing import DWTA, HashFamily, SimHash
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
