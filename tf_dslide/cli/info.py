"""`dslide info`."""

import importlib.metadata
import os
import platform
from typing import Any

from rich.table import Table

from tf_dslide.cli import console, options
from tf_dslide.cli.errors import reporting

_DISTRIBUTIONS = ("keras", "numpy", "scipy", "scikit-learn")


@reporting
def info(json: options.AsJson = False, debug: options.Debug = False) -> None:
    """Show the build, the instruction set in use, the versions and the cores."""
    from tf_dslide.cli import tensorflow_setup

    tensorflow_setup.start()
    facts = _collect()
    if json:
        console.print_json(facts)
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), str(value))
    console.output().print(table, soft_wrap=False)


def _collect() -> dict[str, Any]:
    from tf_dslide._native import build_info

    build = build_info()
    return {
        "dslide": build.version,
        "simd": build.simd,
        "compiler": build.compiler,
        "flags": build.flags,
        "tensorflow_built": build.tensorflow_built,
        "tensorflow": build.tensorflow_found,
        **{name: importlib.metadata.version(name) for name in _DISTRIBUTIONS},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
    }
