from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.runs.run import Plan
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.runs.workloads import load_workload
from advreg.lab.search import jobs
from advreg.lab.search.jobs import Environment, HeldOut, TrainRun
from advreg.records import run as records
from advreg.records.environment import capture_environment
from comparisons import run_record
from little_tables import sentiment, tiny_folder, write_table


class Quiet:
    """A JobReporter that counts steps."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self, step: int, total: int, values: Any) -> None:
        self.steps += 1

    def notice(self, text: str) -> None:
        pass


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TrainSettings:
    home = tmp_path_factory.mktemp("jobs")
    return TrainSettings(
        task="files",
        train=str(write_table(home / "train.csv", sentiment(40))),
        dev=str(write_table(home / "dev.csv", sentiment(12, seed=3))),
        model=str(tiny_folder(home / "tiny")),
        methods=("standard",),
        seeds=(0,),
        epochs=1,
        batch_size=8,
    )


def saved(run: TrainRun, facts: dict[str, Any], record: records.RunRecord | None) -> None:
    run.folder.mkdir(parents=True)
    (run.folder / "plan.json").write_text(json.dumps(facts))
    if record is not None:
        record.save(run.folder / "record.json")
    for name in ("model", "checkpoint-5"):
        (run.folder / name).mkdir()


def test_facts_are_those_of_the_plan(settings: TrainSettings, tmp_path: Path) -> None:
    data = load_workload(settings)
    run, plan = (
        TrainRun(settings, "standard", 3, tmp_path),
        Plan(settings, data, "standard", 3, tmp_path),
    )
    assert run.facts(data.fingerprint) == json.loads(json.dumps(plan.facts()))


def test_a_tuning_run_sees_nothing_of_dev_and_leaves_its_record_and_items_alone(
    settings: TrainSettings, tmp_path: Path
) -> None:
    whole = load_workload(settings).data
    run, reporter = TrainRun(settings, "standard", 1, tmp_path / "run", HeldOut(0.2, 5)), Quiet()
    record = run(reporter)
    parts = whole.held_out(0.2, 5)
    assert record.task.fingerprint == parts.fingerprint()
    assert record.task.sizes == {"train": 32, "dev": 8}
    assert set(parts.train) | set(parts.dev) == set(whole.train)
    assert reporter.steps == 4
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "items.json.gz",
        "plan.json",
        "record.json",
    ]
    assert run.settled(parts.fingerprint()) == records.load(run.folder / "record.json")


@pytest.mark.parametrize("keep", ["nothing", "model", "all"])
def test_a_finished_run_keeps_what_it_should(
    settings: TrainSettings, tmp_path: Path, keep: jobs.Keep
) -> None:
    run = TrainRun(settings, "standard", 1, tmp_path / "run", keep=keep)
    run(Quiet())
    names = {path.name for path in run.folder.iterdir()}
    assert "record.json" in names
    assert ("model" in names) == (keep != "nothing")
    assert ("checkpoint-5" in names) == (keep == "all")


def test_a_loss_that_is_not_finite_settles_a_run_and_another_failure_does_not(
    settings: TrainSettings, tmp_path: Path
) -> None:
    for number, (error, settled) in enumerate(
        [(NonFiniteLossError("nan"), True), (OSError("the disk is full"), False)]
    ):
        run = TrainRun(settings, "standard", 0, tmp_path / str(number))
        saved(run, run.facts("print"), run_record("standard", 0, {}).fail(error))
        assert (run.settled("print") is not None) == settled
        assert (run.folder / "checkpoint-5").exists() != settled  # to go on from


def test_a_run_without_a_record_is_not_settled(settings: TrainSettings, tmp_path: Path) -> None:
    run = TrainRun(settings, "standard", 0, tmp_path / "run")
    assert run.settled("print") is None
    saved(run, run.facts("print"), None)
    assert run.settled("print") is None


def test_a_run_of_another_plan_is_refused_by_what_differs(
    settings: TrainSettings, tmp_path: Path
) -> None:
    run = TrainRun(settings, "standard", 0, tmp_path / "run")
    saved(run, run.facts("print"), run_record("standard", 0, {"accuracy": 1.0}))
    other = replace(run, settings=replace(settings, epochs=9))
    with pytest.raises(
        SettingsError,
        match=r"cannot be resumed, .* changed: epochs was 1, is 9. Resume with the same data",
    ):
        other.settled("print")


def test_the_environment_of_many_runs_has_the_devices_they_were_made_on() -> None:
    environment = Environment()
    assert environment.as_dict() == capture_environment()
    for device in ("NVIDIA H200", "cpu", "cpu", None):
        environment.saw(replace(run_record("arch", 0, {}), environment={"device": device}))
    assert environment.as_dict()["device"] == "NVIDIA H200, cpu"


def test_a_worker_keeps_the_last_data_sets_only(
    settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[TrainSettings] = []
    monkeypatch.setattr(
        jobs, "load_workload", lambda asked: loaded.append(asked) or load_workload(asked)
    )
    monkeypatch.setattr(jobs, "_loaded", type(jobs._loaded)())
    runs = [TrainRun(settings, "standard", 0, Path("x"), HeldOut(0.2, seed)) for seed in (1, 2, 3)]
    for run in (runs[0], runs[1], runs[0], runs[2], runs[0], runs[1]):
        run._workload()
    assert len(loaded) == 4  # the second was dropped for the third


def test_further_runs_of_a_kind_are_not_compiled_again(
    settings: TrainSettings, tmp_path: Path, graphs: Any
) -> None:
    compiling = {"torch_compile": True, "torch_compile_backend": "eager", "use_cpu": True}
    compiled = replace(settings, methods=("arch", "standard"), training=compiling)
    counts = []
    for method, seed in (("arch", 0), ("arch", 1), ("standard", 0)):
        TrainRun(compiled, method, seed, tmp_path / f"{method}-{seed}")(Quiet())
        counts.append(graphs["stats"]["unique_graphs"])
    assert 0 < counts[0] == counts[1] < counts[2]
