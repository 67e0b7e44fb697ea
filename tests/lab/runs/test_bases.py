from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advreg.lab.runs.bases import read, read_seeds, saved_settings
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("push_to_hub", "true"),
        ("report_to", '"wandb"'),
        ("report_to", '["all"]'),
        ("hub_model_id", '"theirs/model"'),
        ("trackio_space_id", '"theirs"'),
    ],
)
def test_a_config_file_cannot_send_data_out(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(f"[training]\n{field} = {value}\n")
    with pytest.raises(
        SettingsError, match=rf"theirs.toml': {field} must be given as a flag, --set"
    ):
        read(path, {}, {})
    path.write_text('[training]\npush_to_hub = false\nreport_to = "none"\n')
    assert read(path, {}, {field: "mine"}).training[field] == "mine"


def test_what_only_the_user_may_decide_is_not_taken_from_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "arch-seed0" / "plan.json"
    plan.parent.mkdir()
    training = {"push_to_hub": True, "report_to": "none", "weight_decay": 0.1}
    plan.write_text(
        json.dumps({"settings": {"trust_remote_code": True, "training": training, "epochs": 3}})
    )
    assert saved_settings(tmp_path) == {
        "epochs": 3,
        "training": {"report_to": "none", "weight_decay": 0.1},
    }
    plan.write_text("[" * 100_000)
    assert saved_settings(tmp_path) == {}


def test_a_config_file_nested_too_deeply_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"x = {'[' * 100_000}")
    with pytest.raises(SettingsError, match=r"config file '.*deep.toml' cannot be read"):
        read(path, {}, {})
