"""Every example in a docstring of the package runs and prints what it says."""

import doctest
import importlib
import inspect

import pytest

import tf_dslide

MODULES = [
    "tf_dslide",
    "tf_dslide.centroids",
    "tf_dslide.constraints",
    "tf_dslide.hashing",
    "tf_dslide.hidden",
    "tf_dslide.initializers",
    "tf_dslide.labels",
    "tf_dslide.layers",
    "tf_dslide.lazy",
    "tf_dslide.linear",
    "tf_dslide.losses",
    "tf_dslide.metrics",
    "tf_dslide.optimizers",
    "tf_dslide.samplers",
    "tf_dslide.sharding",
    "tf_dslide.top_k_model",
    "tf_dslide._costs",
    "tf_dslide._native.loader",
    "tf_dslide._native.ops",
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# What has nothing to show: constants, base classes, and the result of `build_info()`.
WITHOUT_EXAMPLE = {"HashFamily", "Sampler", "__version__"}


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES for test in finder.find(importlib.import_module(name), name)]
    return [test for test in tests if test.examples]


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_example(test):
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=report.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(report)


def test_every_public_name_has_one():
    with_example = {test.name.split(".")[-1] for test in examples()}
    assert set(tf_dslide.__all__) - WITHOUT_EXAMPLE <= with_example


@pytest.mark.parametrize(
    "name", sorted(set(tf_dslide.__all__) - {"__version__", "DenseCostWarning"})
)
def test_docstrings_name_every_argument(name):
    thing = getattr(tf_dslide, name)
    text = inspect.getdoc(thing) or ""
    assert text
    parameters = inspect.signature(thing).parameters.values()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name in ("self", "name", "dtype"):
            continue
        assert f"{parameter.name}:" in text, f"{name} does not describe `{parameter.name}`"
