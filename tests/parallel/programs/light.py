"""Lets `tf_dslide.parallel.communicator` be imported without TensorFlow, which takes seconds.

The programs import this first. It puts bare packages in the place of `tf_dslide` and
`tf_dslide.parallel`, so that their own first lines do not run.
"""

import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[3]

for name in ("tf_dslide", "tf_dslide.parallel"):
    package = types.ModuleType(name)
    package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
    sys.modules[name] = package
