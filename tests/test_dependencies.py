"""What the package asks for, and what it says where something is missing."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Modules that are None cannot be imported, and are not found.
HIDE = "import sys; sys.modules.update(dict.fromkeys({!r}));"


def run(program: str, hidden: list[str], *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden) + program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def requirements(tmp_path_factory) -> list[str]:
    """Those of the wheel's metadata, which need nothing compiled."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tf_dslide", source / "tf_dslide", ignore=lambda *_: ["__pycache__"])
    program = "from setuptools.build_meta import *; prepare_metadata_for_build_wheel('.')"
    subprocess.run([sys.executable, "-c", program], cwd=source, check=True, capture_output=True)
    (metadata,) = source.glob("*.dist-info")
    return PathDistribution(metadata).requires or []


def names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", requirement)[0] for requirement in requirements}


def test_a_wheel_names_no_tensorflow(requirements):
    always = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert names(always) == {"keras", "ml-dtypes", "numpy", "scipy"}
    for extra, wheel in (("cpu", "tensorflow-cpu"), ("tensorflow", "tensorflow")):
        brought = [text for text in requirements if re.search(rf"extra == .{extra}\b", text)]
        assert names(brought) == {wheel}


@pytest.mark.parametrize("missing", ["typer", "rich", "sklearn"])
def test_the_command_line_names_its_extra(missing):
    # An empty stand-in for the parent package, whose own imports are not at issue here.
    program = """
import types
parent = types.ModuleType("tf_dslide")
parent.__path__ = ["tf_dslide"]
sys.modules["tf_dslide"] = parent
from tf_dslide.cli import main
main()
"""
    result = run(program, [missing], "--help")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'tf-dslide[cli]'" in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_layers_do_without_the_command_lines_packages(tmp_path):
    path = tmp_path / "pets.txt"
    path.write_text("1 2 2\n0 0:1.0\n")
    program = """
import keras, tf_dslide
from tf_dslide.data import read_xmc
print(tf_dslide.DSlideDense(3)(keras.ops.ones((2, 4))).shape)
read_xmc(sys.argv[1])
"""
    result = run(program, ["typer", "sklearn"], str(path))  # Keras itself brings rich
    assert result.stdout.strip() == "(2, 3)"
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert last.endswith("pip install 'tf-dslide[cli]'")


def test_a_missing_tensorflow_is_named():
    result = run("import tf_dslide", ["tensorflow"])
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: tf_dslide needs TensorFlow 2.21")
    assert "pip install 'tf-dslide[cpu]'" in last
    assert "tf-dslide[tensorflow]" in last
