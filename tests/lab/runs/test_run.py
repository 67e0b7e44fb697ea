from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.final_model import NoRoomError
from advreg.lab.runs.plans import RECORD_FILE
from advreg.lab.runs.run import Plan, run
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.workloads import load_workload
from advreg.records.run import RunRecord, load
from ends import unequal
from little_tables import sentiment, tiny_folder, write_table


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TrainSettings:
    home = tmp_path_factory.mktemp("data")
    training = {"use_cpu": True, "eval_strategy": "epoch", "save_strategy": "epoch"}
    return TrainSettings(
        task="files",
        train=str(write_table(home / "train.csv", sentiment(20))),
        model=str(tiny_folder(home / "tiny-bert")),
        methods=("standard",),
        seeds=(0,),
        epochs=2,
        batch_size=4,
        learning_rate=1e-2,
        training=training,
    )


class Runs:
    """Runs of one plan, and what they said."""

    def __init__(self, settings: TrainSettings, home: Path) -> None:
        self.settings, self.home = settings, home
        self.folder, self.spare = home / "runs" / "standard-seed0", home / "spare"
        self.said: list[str] = []
        self.steps = 0

    def __call__(self, resume: bool = False, **changes: Any) -> RunRecord:
        workload = load_workload(self.settings)
        plan = Plan(self.settings, workload, "standard", 0, self.folder, self.spare, **changes)
        self.said, self.steps = [], 0
        return run(plan, self._on_step, self.said.append, resume)

    def _on_step(self, step: int, total: int, logs: Any) -> None:
        self.steps += 1

    def weights(self) -> Any:
        weights = load_file(self.folder / "model" / "model.safetensors")
        return {name: value.clone() for name, value in weights.items()}  # off the mapped file


@pytest.fixture
def runs(settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    return Runs(settings, tmp_path)


def fill(monkeypatch: pytest.MonkeyPatch, *disks: Path) -> None:
    """Let final models fail to be written to some folders."""
    save = ClassificationJob.save

    def fail(self: ClassificationJob, trainer: Any, folder: Path) -> None:
        save(self, trainer, folder)
        if any(folder.is_relative_to(disk) for disk in disks):
            os.truncate(folder / "model.safetensors", 100)
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    monkeypatch.setattr(ClassificationJob, "save", fail)


def test_the_record_has_the_digests_of_the_model(runs: Runs) -> None:
    record = runs()
    assert record.outcome.unsaved is None
    assert record.outcome.model_files is not None
    assert {"config.json", "model.safetensors"} <= record.outcome.model_files.keys()
    assert runs(resume=True).outcome == load(runs.folder / RECORD_FILE).outcome
    assert (runs.steps, runs.said) == (0, ["standard-seed0: finished before, not repeated"])


@pytest.mark.parametrize("is_best_wanted", [False, True])
def test_a_model_that_could_not_be_saved_anywhere_is_saved_by_resume_without_training(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_best_wanted: bool
) -> None:
    best = {"load_best_model_at_end": is_best_wanted, "metric_for_best_model": "loss"}
    hard = dataclasses.replace(
        settings, learning_rate=0.5, training={**settings.training, **best}
    )  # the first epoch is better than the last
    whole, runs = (Runs(hard, tmp_path / name) for name in ("whole", "broken"))
    whole()
    with monkeypatch.context() as patched:
        fill(patched, tmp_path)
        patched.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
        record = runs()
    assert "No space left" in str(record.outcome.unsaved)
    assert record.outcome.model_files == {}
    assert record.outcome.metrics == load(whole.folder / RECORD_FILE).outcome.metrics
    assert load(runs.folder / RECORD_FILE) == record.portable()
    assert "its model is in the last checkpoint alone" in runs.said[-1]
    resumed = runs(resume=True)
    assert runs.steps == 0
    assert resumed.outcome.unsaved is None
    assert resumed.outcome.metrics == record.outcome.metrics
    assert unequal(whole.weights(), runs.weights()) == []
    last = max(runs.folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    same = unequal(load_file(last / "model.safetensors"), runs.weights()) == []
    assert same is not is_best_wanted


def test_a_model_in_the_spare_folder_is_taken_from_there(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        fill(patched, runs.folder)
        record = runs()
    (spare,) = runs.spare.iterdir()
    assert f"its model is in {spare / 'model'}" in runs.said[-1]
    assert not (runs.folder / "model").exists()
    for checkpoint in runs.folder.glob("checkpoint-*"):  # not needed
        shutil.rmtree(checkpoint)
    resumed = runs(resume=True)
    assert runs.steps == 0
    assert runs.said == ["standard-seed0: finished before; its model is in its folder now"]
    assert resumed.outcome == dataclasses.replace(record.outcome, unsaved=None)
    assert load(runs.folder / RECORD_FILE).outcome == resumed.portable().outcome
    assert runs.weights()
    assert not spare.exists()


def test_results_go_to_the_spare_folder_where_the_record_cannot_be_written(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = RunRecord.save

    def fail(self: RunRecord, path: Path, **options: Any) -> None:
        if Path(path).is_relative_to(runs.folder):
            raise OSError(errno.EIO, "Input/output error", str(path))
        save(self, path, **options)

    monkeypatch.setattr(RunRecord, "save", fail)
    record = runs()
    assert "Input/output error" in str(record.outcome.unsaved)
    (spare,) = runs.spare.iterdir()
    assert load(spare / RECORD_FILE).outcome == record.portable().outcome
    assert (spare / "items.json.gz").is_file()
    assert f"its record is in {spare}" in runs.said[-1]


@pytest.mark.parametrize("damage", ["emptied", "missing"])
def test_a_finished_run_whose_model_was_damaged_saves_it_again(runs: Runs, damage: str) -> None:
    record = runs()
    before, model = runs.weights(), runs.folder / "model"
    if damage == "emptied":
        os.truncate(model / "model.safetensors", 0)
    else:
        shutil.rmtree(model)
    resumed = runs(resume=True)
    assert runs.steps == 0
    assert "finished before, but " in runs.said[0]
    assert unequal(before, runs.weights()) == []
    assert resumed.outcome.model_files == record.outcome.model_files
    shutil.rmtree(model)
    for checkpoint in runs.folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    runs(resume=True)
    assert runs.steps > 0  # there is nothing else to do
    assert unequal(before, runs.weights()) == []


def test_of_a_record_without_digests_only_the_presence_of_the_model_is_checked(runs: Runs) -> None:
    record = runs()
    old = dataclasses.replace(record.outcome, model_files=None)
    dataclasses.replace(record, outcome=old).save(runs.folder / RECORD_FILE)
    os.truncate(runs.folder / "model" / "model.safetensors", 0)
    runs(resume=True)
    assert "only its presence was checked" in runs.said[0]
    shutil.rmtree(runs.folder / "model")
    runs(resume=True)
    assert "its model is missing" in runs.said[0]
    assert runs.weights()


def test_a_run_that_keeps_no_model_is_finished_without_it(runs: Runs) -> None:
    runs(keeps_model=False)
    shutil.rmtree(runs.folder / "model")
    runs(resume=True, keeps_model=False)
    assert runs.said == ["standard-seed0: finished before, not repeated"]


# ---- room on the disk


def test_a_training_that_cannot_fit_is_refused_before_anything_is_written(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(runs.home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=300_000))
    told = r"has 0\.3 MB free, but the model takes (.*) MB and a checkpoint .*weights \1 MB, optimizer .* in all; free"
    with pytest.raises(NoRoomError, match=told):
        runs()
    assert not runs.folder.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=900_000))
    runs()
    assert "some saves may fail" in runs.said[0]
