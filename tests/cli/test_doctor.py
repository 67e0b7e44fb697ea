from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_server import CommandServer


def test_a_model_in_a_folder_passes_with_exit_code_0(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    done = advreg("doctor", model, cwd=tmp_path)
    assert done.code == 0
    assert "BertForSequenceClassification, site tokens, float32" in done.out
    assert "✗" not in done.out
    checks = [line for line in done.out.splitlines() if line.startswith("│ ✓")]
    assert len(checks) == 6
    assert "✓ all checks passed; this model can be trained with every method" in done.out


def test_the_folder_of_a_run_stands_for_its_model(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "arch-seed0" / "model")
    done = advreg("doctor", "arch-seed0", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "BertForSequenceClassification, site tokens, float32" in done.out


def test_a_radius_that_bf16_rounds_away_fails_with_exit_code_1_and_the_remedy(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    done = advreg("doctor", model, "--dtype", "bfloat16", "--radius", "1e-6", cwd=tmp_path)
    assert done.code == 1
    assert (
        "✗ tokens: δ is above the dtype's resolution: δ is rounded away in torch.bfloat16; raise "
        "radius, or keep" in done.out
    )
    assert "can be trained with every method" not in done.out


def test_the_same_radius_survives_in_float32(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    assert advreg("doctor", model, "--radius", "1e-6", cwd=tmp_path).code == 0


@pytest.mark.parametrize("site", ["block", "bert.encoder.layer.0"])
def test_another_site_is_examined_where_it_is_named(
    advreg: CommandServer, model: Path, tmp_path: Path, site: str
) -> None:
    done = advreg("doctor", model, "--site", site, cwd=tmp_path)
    assert done.code == 0, done.out
    assert f"site {site}, float32" in done.out


def test_a_site_that_is_not_there_fails_with_the_names_that_are(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    done = advreg("doctor", model, "--site", "nonsense", cwd=tmp_path)
    assert done.code == 1
    assert (
        "site 'nonsense' is no module of BertForSequenceClassification; choose tokens, block, or a "
        "name" in done.out
    )


def test_checkpointing_is_examined_without_reentry(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    assert advreg("doctor", model, "--checkpointing", cwd=tmp_path).code == 0


def test_an_unknown_dtype_is_refused_with_exit_code_2(
    advreg: CommandServer, model: Path, tmp_path: Path
) -> None:
    done = advreg("doctor", model, "--dtype", "int8", cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "error: dtype must be float32, float16, bfloat16 or float64, got 'int8'\n",
    )
