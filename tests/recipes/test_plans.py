from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from advreg.recipes import plans
from advreg.recipes.plans import agree, differences, finished, has_runs
from advreg.recipes.settings import SettingsError

FACTS = {"epochs": 3, "sizes": (1, 2)}


def test_a_run_goes_on_with_the_facts_it_was_started_with(tmp_path: Path) -> None:
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=False)
    assert has_runs(tmp_path)
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=True)
    with pytest.raises(SettingsError, match=r"arch-seed0 cannot go on, .*: epochs was 3, is 4\. Go on with the same"):
        agree("arch-seed0", tmp_path / "arch-seed0", {**FACTS, "epochs": 4}, resume=True)


def test_a_run_without_a_record_is_not_finished(tmp_path: Path) -> None:
    assert not has_runs(tmp_path)
    assert finished("a", tmp_path, FACTS) is None


def test_what_differs_is_named_down_to_the_option_and_a_fact_that_was_not_there_counts() -> None:
    saved = {"seed": 1, "options": {"radius": 0.1, "ema": 0.0, "gone": 3}}
    facts = {"seed": 1, "site": "block", "options": {"radius": 1.0, "ema": 0.0, "new": None}}
    assert differences(saved, facts) == [
        "site was None, is block",
        "options.radius was 0.1, is 1.0",
        "options.gone was 3, is None",
    ]
    assert differences(saved, saved) == []
    assert doctest.testmod(plans).failed == 0
