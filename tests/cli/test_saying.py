from __future__ import annotations

import io
import logging
import re
import warnings

import pytest
from rich.console import Console

from advreg.cli.saying import Notices, bars, logs_above, note


def told() -> Console:
    return Console(file=io.StringIO(), width=120)


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_notice_is_printed_once_and_is_no_markup() -> None:
    console = told()
    say = Notices(console)
    for text in ("3 [bold] texts", "3 [bold] texts", "another"):
        say(text)
    assert printed(console) == "3 [bold] texts\nanother\n"


def test_a_bar_shows_steps_and_the_note_after_it() -> None:
    console = told()
    with bars(console) as progress:
        progress.add_task("arch-seed0", completed=3, total=4, note="loss 0.5")
    assert "arch-seed0" in printed(console)
    assert "3/4" in printed(console)
    assert "loss 0.5" in printed(console)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_long_note_leaves_the_steps_and_times_of_a_bar_whole(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    logs = {"loss": 0.306, "penalty": 0.081, "eval_accuracy": 0.468}
    with bars(console) as progress:
        progress.add_task("standard-seed0", completed=384, total=384, note=note(logs))
    line = printed(console).rstrip("\n")
    assert re.search(
        r"standard-seed0 ━+ 384/384 \d:\d\d:\d\d \S+ +accuracy 46\.8  loss 0\.306", line
    )
    assert "\n" not in line
    assert ("penalty 0.081" in line) == (width == 120)


def test_logs_and_warnings_are_printed_above_and_no_longer_afterwards() -> None:
    console = told()
    before = warnings.showwarning
    with logs_above(console), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.getLogger("advreg.hf").warning("the cache is full")
        warnings.warn("it is old", stacklevel=1)
    logging.getLogger("advreg.hf").warning("afterwards")
    assert "the cache is full" in printed(console)
    assert "it is old" in printed(console)
    assert "afterwards" not in printed(console)
    assert warnings.showwarning is before
