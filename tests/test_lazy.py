"""Public names load at their first use, and stay what they are whatever modules have been imported before."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

PACKAGES = ("caw", "caw.evaluator", "caw_lab.training.labelers", "caw.models", "caw.policies", "caw.watermarks")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert name in dir(module)
        assert getattr(module, name) is getattr(module, name)
    assert not {"TYPE_CHECKING", "lazy", "lazy_names"} & set(dir(module))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = module.no_such_name


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_has_the_name_of_a_public_name(package: str) -> None:
    """`import caw.generate` would put a module where the function is."""
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert "entrance" in modules or package != "caw"  # the walk works
    assert not modules & set(module.__all__)


def test_the_function_stays_the_function() -> None:
    """In a fresh process: every module of the package is imported first, then the names are asked for."""
    script = """
import importlib, pkgutil, caw
for found in pkgutil.iter_modules(caw.__path__):
    if found.name in ("entrance", "demo", "models", "detection", "ops", "record"):
        importlib.import_module(f"caw.{found.name}")
assert all(callable(getattr(caw, name)) for name in ("generate", "detect", "decode", "load_model", "iter_generate"))
from caw import generate
assert generate is caw.entrance.generate
"""
    subprocess.run([sys.executable, "-c", script], check=True)
