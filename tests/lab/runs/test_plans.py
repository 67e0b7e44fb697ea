from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from advreg.lab.runs.plans import (
    agree,
    choose_folder,
    failures_recorded,
    finished,
    has_runs,
    writable,
)
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.methods import create
from advreg.methods.base import decisive_options
from advreg.records.run import Outcome, load
from report_runs import made_up

FACTS = {"epochs": 3, "sizes": (1, 2)}


def test_a_run_goes_on_with_the_facts_it_was_started_with(tmp_path: Path) -> None:
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=False)
    assert has_runs(tmp_path)
    half = tmp_path / "arch-seed0" / ".record.json.0a1b2c3d.tmp"
    half.write_text("{")  # as a kill leaves it
    agree("arch-seed0", tmp_path / "arch-seed0", FACTS, resume=True)
    assert not half.exists()
    told = r"arch-seed0 cannot be resumed, .*: epochs was 3, is 4\. Resume with the same .*; the run is in '.*arch-seed0'"
    with pytest.raises(
        SettingsError, match=told + ", which has no results yet: delete it to start again$"
    ):
        agree("arch-seed0", tmp_path / "arch-seed0", {**FACTS, "epochs": 4}, resume=True)
    (tmp_path / "arch-seed0" / "checkpoint-3").mkdir()
    with pytest.raises(SettingsError, match=told + "$"):
        agree("arch-seed0", tmp_path / "arch-seed0", {**FACTS, "epochs": 4}, resume=True)


def test_a_run_from_before_an_option_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    options = decisive_options(create("arch"))
    before = {name: value for name, value in options.items() if name != "neighbour_scope"}
    agree("arch-seed0", tmp_path, {"method": "arch", "options": before}, resume=False)
    agree("arch-seed0", tmp_path, {"method": "arch", "options": options}, resume=True)
    for changed in ({**options, "neighbour_scope": "shard"}, {**options, "radius": 7.0}):
        with pytest.raises(SettingsError, match="arch-seed0 cannot be resumed"):
            agree("arch-seed0", tmp_path, {"method": "arch", "options": changed}, resume=True)


def test_a_run_with_an_option_that_exists_no_more_does_not_go_on(tmp_path: Path) -> None:
    options = decisive_options(create("arch"))
    agree(
        "arch-seed0", tmp_path, {"method": "arch", "options": {**options, "gone": 1}}, resume=False
    )
    with pytest.raises(SettingsError, match="arch-seed0 cannot be resumed"):
        agree("arch-seed0", tmp_path, {"method": "arch", "options": options}, resume=True)


def test_how_a_run_is_compiled_may_change_while_it_is_interrupted(tmp_path: Path) -> None:
    facts = {**FACTS, "compile_layers": None, "training": {"torch_compile": True, "seed": 1}}
    agree("arch-seed0", tmp_path, facts, resume=False)
    agree(
        "arch-seed0",
        tmp_path,
        {**facts, "compile_layers": True, "training": {"seed": 1}},
        resume=True,
    )
    with pytest.raises(SettingsError, match="seed was 1, is 2"):
        agree(
            "arch-seed0",
            tmp_path,
            {**facts, "training": {"torch_compile": True, "seed": 2}},
            resume=True,
        )


def test_a_run_without_a_record_is_not_finished(tmp_path: Path) -> None:
    assert not has_runs(tmp_path)
    assert finished("a", tmp_path, FACTS) is None


def test_a_folder_that_can_be_made_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writable(tmp_path / "runs" / "a") == tmp_path / "runs" / "a"
    monkeypatch.chdir(tmp_path)
    assert writable(Path("runs/a")) == Path("runs/a")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with pytest.raises(
        SettingsError, match=r"folder .*, got '.*/notes/a/b': '.*/notes' is a file; choose"
    ):
        writable(tmp_path / "notes" / "a" / "b")


def test_a_folder_without_the_right_to_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(
        SettingsError, match=rf"got '.*/new': '{tmp_path}' is a folder without write permission"
    ):
        writable(tmp_path / "new")


# ---- the folder of the runs

AnySettings = TrainSettings | TranslationSettings


@pytest.fixture(
    params=[TrainSettings(), TranslationSettings(task="multi30k-en-de")],
    ids=["texts", "translation"],
)
def settings(request: pytest.FixtureRequest) -> AnySettings:
    asked: AnySettings = request.param
    return asked


def usual(settings: AnySettings, number: str = "") -> Path:
    return Path("runs") / f"{settings.task}-{settings.model}{number}"


def occupy(folder: Path) -> None:
    (folder / "arch-seed0").mkdir(parents=True)
    (folder / "arch-seed0" / "plan.json").write_text("{}")


def test_a_misspelt_training_argument_is_refused_before_data_is_read(settings: AnySettings) -> None:
    misspelt = dataclasses.replace(settings, training={"weight_decai": 0.1})
    with pytest.raises(
        ValueError, match=r"has no field 'weight_decai' \(did you mean 'weight_decay'\?\)"
    ):
        choose_folder(misspelt, False)


def test_a_folder_is_numbered_when_its_name_is_taken_by_runs(
    settings: AnySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_folder(settings, False) == usual(settings)
    usual(settings).mkdir(parents=True)  # no run in it: still free
    assert choose_folder(settings, False) == usual(settings)
    for number in range(1, 12):
        chosen = choose_folder(settings, False)
        assert chosen == usual(settings, "" if number == 1 else f"-{number}")
        occupy(chosen)


def test_resume_takes_the_folder_with_the_highest_number_even_past_a_deleted_one(
    settings: AnySettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_folder(settings, True) == usual(settings)
    for number in ("-2", "-9", "-10", "-large"):  # the last one is another model's
        occupy(usual(settings, number))
    assert choose_folder(settings, True) == usual(settings, "-10")
    assert choose_folder(settings, False) == usual(settings, "-11")


def test_a_named_folder_with_runs_needs_resume(settings: AnySettings, tmp_path: Path) -> None:
    named = dataclasses.replace(settings, output=str(tmp_path / "mine"))
    assert choose_folder(named, False) == choose_folder(named, True) == tmp_path / "mine"
    occupy(tmp_path / "mine")
    with pytest.raises(
        SettingsError,
        match=r"output '.*mine' holds runs already; add --resume .* or choose another",
    ):
        choose_folder(named, False)
    assert choose_folder(named, True) == tmp_path / "mine"


# ---- runs that fail


def test_what_fails_is_recorded_with_what_was_logged_and_goes_on_failing(tmp_path: Path) -> None:
    record = dataclasses.replace(made_up(), finished=None, outcome=Outcome())
    logged = [{"step": 1, "loss": 0.5}]
    with failures_recorded(record, tmp_path, logged):
        pass
    assert not (tmp_path / "record.json").exists()
    with pytest.raises(OSError, match="full"), failures_recorded(record, tmp_path, logged):
        raise OSError("the disk is full")
    failed = load(tmp_path / "record.json").outcome
    assert (failed.status, failed.error, failed.history) == (
        "failed",
        "OSError: the disk is full",
        logged,
    )
