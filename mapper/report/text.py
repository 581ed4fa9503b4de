"""Owns how single values become text: safe names, numbers with units, marks for grades, notes for what is missing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mapper.records import Bottleneck, NodeRef, RankedMapping, Reading, TimeReading

_GRADE_MARKS = {"modelled": "~", "declared": "="}
LEGEND = (
    "~ modelled, not measured; = declared, not measured; [low-high] 95 % interval of the median",
    "class! proven; class? a guess; no mark: model and timing agree; one class: observed as expected",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The symbols beyond ASCII that a report uses; `encoding` is what the output can hold."""

    encoding: str
    yes: str = "✓"
    no: str = "✗"
    none: str = "–"
    dash: str = "–"
    times: str = "×"
    arrow: str = "→"
    plus_minus: str = "±"

    def fit(self, text: str) -> str:
        """Return `text` with control characters and what the encoding cannot hold spelled out as escapes."""
        return clean(text).encode(self.encoding, "backslashreplace").decode(self.encoding)


def glyphs_for(encoding: str) -> Glyphs:
    """Return the symbols that an output of this encoding can hold: all of them, or plain ASCII ones."""
    try:
        "✓✗–×→±".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        known = _known(encoding)
        return Glyphs(encoding=known, yes="ok", no="NO", none="-", dash="..", times="x", arrow="->", plus_minus="+-")
    return Glyphs(encoding=encoding)


def clean(text: str) -> str:
    """Return `text` on one line: control, format and bidirectional characters are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def short(text: str, limit: int) -> str:
    """Return `text` cleaned and, when longer than `limit` characters, without its middle."""
    text = clean(text)
    if len(text) <= limit:
        return text
    head = (limit - 2) // 2
    return f"{text[:head]}..{text[head + 2 - limit :]}"


class Notes:
    """Footnotes in the order of their first use: a letter for each different text."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def mark(self, text: str) -> str:
        """Return the letter that stands for `text`."""
        return self._letters.setdefault(text, _letter(len(self._letters)))

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Return each letter with its text."""
        return tuple((letter, text) for text, letter in self._letters.items())


@dataclass(slots=True, kw_only=True)
class Cells:
    """Formats readings for the cells of a table and collects notes on those that have no value."""

    glyphs: Glyphs
    notes: Notes = field(default_factory=Notes)

    def missing(self, column: str, reason: str | None) -> str:
        """Return the cell of a value that could not be had."""
        note = self.notes.mark(f"{column}: null: {clean(reason or 'no reason given')}")
        return f"{self.glyphs.none} {note}"

    def share(self, column: str, reading: Reading) -> str:
        """Return a fraction as a percentage; one whose interval contains 0 reads as 0 and a half width."""
        if reading.value is None:
            return self.missing(column, reading.reason)
        mark = grade_mark(reading)
        if reading.low is not None and reading.high is not None and reading.low <= 0 <= reading.high:
            return f"{mark}0{self.glyphs.plus_minus}{percent(max(-reading.low, reading.high))}"
        return mark + percent(reading.value)

    def number(self, column: str, reading: Reading) -> str:
        """Return a plain number with two decimals."""
        if reading.value is None:
            return self.missing(column, reading.reason)
        return f"{grade_mark(reading)}{reading.value:.2f}"

    def energy(self, column: str, reading: Reading) -> str:
        """Return an energy with its unit."""
        if reading.value is None:
            return self.missing(column, reading.reason)
        return f"{grade_mark(reading)}{reading.value * 1e3:.3g} mJ"

    def time(self, column: str, reading: TimeReading | Reading) -> str:
        """Return a time in milliseconds, without its interval."""
        value = reading.median if isinstance(reading, TimeReading) else reading.value
        if value is None:
            return self.missing(column, reading.reason)
        return grade_mark(reading) + milliseconds(value)

    def interval(self, reading: TimeReading | Reading) -> str:
        """Return a time's interval in milliseconds, empty when none was taken."""
        if reading.low is None or reading.high is None:
            return ""
        return f"[{milliseconds(reading.low)}{self.glyphs.dash}{milliseconds(reading.high)}]"

    def classes(self, bottleneck: Bottleneck) -> str:
        """Return the class, or expected and observed class where they disagree."""
        mark = {"proven": "!", "guess": "?"}.get(bottleneck.grade, "")
        if bottleneck.expected == bottleneck.observed:
            return bottleneck.observed + mark
        return f"{bottleneck.expected} {self.glyphs.arrow} {bottleneck.observed}{mark}"

    def verified(self, mapping: RankedMapping) -> str:
        """Return yes, or no with a note on the worst output."""
        if mapping.verified.passed:
            return self.glyphs.yes
        failed = next((check for check in mapping.verified.checks if not check.passed), None)
        reason = "nothing was compared" if failed is None else f"output {clean(failed.tensor)} is wrong"
        if failed is not None and failed.max_rel_err is not None:
            reason += f": relative error {failed.max_rel_err:.2g}, tolerance {failed.tolerance_rel:.2g}"
        elif failed is not None and failed.note:
            reason += f": {clean(failed.note)}"
        return f"{self.glyphs.no} {self.notes.mark(f'not verified: {reason}')}"


def grade_mark(reading: Reading | TimeReading) -> str:
    """Return what stands before a number that was not measured."""
    return _GRADE_MARKS.get(reading.grade or "", "")


def percent(fraction: float) -> str:
    """Return a fraction as a percentage; one decimal below ten per cent."""
    value = fraction * 100
    return f"{value:.0f}%" if abs(value) >= 9.95 or value == 0 else f"{value:.1f}%"


def milliseconds(time_s: float) -> str:
    """Return a time in milliseconds without its unit, to about three digits."""
    value = time_s * 1e3
    if value == 0:
        return "0"
    decimals = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 1 else 3 if value >= 0.01 else 5
    return f"{value:.{decimals}f}"


def quantity(value: float | None, unit: str) -> str:
    """Return a number with a decimal prefix: 1.5 GFLOP, 24.3 MB; a dash for None."""
    if value is None:
        return "–"
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def binary_size(size_b: int) -> str:
    """Return a cache size: 512 KiB, 32 MiB."""
    return f"{size_b / 2**20:g} MiB" if size_b >= 2**20 else f"{size_b / 2**10:g} KiB"


def pairs(values: Mapping[str, object], separator: str = " ") -> str:
    """Return `name=value` for each entry, in order."""
    return separator.join(f"{name}={value}" for name, value in values.items())


def versions(values: Mapping[str, str]) -> str:
    """Return `name version` for each entry, in order."""
    return ", ".join(f"{name} {version}" for name, version in values.items())


def error(value: float | None) -> str:
    """Return a numeric error, or that none could be had."""
    return "not comparable" if value is None else f"{value:.2g}"


def shape(dimensions: Iterable[int]) -> str:
    """Return a shape as 1x3x224x224, or `scalar`."""
    return "x".join(str(size) for size in dimensions) or "scalar"


def node_label(node: NodeRef) -> str:
    """Return a node's name, or an id of its own when the model gave it none."""
    return node.name or f"{node.op_type}#{node.index}"


def _escape(letter: str) -> str:
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _letter(index: int) -> str:
    head, tail = divmod(index, 26)
    return (_letter(head - 1) if head else "") + chr(ord("a") + tail)


def _known(encoding: str) -> str:
    try:
        "".encode(encoding)
    except LookupError:
        return "ascii"
    return encoding
