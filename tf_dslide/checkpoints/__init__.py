"""Checkpoints: what a training needs to go on exactly, on as many ranks as before or on others.

A checkpoint is a folder:

- `rank-00000-of-00002.safetensors`, one a rank: its part of each variable of the model and of the
  optimizer, and its samplers' tables. What all ranks have alike is in the file of rank 0.
- `manifest.json`: format and versions, the configuration of the model, each variable's name, type
  and whole shape with the range that each file has of it, the samplers' schedules, the size and
  CRC-32 of each file, and the caller's notes of how far the training is.

It is written as a hidden folder beside its place, which takes its name when all is on disk.
"""

from tf_dslide.checkpoints.callback import Checkpoint, latest
from tf_dslide.checkpoints.exporting import export
from tf_dslide.checkpoints.loading import load_checkpoint
from tf_dslide.checkpoints.ranks import CheckpointError
from tf_dslide.checkpoints.saving import save_checkpoint

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "export",
    "latest",
    "load_checkpoint",
    "save_checkpoint",
]
