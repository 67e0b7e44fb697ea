from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advreg.records.run import (
    MethodInfo,
    ModelInfo,
    Outcome,
    RunRecord,
    TaskInfo,
    TrainingInfo,
    load,
)
from advreg.records.sealed import RecordError
from sample_records import a_record, edit, json_numbers, json_texts, json_values


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    a_record().save(path)
    return path


# --- the round trip

free_dicts = st.dictionaries(json_texts, json_values, max_size=4)
number_dicts = st.dictionaries(json_texts, json_numbers | st.none(), max_size=4)
times = st.datetimes(timezones=st.just(UTC)).map(lambda time: time.isoformat())


environments = st.fixed_dictionaries(
    {},
    optional={
        "advreg": st.none() | json_texts,
        "git": st.none()
        | st.fixed_dictionaries(
            {"of": json_texts, "commit": json_texts, "dirty": st.none() | st.booleans()}
        ),
        "packages": st.dictionaries(json_texts, json_texts, max_size=2),
        "cpu_count": st.none() | st.integers(1, 512),
        "arguments": st.lists(json_texts, max_size=3),
    },
)


@st.composite
def records(draw: st.DrawFn) -> RunRecord:
    status = draw(st.sampled_from(["running", "finished", "failed"]))
    return RunRecord(
        name=draw(json_texts),
        method=MethodInfo(name=draw(json_texts), settings=draw(free_dicts)),
        task=TaskInfo(
            name=draw(json_texts),
            fingerprint=draw(st.none() | json_texts),
            sizes=draw(st.dictionaries(json_texts, st.integers(0, 10**9), max_size=3)),
            details=draw(free_dicts),
        ),
        model=ModelInfo(name=draw(json_texts), parameters=draw(st.none() | st.integers(0, 10**12))),
        training=TrainingInfo(
            epochs=draw(st.floats(0, 100)),
            batch_size=draw(st.integers(1, 4096)),
            learning_rate=draw(st.floats(0, 1)),
            precision=draw(json_texts),
            seed=draw(st.integers()),
            more=draw(free_dicts),
        ),
        environment=draw(environments),
        started=draw(times),
        finished=None if status == "running" else draw(times),
        outcome=Outcome(
            status=status,  # type: ignore[arg-type]
            metrics=draw(number_dicts),
            history=draw(st.lists(free_dicts, max_size=3)),
            timing=draw(number_dicts),
            passes=draw(number_dicts),
            cache_bytes=draw(st.none() | st.integers(0, 10**12)),
            error=draw(json_texts) if status == "failed" else None,
            earlier_errors=draw(st.lists(json_texts, max_size=3)),
        ),
    )


