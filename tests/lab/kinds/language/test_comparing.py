"""Comparisons and studies of language models: the lowest perplexity is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.lab.report.compare import read, results
from advreg.lab.report.score_tables import to_markdown
from advreg.lab.search.compare import Comparison
from advreg.lab.search.compare_settings import read_compare
from advreg.records.compare import in_percent, is_share
from runner_jobs import Inline, Seen, really
from tiny_language import language_folder, questions, write_lines


@pytest.mark.parametrize("metric", ["perplexity", "dev_perplexity", "loss"])
def test_perplexity_is_no_percentage(metric: str) -> None:
    assert not is_share(metric)
    assert in_percent(metric, 2.5) == 2.5


def test_the_candidate_with_the_lowest_perplexity_is_chosen_and_trained(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        "train": str(write_lines(tmp_path / "train.jsonl", questions(24))),
        "dev": str(write_lines(tmp_path / "dev.jsonl", questions(6, seed=1))),
        "model": str(language_folder(tmp_path / "tiny")),
        "methods": "standard,r3f",
        "seeds": "1",
        "epochs": "1",
        "batch_size": "8",
    }
    config = tmp_path / "grid.toml"
    config.write_text("[grid]\nlearning_rate = [1e-4, 1e-2]\n")
    settings = read_compare(config, flags, {}, budget=2)
    folder = tmp_path / "out"
    record = Comparison(settings, folder).run(Inline(really), Seen())  # type: ignore[arg-type]
    assert record.tasks[0].main_metrics == ["perplexity"]
    for choice in record.choices:
        scores = [candidate.score for candidate in choice.candidates]
        assert None not in scores
        assert choice.chosen == scores.index(min(scores))  # type: ignore[type-var]
        assert choice.candidates[choice.chosen].settings["learning_rate"] == 1e-2
    shown = to_markdown(results(*read(folder)))
    assert "Perplexity (lower is better) on dev" in shown
