from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advreg.records import run as record_module
from advreg.records.run import (
    MethodInfo,
    ModelInfo,
    Outcome,
    RecordError,
    RunRecord,
    TaskInfo,
    TrainingInfo,
    capture_environment,
    load,
    load_all,
)


def a_record(**changes: Any) -> RunRecord:
    record = RunRecord(
        name="sst2-arch-1",
        method=MethodInfo(
            name="arch", settings={"radius": 1e-5, "steps": 1, "norm": "l2", "refresh_every": 2}
        ),
        task=TaskInfo(
            name="glue/sst2", fingerprint="9f2c", sizes={"train": 67349, "validation": 872}
        ),
        model=ModelInfo(name="FacebookAI/roberta-base", parameters=124_647_170),
        training=TrainingInfo(
            epochs=3,
            batch_size=32,
            learning_rate=1e-5,
            precision="bf16",
            seed=1,
            more={"warmup": 0.06, "δ": None},
        ),
        environment={"python": "3.11.7", "device": None, "arguments": ["train", "--seed", "1"]},
        started="2025-01-02T03:04:05+00:00",
        finished="2025-01-02T04:04:05+00:00",
        outcome=Outcome(
            status="finished",
            metrics={"accuracy": 0.951, "loss": None},
            history=[{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.6}],
            timing={"train_seconds": 3600.0},
            passes={"forward": 1.5, "backward": 1.25},
            cache_bytes=12_345,
        ),
    )
    return dataclasses.replace(record, **changes)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    a_record().save(path)
    return path


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the file's JSON, leaving its checksum as it is."""
    payload = json.loads(path.read_text(encoding="utf-8"))
    change(payload)
    path.write_text(json.dumps(payload), encoding="utf-8")


# --- the round trip
# ---------------------------------------------------------------------------------------------------

texts = st.text(max_size=20)
numbers = st.integers(-(2**70), 2**70) | st.floats()
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
free_dicts = st.dictionaries(texts, json_values, max_size=4)
number_dicts = st.dictionaries(texts, numbers | st.none(), max_size=4)
times = st.datetimes(timezones=st.just(record_module.UTC)).map(lambda time: time.isoformat())


@st.composite
def records(draw: st.DrawFn) -> RunRecord:
    status = draw(st.sampled_from(["running", "finished", "failed"]))
    return RunRecord(
        name=draw(texts),
        method=MethodInfo(name=draw(texts), settings=draw(free_dicts)),
        task=TaskInfo(
            name=draw(texts),
            fingerprint=draw(st.none() | texts),
            sizes=draw(st.dictionaries(texts, st.integers(0, 10**9), max_size=3)),
            details=draw(free_dicts),
        ),
        model=ModelInfo(name=draw(texts), parameters=draw(st.none() | st.integers(0, 10**12))),
        training=TrainingInfo(
            epochs=draw(st.floats(0, 100)),
            batch_size=draw(st.integers(1, 4096)),
            learning_rate=draw(st.floats(0, 1)),
            precision=draw(texts),
            seed=draw(st.integers()),
            more=draw(free_dicts),
        ),
        environment=draw(free_dicts),
        started=draw(times),
        finished=None if status == "running" else draw(times),
        outcome=Outcome(
            status=status,  # type: ignore[arg-type]
            metrics=draw(number_dicts),
            history=draw(st.lists(free_dicts, max_size=3)),
            timing=draw(number_dicts),
            passes=draw(number_dicts),
            cache_bytes=draw(st.none() | st.integers(0, 10**12)),
            error=draw(texts) if status == "failed" else None,
            earlier_errors=draw(st.lists(texts, max_size=3)),
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


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_the_file_is_standard_json_even_for_a_run_that_diverged(
    number: float, tmp_path: Path
) -> None:
    record = a_record(
        outcome=Outcome(status="finished", metrics={"loss": number}, history=[{"loss": [number]}])
    )
    record.save(tmp_path / "run.json")

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    payload = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert payload["outcome"]["metrics"] == {"loss": None}
    assert payload["outcome"]["history"] == [{"loss": [None]}]


def test_tuples_and_paths_become_lists_and_texts() -> None:
    record = a_record(
        method=MethodInfo(
            name="smart", settings={"streams": ("encoder",), "out": PurePosixPath("a/b")}
        )
    )
    assert record.portable().method.settings == {"streams": ["encoder"], "out": "a/b"}


def test_undecodable_bytes_in_a_text_are_escaped(tmp_path: Path) -> None:
    a_record(name="caf\udce9").save(tmp_path / "run.json")
    assert load(tmp_path / "run.json").name == "caf\\udce9"


# --- the life of a run
# ------------------------------------------------------------------------------------------------


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


def test_records_from_before_failures_were_kept_are_read() -> None:
    old = Path(__file__).parents[2] / "results/understanding/minilm/rte/arch/seed-0/record.json"
    assert "earlier_errors" not in old.read_text(encoding="utf-8")
    assert load(old).outcome.earlier_errors == []


# --- no paths of the machine
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/models/roberta-base", "…/roberta-base"),
        ("/data/models/roberta-base/", "…/roberta-base"),
        ("/data//models/x", "…/x"),
        ("--data=/srv/glue/sst2.tsv", "--data=…/sst2.tsv"),
        ("file:///srv/glue/sst2.tsv", "file://…/sst2.tsv"),
        (
            "No such file: '/srv/a/b.txt' and \"/srv/c/d.txt\"",
            "No such file: '…/b.txt' and \"…/d.txt\"",
        ),
        ('File "/opt/lib/x.py", line 3\n  in /opt/lib/y.py', 'File "…/x.py", line 3\n  in …/y.py'),
        ("/a/b:/c/d", "…/b:…/d"),
        ("/users/ann lee/models/x y", "…/x y"),
        ("/users/ann lee", "…/~"),
        ("C:\\Users\\ann\\glue\\sst2.tsv", "…/sst2.tsv"),
        # and what is no path of the machine stays
        ("FacebookAI/roberta-base", "FacebookAI/roberta-base"),
        ("results/run.json", "results/run.json"),
        ("../results/run.json", "../results/run.json"),
        ("data/users/ann lee", "data/users/ann lee"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("loss 1/2/3, and/or", "loss 1/2/3, and/or"),
        ("/", "/"),
    ],
)
def test_absolute_paths_are_shortened_and_other_texts_are_not(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/users/ann lee")
    monkeypatch.setenv("USERPROFILE", "/users/ann lee")
    assert a_record(name=text).portable().name == expected
    assert a_record(name=expected).portable().name == expected


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="/\\:~….=aC \n", max_size=24))
def test_shortening_twice_changes_nothing(text: str) -> None:
    once = a_record(name=text).portable()
    assert once.portable() == once


