"""Every example in the docstrings of tf_dslide.parallel runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import tf_dslide.parallel

MODULES = [
    f"tf_dslide.parallel.{module.name}"
    for module in pkgutil.iter_modules(tf_dslide.parallel.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [
        test.name
        for name in MODULES
        for test in finder.find(importlib.import_module(name))
        if test.examples
    ]
    assert len(examples) >= 5, examples
