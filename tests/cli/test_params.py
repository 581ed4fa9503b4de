from pathlib import Path

import pytest

from mapper.cli.params import cache_dir
from mapper.errors import BadInputError


def test_own_variable_names_the_cache_folder(tmp_path):
    assert cache_dir({"MAPPER_CACHE_DIR": str(tmp_path), "XDG_CACHE_HOME": "/elsewhere"}) == tmp_path


def test_xdg_folder_is_next(tmp_path):
    assert cache_dir({"MAPPER_CACHE_DIR": "", "XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "mapper"


def test_relative_xdg_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_dir({"XDG_CACHE_HOME": "cache"}) == tmp_path / ".cache" / "mapper"


def test_no_home_folder_is_refused(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BadInputError, match="MAPPER_CACHE_DIR: expected a folder"):
        cache_dir({})
