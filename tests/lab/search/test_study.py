from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.jobs import TrainRun
from advreg.lab.search.study import Study
from advreg.lab.search.study_settings import StudySettings, read_study
from advreg.records.sealed import RecordError
from advreg.records.study import StudyRecord, load
from comparisons import run_record
from little_tables import sentiment, tiny_folder, write_table
from number_words import SOURCE, TARGET, write_numbers
from runner_jobs import Inline, Seen

GRID = """
[refresh]
refresh_every = [1, 2]
[neighbours]
neighbours = [1, 3]
"""


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("study")
    (home / "grid.toml").write_text(GRID)
    return {
        "grid": home / "grid.toml",
        "train": str(write_table(home / "train.csv", sentiment(40))),
        "dev": str(write_table(home / "dev.csv", sentiment(12, seed=3))),
        "model": str(tiny_folder(home / "tiny")),
        # a ball that moves predictions; the paper's for understanding hardly does
        "preset": "translation",
        "epochs": "3",
        "batch_size": "8",
        "refresh_every": "2",
        "cache_fraction": "0.5",
    }


def asked(flags: dict[str, Any], *names: str, seeds: str = "2", **more: Any) -> StudySettings:
    given = {**flags, "seeds": seeds, **more}
    grid, baselines = given.pop("grid"), given.pop("baselines", None)
    return read_study(None, grid, names, given, {}, baselines=baselines)


def study(settings: StudySettings, folder: Path, runner: Inline) -> StudyRecord:
    return Study(settings, folder).run(runner, Seen())  # type: ignore[arg-type]


def scored(score: Callable[[TrainRun], float | None]) -> Callable[[TrainRun], Any]:
    return lambda run: run_record(run.method, run.seed, {"accuracy": score(run)}, seconds=3.0)


def values(record: StudyRecord) -> dict[tuple[str, int], float | None]:
    return {
        (variant.name, run.seed): run.score for variant in record.variants for run in variant.runs
    }


