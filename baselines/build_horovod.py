"""Builds Horovod for this environment once, and keeps the wheel in the user's cache.

`python baselines/build_horovod.py` (or `make baselines`) takes 5 to 20 minutes of two cores the
first time and seconds later; with `--if-built` it installs a wheel that is there and never builds.
It needs a C++ compiler; cmake comes by pip if it is missing.

Horovod 0.28.1 builds on TensorFlow 2.21 unpatched but for one file, made for GPUs, which includes
headers that TensorFlow no longer ships. Empty ones are enough.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HOROVOD = "0.28.1"
IF_BUILT = "--if-built"
# What Horovod needs at run time; its own list would bring other versions of what is here.
NEEDED = ("cloudpickle", "psutil", "pyyaml", "packaging")
MISSING_HEADERS = (
    "tf2xla/xla_op_kernel.h",
    "tf2xla/xla_op_registry.h",
    "xla/client/xla_builder.h",
    "xla/service/custom_call_target_registry.h",
    "xla/service/hlo.pb.h",
    "xla/shape.h",
    "xla/xla_data.pb.h",
)


def cache_folder() -> Path:
    """Where wheels for this Python, TensorFlow and MPI are kept."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.implementation.cache_tag}-{platform.machine()}"
    name = f"{python}-tensorflow{tensorflow_version()}-mpich{version('mpich')}"
    return base / "tf_dslide/horovod" / name


def tensorflow_version() -> str:
    """Of the installed wheel, whatever it is called."""
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(name)
        except ImportError:
            continue
    raise SystemExit("build_horovod.py: TensorFlow is not installed in this environment")


def pip(*arguments: str, **variables: str) -> None:
    """Runs pip in this environment."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables})
    if done.returncode:
        raise SystemExit(f"build_horovod.py: failed: {' '.join(command)}")


def build(folder: Path) -> Path:
    """Builds the wheel and puts it whole into the folder."""
    for program in (os.environ.get("CXX") or "g++", "make"):
        if shutil.which(program) is None:
            raise SystemExit(
                f"build_horovod.py: {program} is missing; on Debian and Ubuntu: "
                "apt-get install g++ make"
            )
    if shutil.which("cmake") is None:
        pip("install", "--quiet", "cmake")
    # Built where it will stay, under another name, so that a build cut short leaves no wheel.
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for header in MISSING_HEADERS:
            path = Path(scratch, "stand-ins/tensorflow/compiler", header)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        pip(
            *("wheel", "--no-build-isolation", "--no-deps", "--no-cache-dir", "--quiet"),
            *("--wheel-dir", scratch, f"horovod=={HOROVOD}"),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            CXXFLAGS=f"-I{scratch}/stand-ins",
            LDFLAGS="-s",
            MAKEFLAGS=f"-j{os.cpu_count() or 1}",
            HOROVOD_WITH_TENSORFLOW="1",
            HOROVOD_WITHOUT_PYTORCH="1",
            HOROVOD_WITHOUT_MXNET="1",
            HOROVOD_WITH_MPI="1",
            HOROVOD_WITHOUT_GLOO="1",
            CMAKE_POLICY_VERSION_MINIMUM="3.5",  # Horovod asks for a cmake that 4 no longer plays
        )
        (wheel,) = Path(scratch).glob("horovod-*.whl")
        return wheel.replace(folder / wheel.name)


def main() -> None:
    """Installs Horovod into this environment."""
    if find_spec("horovod"):
        return
    if find_spec("mpi4py") is None:
        raise SystemExit("build_horovod.py: MPI is missing: pip install '.[mpi]' first")
    folder = cache_folder()
    wheels = list(folder.glob("horovod-*.whl"))
    if not wheels and IF_BUILT in sys.argv[1:]:
        print("Horovod was not built yet, its tests are skipped: make baselines", file=sys.stderr)
        return
    if not wheels:
        print("building Horovod once: some minutes", file=sys.stderr, flush=True)
    wheel = wheels[0] if wheels else build(folder)
    pip("install", "--quiet", *NEEDED)
    pip("install", "--quiet", "--no-deps", str(wheel))
    # Horovod's library finds MPI's when that is loaded already, wherever it was built.
    program = "from mpi4py import MPI; import horovod.tensorflow as hvd; hvd.init()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pip("uninstall", "--quiet", "--yes", "horovod")
        wheel.unlink()
        raise SystemExit(f"build_horovod.py: Horovod does not start here\n{done.stderr}")


if __name__ == "__main__":
    main()
