"""Many records in one compressed file: appended in one piece, whole whatever happens, sealed line
by line.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advreg.records.log import RecordLog
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
    whole = log.path.read_bytes()
    for length in range(0, len(whole), 7):
        log.path.write_bytes(whole[:length])
        before = names(log)
        assert before == ["one", "two", "three"][: len(before)]
        RecordLog(log.path).append(record("next"))
        assert names(log) == [*before, "next"]


def test_an_edited_record_is_refused_with_its_line_and_damage_with_its_place(
    log: RecordLog,
) -> None:
    text = gzip.decompress(log.path.read_bytes()).decode().replace('"two"', '"TWO"')
    log.path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(
        RecordError, match=r"runs\.jsonl\.gz: checksum line 2: does not match the content"
    ):
        log.records()
    log.path.write_bytes(gzip.compress(b"") + b"not gzip")
    with pytest.raises(RecordError, match="damaged after byte 20"):
        log.records()


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
