"""What the command prints where names are odd and the output holds only ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advreg.cli import _name
from command_server import CommandServer


def test_a_folder_named_like_markup_is_printed_as_it_is(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    name = "runs [/b] *?[a] :x:"
    fast = ("--epochs", 1, "--method", "standard", "--seed", 0, "--set", "use_cpu=true")
    given = ("train", "--train", table, "--model", model, *fast, "--output", name)
    done = advreg(*given, cwd=tmp_path)
    assert done.code == 0, done.err
    assert f"model: {name}/METHOD-seedN" in done.out


@pytest.mark.parametrize("arguments", [("methods", "arch"), ("train", "--help")])
def test_an_ascii_output_shows_names_of_greek_letters(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advreg.cli", *arguments],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    shown = done.stdout.decode("ascii")
    assert "delta" in shown
    assert "arch" in shown


@pytest.mark.parametrize(
    ("character", "shown"),
    [("λ", "lambda"), ("Δ", "Delta"), ("δ", "delta"), ("ö", "o"), ("±", "+/-"), ("✓", "?")],
)
def test_a_character_is_spelt_in_ascii(character: str, shown: str) -> None:
    assert _name(character) == shown
