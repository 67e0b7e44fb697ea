from __future__ import annotations

import dataclasses

from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.training_presets import training_preset
from advreg.lab.search.grids import default_grid
from advreg.methods import preset


def test_the_presets_choices_are_on_the_papers_grid() -> None:
    grid = default_grid("bert-base-uncased", "understanding")
    assert set(grid.common) == {"batch_size", "learning_rate", "encoder_dropout"}
    for task in TASKS:
        chosen = training_preset("understanding", task)
        assert all(chosen[name] in values for name, values in grid.common.items())
        assert set(chosen) <= {field.name for field in dataclasses.fields(TrainSettings)}
    for method in ("arch", "smart"):
        options = preset("understanding", method)
        assert set(grid.methods[method]) == {"ascent_steps", "step_size"}
        assert all(options[name] in values for name, values in grid.methods[method].items())
