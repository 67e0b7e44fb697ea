"""Records of any kind and age are read by what they say of themselves; other files are passed over."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advreg.records.bench import BenchRecord
from advreg.records.compare import CompareRecord
from advreg.records.diagnostics import HealthRecord
from advreg.records.log import RecordLog
from advreg.records.probe import ProbeRecord
from advreg.records.reading import Record, UnknownKindError, load_all, read_any, read_each
from advreg.records.run import RunRecord
from advreg.records.sealed import RecordError
from advreg.records.study import StudyRecord
from sample_records import a_record, json_values, sealed

GOLDEN = Path(__file__).parent / "golden"
RESULTS = Path(__file__).parents[2] / "results"
TYPES: dict[str, type[Record]] = {
    "bench": BenchRecord,
    "compare": CompareRecord,
    "health": HealthRecord,
    "probe": ProbeRecord,
    "run": RunRecord,
    "study": StudyRecord,
}


def holds(read: Any, written: Any) -> bool:
    """Whether what was read has the values that were written; upgrades add more."""
    if isinstance(written, dict):
        return all(key in read and holds(read[key], written[key]) for key in written)
    if isinstance(written, list):
        return len(read) == len(written) and all(map(holds, read, written))
    return type(read) is type(written) and read == written


# --- every kind and schema


@pytest.mark.parametrize("path", sorted(GOLDEN.iterdir()), ids=lambda path: path.stem)
def test_every_schema_that_was_ever_written_is_read(path: Path) -> None:
    payload = json.loads(path.read_text(encoding="utf-8"))
    kind = path.stem.split("-")[0]
    cls = TYPES[kind]
    del payload["checksum"], payload["schema"]
    record = read_any(path)
    assert type(record) is cls
    assert (record.kind, record.schema) == (kind, cls.schema)
    assert holds(dataclasses.asdict(record), payload)


def test_every_kind_has_a_file_of_its_newest_schema() -> None:
    assert {f"{kind}-{cls.schema}.json" for kind, cls in TYPES.items()} <= {
        path.name for path in GOLDEN.iterdir()
    }


def test_what_early_records_lack_is_what_was_so_then() -> None:
    run, compare, study = (
        read_any(GOLDEN / f"{kind}-1-early.json") for kind in ("run", "compare", "study")
    )
    assert isinstance(run, RunRecord)
    assert (run.outcome.epoch_seconds, run.outcome.earlier_errors) == (None, [])
    assert isinstance(compare, CompareRecord)
    assert {task.scored_on for task in compare.tasks} == {"dev"}
    assert isinstance(study, StudyRecord)
    assert study.task.scored_on == "dev"


def test_every_record_of_the_results_reads_as_its_json_says() -> None:
    counts = Counter[str]()
    for path in RESULTS.rglob("*.json"):
        payload = json.loads(path.read_text(encoding="utf-8"))
        kind = payload.pop("kind", "run" if "outcome" in payload else None)
        if kind in TYPES and payload.pop("checksum", None):
            counts[kind] += 1
            del payload["schema"]
            (record,) = read_each(path)
            assert isinstance(record, TYPES[kind]), record
            assert holds(dataclasses.asdict(record), payload), path
    assert counts.keys() == TYPES.keys() - {"health"}


def test_every_run_of_the_long_file_reads_as_its_json_says() -> None:
    path = RESULTS / "consistency/runs.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    records = RecordLog(path).records()
    assert len(records) == len(lines) - 1
    for record, line in zip(records, lines, strict=False):
        payload = json.loads(line)
        del payload["checksum"], payload["schema"]
        assert holds(dataclasses.asdict(record), payload)


# --- files that were found


@pytest.mark.parametrize("payload", [{"kind": "bootstrap"}, {"kind": ["run"]}, {"kills": 3}])
def test_a_sealed_file_of_another_kind_is_no_record(
    payload: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    path.write_text(sealed({"schema": 1, **payload}))
    with pytest.raises(
        UnknownKindError, match=r"other\.json: kind must be one of run, compare, .*; give"
    ):
        read_any(path)
    assert list(read_each(path)) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 500_000, b"\xff\xfe", b'{"a": 1}', b"1" * 9_999, b'{"method": 3}'],
)
def test_a_file_that_is_not_sealed_is_no_record_unless_only_records_have_its_name(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    (tmp_path / "record.json").write_bytes(content)
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "dev.jsonl.gz").write_bytes(content)
    assert list(read_each(tmp_path / "config.json")) == []
    assert list(read_each(tmp_path / "train.jsonl.gz")) == []
    assert list(read_each(tmp_path / "dev.jsonl.gz")) == []
    (error,) = read_each(tmp_path / "record.json")
    assert isinstance(error, RecordError)
    assert str(error).startswith(f"{tmp_path}/record.json: ")


@pytest.mark.parametrize("name", ["record.json", "notes.json", "runs.jsonl.gz"])
def test_what_cannot_be_read_at_all_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    (missing,) = read_each(path)
    assert str(missing).startswith(f"{path}: cannot be read (No such file or directory)")
    os.mkfifo(path)
    (error,) = read_each(path)
    assert str(error) == f"{path}: is not a regular file; give a file that advreg wrote"


def test_a_damaged_record_is_named_under_any_name(tmp_path: Path) -> None:
    a_record().save(tmp_path / "mine.json")
    (tmp_path / "mine.json").write_bytes((tmp_path / "mine.json").read_bytes()[:-20])
    (error,) = read_each(tmp_path / "mine.json")
    assert isinstance(error, RecordError)
    assert str(error).startswith(f"{tmp_path}/mine.json: is not valid JSON")


def test_runs_of_a_folder_are_read_from_single_files_and_long_ones(tmp_path: Path) -> None:
    for name in ("d", "a"):
        a_record(name=name).save(tmp_path / f"{name}.json")
    log = RecordLog(tmp_path / "b.jsonl.gz")
    for name in ("second", "first"):
        log.append(a_record(name=name))
    (tmp_path / "notes.txt").write_text("not a record")
    assert [record.name for record in load_all(tmp_path)] == ["a", "second", "first", "d"]
    assert [record.name for record in load_all(tmp_path, "*.json")] == ["a", "d"]
    assert [record.name for record in load_all(tmp_path.parent, f"{tmp_path.name}/d.json")] == ["d"]


def test_load_all_names_the_file_that_is_damaged(tmp_path: Path) -> None:
    a_record().save(tmp_path / "good.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(RecordError, match=r"bad\.json: is not valid JSON"):
        load_all(tmp_path)


def test_load_all_of_a_folder_that_is_not_there_is_an_error_and_not_an_empty_list(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        RecordError, match="missing: is not a folder; give the folder that the runs wrote"
    ):
        load_all(tmp_path / "missing")


# --- changed and sealed again


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


odd_values = json_values | st.sampled_from(
    [
        *(math.nan, math.inf, 1e300, -0.0, -1, 2**64, 10**400, 10**4000, True, None),
        *("", "\ud800", "\x1b]0;title\x07", "../../etc", "é" * 99, nested(300), {"": {}}),
    ]
)


def containers(value: Any) -> list[Any]:
    """Every object and list in a value, the outermost first."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    mine = [value] if isinstance(value, dict | list) else []
    return [*mine, *(each for item in inner for each in containers(item))]


