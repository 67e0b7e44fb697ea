from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advreg.cli.app import user_errors
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.compare import Comparison
from advreg.lab.search.compare_settings import CompareSettings, read_compare
from advreg.lab.search.jobs import TrainRun
from advreg.records.compare import CompareRecord, load
from comparisons import run_record
from little_tables import sentiment, tiny_folder, write_table
from number_words import SOURCE, TARGET, write_numbers
from runner_jobs import Inline, Seen, really

Work = Callable[[TrainRun], Any]


def scored(score: Callable[[TrainRun], float | None]) -> Work:
    """Runs whose accuracy is made up."""
    return lambda run: run_record(run.method, run.seed, {"accuracy": score(run)}, seconds=2.0)


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("compare")
    (home / "grid.toml").write_text(
        "[grid]\nlearning_rate = [1e-3, 3e-3, 1e-2]\nbatch_size = [8]\n[grid.arch]\nradius = [0.1, "
        "1.0]\n"
    )
    return {
        "config": home / "grid.toml",
        "train": str(write_table(home / "train.csv", sentiment(40))),
        "dev": str(write_table(home / "dev.csv", sentiment(12, seed=3))),
        "model": str(tiny_folder(home / "tiny")),
        "epochs": "1",
    }


def asked(
    flags: dict[str, Any],
    budget: int = 3,
    seeds: str = "2",
    methods: str = "standard,arch",
    **more: Any,
) -> Any:
    given = {name: value for name, value in flags.items() if name != "config"}
    training = more.pop("training", {})
    return read_compare(
        flags["config"],
        {**given, "seeds": seeds, "methods": methods, **more},
        training,
        budget=budget,
    )


def compare(settings: CompareSettings, folder: Path, runner: Inline) -> CompareRecord:
    return Comparison(settings, folder).run(runner, Seen())  # type: ignore[arg-type]


