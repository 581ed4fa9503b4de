"""Owns GitHub-flavoured Markdown: escaping, list items, tables, foldable blocks and code blocks."""

import re
from collections.abc import Iterable, Iterator, Sequence

from mapper.report.text import clean

_SPECIAL = re.compile(r"([\\`*\[\]|~#@]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z]))")
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def escape(text: str) -> str:
    """Return `text` on one line, such that Markdown and HTML show it letter for letter."""
    return _SPECIAL.sub(r"\\\1", clean(text)).translate(_HTML)


def bullet(label: str, text: str) -> Iterator[str]:
    """Yield a list item with a bold label."""
    yield f"- **{escape(label)}:** {escape(text)}"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table; titles are trusted, cells are escaped."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"


def details(summary: str, body: Iterable[str]) -> Iterator[str]:
    """Yield a block that a reader opens with a click."""
    yield f"<details><summary>{clean(summary).translate(_HTML)}</summary>"
    yield ""
    yield from body
    yield ""
    yield "</details>"


def fenced(text: str) -> Iterator[str]:
    """Yield a code block whose fence cannot be closed by its text; nothing for an empty text."""
    if not text:
        return
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield ""
    yield f"{fence}text"
    yield from (clean(line) for line in text.splitlines())
    yield fence
