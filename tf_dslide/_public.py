"""All public names. Importing this registers them with Keras, so that saved models load."""

from tf_dslide._costs import DenseCostWarning
from tf_dslide._native import build_info
from tf_dslide.centroids import start_from_centroids
from tf_dslide.constraints import UnitRows
from tf_dslide.hashing import DWTA, WTA, HashFamily, LearnedHash, MinHash, SimHash
from tf_dslide.hidden import DSlideHidden
from tf_dslide.initializers import LabelPrior
from tf_dslide.layers import DSlideDense, SparseDense
from tf_dslide.linear import DSlideLinear
from tf_dslide.losses import SlideBinaryCrossentropy, SlideCrossentropy
from tf_dslide.metrics import (
    NDCGAtK,
    PrecisionAtK,
    PropensityScoredPrecisionAtK,
    propensities,
)
from tf_dslide.optimizers import SparseAdagrad, SparseAdam
from tf_dslide.samplers import (
    AllNeurons,
    LogUniformSampler,
    LshSampler,
    Sampler,
    UniformSampler,
)
from tf_dslide.top_k_model import top_k_model

__all__ = [
    "DWTA",
    "WTA",
    "AllNeurons",
    "DSlideDense",
    "DSlideHidden",
    "DSlideLinear",
    "DenseCostWarning",
    "HashFamily",
    "LabelPrior",
    "LearnedHash",
    "LogUniformSampler",
    "LshSampler",
    "MinHash",
    "NDCGAtK",
    "PrecisionAtK",
    "PropensityScoredPrecisionAtK",
    "Sampler",
    "SimHash",
    "SlideBinaryCrossentropy",
    "SlideCrossentropy",
    "SparseAdagrad",
    "SparseAdam",
    "SparseDense",
    "UniformSampler",
    "UnitRows",
    "build_info",
    "propensities",
    "start_from_centroids",
    "top_k_model",
]
