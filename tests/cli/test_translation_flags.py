from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from advreg.cli.flags import with_flags
from advreg.cli.translation_flags import is_translation, with_translation_flags
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.translation_settings import TranslationSettings


def run_command(*arguments: str) -> dict[str, Any]:
    """What a command with the flags of both kinds of training is given."""
    app, seen = typer.Typer(), {}

    @app.command()
    @with_translation_flags
    @with_flags
    def train(**flags: Any) -> None:
        seen.update({name: value for name, value in flags.items() if value not in (None, [])})

    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return seen


def test_every_setting_of_a_translation_is_a_flag() -> None:
    names = [field.name for field in dataclasses.fields(TranslationSettings)]
    mine = [name for name in names if name not in ("options", "training", "methods", "seeds")]
    given = {
        name: "yes" if name in ("tokenised", "joint", "compile_layers") else "x" for name in mine
    }
    flags = [
        part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", value)
    ]
    assert run_command(*flags) == given


def test_flags_of_both_kinds_and_of_methods_work_together() -> None:
    given = run_command(
        "--task",
        "iwslt15-en-vi",
        "--method",
        "arch",
        "--radius",
        "0.3",
        "--beam",
        "4",
        "--seed",
        "1",
    )
    assert given == {
        "task": "iwslt15-en-vi",
        "methods": ["arch"],
        "radius": "0.3",
        "beam": "4",
        "seeds": ["1"],
    }


def test_a_name_means_the_same_kind_of_setting_in_both() -> None:
    shared = {field.name for field in dataclasses.fields(TrainSettings)} & {
        field.name for field in dataclasses.fields(TranslationSettings)
    }
    assert shared == {
        "task", "data", "model", "methods", "preset", "seeds", "epochs", "learning_rate", "precision", "site", "output",
        "options", "training", "round_lengths", "compile_layers", "on_non_finite",
    }  # fmt: skip


def test_a_translation_is_told_by_its_task_in_flags_or_file(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('task = "multi30k-en-de"\n')
    assert is_translation(None, {"task": "translation"})
    assert is_translation(config, {})
    assert not is_translation(config, {"task": "rte"})
    assert not is_translation(None, {})
    assert is_translation(None, {"train_source": "train.en"})
    assert not is_translation(None, {"train_source": "train.en", "task": "rte"})
    assert is_translation(
        None, {"train_source": "train.en", "task": "translatoin"}
    )  # refused as a task, with a hint


def test_help_does_not_wait_for_transformers() -> None:
    check = "import sys, advreg.cli.translation_flags; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)
