import pytest

from mapper.report.text import Notes, clean, glyphs_for, milliseconds, percent, quantity, short


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.0, "0"), (6.814e-3, "6.81"), (4.7251, "4725"), (0.1234, "123.4"), (1.234e-4, "0.123"), (4.2e-6, "0.00420")],
)
def test_time_in_milliseconds(time_s, text):
    assert milliseconds(time_s) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(0.0, "0%"), (0.004, "0.4%"), (0.0996, "10%"), (0.557, "56%"), (1.02, "102%"), (-0.02, "-2.0%")],
)
def test_percent(fraction, text):
    assert percent(fraction) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.99e11, "199 GFLOP/s"), (2.5e12, "2.5 TFLOP/s"), (12.0, "12 FLOP/s"), (4200.0, "4.2 kFLOP/s")]
)
def test_quantity(value, text):
    assert quantity(value, "FLOP/s") == text


def test_control_and_direction_characters_are_shown_as_escapes():
    assert clean("a\x1b[0m\n\u202e\U000e0001é入") == "a\\x1b[0m\\x0a\\u202e\\U000e0001é入"


def test_short_keeps_head_and_tail():
    assert short("abcdefghij", 10) == "abcdefghij"
    assert short("abcdefghijk", 10) == "abcd..hijk"
    assert len(short("x" * 400, 33)) == 33


def test_notes_share_a_letter_for_the_same_text_and_go_past_z():
    notes = Notes()
    assert [notes.mark(text) for text in ("one", "two", "one")] == ["a", "b", "a"]
    for index in range(26):
        last = notes.mark(f"more {index}")
    assert last == "ab"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no-such-encoding"])
def test_output_that_cannot_hold_the_symbols_gets_ascii(encoding):
    glyphs = glyphs_for(encoding)
    assert (glyphs.yes + glyphs.no + glyphs.arrow + glyphs.times).isascii()
    assert glyphs.fit("入力✓") == "\\u5165\\u529b\\u2713"


def test_utf8_output_gets_the_symbols():
    assert glyphs_for("utf-8").yes == "✓"
