"""Many records in one compressed file: appended in one piece, whole whatever happens, sealed line
by line.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from advreg.records import log as log_module
from advreg.records.log import IncompleteError, RecordLog, members
from advreg.records.run import MethodInfo, ModelInfo, RunRecord, TaskInfo, TrainingInfo
from advreg.records.sealed import RecordError


def record(name: str) -> RunRecord:
    begun = RunRecord.begin(
        name=name,
        method=MethodInfo(name="standard"),
        task=TaskInfo(name="rte", details={"predictions": "0110\u2028"}),
        model=ModelInfo(name="minilm"),
        training=TrainingInfo(epochs=1, batch_size=2, learning_rate=0.1, precision="fp32", seed=3),
    )
    return begun.finish(metrics={"accuracy": 0.5})


@pytest.fixture
def log(tmp_path: Path) -> RecordLog:
    found = RecordLog(tmp_path / "runs.jsonl.gz")
    for name in ("one", "two", "three"):
        found.append(record(name))
    return found


def names(log: RecordLog) -> list[str]:
    return [each.name for each in RecordLog(log.path).records()]


def test_records_come_back_in_their_order_and_a_missing_file_holds_none(
    log: RecordLog, tmp_path: Path
) -> None:
    assert names(log) == ["one", "two", "three"]
    assert RecordLog(log.path).records()[0].task.details == {"predictions": "0110\u2028"}
    assert RecordLog(tmp_path / "none.jsonl.gz").records() == []


def test_any_gzip_reads_it_as_a_json_object_a_line(log: RecordLog) -> None:
    lines = gzip.decompress(log.path.read_bytes()).decode().split("\n")
    assert [json.loads(line)["name"] for line in lines if line] == ["one", "two", "three"]


def test_files_joined_end_to_end_are_one_file(log: RecordLog, tmp_path: Path) -> None:
    joined = tmp_path / "joined.jsonl.gz"
    joined.write_bytes(log.path.read_bytes() * 2)
    assert names(RecordLog(joined)) == ["one", "two", "three"] * 2


def test_a_file_cut_off_anywhere_keeps_its_whole_records_and_takes_further_ones(
    log: RecordLog,
) -> None:
    whole, next_one = log.path.read_bytes(), record("next")
    for length in range(0, len(whole), 7):
        log.path.write_bytes(whole[:length])
        before = names(log)
        assert before == ["one", "two", "three"][: len(before)]
        RecordLog(log.path).append(next_one)
        assert names(log) == [*before, "next"]


def test_an_edited_record_is_refused_with_its_line_and_damage_with_its_place(
    log: RecordLog,
) -> None:
    text = gzip.decompress(log.path.read_bytes()).decode().replace('"two"', '"TWO"')
    log.path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(
        RecordError, match=r"runs\.jsonl\.gz, line 2: checksum does not match the content"
    ):
        log.records()
    log.path.write_bytes(gzip.compress(b"") + b"not gzip")
    with pytest.raises(RecordError, match="damaged after byte 20"):
        log.records()


def test_an_incomplete_last_record_is_passed_over_and_named(
    log: RecordLog, caplog: pytest.LogCaptureFixture
) -> None:
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-9])
    with caplog.at_level("WARNING", logger="advreg"):
        assert names(log) == ["one", "two"]
    message = (
        r"runs\.jsonl\.gz, line 3: is incomplete: its writer was stopped, \d+ bytes are passed"
    )
    assert re.search(message, caplog.text)
    *complete, last = log.each()
    assert [isinstance(each, RunRecord) for each in complete] == [True, True]
    assert isinstance(last, IncompleteError)


def test_lines_that_cannot_be_read_hide_no_others(log: RecordLog) -> None:
    content = gzip.decompress(log.path.read_bytes()).replace(b'"two"', b'"TWO"')
    log.path.write_bytes(gzip.compress(content + b'{"caf\xe9\n' + b"[" * 9999 + b"\n") + b"rest")
    found = list(log.each())
    assert [each.name for each in found if isinstance(each, RunRecord)] == ["one", "three"]
    errors = [
        str(each).partition("runs.jsonl.gz, ")[2] for each in found if type(each) is RecordError
    ]
    beginnings = [
        "line 2: checksum does not match the content",
        "line 4: is not UTF-8",
        "line 5: is not valid JSON",
        "line 6: is damaged after byte",
    ]
    assert len(errors) == len(beginnings)
    assert all(map(str.startswith, errors, beginnings)), errors


def test_nothing_is_appended_to_what_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(RecordError, match=r"notes\.jsonl\.gz: is damaged after byte 0"):
        RecordLog(path).append(record("one"))
    assert path.read_bytes() == b"not gzip"


def test_members_are_found_wherever_a_read_ends(
    log: RecordLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = log.path.read_bytes()
    texts = [gzip.decompress(content[start:end]) for start, end in pairwise(ends(content))]
    for at_once in (1, 7, len(content) - 1, len(content), 2**16):
        monkeypatch.setattr(log_module, "_AT_ONCE", at_once)
        found = list(members(log.path))
        assert [text for text, _ in found] == texts
        assert [0, *(end for _, end in found)] == ends(content)


def ends(content: bytes) -> list[int]:
    """Reference: where members begin and the last one ends, by their header of ten bytes."""
    header = content[:10]
    return [
        *(place for place in range(len(content)) if content.startswith(header, place)),
        len(content),
    ]


def test_a_writer_that_is_killed_leaves_whole_records_alone(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import itertools, test_log as t\n"
        f"log = t.RecordLog({str(path)!r})\n"
        "one = t.record('x')\n"
        "for _ in itertools.count(): log.append(one)\n"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
        before = len(RecordLog(path).records()) if path.is_file() else 0
        until = time.monotonic() + 60
        while time.monotonic() < until and (
            not path.is_file() or len(RecordLog(path).records()) < before + 3
        ):
            time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert len(RecordLog(path).records()) >= before + 3