def test_what_is_left_weighs_runs_by_their_samples_and_passes(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    """Two epochs; 36 samples of 40 in the tuning; a refresh every second epoch with two ascents
    costs a third pass.
    """
    config = tmp_path / "config.toml"
    config.write_text(flags["config"].read_text() + "[arch]\nrefresh_every = 2\nascent_steps = 2\n")
    settings = asked({**flags, "config": config, "epochs": "2"}, budget=3, seeds="2")
    left = Comparison(settings, tmp_path / "out").left
    assert (left.jobs, left.cost) == (10, (1 + 3) * 2 * (3 * 36 + 2 * 40))


# ---- equal terms


def test_every_method_has_as_many_candidates_on_held_out_data_and_then_every_seed_on_all(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    runner = Inline(scored(lambda run: 0.5))
    record = compare(asked(flags), tmp_path, runner)
    assert sorted(runner.names) == sorted(
        [
            f"files/{method}/candidate-{number}"
            for method in ("standard", "arch")
            for number in range(3)
        ]
        + [f"files/{method}/seed-{seed}" for method in ("standard", "arch") for seed in range(2)]
    )
    for run in runner.runs:
        assert (run.held_out is not None) == ("candidate" in run.folder.name)
    assert len({run.held_out for run in runner.runs if run.held_out}) == 1  # one split for all
    assert [len(choice.candidates) for choice in record.choices] == [3, 3]
    seeds = [[candidate.seed for candidate in choice.candidates] for choice in record.choices]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3
    assert record.notes == []


def test_a_grid_smaller_than_the_budget_is_stated(flags: dict[str, Any], tmp_path: Path) -> None:
    record = compare(asked(flags, budget=5), tmp_path, Inline(scored(lambda run: 0.5)))
    assert [(len(choice.candidates), choice.grid_size) for choice in record.choices] == [
        (3, 3),
        (5, 6),
    ]
    assert record.notes == [
        "candidates differ, because a grid has fewer points than the budget of 5: standard 3, arch "
        "5"
    ]


def test_the_best_held_out_score_is_chosen_whatever_dev_says(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    wanted = {"standard": 3e-3, "arch": 1e-2}

    def score(run: TrainRun) -> float:
        good = run.settings.learning_rate == wanted[run.method]
        return float(good if run.held_out is not None else not good)

    runner = Inline(scored(score))
    record = compare(asked(flags), tmp_path, runner)
    finals = [run for run in runner.runs if run.held_out is None]
    assert {(run.method, run.settings.learning_rate) for run in finals} == set(wanted.items())
    for choice in record.choices:
        assert choice.chosen is not None
        assert [candidate.score for candidate in choice.candidates].index(100.0) == choice.chosen


def test_of_equal_scores_the_first_is_chosen(flags: dict[str, Any], tmp_path: Path) -> None:
    record = compare(asked(flags), tmp_path, Inline(scored(lambda run: 0.25)))
    assert [choice.chosen for choice in record.choices] == [0, 0]


def test_without_a_budget_the_settings_are_used_as_they_are(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    runner = Inline(scored(lambda run: 0.5))
    record = compare(asked(flags, budget=0, learning_rate="0.02"), tmp_path, runner)
    assert runner.names == [
        f"files/{method}/seed-{seed}" for method in ("standard", "arch") for seed in (0, 1)
    ]
    assert {run.settings.learning_rate for run in runner.runs} == {0.02}
    assert record.grid == {"common": {}}


# ---- failures


def test_a_candidate_that_diverges_counts_as_the_worst_and_the_others_go_on(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.held_out is not None and run.settings.learning_rate != 1e-3:
            raise NonFiniteLossError("the loss is nan at step 3")
        return run_record(run.method, run.seed, {"accuracy": 0.0})

    record = compare(asked(flags), tmp_path, Inline(work))
    for choice in record.choices:
        errors = [candidate.error for candidate in choice.candidates]
        assert errors.count("NonFiniteLossError: the loss is nan at step 3") == 2
        assert choice.chosen == errors.index(None)
    assert [run.error for run in record.runs] == [None] * 4


def test_a_score_that_is_not_finite_is_never_chosen(flags: dict[str, Any], tmp_path: Path) -> None:
    record = compare(
        asked(flags),
        tmp_path,
        Inline(scored(lambda run: None if run.settings.learning_rate == 1e-3 else 0.0)),
    )
    for choice in record.choices:
        assert choice.chosen is not None
        assert choice.candidates[choice.chosen].settings["learning_rate"] != 1e-3
        assert [c.error for c in choice.candidates].count("its score is not a finite number") == 1


def test_a_method_none_of_whose_candidates_can_be_trained_fails_alone(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.method == "arch":
            raise MemoryError("too large")
        return run_record(run.method, run.seed, {"accuracy": 0.5})

    record = compare(asked(flags), tmp_path, Inline(work))
    told = "none of its 3 candidates could be trained; the first: MemoryError: too large"
    assert [run.error for run in record.runs] == [None, None, told, told]


# ---- before the first run


def test_settings_that_cannot_work_are_refused_before_anything_is_written(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    for change, message in (
        ({"site": "nowhere"}, "nowhere"),
        ({"model": str(tmp_path / "no-model")}, "is neither a folder here nor reachable"),
        ({"train": str(tmp_path / "none.csv")}, "must be a file, got nothing"),
    ):
        with pytest.raises(user_errors(), match=message):
            Comparison(asked({**flags, **change}), tmp_path / "out")
    with pytest.raises(ValueError, match="TrainingArguments has no field 'weight_decoy'"):
        Comparison(asked(flags, training={"weight_decoy": 1}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- going on, with real runs

SMALL: dict[str, Any] = {"budget": 2, "seeds": "1", "methods": "arch"}


@pytest.fixture(scope="module")
def whole(flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison carried out without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    runner = Inline()
    record = compare(asked(flags, **SMALL), folder, runner)
    assert len(runner.jobs) == 3
    assert (record.status, [run.error for run in record.runs]) == ("finished", [None])
    return folder


def outcome(folder: Path) -> Any:
    record = load(folder)
    chosen = [
        (choice.method, choice.chosen, [replace(c, seconds=None) for c in choice.candidates])
        for choice in record.choices
    ]
    metrics = [
        json.loads(path.read_text())["outcome"]["metrics"]
        for path in sorted(folder.rglob("record.json"))
    ]
    return chosen, metrics


def test_a_stopped_comparison_goes_on_without_repeating_a_run_and_ends_alike(
    flags: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    settings = asked(flags, **SMALL)
    first, second, third = Inline(stop_after=1), Inline(), Inline()
    with pytest.raises(KeyboardInterrupt):
        compare(settings, tmp_path, first)
    stopped = load(tmp_path)
    assert stopped.status == "interrupted"
    record = compare(settings, tmp_path, second)
    assert len(first.names) + len(second.names) == 3
    assert not set(first.names) & set(second.names)
    assert record.started == stopped.started
    assert outcome(tmp_path) == outcome(whole)
    again = compare(settings, tmp_path, third)
    assert third.jobs == []
    devices = {
        json.loads(path.read_text())["environment"]["device"]
        for path in tmp_path.rglob("record.json")
    }
    assert {load(whole).environment["device"], again.environment["device"]} == devices


def test_models_and_checkpoints_are_gone_and_records_stay(whole: Path) -> None:
    names = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    runs = {path.relative_to(whole).as_posix() for path in whole.glob("*/*/*")}
    records = {
        f"{run}/{name}" for run in runs for name in ("plan.json", "record.json", "items.json.gz")
    }
    healths = {f"{run}/health.json" for run in runs if "seed-" in run}
    assert len(runs) > len(healths) > 0
    assert names == {"compare.json", *records, *healths}


def test_a_seed_or_a_method_can_be_added(
    flags: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "more")
    runner = Inline(scored(lambda run: 0.5))
    compare(asked(flags, budget=2, seeds="2", methods="arch,r3f"), tmp_path / "more", runner)
    assert set(runner.names) == {
        "files/arch/seed-1", "files/r3f/candidate-0", "files/r3f/candidate-1",
        "files/r3f/seed-0", "files/r3f/seed-1",
    }  # fmt: skip


def test_parts_made_in_several_folders_become_one_comparison_without_training(
    flags: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "both")  # of ARCH
    compare(asked(flags, **{**SMALL, "methods": "standard"}), tmp_path / "standard", Inline())
    shutil.copytree(tmp_path / "standard", tmp_path / "both", dirs_exist_ok=True)
    runner = Inline()
    record = compare(
        asked(flags, **{**SMALL, "methods": "standard,arch"}), tmp_path / "both", runner
    )
    assert runner.names == []
    parts = [load(folder) for folder in (tmp_path / "standard", whole)]
    assert record.choices == [choice for part in parts for choice in part.choices]
    assert record.runs == [run for part in parts for run in part.runs]
    assert record.status == "finished"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": "2"}, "files: epochs was 1, is 2"),
        ({"budget": 3}, "search budget was 2, is 3"),
        ({"weight": "2"}, "files: arch weight was 1.0, is 2.0"),
        ({"batch_size": "4"}, "grid of common was"),
    ],
)
def test_another_comparison_in_the_folder_is_refused_by_what_differs(
    flags: dict[str, Any], whole: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(
        SettingsError, match=rf"holds another comparison: .*{message}.*choose another --output"
    ):
        Comparison(asked(flags, **{**SMALL, **change}), whole)


def test_how_models_are_compiled_may_change(flags: dict[str, Any], whole: Path) -> None:
    Comparison(asked(flags, **{**SMALL, "compile_layers": "no"}), whole)


def test_changed_data_are_refused(flags: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "train.csv", sentiment(40, seed=9))
    with pytest.raises(SettingsError, match="data of files was"):
        Comparison(asked({**flags, "train": str(other)}, **SMALL), whole)


def test_a_choice_that_was_made_stands_though_a_candidate_that_failed_might_win_now(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.folder.name == "candidate-0":
            raise MemoryError("no room today")
        return really(run)

    settings = asked(flags, budget=2, seeds="1", methods="standard")
    compare(settings, tmp_path, Inline(work))
    assert load(tmp_path).choices[0].chosen == 1
    again = Inline()
    record = compare(settings, tmp_path, again)
    assert again.jobs == []
    assert record.choices[0].chosen == 1
    assert record.choices[0].candidates[0].error == "MemoryError: no room today"


# ---- translation


def test_a_comparison_of_translators_is_tuned_on_training_text_and_scored_on_test(
    tmp_path: Path,
) -> None:
    numbers = write_numbers(tmp_path / "numbers", train=60, valid=10, test=8)
    (tmp_path / "grid.toml").write_text("[grid]\nlearning_rate = [1e-3, 2e-3]\n")
    flags = {
        "task": "translation", "data": str(numbers), "source": SOURCE, "target": TARGET, "model": "transformer-small",
        "vocabulary": "55", "max_ratio": "3", "epochs": "1", "max_tokens": "128", "update_tokens": "100", "beam": "1",
        "methods": "arch", "seeds": "1", "refresh_every": "2",
    }  # fmt: skip
    settings = read_compare(tmp_path / "grid.toml", flags, {}, budget=2)
    runner = Inline(
        lambda run: run_record(
            run.method, run.seed, {"bleu": 30 + 1000 * run.settings.learning_rate}
        )
    )
    record = compare(settings, tmp_path / "out", runner)
    assert runner.names == [
        f"translation/arch/{name}" for name in ("candidate-0", "candidate-1", "seed-0")
    ]
    assert [run.held_out is not None for run in runner.runs] == [True, True, False]
    assert {candidate.score for candidate in record.choices[0].candidates} == {
        31.0,
        32.0,
    }  # out of 100 as they are
    assert runner.runs[-1].settings.learning_rate == 2e-3
    (task,) = record.tasks
    assert (task.main_metrics, task.scored_on) == (["bleu"], "test")
    assert task.sizes == {"train": 60, "valid": 10, "test": 8}
    assert task.tuning_sizes == {"train": 54, "valid": 6}
