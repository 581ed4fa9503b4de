"""Scripts are files, not modules of a package: this loads one by name."""

import importlib.util
import sys
from pathlib import Path

import pytest
import sample

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="session")
def script():
    """Give a function that imports scripts/NAME.py."""

    def load(name):
        module_name = f"script_{name}"
        if module_name not in sys.modules:
            spec = importlib.util.spec_from_file_location(module_name, SCRIPTS / f"{name}.py")
            sys.modules[module_name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module_name])
        return sys.modules[module_name]

    return load


@pytest.fixture
def sheet():
    """The synthetic sheet that the reports are tested with."""
    return sample.sheet()
