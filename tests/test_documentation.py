"""What README and the pages under docs/ say runs, and what they name exists."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
QUICKSTART = ROOT / "examples" / "quickstart.py"
DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [
    ROOT / "HACKING.md",
    *sorted(ROOT.glob("*/README.md")),
    ROOT / "reports/samples/README.md",
]
PAGES = list(dict.fromkeys([README, *DOCS, *OTHERS]))
COMMANDS = re.compile(r"^(?:\$ )?dslide (\w+)", re.MULTILINE)


def run(*words: str, cwd: Path = ROOT) -> str:
    result = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def programs(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def links(page: Path) -> list[str]:
    """Links to files, without places in them."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    return [link.partition("#")[0] for link in found if "://" not in link]


def test_readme_is_short():
    assert len(README.read_text().splitlines()) <= 150


def test_readme_shows_the_quickstart():
    (shown,) = programs(README)
    docstring, _, code = QUICKSTART.read_text().partition("\n\n")
    assert docstring.startswith('"""')
    assert shown == code


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path):
    """With fewer documents and labels, and one epoch: all else is as printed."""
    code = QUICKSTART.read_text()
    for printed, less in (("50_000", "500"), ("100_000", "4_000"), ("epochs=3", "epochs=1")):
        assert printed in code
        code = code.replace(printed, less)
    (tmp_path / "quickstart.py").write_text(code)
    lines = run("quickstart.py", cwd=tmp_path).splitlines()
    answers = [re.fullmatch(r"label (\d+), best three \[([\d ]+)\]", line) for line in lines[-3:]]
    assert all(len(answer[2].split()) == 3 for answer in answers)


@pytest.mark.slow
def test_the_quickstart_learns():
    precisions = re.findall(r"val_precision_at_1: ([\d.]+)", run(str(QUICKSTART)))
    first, _, last = map(float, precisions)
    assert 0.2 < first < last
    assert last > 0.5  # chance is 0.00002


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in DOCS if programs(page)], ids=name)
def test_programs_of_a_page_run_one_after_the_other(page, tmp_path):
    run("-c", "\n".join(programs(page)), cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for link in links(page):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_and_targets_that_are_named_exist(page):
    text = page.read_text()
    rooms = "benchmarks|baselines|reports|examples|docs|tests|custom_ops|tf_dslide"
    for path in re.findall(rf"(?:`|python )((?:{rooms})/[\w./]+)", text):
        assert (ROOT / path).exists(), path
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_page_is_in_the_index_and_in_readme():
    pages = {page.name for page in DOCS} - {"README.md"}
    assert pages
    assert pages <= set(links(ROOT / "docs" / "README.md"))
    assert {f"docs/{page}" for page in pages} <= set(links(README))


@pytest.mark.parametrize(
    "command", sorted({found for page in PAGES for found in COMMANDS.findall(page.read_text())})
)
def test_commands_of_the_program_exist(command):
    run("-m", "tf_dslide.cli", command, "--help")
