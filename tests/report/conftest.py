"""The synthetic sheet for the tests of the reports."""

import importlib.util
from pathlib import Path

import pytest


def _load():
    spec = importlib.util.spec_from_file_location("report_sample", Path(__file__).parent / "sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample():
    return _load()


@pytest.fixture
def sheet(sample):
    return sample.sheet()