@st.composite
def changed(draw: st.DrawFn) -> dict[str, Any]:
    """The payload of a valid record with one to three odd changes."""
    stem = draw(st.sampled_from([f"{kind}-{cls.schema}" for kind, cls in TYPES.items()]))
    payload: dict[str, Any] = json.loads((GOLDEN / f"{stem}.json").read_text(encoding="utf-8"))
    del payload["checksum"]
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(containers(payload)))
        change = draw(st.sampled_from(["set", "set", "add", "delete"]))
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if change == "add" or not keys:
            value = copy.deepcopy(draw(odd_values))
            if isinstance(place, dict):
                place[draw(st.text(max_size=5))] = value
            else:
                place.append(value)
        elif change == "set":
            place[draw(st.sampled_from(keys))] = copy.deepcopy(draw(odd_values))
        else:
            del place[draw(st.sampled_from(keys))]
    return payload


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(payload=changed())
def test_a_record_that_was_changed_and_sealed_again_is_refused_or_read_as_written(
    payload: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    path.write_text(sealed(payload), encoding="utf-8")
    (found,) = read_each(path)
    if isinstance(found, RecordError):
        assert str(found).startswith(f"{path}: ")
        assert found.problem
        assert found.remedy
    else:
        read = dataclasses.asdict(found)
        assert holds(read, payload)
        assert holds(payload, read)
