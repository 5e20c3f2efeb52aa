"""Data sets: reading, writing, making, and feeding to Keras.

`Dataset` holds sparse features and labels; `read_xmc` and its kin read it from files,
`make_synthetic`, `make_preset` and `load_places` make it, `save_dataset`, `load_dataset` and
`cached` keep it in binary form, and `batches` feeds it to `fit`.
"""

from tf_dslide.data._lines import DataFormatError
from tf_dslide.data.cache import cached
from tf_dslide.data.dataset import Dataset
from tf_dslide.data.pipeline import batches, to_ragged, to_sparse_tensor
from tf_dslide.data.places import ATTRIBUTION, PlacesTask, load_places
from tf_dslide.data.skip_gram import read_skip_gram
from tf_dslide.data.store import StoreError, load_dataset, save_dataset
from tf_dslide.data.synthetic import (
    PRESETS,
    TEST_START,
    Preset,
    SyntheticSpec,
    make_preset,
    make_synthetic,
    synthetic_batches,
)
from tf_dslide.data.weighting import tf_idf
from tf_dslide.data.xmc import read_names, read_split, read_xmc, read_xmc_pair, write_xmc

__all__ = [
    "ATTRIBUTION",
    "PRESETS",
    "TEST_START",
    "DataFormatError",
    "Dataset",
    "PlacesTask",
    "Preset",
    "StoreError",
    "SyntheticSpec",
    "batches",
    "cached",
    "load_dataset",
    "load_places",
    "make_preset",
    "make_synthetic",
    "read_names",
    "read_skip_gram",
    "read_split",
    "read_xmc",
    "read_xmc_pair",
    "save_dataset",
    "synthetic_batches",
    "tf_idf",
    "to_ragged",
    "to_sparse_tensor",
    "write_xmc",
]
