"""The core, alone and under sanitizers: `core_check.cc` runs every function of it."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As setup.py compiles them; here at -O1 with line numbers, so that reports name the right lines.
FLAGS = [
    *("-std=c++17", "-O1", "-g1", "-fno-omit-frame-pointer"),
    *("-fno-math-errno", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror"),
]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",  # leak detection needs ptrace
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
# What a processor that runs a level tells of itself; on others the best level would run twice.
NEEDED = {"portable": "", "": "", "avx2": "avx2", "avx512": "avx512bw"}
# Races do not depend on the instruction set: one run at the best level is enough.
RUNS = [("address", "portable"), ("address", "avx2"), ("address", "avx512"), ("thread", "")]


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CXX", "g++"))


def simd_flags() -> dict[str, str]:
    """`SIMD_FLAGS` of setup.py, which must not be imported: it would run the build."""
    lines = (ROOT / "setup.py").read_text().partition("SIMD_FLAGS = ")[2]
    flags: dict[str, str] = eval(lines[: lines.index("}") + 1])
    assert set(flags) == {"simd_avx2.cc", "simd_avx512.cc"}
    return flags if platform.machine() == "x86_64" else {}


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | OPTIONS | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def build(folder: Path, flags: list[str]) -> Path:
    """Compiles the core and its check, two files at a time."""
    extra = simd_flags()

    def compile_one(source: Path) -> str:
        target = str(folder / f"{source.name}.o")
        special = extra.get(source.name, "").split()
        command = [*compiler(), *FLAGS, *flags, *special, "-I.", "-c", str(source), "-o", target]
        done = run(command)
        assert done.returncode == 0, done.stderr[-4000:]
        return target

    sources = [
        *sorted(ROOT.glob("custom_ops/core/*.cc")),
        Path(__file__).with_name("core_check.cc"),
    ]
    with ThreadPoolExecutor(max_workers=2) as pool:
        # The longest first.
        objects = list(pool.map(compile_one, reversed(sources)))
    program = folder / "core_check"
    done = run([*compiler(), *flags, *objects, "-pthread", "-o", str(program)])
    assert done.returncode == 0, done.stderr[-4000:]
    return program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`program(sanitizer)`, built once; skips where the compiler lacks that sanitizer."""
    if shutil.which(compiler()[0]) is None:
        pytest.skip(f"no C++ compiler {compiler()[0]}")
    built: dict[str, Path] = {}

    def get(sanitizer: str) -> Path:
        if sanitizer not in built:
            folder = tmp_path_factory.mktemp(sanitizer)
            trial = folder / "trial"
            (folder / "trial.cc").write_text("int main() { return 0; }\n")
            command = [*compiler(), *SANITIZERS[sanitizer], f"{trial}.cc", "-o", str(trial)]
            done = run(command)
            if done.returncode != 0 or run([str(trial)]).returncode != 0:
                pytest.skip(f"a program with -fsanitize={sanitizer} does not link or run here")
            built[sanitizer] = build(folder, SANITIZERS[sanitizer])
        return built[sanitizer]

    return get


@pytest.mark.parametrize(("sanitizer", "level"), RUNS)
def test_core_is_clean(program, sanitizer, level):
    if NEEDED[level] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor lacks {level}")
    done = run([str(program(sanitizer))], DSLIDE_SIMD=level)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " 0 failures" in done.stdout
    assert int(done.stdout.rpartition(": ")[2].split()[0]) > 100_000


def test_sanitizer_sees_what_it_should(program, tmp_path):
    """A deliberate overrun of the same build is caught: the check above cannot pass in vain."""
    objects = [str(path) for path in program("address").parent.glob("simd_*.o")]
    source = tmp_path / "overrun.cc"
    source.write_text(
        '#include "custom_ops/core/simd.h"\n'
        "int main() {\n"
        "  float* x = new float[8]();\n"
        "  return dslide::Simd().max(x, 9) > 0;\n"
        "}\n"
    )
    target = tmp_path / "overrun"
    command = [*compiler(), *FLAGS, *SANITIZERS["address"], "-I.", str(source), *objects]
    assert run([*command, "-o", str(target)]).returncode == 0
    done = run([str(target)], DSLIDE_SIMD="portable")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
