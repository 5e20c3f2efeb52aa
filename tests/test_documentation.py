"""README's code runs as printed, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def run(code: str, *, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=280
    )


@pytest.mark.slow
def test_readme_code_runs_as_printed(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    result = run(
        f"import keras; from tf_dslide import *\n{code}\nprint(labels.shape)", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "(256, 5)" in result.stdout


def test_readme_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^dslide (\w+)", README, re.MULTILINE))))
def test_readme_names_commands_of_the_program(command):
    result = subprocess.run(
        [sys.executable, "-m", "tf_dslide.cli", command, "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr


def test_files_named_in_the_documents_exist():
    for document in ("README.md", "HACKING.md", "benchmarks/README.md"):
        text = (ROOT / document).read_text()
        for path in re.findall(r"`((?:benchmarks|tests|custom_ops|tf_dslide)/[\w./]+)`", text):
            assert (ROOT / path).exists(), f"{document} names {path}"
