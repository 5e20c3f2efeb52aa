"""Every example in the docstrings of these packages runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import tf_dslide.checkpoints
import tf_dslide.parallel

MODULES = [
    "tf_dslide.sharding",
    *(
        f"{package.__name__}.{module.name}"
        for package in (tf_dslide.checkpoints, tf_dslide.parallel)
        for module in pkgutil.iter_modules(package.__path__)
    ),
]


def examples(name):
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(importlib.import_module(name)) if test.examples]


WITH_EXAMPLES = [name for name in MODULES if examples(name)]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    assert sum(len(examples(name)) for name in MODULES) >= 12
