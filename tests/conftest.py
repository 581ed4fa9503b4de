"""What all tests share: golden files, rewritten only by `pytest --update-golden`."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ with what the code gives now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a golden file, by name; trailing spaces at line ends do not count."""

    def compare(name: str, text: str) -> None:
        found = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(found, encoding="utf-8")
        assert path.is_file(), f"no golden file {name}: run pytest --update-golden and read what it wrote"
        assert found == path.read_text(encoding="utf-8")

    return compare
