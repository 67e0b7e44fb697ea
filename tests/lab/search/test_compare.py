from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from advreg.cli.app import user_errors
from advreg.cli.compare import show_comparison
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.runs.settings import SettingsError
from advreg.lab.search import compare as compare_module
from advreg.lab.search.compare import Comparison
from advreg.lab.search.compare_settings import CompareSettings, read_compare
from advreg.lab.search.jobs import TrainRun
from advreg.lab.search.resampling import resampled
from advreg.records.compare import Candidate, CompareRecord, load
from advreg.records.run import RunRecord
from advreg.records.run import load as load_run
from comparisons import run_record
from little_tables import sentiment, tiny_folder, write_table
from number_words import SOURCE, TARGET, write_numbers
from runner_jobs import Inline, Seen, really

Work = Callable[[TrainRun], Any]


def scored(score: Callable[[TrainRun], float | None]) -> Work:
    """Runs whose accuracy is made up."""
    return lambda run: run_record(run.method, run.seed, {"accuracy": score(run)}, seconds=2.0)


def stored(run: TrainRun, accuracy: float, model: bool = False) -> Any:
    """A run whose accuracy is made up, with its files."""
    record = run_record(run.method, run.seed, {"accuracy": accuracy})
    run.folder.mkdir(parents=True, exist_ok=True)
    facts = run.facts(run._workload().fingerprint)
    (run.folder / "plan.json").write_text(json.dumps(facts))
    record.save(run.folder / "record.json")
    if model:
        (run.folder / "model").mkdir(exist_ok=True)
        (run.folder / "model" / "of").write_text(f"{run.method} {run.folder.name}")
        run.tidy()
    return record


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
    candidates: int = 3,
    seeds: str | None = "2",
    methods: str = "standard,arch",
    **more: Any,
) -> Any:
    given = {name: value for name, value in flags.items() if name != "config"}
    training = more.pop("training", {})
    names = ("budget", "max_seeds", "controls", "reference", "keep_models", "alpha")
    own = {"controls": False} | {name: more.pop(name) for name in names if name in more}
    if seeds is not None:
        more["seeds"] = seeds
    return read_compare(
        flags["config"],
        {**given, "methods": methods, **more},
        training,
        candidates=candidates,
        **own,
    )


def compare(settings: CompareSettings, folder: Path, runner: Inline) -> CompareRecord:
    return Comparison.open(settings, folder).run(runner, Seen())  # type: ignore[arg-type]


