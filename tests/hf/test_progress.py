"""Bars on a terminal, and nothing anywhere else."""

import io
import sys

import pytest

from advreg.hf.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is written to this stderr by two things that take turns."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress_bar(shown) as report:
        report("survey", 3, 8)
        report("neighbours", 1, 4)
        report("survey", 8, 8)
    return stream.getvalue()


def test_a_terminal_shows_each_thing_by_name_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = drawn(Terminal(), True, monkeypatch)
    last = text[text.rindex("survey") :]  # the bars as they were drawn last
    assert "8/8" in last
    assert "neighbours" in last
    assert "1/4" in last


def test_the_bars_are_taken_off_the_terminal_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    erase_line, show_cursor = "\x1b[2K", "\x1b[?25h"
    text = drawn(Terminal(), True, monkeypatch)
    after = text[text.rindex("1/4") :]
    assert after.count(erase_line) == 2  # one for each bar
    assert show_cursor in after


@pytest.mark.parametrize(
    ("stream", "shown"), [(io.StringIO(), True), (Terminal(), False), (io.StringIO(), False)]
)
def test_nothing_is_written_without_a_terminal_or_when_not_asked_for(
    stream: io.StringIO,
    shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert drawn(stream, shown, monkeypatch) == ""
    assert capsys.readouterr().out == ""


def test_an_error_passes_through_and_the_cursor_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")

    def interrupted() -> None:
        with progress_bar(True) as report:
            report("survey", 1, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert "\x1b[?25h" in terminal.getvalue()


def test_a_terminal_shows_nothing_until_there_is_something_to_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(True):
        pass
    assert terminal.getvalue() == ""
