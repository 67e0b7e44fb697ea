"""Comparisons of language models: the lowest perplexity is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.lab.report.compare import read, results
from advreg.lab.report.gains import gain_tables, gain_text
from advreg.lab.report.score_tables import to_markdown
from advreg.lab.search.compare import Comparison
from advreg.lab.search.compare_settings import read_compare
from advreg.lab.search.jobs import TrainRun
from advreg.records.compare import CompareRecord, in_percent, is_share
from advreg.records.run import RunRecord
from comparisons import run_record
from runner_jobs import Inline, Seen, really
from tiny_language import language_folder, questions, write_lines


@pytest.mark.parametrize("metric", ["perplexity", "dev_perplexity", "loss"])
def test_perplexity_is_no_percentage(metric: str) -> None:
    assert not is_share(metric)
    assert in_percent(metric, 2.5) == 2.5


def compared(home: Path, work: Any, seeds: int) -> CompareRecord:
    """A comparison of Standard and R3F, each with two learning rates, in ``home / "out"``."""
    flags: dict[str, Any] = {
        "train": str(write_lines(home / "train.jsonl", questions(24))),
        "dev": str(write_lines(home / "dev.jsonl", questions(6, seed=1))),
        "model": str(language_folder(home / "tiny")),
        "methods": "standard,r3f",
        "seeds": str(seeds),
        "epochs": "1",
        "batch_size": "8",
    }
    (home / "grid.toml").write_text("[grid]\nlearning_rate = [1e-4, 1e-2]\n")
    settings = read_compare(
        home / "grid.toml", flags, {}, candidates=2, controls=False, reference="standard"
    )
    comparison = Comparison.open(settings, home / "out")
    return comparison.run(Inline(work), Seen())  # type: ignore[arg-type]


def made_up(run: TrainRun) -> RunRecord:
    """The higher rate gains 3 of perplexity, and R3F about another 0.25."""
    value = 12.0 - 3.0 * (run.settings.learning_rate == 1e-2)
    value -= (0.25 + run.seed % 3 / 100) * (run.method == "r3f")
    return run_record(run.method, run.seed, {"perplexity": value})


def test_a_lower_perplexity_is_a_gain(tmp_path: Path) -> None:
    record = compared(tmp_path, made_up, seeds=5)
    assert record.tasks[0].main_metrics == ["perplexity"]
    for choice in record.choices:
        assert choice.chosen is not None
        assert choice.candidates[choice.chosen].settings == {"learning_rate": 1e-2}
    (gain,) = record.gains
    assert gain.mean == pytest.approx(0.258)
    assert (gain.method, gain.verdict) == ("r3f", "pays")
    assert gain.low is not None
    assert 0 < gain.low < 0.258
    interval = f"[{gain.low:.3f}, {gain.high:.3f}]"
    assert gain_text(gain, 3) == f"+0.258 [+{gain.low:.3f}, +{gain.high:.3f}]"
    assert str(record.conclusion).startswith(f"use R3F: +0.258 {interval}")


def test_a_comparison_trains_language_models(tmp_path: Path) -> None:
    record = compared(tmp_path, really, seeds=2)
    for choice in record.choices:
        scores = [candidate.score for candidate in choice.candidates]
        assert choice.chosen == scores.index(min(scores))  # type: ignore[type-var]
    assert [gain.sampling_error is not None for gain in record.gains] == [True]
    (table,) = gain_tables(*((found := read(tmp_path / "out"))[0], results(*found)))
    assert table.caption.startswith("Gain of each method: Standard minus method, in points")
    shown = to_markdown(results(*read(tmp_path / "out")))
    assert "Perplexity (lower is better) on dev" in shown