def test_no_field_holds_a_path_of_the_machine(tmp_path: Path) -> None:
    here = str(tmp_path / "secret" / "leaf")
    record = a_record(
        name=here,
        method=MethodInfo(name="arch", settings={"cache": Path(here), "more": [{"deep": here}]}),
        task=TaskInfo(name="t", fingerprint=here, details={"file": here}),
        model=ModelInfo(name=here),
        environment={"arguments": ["--out", here]},
        outcome=Outcome(
            status="failed", error=f"OSError: {here} is full", history=[{"file": here}]
        ),
    )
    record.save(tmp_path / "run.json")
    assert "secret" not in (tmp_path / "run.json").read_text(encoding="utf-8")
    record.save(tmp_path / "run.json", keep_paths=True)
    assert load(tmp_path / "run.json").model.name == here


def test_the_environment_tells_versions_device_and_arguments_but_no_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        sys, "argv", [str(tmp_path / "bin" / "advreg"), "train", f"--out={tmp_path / 'runs'}"]
    )
    environment = capture_environment(device="NVIDIA H100")
    assert environment["arguments"] == ["train", "--out=…/runs"]
    assert environment["device"] == "NVIDIA H100"
    assert environment["python"] == sys.version.split()[0]
    assert environment["packages"]["numpy"].count(".") == 2
    text = json.dumps(environment)
    for private in (str(tmp_path), str(Path.cwd()), sys.prefix, os.path.expanduser("~") + os.sep):
        assert private not in text


