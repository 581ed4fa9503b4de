"""Stand-ins for the flows, and the synthetic sheet of the report tests."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def sample():
    spec = importlib.util.spec_from_file_location("cli_sample", Path(__file__).parents[1] / "report" / "sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("MAPPER_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def fake_flow(monkeypatch):
    """Put a function in place of `mapper.flows.NAME.NAME`."""

    def install(name, function):
        module = types.ModuleType(f"mapper.flows.{name}")
        setattr(module, name, function)
        monkeypatch.setitem(sys.modules, f"mapper.flows.{name}", module)

    return install
