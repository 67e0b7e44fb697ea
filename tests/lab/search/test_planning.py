from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.compare_settings import read_compare
from advreg.lab.search.planning import Contest, Planner
from little_tables import sentiment, tiny_folder, write_table


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("planning")
    (home / "grid.toml").write_text("[grid]\nlearning_rate = [1e-3, 3e-3, 1e-2]\n")
    tiny_folder(home / "tiny")
    write_table(home / "dev.csv", sentiment(12, seed=3))
    return home


def planner(home: Path, rows: int = 40, **flags: Any) -> Planner:
    given = {
        "train": str(write_table(home / f"train-{rows}.csv", sentiment(rows))),
        "dev": str(home / "dev.csv"),
        "model": str(home / "tiny"),
        "methods": "standard,r3f,smart",
        "epochs": "3",
        "seeds": "2",
        **flags,
    }
    settings = read_compare(home / "grid.toml", given, {}, candidates=2)
    return Planner(settings, home / "out")


@pytest.mark.parametrize(
    ("rows", "held_out"), [(40, 20), (1500, 750), (2500, 1000), (12_000, 1200)]
)
def test_a_tenth_is_held_out_or_a_thousand_rows_or_half_of_a_small_task(
    home: Path, rows: int, held_out: int
) -> None:
    made = planner(home, rows)
    assert made.tuning_data("files").sizes["dev"] == pytest.approx(held_out, abs=1)


def test_all_rows_of_a_small_task_serve_in_two_folds(home: Path) -> None:
    made = planner(home)
    rows = sorted(map(repr, made.data["files"].data.train))  # type: ignore[attr-defined]
    for first in (0, 2):
        one, other = (made.tuning_data("files", first + fold).data for fold in (0, 1))
        assert (one.train, one.dev) == (other.dev, other.train)  # type: ignore[attr-defined]
        assert sorted(map(repr, (*one.dev, *other.dev))) == rows  # type: ignore[attr-defined]
    assert made.tuning_data("files", 0).data != made.tuning_data("files", 2).data


def test_smoothing_is_not_tuned_on_scores(home: Path) -> None:
    (home / "smooth.toml").write_text(
        "[grid]\nlabel_smoothing = [0.0, 0.1]\nlearning_rate = [1e-3, 3e-3]\n"
    )
    rows = [{"text": f"text {n}", "label": f"{n / 7:.3f}"} for n in range(20)]
    given = {"train": str(write_table(home / "scores.csv", rows)), "model": str(home / "tiny")}
    settings = read_compare(home / "smooth.toml", given, {}, candidates=2)
    made = Planner(settings, home / "out")
    assert list(made.settings.grid.common) == ["learning_rate"]
    assert "label_smoothing is not tuned, since these data do not allow it" in made.notes()
    with pytest.raises(SettingsError, match="at most the 2 points of the grid of standard, got 4"):
        Planner(replace(settings, candidates=4), home / "out")


def test_each_tuning_seed_holds_other_rows_out(home: Path) -> None:
    made = planner(home)
    first, second = (set(made.tuning_data("files", seed).data.dev) for seed in (0, 1))  # type: ignore[attr-defined]
    assert first != second
    assert made.tuning_data("files", 0) is made.tuning_data("files", 0)


def test_runs_of_tuning_and_of_results_share_no_seed_and_no_folder(home: Path) -> None:
    made = planner(home)
    contest = Contest("files", "r3f", made.settings.points("r3f"), chosen=1)
    tuned = [made.candidate(contest, index, seed) for index in (0, 1) for seed in (0, 1)]
    results = [made.result(contest, seed) for seed in (0, 1)]
    assert not {run.seed for run in tuned} & {run.seed for run in results}
    assert len({run.folder for run in (*tuned, *results)}) == 6
    assert [run.run.keep for run in results] == ["model", "nothing"]
    assert all(
        run.run.settings.learning_rate == contest.points[1]["learning_rate"] for run in results
    )


@pytest.mark.parametrize("leader", ["standard", "r3f", "smart"])
def test_the_longer_control_makes_as_many_passes_as_the_leader(home: Path, leader: str) -> None:
    made = planner(home)
    passes = made.settings.bases["files"].method(leader).passes().forward
    standard = Contest("files", "standard", [])
    found = made.controls(Contest("files", leader, []), {"files": standard})
    if passes == 1:
        assert [control.name for control in found] == ["standard-ema"]
        return
    (control, average) = found
    assert (average.name, average.changes) == ("standard-ema", {"files": {"weight_ema": 0.98}})
    run = made.result(Contest("files", control.name, [], control), 0).run
    assert (run.method, run.settings.epochs, run.keep) == (
        "standard",
        math.ceil(3 * passes),
        "nothing",
    )
    assert run.folder == home / "out/files/standard-longer/seed-0"


def test_a_leader_that_was_tuned_to_more_epochs_has_them_in_its_control_too(home: Path) -> None:
    (home / "length.toml").write_text("[grid]\nepochs = [2, 6]\n")
    given = {"train": str(write_table(home / "t.csv", sentiment(40))), "model": str(home / "tiny")}
    settings = read_compare(
        home / "length.toml", {**given, "methods": "standard,temporal,r3f"}, {}, candidates=2
    )
    made, points = Planner(settings, home / "out"), [{"epochs": 2}, {"epochs": 6}]
    short, long = (Contest("files", "standard", points, chosen=place) for place in (0, 1))

    def epochs(leader: Contest, standard: Contest) -> list[int]:
        found = made.controls(leader, {"files": standard})
        return [each.changes["files"]["epochs"] for each in found if each.name != "standard-ema"]

    assert epochs(Contest("files", "temporal", points, chosen=1), short) == [6]
    assert epochs(Contest("files", "temporal", points, chosen=0), long) == []
    assert epochs(Contest("files", "r3f", points, chosen=1), short) == [12]
    assert epochs(Contest("files", "r3f", points, chosen=0), long) == []
