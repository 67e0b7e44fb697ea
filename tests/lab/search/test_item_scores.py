from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advreg.lab.runs.settings import TrainSettings
from advreg.lab.search.item_scores import scores_in_draws
from advreg.lab.search.jobs import TrainRun
from advreg.lab.search.resampling import DRAWS
from little_tables import sentiment, tiny_folder, write_table
from runner_jobs import really


def test_scores_of_a_run_are_resampled_from_what_it_left_for_each_sample(tmp_path: Path) -> None:
    settings = TrainSettings(
        task="files",
        train=str(write_table(tmp_path / "train.csv", sentiment(40))),
        dev=str(write_table(tmp_path / "dev.csv", sentiment(30, seed=3))),
        model=str(tiny_folder(tmp_path / "tiny")),
        methods=("standard",),
        epochs=2,
        batch_size=8,
    )
    run = TrainRun(settings, "standard", 1, tmp_path / "run")
    record: Any = really(run)
    draws = scores_in_draws(run.folder, record)
    assert draws is not None
    accuracy = record.outcome.metrics["accuracy"]
    assert draws.shape == (DRAWS,)
    assert draws.mean() == pytest.approx(100 * accuracy, abs=2)
    assert draws.std() == pytest.approx(
        100 * np.sqrt(accuracy * (1 - accuracy) / 30), rel=0.15, abs=1e-9
    )
    (run.folder / "items.json.gz").unlink()
    assert scores_in_draws(run.folder, record) is None
