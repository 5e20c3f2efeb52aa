"""The core, alone and under sanitizers: `core_check/` runs every function of it.

What was compiled stays in `build/sanitizers/`, for as long as sources and flags are the same.
"""

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "custom_ops" / "core"
CHECKS = Path(__file__).with_name("core_check")
CACHE = ROOT / "build" / "sanitizers"
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
        timeout=900,
        check=False,
    )


@functools.cache
def common_digest() -> bytes:
    """Of what all objects depend on: the compiler and the headers."""
    digest = hashlib.sha256(run([*compiler(), "--version"]).stdout.encode())
    for folder in (CORE, CHECKS):
        for header in sorted([*folder.glob("*.h"), *folder.glob("*.inc")]):
            digest.update(header.name.encode() + header.read_bytes())
    return digest.digest()


def once(stem: str, suffix: str, content: bytes, command: list[str]) -> Path:
    """The output of a command, made anew only if it or `content` differs from the last time."""
    made_of = common_digest() + content + shlex.join(command).encode()
    target = CACHE / f"{stem}-{hashlib.sha256(made_of).hexdigest()[:16]}{suffix}"
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    done = run([*command, "-o", str(scratch)])
    assert done.returncode == 0, done.stderr[-4000:]
    for old in CACHE.glob(f"{stem}-{'[0-9a-f]' * 16}{suffix}"):
        old.unlink(missing_ok=True)
    return scratch.rename(target)


def compile_one(sanitizer: str, source: Path) -> Path:
    special = simd_flags().get(source.name, "").split()
    flags = [*FLAGS, *SANITIZERS[sanitizer], *special, "-I."]
    command = [*compiler(), *flags, "-c", str(source.relative_to(ROOT))]
    return once(f"{sanitizer}-{source.stem}", ".o", source.read_bytes(), command)


def link(sanitizer: str, name: str, objects: list[Path]) -> Path:
    command = [*compiler(), *SANITIZERS[sanitizer], *map(str, objects), "-pthread"]
    return once(f"{sanitizer}-{name}", "", b"", command)  # the objects' names tell their content


def objects(sanitizer: str, sources: list[Path]) -> list[Path]:
    """Two files at a time, the largest first."""
    largest_first = sorted(sources, key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(functools.partial(compile_one, sanitizer), largest_first))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`program(sanitizer)`; skips where the compiler lacks that sanitizer."""
    if shutil.which(compiler()[0]) is None:
        pytest.skip(f"no C++ compiler {compiler()[0]}")

    @functools.cache
    def get(sanitizer: str) -> Path:
        trial = tmp_path_factory.mktemp(sanitizer) / "trial"
        Path(f"{trial}.cc").write_text("int main() { return 0; }\n")
        command = [*compiler(), *SANITIZERS[sanitizer], f"{trial}.cc", "-o", str(trial)]
        if run(command).returncode != 0 or run([str(trial)]).returncode != 0:
            pytest.skip(f"a program with -fsanitize={sanitizer} does not link or run here")
        sources = [*CORE.glob("*.cc"), *CHECKS.glob("*.cc")]
        return link(sanitizer, "core_check", objects(sanitizer, sources))

    return get


@pytest.mark.sanitizers
@pytest.mark.timeout(1800)  # the first run compiles all
@pytest.mark.parametrize(("sanitizer", "level"), RUNS)
def test_core_is_clean(program, sanitizer, level):
    if NEEDED[level] not in Path("/proc/cpuinfo").read_text():
        pytest.skip(f"the processor lacks {level}")
    done = run([str(program(sanitizer))], DSLIDE_SIMD=level)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " 0 failures" in done.stdout
    assert int(done.stdout.rpartition(": ")[2].split()[0]) > 1_000_000


@pytest.mark.sanitizers
@pytest.mark.timeout(1800)
def test_sanitizer_sees_what_it_should(program, tmp_path):
    """A deliberate overrun of the same build is caught: the check above cannot pass in vain."""
    program("address")
    source = tmp_path / "overrun.cc"
    source.write_text(
        '#include "custom_ops/core/simd.h"\n'
        "int main() {\n"
        "  float* x = new float[8]();\n"
        "  return dslide::Simd().max(x, 9) > 0;\n"
        "}\n"
    )
    target = tmp_path / "overrun"
    simd = map(str, objects("address", [*CORE.glob("simd_*.cc")]))
    command = [*compiler(), *FLAGS, *SANITIZERS["address"], "-I.", str(source), *simd]
    assert run([*command, "-o", str(target)]).returncode == 0
    done = run([str(target)], DSLIDE_SIMD="portable")
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


# Every function that a header declares is called by a check.
def code(path: Path) -> str:
    """The text without comments and strings."""
    text = re.sub(r"//.*|^#.*", "", path.read_text(), flags=re.MULTILINE)
    return re.sub(r'"[^"\n]*"', '""', text)


def declared(header: str) -> set[str]:
    """Names of functions, public members and entries of tables of functions.

    clang-format sets them apart: what begins a line at the left is declared in the namespace, and
    by two spaces, in a class.
    """
    text = re.sub(r"^ private:.*?^};", "", header, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(\S[^\n]*\)) {$.*?^}", r"\1;", text, flags=re.MULTILINE | re.DOTALL)
    free = re.findall(r"^(?! |return)[\w:<>,&* ]*?[ *&](\w+)\(", text, flags=re.MULTILINE)
    members = re.findall(r"^  (?! )[\w:<>,&* ]*?(?<![~\w])(\w+)\(", text, flags=re.MULTILINE)
    tables = re.findall(r"^  [\w ]+\(\*(\w+)\)\(", text, flags=re.MULTILINE)
    return {*free, *members, *tables}


def test_every_function_of_the_core_is_checked():
    checks = "\n".join(code(path) for path in CHECKS.glob("*.cc"))
    checks += "\n".join(code(path) for path in CHECKS.glob("*.h"))
    # A name in capitals is used where it stands; others may be those of variables.
    used = set(re.findall(r"\b[A-Z]\w+|\w+(?=\()", checks))
    for path in sorted(CORE.glob("*.h")):
        missing = sorted(declared(code(path)) - used)
        assert not missing, f"no check in core_check/ calls {missing} of {path.name}"


def test_declarations_are_seen():
    header = """
void Free(int64_t n,
          float* y);
inline const Matrix& Other(int n) { return n; }
inline void Third(int n) {
  Called(n);
}
class Some : public Base {
 public:
  explicit Some(int64_t n);
  ~Some() { Stop(); }
  float* Member(int n) const { return Inner(n); }

 private:
  void Hidden(int n);
};
struct Table {
  void (*entry)(const float* x);
};
"""
    assert declared(header) == {"Free", "Other", "Third", "Some", "Member", "entry"}
