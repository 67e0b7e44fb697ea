"""Bars on a terminal, and nothing anywhere else."""

import io
import re
import sys
import time

import pytest
from transformers.utils.logging import enable_progress_bar

from advreg.hf.progress import progress_bar


@pytest.fixture(autouse=True)
def bars_are_wanted() -> None:
    """The command, and so other tests in this process, switches the bars of transformers off."""
    enable_progress_bar()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is written to this stderr by two things that take turns."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar(shown) as report:
        report("survey", 3, 8)
        report("neighbours", 1, 4)
        time.sleep(0.11)  # bars are drawn ten times a second at most
        report("survey", 8, 8)
        report("neighbours", 2, 4)
    return stream.getvalue()


def test_a_terminal_shows_each_thing_by_name_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = drawn(Terminal(), True, monkeypatch)
    assert re.search(r"survey: 100%.*8/8", text)
    assert re.search(r"neighbours:  50%.*2/4", text)


def test_the_bars_are_taken_off_the_terminal_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(Terminal(), True, monkeypatch)
    after = text[text.rindex("2/4") :].partition("]")[2]
    assert not re.sub(r"\x1b\[A|\s", "", after)
    assert after.count("\r" + " " * 30) == 2  # one for each bar


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


def test_an_error_passes_through_and_the_bar_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)

    def interrupted() -> None:
        with progress_bar(True) as report:
            report("survey", 1, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert "survey" in terminal.getvalue()
    assert not terminal.getvalue().rpartition("]")[2].strip()


def test_a_terminal_shows_nothing_until_there_is_something_to_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar(True):
        pass
    assert terminal.getvalue() == ""
