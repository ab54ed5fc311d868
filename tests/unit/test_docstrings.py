"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import penstock

MODULES = ["penstock"] + [found.name for found in pkgutil.walk_packages(penstock.__path__, "penstock.")]


@pytest.mark.parametrize("name", MODULES)
def test_an_example_in_a_docstring_is_wrong(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("importing it would run it")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_a_module_does_not_say_what_it_is(name: str) -> None:
    if name.endswith("__main__"):
        pytest.skip("importing it would run it")
    assert importlib.import_module(name).__doc__
