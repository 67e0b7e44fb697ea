"""What the command prints where names are odd and the output holds only ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from advreg.cli import _name, _of_another_process
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "DataLoader worker (pid(s) 12) exited unexpectedly",
            "a process that loads data died, so this one ends (DataLoader worker",
        ),
        (
            "[../gloo/pair.cc:525] Connection closed by peer [127.0.0.1]:2\n and more",
            "another process of this training died, so this one ends ([../gloo/pair.cc:525]",
        ),
    ],
)
def test_the_death_of_another_process_is_one_sentence(text: str, told: str) -> None:
    found = str(_of_another_process(RuntimeError(text)))
    assert found.startswith(told)
    assert "\n" not in found
    assert _of_another_process(RuntimeError("a bug")) is None
    assert _of_another_process(ValueError(text)) is None