def test_what_two_studies_need_is_run_once_with_every_seed(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    runner = Inline(scored(lambda run: 0.5))
    record = study(asked(flags), tmp_path, runner)
    variants = [
        "smart/default",
        "standard/default",
        "arch/refresh_every=1",
        "arch/default",
        "arch/neighbours=3",
    ]
    assert runner.names == [f"{name}/seed-{seed}" for seed in (0, 1) for name in variants]
    points = {panel.name: [(p.label, p.variant) for p in panel.points] for panel in record.panels}
    assert points == {
        "refresh": [("1", "arch/refresh_every=1"), ("2", "arch/default")],
        "neighbours": [("1", "arch/default"), ("3", "arch/neighbours=3")],
    }
    assert record.baselines == ["smart/default", "standard/default"]
    assert record.status == "finished"


def test_every_value_is_that_of_its_own_run(flags: dict[str, Any], tmp_path: Path) -> None:
    def score(run: TrainRun) -> float:
        options = run.settings.method(run.method).options()
        return (
            10 * options.get("refresh_every", 0) + options.get("neighbours", 0) + run.seed / 10
        ) / 100

    record = study(asked(flags), tmp_path, Inline(scored(score)))
    expected = {
        "smart/default": 0,
        "standard/default": 0,
        "arch/refresh_every=1": 11,
        "arch/default": 21,
    }
    expected["arch/neighbours=3"] = 23
    assert values(record) == {
        (name, seed): pytest.approx(value + seed / 10)
        for name, value in expected.items()
        for seed in (0, 1)
    }
    assert {run.seconds for variant in record.variants for run in variant.runs} == {3.0}
    assert load(tmp_path).variants == record.variants


def test_a_run_that_fails_is_named_and_the_others_go_on(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.method == "smart":
            raise NonFiniteLossError("the loss is nan at step 3")
        return run_record(
            run.method, run.seed, {"accuracy": None if run.method == "standard" else 0.5}
        )

    record = study(asked(flags, "refresh", seeds="1"), tmp_path, Inline(work))
    errors = {
        variant.name: [(run.score, run.error) for run in variant.runs]
        for variant in record.variants
    }
    assert errors == {
        "smart/default": [(None, "NonFiniteLossError: the loss is nan at step 3")],
        "standard/default": [(None, "its score is not a finite number")],
        "arch/refresh_every=1": [(50.0, None)],
        "arch/default": [(50.0, None)],
    }


# ---- before the first run


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (
            "[site]\nsite = ['tokens', 'nowhere']",
            "arch/site=nowhere cannot be run: site 'nowhere' is no module of",
        ),
        (
            "[few]\ncache_fraction = [0.01]",
            "arch/cache_fraction=0.01 cannot be run: cache_fraction 0.01 of 40 samples caches none",
        ),
        (
            "[many]\nneighbours = [1, 30]",
            r"arch/neighbours=30 cannot be run: neighbours must be at most .* \(\d+\), got 30",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(
    flags: dict[str, Any], tmp_path: Path, grid: str, message: str
) -> None:
    (tmp_path / "grid.toml").write_text(grid)
    with pytest.raises(
        SettingsError, match=rf"{message}.* take it out of the grid \(advreg study --write-grid"
    ):
        Study(asked({**flags, "grid": tmp_path / "grid.toml"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_notes_of_data_and_points_are_told_and_kept(flags: dict[str, Any], tmp_path: Path) -> None:
    said: list[str] = []
    record = Study(asked(flags, epochs="2"), tmp_path, said.append).record("running")
    columns = (
        "train: text in column 'text', label in column 'label'; classification, because the labels "
        "are 2 names"
    )
    assert said == record.notes == [columns]
    (tmp_path / "grid.toml").write_text("[refresh]\nrefresh_every = [2, 5]")
    settings = asked({**flags, "grid": tmp_path / "grid.toml"}, epochs="2")
    record = Study(settings, tmp_path, said.append).record("running")
    assert record.notes == [columns, "study refresh: 2, 5 are the same with 2 epochs"]
    assert said == [columns, *record.notes]


# ---- going on, with real runs

SMALL: dict[str, Any] = {"seeds": "1", "baselines": [], "epochs": "3", "batch_size": "20"}


def test_a_stopped_study_goes_on_without_repeating_a_run_and_ends_alike(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(flags, "refresh", **SMALL)
    whole = study(settings, tmp_path / "whole", Inline())
    first, second, third = Inline(stop_after=1), Inline(), Inline()
    with pytest.raises(KeyboardInterrupt):
        study(settings, tmp_path / "parts", first)
    stopped = load(tmp_path / "parts")
    assert stopped.status == "interrupted"
    record = study(settings, tmp_path / "parts", second)
    assert len(first.names) + len(second.names) == 2
    assert not set(first.names) & set(second.names)
    assert record.started == stopped.started
    assert values(record) == values(whole)
    again = study(settings, tmp_path / "parts", third)
    assert third.jobs == []
    for variant in record.variants:
        for run in variant.runs:
            saved = json.loads((tmp_path / "parts" / run.folder / "record.json").read_text())
            assert {each.environment["device"] for each in (record, again)} == {
                saved["environment"]["device"]
            }
            assert run.score == pytest.approx(100 * saved["outcome"]["metrics"]["accuracy"])
            assert not (tmp_path / "parts" / run.folder / "model").exists()
    more = Inline(scored(lambda run: 0.5))
    study(asked(flags, **{**SMALL, "seeds": "2"}), tmp_path / "parts", more)
    assert set(more.names) == {
        "arch/neighbours=3/seed-0",
        *(f"arch/{name}/seed-1" for name in ("default", "refresh_every=1", "neighbours=3")),
    }
    with pytest.raises(
        SettingsError,
        match=r"seed-0 cannot be resumed, .*: epochs was 3, is 4\. Resume with the same data",
    ):
        Study(asked(flags, "refresh", **{**SMALL, "epochs": "4"}), tmp_path / "parts")
    with pytest.raises(SettingsError, match=r"changed: weight was 1\.0, is 2\.0\."):
        Study(asked(flags, "refresh", **SMALL, weight="2"), tmp_path / "parts")


def test_a_study_of_translation_is_scored_on_test(tmp_path: Path) -> None:
    numbers = write_numbers(tmp_path / "numbers", train=60, valid=6, test=4)
    (tmp_path / "grid.toml").write_text("[weight]\nweight = [0.5, 1.0]")
    flags = {
        "task": "translation", "data": str(numbers), "source": SOURCE, "target": TARGET, "model": "transformer-small",
        "vocabulary": "55", "max_ratio": "3", "epochs": "1", "max_tokens": "128", "update_tokens": "100", "beam": "1",
        "grid": tmp_path / "grid.toml",
    }  # fmt: skip
    bleu = lambda run: 40 * run.settings.method("arch").options()["weight"]  # noqa: E731
    runner = Inline(
        lambda run: run_record(run.method, run.seed, {"bleu": bleu(run), "valid_bleu": 1.0})
    )
    record = study(asked(flags, seeds="1", baselines=[]), tmp_path / "out", runner)
    assert (record.task.main_metrics, record.task.scored_on) == (["bleu"], "test")
    assert values(record) == {
        ("arch/weight=0.5", 0): 20.0,
        ("arch/default", 0): 40.0,
    }  # out of 100 as they are


def test_a_folder_without_a_study_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError,
        match=r"study.json: is not there; give the --output folder of an `advreg study`",
    ):
        load(tmp_path)
