from __future__ import annotations

import json
from pathlib import Path

import pytest

from advreg.lab.report.gather import gather
from advreg.records.log import RecordLog
from advreg.records.sealed import RecordError, save_as
from comparisons import comparison
from report_runs import health, made_up, save
from studies import study_record


def test_folders_are_searched_with_all_that_is_in_them_but_models_and_checkpoints(
    tmp_path: Path,
) -> None:
    save(tmp_path / "a" / "arch-seed0", made_up(), health())
    save(tmp_path / "b" / "c" / "standard-seed1", made_up("standard", 1))
    for skipped in ("checkpoint-10", "model", "weights", ".hidden"):
        save(tmp_path / "a" / "arch-seed0" / skipped, made_up())
    found = gather([tmp_path])
    assert [run.record.name for run in found.runs] == ["arch-seed0", "standard-seed1"]
    assert [run.health for run in found.runs] == [health(), None]
    assert found.runs[1].name == "b/c/standard-seed1"


def test_what_is_named_twice_is_taken_once(tmp_path: Path) -> None:
    save(tmp_path / "runs" / "x", made_up())
    found = gather(
        [tmp_path / "runs", tmp_path / "runs" / "x" / "record.json", tmp_path / "runs" / "x"]
    )
    assert len(found.runs) == 1


def test_a_comparison_brings_its_runs(tmp_path: Path) -> None:
    comparison({"rte": ["accuracy"]}, ["arch"], [0]).save(tmp_path / "compare")
    save(tmp_path / "compare" / "rte" / "arch" / "seed-0", made_up())
    found = gather([tmp_path / "compare" / "compare.json"])
    assert list(found.comparisons) == [tmp_path / "compare"]
    assert len(found.runs) == 1


def test_a_study_brings_its_runs(tmp_path: Path) -> None:
    record = study_record([70.0], [71.0], [80.0])
    record.save(tmp_path / "study")
    save(tmp_path / "study" / "arch" / "default" / "seed-0", made_up())
    found = gather([tmp_path / "study" / "study.json"])
    assert found.studies == {tmp_path / "study": record}
    assert len(found.runs) == 1


def test_a_log_of_many_runs_is_read_like_folders(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "logged" / "runs.jsonl.gz")
    for seed in range(3):
        log.append(made_up("arch", seed))
    save(tmp_path / "loose", made_up("standard", 0))
    found = gather([tmp_path])
    assert [run.record.training.seed for run in found.runs] == [0, 1, 2, 0]
    assert len({run.name for run in found.runs}) == 4
    assert [run.record for run in gather([log.path]).runs] == log.records()


def test_a_damaged_log_is_noted_and_a_named_one_is_an_error(tmp_path: Path) -> None:
    log = RecordLog(tmp_path / "runs.jsonl.gz")
    log.append(made_up())
    log.path.write_bytes(log.path.read_bytes() + b"not gzip")
    (problem,) = gather([tmp_path]).unreadable
    assert "is damaged" in problem.reason
    with pytest.raises(RecordError, match="is damaged"):
        gather([log.path])


def test_names_begin_below_the_folder_that_all_records_share(tmp_path: Path) -> None:
    for study in ("one", "two"):
        save(tmp_path / study / "arch" / "seed-0", made_up())
    cut = tmp_path / "two" / "cut" / "record.json"
    cut.parent.mkdir(parents=True)
    cut.write_text('{"checksum": ')
    waiting = tmp_path / "two" / "waiting" / "seed-0"
    waiting.mkdir(parents=True)
    (waiting / "plan.json").write_text(json.dumps({"method": "arch", "seed": 0}))
    found = gather([tmp_path])
    assert [run.name for run in found.runs] == ["one/arch/seed-0", "two/arch/seed-0"]
    assert [run.name for run in found.unfinished] == ["two/waiting/seed-0"]
    assert [each.name for each in found.unreadable] == ["two/cut/record.json"]
    (alone,) = gather([tmp_path / "one"]).runs
    assert alone.name == "seed-0"


def test_a_run_without_a_record_is_unfinished(tmp_path: Path) -> None:
    (tmp_path / "smart-seed3").mkdir()
    (tmp_path / "smart-seed3" / "plan.json").write_text(json.dumps({"method": "smart", "seed": 3}))
    save(tmp_path / "arch-seed0", made_up())
    (tmp_path / "arch-seed0" / "plan.json").write_text(json.dumps({"method": "arch", "seed": 0}))
    (waiting,) = gather([tmp_path]).unfinished
    assert (waiting.method, waiting.seed) == ("smart", 3)
    assert waiting.name == "smart-seed3"


def test_a_damaged_record_in_a_folder_is_noted_and_a_named_one_is_an_error(tmp_path: Path) -> None:
    save(tmp_path / "good", made_up())
    damaged = save(tmp_path / "bad", made_up()) / "record.json"
    damaged.write_text(damaged.read_text().replace('"accuracy": 0.8', '"accuracy": 0.9'))
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "record.json").write_text('{"checksum": ')
    found = gather([tmp_path])
    assert len(found.runs) == 1
    assert [problem.name.rpartition("/")[0].rpartition("/")[2] for problem in found.unreadable] == [
        "bad",
        "cut",
    ]
    assert found.unreadable[0].reason == "checksum does not match the content"
    with pytest.raises(RecordError, match="checksum does not match the content"):
        gather([damaged])


def test_other_files_are_left_alone_unless_they_are_named(tmp_path: Path) -> None:
    save(tmp_path / "run", made_up())
    for name, text in (("config.json", "{}"), ("list.json", "[1]"), ("broken.json", "{")):
        (tmp_path / name).write_text(text)
    save_as(
        tmp_path / "later.json", comparison({}, [], [], kind="survey")
    )  # of a kind that is not known here
    assert len(gather([tmp_path]).runs) == 1
    with pytest.raises(RecordError, match=r"config\.json: is not a record; give a record\.json"):
        gather([tmp_path / "config.json"])


def test_a_place_without_records_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="holds no records; give folders of runs of `advreg train`"
    ):
        gather([tmp_path])
    with pytest.raises(ValueError, match="nowhere' is neither a file nor a folder"):
        gather([tmp_path / "nowhere"])
