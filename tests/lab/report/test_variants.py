from __future__ import annotations

from advreg.lab.report.variants import label_of, settings_of, varying_options
from report_runs import made_up


def test_a_label_names_the_options_that_distinguish_it() -> None:
    assert label_of("arch", {}) == "arch"
    assert label_of("arch", {"radius": 0.1, "ema": None}) == "ARCH, radius 0.1, ema none"


def test_the_seed_is_no_setting() -> None:
    records = [made_up("arch", seed, more={"seed": seed, "data_seed": seed}) for seed in range(3)]
    assert varying_options(records) == []
    assert "seed" not in settings_of(records[0])


def test_options_that_change_together_are_one() -> None:
    values = [(0.1, 0.1, 3), (0.3, 0.3, 3), (0.3, 0.3, 5)]
    records = [
        made_up("arch", 0, settings={"radius": radius, "step_size": step, "ascent_steps": steps})
        for radius, step, steps in values
    ]
    assert varying_options(records) == [["radius", "step_size"], ["ascent_steps"]]