def test_the_environment_knows_the_commit_and_whether_files_were_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*arguments: str) -> str:
        identity = [
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.org",
            "-c",
            "commit.gpgsign=false",
        ]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    (tmp_path / "site-packages").mkdir()
    monkeypatch.setattr(
        record_module, "__file__", str(tmp_path / "site-packages" / "records" / "run.py")
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert capture_environment()["git"] is None
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")
    assert capture_environment()["git"] == {
        "of": "working directory",
        "commit": commit,
        "dirty": False,
    }
    (tmp_path / "file").write_text("two")
    assert capture_environment()["git"] == {
        "of": "working directory",
        "commit": commit,
        "dirty": True,
    }
    monkeypatch.setenv("ADVREG_COMMIT", "abc1234")
    assert capture_environment()["git"] == {
        "of": "ADVREG_COMMIT",
        "commit": "abc1234",
        "dirty": None,
    }
    for state, dirty in (("clean", False), ("dirty", True)):
        monkeypatch.setenv("ADVREG_TREE", state)
        assert capture_environment()["git"] == {
            "of": "ADVREG_COMMIT",
            "commit": "abc1234",
            "dirty": dirty,
        }
    monkeypatch.setenv("ADVREG_TREE", "tidy")
    with pytest.raises(
        RecordError,
        match="ADVREG_TREE must be clean or dirty, got 'tidy'; correct it or leave it out",
    ):
        capture_environment()


def test_a_machine_without_git_has_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert capture_environment()["git"] is None


# --- damaged files
# ----------------------------------------------------------------------------------------------------


def test_every_truncation_is_noticed(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in range(len(whole)):
        saved.write_bytes(whole[:length])
        with pytest.raises(RecordError, match=r"run\.json: "):
            load(saved)


def test_a_flipped_bit_is_noticed_in_every_byte(saved: Path) -> None:
    whole = saved.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        saved.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"run\.json: "):
            load(saved)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_other_content_is_never_taken_for_a_record(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"run\.json: .+; .+"):
        load(path)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"1" * 5_000, b'{"a": 1e999}', b'{"a": 1, "a": 2}', b"NaN"]
)
def test_json_that_python_would_choke_on_or_let_pass_is_refused(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(
        RecordError, match=r"run\.json: is not valid JSON .*; records are not edited by hand"
    ):
        load(path)


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


@pytest.mark.parametrize(
    ("schema", "remedy"), [(2, "update advreg"), (0, "read it with the advreg that wrote it")]
)
def test_a_record_of_another_schema_says_which_advreg_to_use(
    saved: Path, schema: int, remedy: str
) -> None:
    # the other schema's fields are unknown here, and must not be what the message is about
    edit(saved, lambda payload: payload.update(schema=schema, colour="red"))
    with pytest.raises(RecordError, match=rf"run\.json: schema must be 1, got {schema}; {remedy}"):
        load(saved)


def test_line_ends_converted_by_a_checkout_do_no_harm(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().replace(b"\n", b"\r\n"))
    assert load(saved) == a_record()


# --- writing
# ----------------------------------------------------------------------------------------------------------


class Tensor:
    pass


class Unmeasured(int):
    """An int of a library's own, such as an enumeration's member."""


def test_numbers_of_a_derived_type_are_written_as_numbers() -> None:
    record = a_record(task=TaskInfo(name="t", sizes={"train": Unmeasured(3)}))
    assert type(record.portable().task.sizes["train"]) is int


def test_a_value_that_is_not_json_is_refused_by_field_before_anything_is_written(
    tmp_path: Path,
) -> None:
    record = a_record(
        outcome=Outcome(status="finished", history=[{"loss": 1.0}, {"loss": Tensor()}])
    )
    with pytest.raises(
        RecordError,
        match=r"run\.json: outcome\.history\[1\]\.loss must be a JSON value, got Tensor; ",
    ):
        record.save(tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_keys_that_are_not_text_are_refused() -> None:
    record = a_record(method=MethodInfo(name="arch", settings={"layers": {3: 0.1}}))
    with pytest.raises(
        RecordError, match=r"method\.settings\.layers must have keys of type str, got 3 \(int\)"
    ):
        record.portable()


def test_a_value_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(
        RecordError, match="record is nested too deeply; leave out what contains itself"
    ):
        a_record(environment={"loop": loop}).save(tmp_path / "run.json")


def test_an_integer_too_long_for_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot be written as JSON .*; leave the value out"):
        a_record(environment={"long": 10**5000}).save(tmp_path / "run.json")


@pytest.mark.parametrize("broken", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    broken: str, error: BaseException, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    before = saved.read_bytes()
    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(type(error)):
        a_record(name="new").save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_the_content_is_on_disk_before_it_takes_the_files_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda number: (calls.append("fsync"), fsync(number)))
    monkeypatch.setattr(
        os, "replace", lambda old, new: (calls.append("replace"), replace(old, new))
    )
    a_record().save(tmp_path / "run.json")
    assert calls == ["fsync", "replace", "fsync"]  # the last one is the folder


def test_the_temporary_file_is_in_the_same_folder_and_is_no_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(Path(old)), replace(old, new)))
    a_record().save(tmp_path / "run.json")
    assert [path.parent for path in seen] == [tmp_path]
    assert not seen[0].match("*.json")


# --- folders
# ----------------------------------------------------------------------------------------------------------


def test_load_all_reads_the_records_of_a_folder_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        a_record(name=name).save(tmp_path / "deep" / f"{name}.json")
    (tmp_path / "deep" / "notes.txt").write_text("not a record")
    assert [record.name for record in load_all(tmp_path / "deep")] == ["a", "b", "c"]
    assert [record.name for record in load_all(tmp_path, "*/b.json")] == ["b"]


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


def test_importing_the_record_loads_no_torch() -> None:
    # by file: the package's own __init__ may import what it likes
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('record', "
        f"{str(record_module.__file__)!r})\n"
        "module = importlib.util.module_from_spec(spec); sys.modules['record'] = module\n"
        "spec.loader.exec_module(module)\n"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
