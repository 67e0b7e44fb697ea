from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advreg.lab.kinds.translation.bleu import ScoreError, bleu, score

REFERENCES = [
    "The cat sat on the mat , as ever .",
    "It is raining in the old town .",
    "Two men play chess .",
]
TRANSLATIONS = [
    "The cat sat on a mat , as ever .",
    "It rains in the old town .",
    "Two men are playing chess .",
]


def command(folder: Path, *options: str) -> float:
    """What sacrebleu's own command says of the same files."""
    (folder / "reference").write_text("".join(f"{line}\n" for line in REFERENCES))
    (folder / "output").write_text("".join(f"{line}\n" for line in TRANSLATIONS))
    call = [sys.executable, "-m", "sacrebleu", "reference", "-i", "output", "-w", "10", *options]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    return float(json.loads(done.stdout)["score"])


def test_scores_are_those_of_sacrebleus_own_command(tmp_path: Path) -> None:
    found = score(TRANSLATIONS, REFERENCES, tokenised=True)
    assert found.bleu == pytest.approx(command(tmp_path, "--force"), abs=1e-9)
    assert found.chrf == pytest.approx(command(tmp_path, "-m", "chrf"), abs=1e-9)
    plain = command(tmp_path, "--tokenize", "none", "--force")
    assert found.tokenised_bleu == pytest.approx(plain, abs=1e-9)
    assert bleu(TRANSLATIONS, REFERENCES) == pytest.approx(found.bleu)
    assert bleu(TRANSLATIONS, REFERENCES, tokenised=True) == pytest.approx(plain)


def test_raw_text_has_no_tokenised_score() -> None:
    found = score(TRANSLATIONS, REFERENCES)
    assert found.tokenised_bleu is None
    assert set(found.metrics()) == set(found.signatures) == {"bleu", "chrf"}


def test_signatures_say_how_a_score_was_taken() -> None:
    found = score(TRANSLATIONS, REFERENCES, tokenised=True)
    assert "tok:13a" in found.signatures["bleu"]
    assert "tok:none" in found.signatures["tokenised_bleu"]
    assert all("version:" in signature for signature in found.signatures.values())


def test_a_perfect_translation_scores_a_hundred() -> None:
    assert score(REFERENCES, REFERENCES).metrics() == pytest.approx({"bleu": 100.0, "chrf": 100.0})


def test_lines_that_do_not_match_are_counted() -> None:
    with pytest.raises(ScoreError, match="a translation for each reference, got 2 and 3"):
        score(TRANSLATIONS[:2], REFERENCES)
    with pytest.raises(ScoreError, match="at least one sentence, got none"):
        score([], [])


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ScoreError, match=r"need the package sacrebleu; install advreg\[mt\]"):
        score(TRANSLATIONS, REFERENCES)
