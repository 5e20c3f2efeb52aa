"""What a figure must be read with: machine, versions, commit."""

import os
import platform
import subprocess
import time
from pathlib import Path

# By which launchers of MPI tell a process its rank.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def quiet() -> None:
    """Keeps TensorFlow's start-up notes out of the output; to be called before it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def launched_rank() -> int:
    """Before MPI is started: its launcher says so."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def describe() -> dict:
    import keras
    import numpy as np
    import tensorflow as tf

    import tf_dslide

    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "simd": tf_dslide.build_info().simd,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "tf_dslide": tf_dslide.__version__,
        "commit": _commit(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    here = Path(__file__).resolve().parent
    try:
        name = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown"
    return name.stdout.strip() or "unknown"


def peak_megabytes() -> float:
    """Peak resident memory of this process so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