def test_what_is_left_weighs_runs_by_their_samples_and_passes(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    """Two epochs; half of the 40 samples in the tuning, but for the runs that are not begun; a
    refresh every second epoch with two ascents costs a third pass. Three candidates, of which two
    get a second seed, and two seeds.
    """
    config = tmp_path / "config.toml"
    config.write_text(flags["config"].read_text() + "[arch]\nrefresh_every = 2\nascent_steps = 2\n")
    settings = asked({**flags, "config": config, "epochs": "2"}, candidates=3, seeds="2")
    left = Comparison.open(settings, tmp_path / "out").left
    assert (left.jobs, left.cost) == (14, (1 + 3) * 2 * (3 * 20 + 2 * 40 + 2 * 40))


# ---- equal terms


def test_every_method_has_as_many_candidates_on_held_out_data_and_then_every_seed_on_all(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    runner = Inline(scored(lambda run: 0.5))
    record = compare(asked(flags), tmp_path, runner)
    tuning = [(0, 1000), (1, 1000), (2, 1000), (0, 1001), (1, 1001)]
    assert sorted(runner.names) == sorted(
        [
            *(
                f"files/{method}/candidate-{number}-seed-{seed}"
                for method in ("standard", "arch")
                for number, seed in tuning
            ),
            *(f"files/{method}/seed-{seed}" for method in ("standard", "arch") for seed in (0, 1)),
            "files/standard/best",
        ]
    )
    for run in runner.runs[:14]:
        assert (run.held_out is not None) == ("candidate" in run.folder.name)
    splits = {
        run.seed: {each.held_out for each in runner.runs if each.seed == run.seed}
        for run in runner.runs
    }
    assert [len(splits[seed]) for seed in (1000, 1001)] == [1, 1]  # one split for all methods
    assert splits[1000] != splits[1001]
    assert [len(choice.candidates) for choice in record.choices] == [3, 3]
    assert [[len(each.runs) for each in choice.candidates] for choice in record.choices] == [
        [2, 2, 1]
    ] * 2
    assert record.notes[1:] == [  # after what was guessed of the data
        "the best model of files is missing: its run left no model; the same command tries again"
    ]


def test_a_grid_without_enough_points_is_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(
        SettingsError, match="at most the 3 points of the grid of standard, got 5; add values"
    ):
        asked(flags, candidates=5)


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
    assert len(finals) == 5  # and the winner's model
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
    record = compare(asked(flags, candidates=0, learning_rate="0.02"), tmp_path, runner)
    assert runner.names == [
        *(f"files/{method}/seed-{seed}" for seed in (0, 1) for method in ("standard", "arch")),
        "files/standard/best",
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
            raise ValueError("too large")
        return run_record(run.method, run.seed, {"accuracy": 0.5})

    record = compare(asked(flags), tmp_path, Inline(work))
    problem = "none of its 3 candidates could be trained; the first: ValueError: too large"
    assert [run.error for run in record.runs] == [None, None, problem, problem]


# ---- a machine that is busy


def test_a_candidate_that_dies_once_is_repeated_and_the_choice_is_the_undisturbed_one(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    """D4: the best candidate's process is killed; its turn comes again, alone."""

    def score(run: TrainRun) -> float:
        return 0.9 if run.settings.learning_rate == 3e-3 else 0.5

    died = []

    def work(run: TrainRun) -> Any:
        if run.held_out is not None and run.settings.learning_rate == 3e-3 and len(died) < 1:
            died.append(run.folder.name)
            raise MemoryError("the machine is busy")
        return scored(score)(run)

    disturbed = compare(asked(flags), tmp_path / "busy", Inline(work))
    undisturbed = compare(asked(flags), tmp_path / "idle", Inline(scored(score)))
    assert len(died) == 1
    assert disturbed.choices == undisturbed.choices


def test_a_choice_stays_open_while_a_candidate_dies_and_a_rerun_makes_it(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def score(run: TrainRun) -> float:
        return 0.9 if run.settings.learning_rate == 3e-3 else 0.5

    def work(run: TrainRun) -> Any:
        if run.method == "arch" and run.settings.learning_rate == 3e-3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return stored(run, score(run), model=True)

    runner = Inline(work)
    record = compare(asked(flags), tmp_path, runner)
    standard, arch = record.choices
    assert standard.chosen is not None
    assert (arch.chosen, [run.error for run in record.runs[:2]]) == (None, [None, None])
    problem = "the choice is open, because a candidate has no result: RuntimeError: CUDA out of"
    assert all((run.error or "").startswith(problem) for run in record.runs[2:])
    assert (arch.problem or "").endswith("the same command tries it again")
    assert [gain.verdict for gain in record.gains] == ["undecided"]
    assert record.conclusion is not None
    assert "; ARCH is undecided: the choice is open, because" in record.conclusion
    assert (
        sum(run.method == "arch" and run.settings.learning_rate == 3e-3 for run in runner.runs) == 2
    )

    again = Inline(lambda run: stored(run, score(run), model=True))
    record = compare(asked(flags), tmp_path, again)
    assert {run.method for run in again.runs} == {"arch"}
    assert not {name for name in again.names if name in runner.names} - {
        name for name, run in zip(runner.names, runner.runs, strict=True)
        if run.settings.learning_rate == 3e-3
    }  # fmt: skip
    chosen = record.choices[1].candidates[record.choices[1].chosen or 0]
    assert chosen.settings["learning_rate"] == 3e-3
    assert [run.error for run in record.runs] == [None] * 4


def test_a_result_that_dies_leaves_its_method_undecided_and_the_others_finish(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.method == "arch" and run.seed == 2:
            raise MemoryError
        gain = {"standard": 0.0, "arch": 20.0, "r3f": 10.0}[run.method] + 0.1 * (run.seed % 2)
        return run_record(run.method, run.seed, {"accuracy": 0.5 + gain / 100})

    settings = asked(flags, candidates=0, seeds="4", methods="standard,arch,r3f")
    record = compare(settings, tmp_path, Inline(work))
    assert {gain.method: gain.verdict for gain in record.gains} == {
        "arch": "undecided",
        "r3f": "pays",
    }
    flaw = {gain.method: gain.flaw for gain in record.gains}["arch"]
    assert (flaw or "").startswith("seed 2 of files is missing: MemoryError")
    assert (record.conclusion or "").startswith("use R3F: +10")


# ---- seeds until all is decided


def by_seed(gains: dict[str, float], noise: float) -> Work:
    """Accuracies in percent: a gain over 50, and noise that depends on method and seed alone."""

    def score(run: TrainRun) -> float:
        draw = random.Random(f"{run.method} {run.seed}")
        return (50 + gains[run.method] + draw.gauss(0, noise)) / 100

    return scored(score)


def seeds_of(record: CompareRecord) -> dict[str, int]:
    return Counter(run.method for run in record.runs)


def test_seeds_are_added_until_every_method_is_decided(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(flags, candidates=0, seeds=None, methods="standard,arch,r3f,smart")
    gains = {"standard": 0.0, "arch": 40.0, "r3f": 2.0, "smart": -2.0}
    record = compare(settings, tmp_path, Inline(by_seed(gains, noise=0.5)))
    assert {gain.method: gain.verdict for gain in record.gains} == {
        "arch": "pays", "r3f": "pays", "smart": "does not pay",
    }  # fmt: skip
    seeds = seeds_of(record)
    assert seeds["arch"] < 20
    assert seeds["standard"] == max(seeds.values()) < 20
    for gain in record.gains:
        assert gain.low is not None
        assert gain.high is not None
        assert gain.low <= gains[gain.method] <= gain.high
    assert (record.conclusion or "").startswith("use ARCH: +")


def test_without_an_effect_a_comparison_ends_at_the_most_seeds_and_says_how_many_would_do(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(flags, candidates=0, seeds=None, max_seeds=8)
    record = compare(settings, tmp_path, Inline(by_seed({"standard": 0, "arch": 0.3}, noise=2.0)))
    assert seeds_of(record) == {"standard": 8, "arch": 8}
    (gain,) = record.gains
    assert gain.verdict == "undecided"
    assert re.fullmatch(
        r"nothing beats Standard; ARCH is undecided at [+−]\d\.\d; \d+ more seeds would show ±\d\.\d",
        record.conclusion or "",
    )


def test_given_seeds_are_one_look_with_the_plain_interval(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(flags, candidates=0, seeds="5")
    record = compare(settings, tmp_path, Inline(by_seed({"standard": 0, "arch": 1}, noise=1.0)))
    (gain,) = record.gains
    scores = {
        method: [
            100
            * (
                by_seed({"standard": 0, "arch": 1}, 1.0)(
                    SimpleNamespace(method=method, seed=seed)
                ).outcome.metrics["accuracy"]
            )
            for seed in range(5)
        ]
        for method in ("standard", "arch")
    }
    expected = stats.ttest_rel(scores["arch"], scores["standard"]).confidence_interval()
    assert (gain.low, gain.high) == pytest.approx(tuple(expected))
    assert (gain.seeds, gain.sampling_error) == (5, None)


def test_a_budget_of_runs_ends_the_search_for_a_verdict(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    settings = asked(flags, candidates=0, seeds="3", budget="12")
    runner = Inline(by_seed({"standard": 0, "arch": 0}, noise=2.0))
    record = compare(settings, tmp_path, runner)
    assert seeds_of(record) == {"standard": 5, "arch": 5}  # 16 runs for the next look
    assert record.gains[0].low is not None


def test_a_budget_of_time_counts_all_sessions(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(compare_module.time, "monotonic", lambda: clock[0])

    def work(run: TrainRun) -> Any:
        clock[0] += 60
        return stored(
            run, by_seed({"standard": 0, "arch": 0}, 2.0)(run).outcome.metrics["accuracy"]
        )

    settings = asked(flags, candidates=0, seeds="3", budget="11m")
    with pytest.raises(KeyboardInterrupt):
        compare(settings, tmp_path, Inline(work, stop_after=5))
    assert load(tmp_path).spent_seconds == 300
    record = compare(settings, tmp_path, Inline(work))
    assert seeds_of(record) == {"standard": 5, "arch": 5}  # ten minutes, and one for the model
    assert record.spent_seconds == 660


def test_test_samples_that_are_few_widen_the_interval(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    """Every run gains the same on the same 20 samples, so seeds alone would be certain."""
    settings = asked(flags, candidates=0, seeds="4")
    work = by_seed({"standard": 0, "arch": 10}, noise=0.1)
    right = {"standard": np.repeat([1.0, 0.0], 10), "arch": np.repeat([1.0, 0.0], [12, 8])}

    def resample(folder: Path, record: RunRecord) -> Any:
        outcomes = right[record.method.name]
        return resampled(lambda rows: 100 * float(outcomes[rows].mean()), 20)

    seen = []
    for name, options in (("seeds", {}), ("samples", {"resample": resample})):
        made = Comparison.open(settings, tmp_path / name, **options)  # type: ignore[arg-type]
        seen.append(made.run(Inline(work), Seen()).gains[0])  # type: ignore[arg-type]
    alone, both = seen
    error = 100 * (right["arch"] - right["standard"]).std() / math.sqrt(20)
    assert (alone.verdict, both.verdict) == ("pays", "undecided")
    assert both.sampling_error == pytest.approx(error, rel=0.15)
    assert both.low is not None
    assert both.high is not None
    assert both.high - both.low > 2 * 1.96 * (both.sampling_error or 0)


# ---- controls and the winner


def test_standard_is_also_trained_as_long_as_the_leader_of_the_tuning(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def score(run: TrainRun) -> float:
        return {"standard": 0.5, "arch": 0.6, "r3f": 0.7}[run.method]

    runner = Inline(scored(score))
    settings = asked({**flags, "epochs": "3"}, methods="standard,arch,r3f", controls=True)
    record = compare(settings, tmp_path, runner)
    assert record.controls == {
        "standard-longer": "Standard, 2 × the epochs",
        "standard-ema": "Standard, EMA 0.98",
    }
    average = [run for run in runner.runs if run.folder.parent.name == "standard-ema"]
    assert {run.settings.weight_ema for run in average} == {0.98}
    longer = [run for run in runner.runs if run.folder.parent.name == "standard-longer"]
    assert {(run.method, run.settings.epochs, run.seed) for run in longer} == {
        ("standard", 6, 0), ("standard", 6, 1),
    }  # fmt: skip
    control = next(gain for gain in record.gains if gain.method == "standard-longer")
    assert (control.mean, control.verdict) == (0.0, None)


def test_controls_stay_the_same_when_the_comparison_is_resumed(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        return stored(run, {"standard": 0.5, "arch": 0.6, "r3f": 0.7}[run.method], model=True)

    settings = asked({**flags, "epochs": "3"}, methods="standard,arch,r3f", controls=True)
    first, second = Inline(work, stop_after=20), Inline(work)
    with pytest.raises(KeyboardInterrupt):
        compare(settings, tmp_path, first)
    assert first.names[-1].startswith("files/")
    left = Comparison.open(settings, tmp_path).left  # as the display asks while runs are made
    assert left.jobs == 3 * 5 + 5 * 2 - len(first.names)
    record = compare(settings, tmp_path, second)
    assert set(record.controls) == {"standard-longer", "standard-ema"}
    assert not set(first.names) & set(second.names)
    assert len(first.names) + len(second.names) == 3 * 5 + 5 * 2


def test_seeds_that_are_added_after_the_end_are_noted(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        metrics = by_seed({"standard": 0, "arch": 0}, noise=2.0)(run).outcome.metrics
        return stored(run, metrics["accuracy"], model=True)

    for most, noted in ((5, False), (8, True)):
        settings = asked(flags, candidates=0, seeds="3", max_seeds=most)
        record = compare(settings, tmp_path, Inline(work))
        assert seeds_of(record) == {"standard": most, "arch": most}
        assert any("seeds were added after" in note for note in record.notes) == noted


def test_the_winners_model_is_kept_and_no_other(flags: dict[str, Any], tmp_path: Path) -> None:
    def work(run: TrainRun) -> Any:
        accuracy = 0.9 if run.method == "r3f" else 0.5
        return stored(run, accuracy + 0.01 * (run.seed % 2) * (run.method == "r3f"), model=True)

    settings = asked(flags, candidates=0, seeds="3", methods="standard,arch,r3f")
    record = compare(settings, tmp_path, Inline(work))
    assert record.best == {"files": "best"}
    assert (tmp_path / "best" / "model" / "of").read_text() == "r3f seed-0"
    assert [path.parent.name for path in tmp_path.rglob("model")] == ["best"]
    assert load_run(tmp_path / "best" / "record.json").method.name == "r3f"
    assert (record.conclusion or "").startswith("use R3F: +4")

    again = Inline(work)
    compare(settings, tmp_path, again)
    assert again.names == []
    shutil.rmtree(tmp_path / "best" / "model")
    compare(settings, tmp_path, again)
    assert again.names == ["files/r3f/best"]
    assert (tmp_path / "best" / "model").is_dir()


def test_a_best_model_that_fails_is_told_and_tried_again(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.folder.name == "best":
            raise FileNotFoundError("no vocabulary")
        return stored(run, 0.5 + 0.01 * run.seed)  # without a model

    settings = asked(flags, candidates=0, seeds="2")
    record = compare(settings, tmp_path, Inline(work))
    assert record.best == {}
    assert record.notes[1:] == [  # after what was guessed of the data
        "the best model of files is missing: FileNotFoundError: no vocabulary; the same command "
        "tries again"
    ]
    silent = Console(file=StringIO(), width=80)
    assert not show_comparison(tmp_path, None, silent)  # which is exit code 1
    assert "the best model of files is missing" in silent.file.getvalue()  # type: ignore[attr-defined]
    again = Inline(lambda run: stored(run, 0.5, model=True))
    assert compare(settings, tmp_path, again).best == {"files": "best"}
    assert again.names == ["files/standard/best"]
    assert show_comparison(tmp_path, None, silent)


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
            Comparison.open(asked({**flags, **change}), tmp_path / "out")
    with pytest.raises(ValueError, match="TrainingArguments has no field 'weight_decoy'"):
        Comparison.open(asked(flags, training={"weight_decoy": 1}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- going on, with real runs

SMALL: dict[str, Any] = {"candidates": 2, "seeds": "1", "methods": "arch"}


@pytest.fixture(scope="module")
def whole(flags: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison carried out without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    runner = Inline()
    record = compare(asked(flags, **SMALL), folder, runner)
    assert len(runner.jobs) == 3
    assert record.best == {"files": "best"}
    assert (record.status, [run.error for run in record.runs]) == ("finished", [None])
    return folder


def untimed(candidate: Candidate) -> Candidate:
    runs = [replace(run, seconds=None) for run in candidate.runs]
    return replace(candidate, seconds=None, runs=runs)


def outcome(folder: Path) -> Any:
    record = load(folder)
    chosen = [
        (choice.method, choice.chosen, list(map(untimed, choice.candidates)))
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
    runs = {path.relative_to(whole).as_posix() for path in whole.glob("files/*/*")}
    every = {"plan.json", "record.json", "items.json.gz"}
    records = {f"{run}/{name}" for run in (*runs, "best") for name in every}
    healths = {f"{run}/health.json" for run in (*runs, "best") if "candidate" not in run}
    assert {name for name in names if not name.startswith("best/model/")} == {
        "compare.json",
        *records,
        *healths,
    }
    assert "best/model/config.json" in names


def test_a_seed_or_a_method_can_be_added(
    flags: dict[str, Any], whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "more")
    runner = Inline(scored(lambda run: 0.5))
    compare(asked(flags, candidates=2, seeds="2", methods="arch,r3f"), tmp_path / "more", runner)
    # R3F is not better than the reference, whose model is there
    assert set(runner.names) == {
        "files/arch/seed-1", "files/r3f/candidate-0-seed-1000", "files/r3f/candidate-1-seed-1000",
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
        ({"candidates": 3}, "search candidates was 2, is 3"),
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
        Comparison.open(asked(flags, **{**SMALL, **change}), whole)


def test_how_models_are_compiled_may_change(flags: dict[str, Any], whole: Path) -> None:
    Comparison.open(asked(flags, **{**SMALL, "compile_layers": "no"}), whole)


def test_changed_data_are_refused(flags: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "train.csv", sentiment(40, seed=9))
    with pytest.raises(SettingsError, match="data of files was"):
        Comparison.open(asked({**flags, "train": str(other)}, **SMALL), whole)


def test_a_choice_that_was_made_stands_though_a_candidate_that_failed_might_win_now(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    def work(run: TrainRun) -> Any:
        if run.folder.name == "candidate-0-seed-1000":
            raise ValueError("no such site today")
        return really(run)

    settings = asked(flags, candidates=2, seeds="1", methods="standard")
    compare(settings, tmp_path, Inline(work))
    assert load(tmp_path).choices[0].chosen == 1
    again = Inline()
    record = compare(settings, tmp_path, again)
    assert again.jobs == []
    assert record.choices[0].chosen == 1
    assert record.choices[0].candidates[0].error == "ValueError: no such site today"


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
    settings = read_compare(tmp_path / "grid.toml", flags, {}, candidates=2, controls=False)
    runner = Inline(
        lambda run: run_record(
            run.method, run.seed, {"bleu": 30 + 1000 * run.settings.learning_rate}
        )
    )
    record = compare(settings, tmp_path / "out", runner)
    assert runner.names == [
        f"translation/arch/{name}"
        for name in ("candidate-0-seed-1000", "candidate-1-seed-1000", "seed-0", "best")
    ]
    assert [run.held_out is not None for run in runner.runs] == [True, True, False, False]
    assert {candidate.score for candidate in record.choices[0].candidates} == {
        31.0,
        32.0,
    }  # out of 100 as they are
    assert runner.runs[-1].settings.learning_rate == 2e-3
    (task,) = record.tasks
    assert (task.main_metrics, task.scored_on) == (["bleu"], "test")
    assert task.sizes == {"train": 60, "valid": 10, "test": 8}
    assert task.tuning_sizes == {"train": 30, "valid": 30}  # one fold of two
