from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.lab.runs.bases import read, read_seeds
from advreg.lab.runs.settings import SettingsError


def test_a_single_seed_can_be_named() -> None:
    assert read_seeds("7,") == [7]


@pytest.mark.parametrize(
    ("given", "shown"), [("0", "'0'"), (0, "0"), ("-2", "'-2'"), (",", "','"), ([], r"\[\]")]
)
def test_no_seed_at_all_is_refused_as_it_was_given(given: Any, shown: str) -> None:
    with pytest.raises(
        SettingsError, match=rf"seeds must be how many, 1 to 10000, or which \(.*\), got {shown}$"
    ):
        read_seeds(given)


def test_a_config_file_of_many_runs_cannot_vouch_for_code_either(tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text("trust_remote_code = true\n")
    with pytest.raises(
        SettingsError,
        match="trust_remote_code must be given as a flag; a file cannot set it",
    ):
        read(tmp_path / "many.toml", {}, {})
