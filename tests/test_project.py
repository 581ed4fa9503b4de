"""The project around the package: constraints, scripts, and what the README promises of them."""

import os
import re
import shutil
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
COMMANDS = ("scripts/explore.sh", "scripts/test.sh", "scripts/check.sh", ".ci/run")
PLATFORMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]


def constraints():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in (*project["dependencies"], *project["optional-dependencies"]["dev"])]


def applies(requirement, platform, machine):
    place = {"sys_platform": platform, "platform_machine": machine}
    return requirement.marker is None or requirement.marker.evaluate(place)


@pytest.mark.parametrize(("platform", "machine"), PLATFORMS)
def test_every_dependency_has_one_exact_version_that_suits(platform, machine):
    pinned = [found for found in constraints() if applies(found, platform, machine)]
    names = [found.name.lower() for found in pinned]
    assert len(names) == len(set(names))
    for wanted in required():
        if applies(wanted, platform, machine):
            (pin,) = (found for found in pinned if found.name.lower() == wanted.name.lower())
            (version,) = re.findall(r"^==([\w.]+)$", str(pin.specifier))
            assert wanted.specifier.contains(version), wanted


@pytest.mark.parametrize(("platform", "machine"), PLATFORMS)
def test_exactly_one_onnxruntime_is_installed(platform, machine):
    chosen = [wanted.name for wanted in required() if wanted.name.startswith("onnxruntime")]
    assert sorted(chosen) == ["onnxruntime", "onnxruntime-gpu"]
    here = [r.name for r in required() if r.name.startswith("onnxruntime") and applies(r, platform, machine)]
    assert here == (["onnxruntime"] if machine in ("aarch64", "arm64") else ["onnxruntime-gpu"])


def test_constraints_hold_no_urls():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert " @ " not in text
    assert "-e " not in text.replace("-e '.[dev]'", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_scripts_can_be_run_and_stop_at_the_first_error(name):
    path = ROOT / name
    assert path.stat().st_mode & stat.S_IXUSR
    assert "\nset -euo pipefail\n" in path.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def explore_with(tmp_path, body):
    """Run a copy of scripts/explore.sh with a stand-in for Python, far from this checkout's environment."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    python = tmp_path / "python"
    if body is not None:
        python.write_text(f"#!/bin/sh\n{body}\n")
        python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python)}
    command = [str(tmp_path / "scripts" / "explore.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 2
    assert done.stdout == ""
    assert not (tmp_path / ".venv").exists()
    (line,) = done.stderr.splitlines()
    return line


def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    assert "no such interpreter: install Python 3.11 or newer" in explore_with(tmp_path, None)


def test_an_old_interpreter_is_refused(tmp_path):
    body = 'case "$2" in *"< (3, 11)"*) exit 1 ;; *) echo 3.9 ;; esac'
    assert "is Python 3.9: expected 3.11 or newer: set PYTHON" in explore_with(tmp_path, body)


def test_an_interpreter_that_does_not_run_is_refused(tmp_path):
    assert "does not run: set PYTHON" in explore_with(tmp_path, "exit 1")


def test_an_interpreter_without_venv_is_refused(tmp_path):
    body = 'case "$2" in *ensurepip*) exit 1 ;; *print*) echo 3.12 ;; esac'
    assert "install its venv module" in explore_with(tmp_path, body)