def only_finite(value: Any) -> Any:
    """Reference: the same value with null for every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: only_finite(item) for key, item in value.items()}
    return [only_finite(item) for item in value] if isinstance(value, list) else value


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(record=records())
def test_what_is_loaded_is_what_was_saved_with_null_for_numbers_that_are_not_finite(
    record: RunRecord, tmp_path: Path
) -> None:
    record.save(tmp_path / "run.json", keep_paths=True)
    assert dataclasses.asdict(load(tmp_path / "run.json")) == only_finite(
        dataclasses.asdict(record)
    )


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(record=records())
def test_a_portable_record_is_saved_as_it_is(record: RunRecord, tmp_path: Path) -> None:
    portable = record.portable()
    portable.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json") == portable


def test_saving_a_loaded_record_writes_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    load(saved).save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


# --- the life of a run


def begin() -> RunRecord:
    whole = a_record()
    return RunRecord.begin(
        name="run",
        method=whole.method,
        task=whole.task,
        model=whole.model,
        training=whole.training,
        device="cpu",
    )


def test_a_run_begins_running_and_finishes_with_its_metrics(tmp_path: Path) -> None:
    running = begin()
    finished = running.finish(
        metrics={"accuracy": 0.9}, history=[{"step": 1}], passes={"forward": 1}, cache_bytes=8
    )
    running.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").outcome == Outcome(status="running")
    finished.save(tmp_path / "run.json")
    after = load(tmp_path / "run.json")
    assert after.outcome == Outcome(
        status="finished",
        metrics={"accuracy": 0.9},
        history=[{"step": 1}],
        passes={"forward": 1},
        cache_bytes=8,
    )
    assert after.finished is not None
    assert after.finished >= after.started


def test_a_failed_run_keeps_what_it_had_and_says_why() -> None:
    running = dataclasses.replace(begin(), outcome=Outcome(history=[{"step": 1, "loss": 0.7}]))
    logged = [{"step": 6, "loss": 90.0}]
    failed = running.fail(FloatingPointError("loss is nan at step 7"), logged)
    history = [{"step": 1, "loss": 0.7}, {"step": 6, "loss": 90.0}]
    error = "FloatingPointError: loss is nan at step 7"
    assert failed.outcome == Outcome(status="failed", history=history, error=error)
    assert failed.fail("again").outcome.history == history
    assert running.outcome.status == "running"


def test_a_run_that_is_begun_again_keeps_when_and_why_it_failed_before(tmp_path: Path) -> None:
    first = begin().fail(OSError("the disk is full"))
    second = begin().after(first).fail("MemoryError: no more")
    told = [f"{each.finished}: {each.outcome.error}" for each in (first, second)]
    assert second.outcome.earlier_errors == told[:1]
    done = begin().after(second).finish(metrics={"accuracy": 0.9})
    done.save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").outcome.earlier_errors == told
    assert (
        begin().after(begin()).outcome.earlier_errors == []
    )  # it was killed, and could not say why


# --- edited files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.update(name=3), r"name must be a text, got 3 \(int\)"),
        (lambda p: p.update(method="arch"), r"method must be an object, got 'arch' \(str\)"),
        (
            lambda p: p["method"].update(settings=[]),
            r"method\.settings must be an object, got \[\] \(list\)",
        ),
        (
            lambda p: p["task"]["sizes"].update(train=1.5),
            r"task\.sizes\.train must be a whole number, got 1\.5",
        ),
        (
            lambda p: p["model"].update(parameters=True),
            r"model\.parameters must be a whole number, got True \(bool\)",
        ),
        (
            lambda p: p["training"].update(seed="1"),
            r"training\.seed must be a whole number, got '1' \(str\)",
        ),
        (
            lambda p: p["training"].update(learning_rate=None),
            r"training\.learning_rate must be a number, got None",
        ),
        (
            lambda p: p["outcome"]["metrics"].update(f1="0.9"),
            r"outcome\.metrics\.f1 must be a number, got '0\.9'",
        ),
        (
            lambda p: p["outcome"].update(history={}),
            r"outcome\.history must be a list, got \{\} \(dict\)",
        ),
        (
            lambda p: p["outcome"]["history"].append(1),
            r"outcome\.history\[2\] must be an object, got 1 \(int\)",
        ),
        (
            lambda p: p["outcome"].update(status="done"),
            r"outcome\.status must be one of running, finished, failed",
        ),
        (
            lambda p: p["environment"].update(git=5),
            r"environment\.git must be an object, got 5 \(int\)",
        ),
        (
            lambda p: p["environment"].update(git={"commit": 5}),
            r"environment\.git\.commit must be a text, got 5 \(int\)",
        ),
        (
            lambda p: p["environment"].update(host="mine"),
            r"environment\.host is not a known field",
        ),
        (
            lambda p: p["outcome"].update(error="why"),
            r"outcome\.error must be null when the run is finished",
        ),
        (
            lambda p: p["outcome"].update(status="failed"),
            r"outcome\.error must be a text when the run is failed",
        ),
        (
            lambda p: p.update(finished=None),
            r"finished must be a time once the run is finished, got None",
        ),
        (
            lambda p: p.update(started="yesterday"),
            r"started must be an ISO 8601 time in UTC, got 'yesterday'",
        ),
        (
            lambda p: p.update(started="2025-01-02T03:04:05"),
            r"started must be an ISO 8601 time in UTC",
        ),
        (lambda p: p.pop("task"), r"task is missing"),
        (lambda p: p["training"].pop("seed"), r"training\.seed is missing"),
        (lambda p: p.update(colour="red"), r"colour is not a known field"),
        (lambda p: p["outcome"].update(score=1), r"outcome\.score is not a known field"),
        (lambda p: p.update(schema="1"), r"schema must be a whole number, got '1' \(str\)"),
        (lambda p: p.pop("schema"), r"schema is missing"),
        (lambda p: p.pop("checksum"), r"checksum must be 64 hexadecimal digits, got None"),
        (
            lambda p: p["outcome"]["metrics"].update(accuracy=0.99),
            r"checksum does not match the content",
        ),
    ],
)
def test_an_edited_file_is_refused_by_file_and_field(
    saved: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(saved, change)
    with pytest.raises(
        RecordError, match=rf"run\.json: {message}.*; records are not edited by hand"
    ) as caught:
        load(saved)
    assert caught.value.path == saved


def test_importing_the_record_loads_no_torch() -> None:
    code = (
        "import sys, advreg.records.run\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
