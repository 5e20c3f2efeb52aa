"""Every example in the docstrings of tf_dslide.data runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import tf_dslide.data

MODULES = [
    f"tf_dslide.data.{module.name}"
    for module in pkgutil.iter_modules(tf_dslide.data.__path__)
    if module.name != "_sklearn"  # a guard around imports
]


# That of all places of the world takes seconds.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name.endswith("places") else name
        for name in MODULES
    ],
)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_has_an_example():
    finder = doctest.DocTestFinder(exclude_empty=True)
    without = [
        name
        for name in tf_dslide.data.__all__
        if name.islower() or name in ("Dataset", "SyntheticSpec", "DataFormatError")
        if not any(test.examples for test in finder.find(getattr(tf_dslide.data, name), name))
    ]
    assert without == []
