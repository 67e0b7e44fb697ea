"""Files that were damaged: a clear error of ours or what they held before, never another result or
another error.

Checkpoints are in `tests/hf/test_saving.py`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from advreg.lab.kinds.averaging import Snapshots
from advreg.lab.kinds.classification.tables import load_tables
from advreg.lab.kinds.classification.textdata import TextData
from advreg.lab.kinds.sources import DataError
from advreg.lab.runs.bases import read_settings
from advreg.lab.runs.plans import agree
from advreg.lab.runs.settings import SettingsError
from advreg.records import run as records
from advreg.records.sealed import RecordError
from little_tables import scored, sentiment, write_table

Damage = Callable[[bytes], bytes]
fuzz = settings(max_examples=60, deadline=None)


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Something that happens to a file: cut, a bit flipped, a part lost, doubled, blanked or
    written over.
    """
    kind = draw(st.sampled_from(["cut", "flip", "lose", "double", "blank", "overwrite"]))
    where, length = draw(st.floats(0, 1)), draw(st.integers(1, 40))
    bit, junk = draw(st.integers(0, 7)), draw(st.binary(min_size=1, max_size=20))

    def damage(content: bytes) -> bytes:
        place = min(int(where * len(content)), max(0, len(content) - 1))
        before, part, after = (
            content[:place],
            content[place : place + length],
            content[place + length :],
        )
        if kind == "flip" and part:
            return before + bytes([part[0] ^ 1 << bit]) + part[1:] + after
        changed = {"cut": before, "lose": before + after, "double": before + part + part + after}
        changed |= {"blank": before + bytes(len(part)) + after, "overwrite": before + junk + after}
        return changed.get(kind, before)

    return damage


def rewritten(path: Path, content: bytes, damage: Damage) -> Path:
    path.write_bytes(damage(content))
    return path


T = TypeVar("T")


def outcome(call: Callable[[], T], error: type[Exception]) -> tuple[T, str] | tuple[None, str]:
    """What a call gives, or the text of the error it may raise; any other error fails the test."""
    try:
        return call(), ""
    except error as raised:
        return None, str(raised)


# ---- records


@fuzz
@given(damage=damages())
def test_a_damaged_record_is_refused_or_says_what_it_said(
    tmp_path_factory: pytest.TempPathFactory, damage: Damage
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole, path = folder / "whole.json", folder / "damaged.json"
    if not whole.exists():
        RECORD.save(whole)
    rewritten(path, whole.read_bytes(), damage)
    found, told = outcome(lambda: records.load(path), RecordError)
    assert str(path) in told if found is None else found == records.load(whole)


RECORD = records.RunRecord.begin(
    name="arch-seed0",
    method=records.MethodInfo(name="arch", settings={"radius": 0.1}),
    task=records.TaskInfo(name="t", fingerprint="ab"),
    model=records.ModelInfo(name="m", parameters=3),
    training=records.TrainingInfo(
        epochs=1, batch_size=2, learning_rate=0.1, precision="fp32", seed=0
    ),
    device="cpu",
).finish(metrics={"accuracy": 0.5, "loss": 1.25}, history=[{"step": 1, "loss": 2.0}])


def test_a_damaged_plan_is_refused_by_name(tmp_path: Path) -> None:
    agree("arch-seed0", tmp_path, {"epochs": 3}, resume=False)
    for content in (b"", b'{"epochs": 3', b"[3]", b"\xff\xfe", b"[" * 100_000):
        (tmp_path / "plan.json").write_bytes(content)
        with pytest.raises(
            SettingsError,
            match=r"plan.json is damaged \(.*\); restore it, or choose another --output",
        ):
            agree("arch-seed0", tmp_path, {"epochs": 3}, resume=True)


def test_damaged_weights_of_a_validation_are_refused_by_name(tmp_path: Path) -> None:
    kept = Snapshots(tmp_path, 2)
    kept.take(Holder(), 3, 0.5)
    path = tmp_path / "step-3.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        ValueError, match=r"step-3.safetensors is damaged \(.*\); delete it and resume"
    ):
        kept.load([3])
    for content in ("", "[1]", '{"3": "x"}', '{"three": 1}'):
        (tmp_path / "scores.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"scores.json is damaged \(.*\); delete .* and resume the run"
        ):
            kept.scores()


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


# ---- configs

CONFIG = b"""task = "docstrings"
model = "small"
methods = ["standard", "arch"]
seeds = [1, 2]
epochs = 3
learning_rate = 1e-3
[arch]
radius = 0.3
refresh_every = 2
cache_folder = "caches"
[training]
weight_decay = 0.1
"""


@fuzz
@given(damage=damages())
def test_a_damaged_config_is_refused_with_a_sentence_or_can_be_used(
    tmp_path_factory: pytest.TempPathFactory, damage: Damage
) -> None:
    path = rewritten(tmp_path_factory.getbasetemp() / "run.toml", CONFIG, damage)
    read, told = outcome(
        lambda: read_settings(path, {}, {}), ValueError
    )  # SettingsError, and what methods say
    if read is None:
        assert len(told) > 20
    else:
        assert read.epochs >= 1
        assert all(read.method(name).info.name == name for name in read.methods)


# ---- tables


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "csv.gz", "jsonl.gz", "parquet"])
@settings(max_examples=25, deadline=None)
@given(damage=damages(), pairs=st.booleans())
def test_a_damaged_table_is_refused_with_the_files_name_or_holds_what_it_says(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, damage: Damage, pairs: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    plain = write_table(
        folder / f"plain.{suffix.removesuffix('.gz')}", scored(12) if pairs else sentiment(12)
    )
    content = plain.read_bytes()
    path = folder / f"damaged.{suffix}"
    rewritten(path, gzip.compress(content) if suffix.endswith(".gz") else content, damage)
    data, told = outcome(lambda: load_tables(path, None), DataError)
    if data is None:
        assert path.name in told
    else:
        assert_sound(data)
        if suffix.endswith(".gz"):  # its checksum was right
            assert gzip.decompress(path.read_bytes()) == content


def assert_sound(data: TextData) -> None:
    assert data.train
    assert data.dev
    for example in (*data.train, *data.dev):
        assert example.text.strip()
        assert (example.pair is not None) == data.has_pairs
        assert data.labels is None or 0 <= example.label < len(data.labels)
        json.dumps(example.label, allow_nan=False)


def test_code_in_a_table_or_a_config_is_text(tmp_path: Path) -> None:
    code = f"__import__('os').mkdir({str(tmp_path / 'struck')!r})"
    rows: list[dict[str, Any]] = [
        {"text": f"{code} {number}", "label": ["a", code][number % 2]} for number in range(12)
    ]
    data = load_tables(write_table(tmp_path / "train.csv", rows), None)
    assert data.train[0].text.startswith(code)
    (tmp_path / "run.toml").write_text(f"epochs = {json.dumps(code)}\n")
    with pytest.raises(ValueError, match="epochs must be"):
        read_settings(tmp_path / "run.toml", {}, {})
    assert not (tmp_path / "struck").exists()
