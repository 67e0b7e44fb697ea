from __future__ import annotations

from pathlib import Path

import pytest

from advreg.recipes.plans import agree, finished, has_runs
from advreg.recipes.settings import SettingsError

FACTS = {"epochs": 3, "sizes": (1, 2)}


def test_a_run_goes_on_with_the_facts_it_was_started_with(tmp_path: Path) -> None:
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=False)
    assert has_runs(tmp_path)
    half = tmp_path / "arch-seed0" / ".record.json.0a1b2c3d.tmp"
    half.write_text("{")  # as a kill leaves it
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=True)
    assert not half.exists()
    told = r"arch-seed0 cannot go on, .*: epochs was 3, is 4\. Resume with the same .*; the run is in '.*arch-seed0'$"
    with pytest.raises(SettingsError, match=told):
        agree("arch-seed0", tmp_path / "arch-seed0", {**FACTS, "epochs": 4}, resume=True)


def test_a_run_without_a_record_is_not_finished(tmp_path: Path) -> None:
    assert not has_runs(tmp_path)
    assert finished("a", tmp_path, FACTS) is None
