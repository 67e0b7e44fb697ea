"""What the command answers without a training, it answers without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_RUN = """
import sys
sys.argv = ["advreg", *sys.argv[1:]]
from advreg.cli import main
try:
    main()
finally:
    heavy = {"torch", "transformers", "numpy", "datasets"} & set(sys.modules)
    print("imported:", *sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--help"], 0, "Commands"),
        (["--version"], 0, "advreg 0."),
        (["train", "--help"], 0, "--learning-rate"),
        (["compare", "--help"], 0, "[grid]"),
        (["methods"], 0, "Zuo et al. 2021"),
        (["methods", "arch"], 0, "refresh_every"),
        (["methods", "ach"], 2, "did you mean 'arch'?"),
        (["runs"], 2, "runs"),
        (["trian"], 2, "Did you mean 'train'?"),
        (["train", "--lr", "3"], 2, "--learning-rate"),
        (["train", "--config", "none.toml"], 2, "'none.toml' does not exist"),
        (["train", "--train", "nowhere.csv"], 2, "must be a file, got nothing"),
        (["train", "--train", "a.csv", "--label-column", "lable"], 2, "got 'lable'"),
        (["compare", "--train", "a.csv", "--label-column", "lable"], 2, "got 'lable'"),
        (["study", "--train", "a.csv", "--label-column", "lable"], 2, "got 'lable'"),
    ],
)
def test_torch_is_not_imported(tmp_path: Path, words: list[str], code: int, told: str) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "imported:"
