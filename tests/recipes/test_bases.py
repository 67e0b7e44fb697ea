from __future__ import annotations

from pathlib import Path

import pytest

from advreg.recipes.bases import read_config, read_seeds
from advreg.recipes.settings import SettingsError


def test_a_single_seed_can_be_named() -> None:
    assert read_seeds("7,") == [7]


def test_a_config_file_of_many_runs_cannot_vouch_for_code_either(tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text("trust_remote_code = true\n")
    with pytest.raises(SettingsError, match="trust_remote_code must be given as a flag; a file cannot vouch for code"):
        read_config(tmp_path / "many.toml", {})
