"""What a figure must be read with: machine, versions, commit."""

import os
import platform
import subprocess
import time
from pathlib import Path


def quiet() -> None:
    """Keeps TensorFlow's start-up notes out of the output; to be called before it is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


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
