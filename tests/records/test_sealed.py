from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advreg.records.run import MethodInfo, ModelInfo, Outcome, TaskInfo, load
from advreg.records.sealed import (
    Payload,
    RecordError,
    Upgrade,
    load_as,
    portable,
    save_as,
    seal_line,
    unseal_line,
)
from sample_records import a_record, edit, json_values, sealed


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    a_record().save(path)
    return path


# --- any dataclass


@dataclass(frozen=True, kw_only=True)
class Leaf:
    length: float
    torn: bool = False


@dataclass(frozen=True, kw_only=True)
class Tree:
    schema: int = 3
    kind: Literal["oak", "elm"]
    leaves: list[Leaf]
    best: Leaf | None = None
    named: dict[str, Leaf] = field(default_factory=dict)
    rings: list[int] = field(default_factory=list)


OAK = Tree(kind="oak", leaves=[Leaf(length=1)], best=Leaf(length=0.5, torn=True))


def test_a_line_is_the_records_json_with_the_digest_of_its_text() -> None:
    assert seal_line(OAK) == sealed(dataclasses.asdict(OAK))


def test_a_file_and_a_line_hold_the_same_record(tmp_path: Path) -> None:
    tree = dataclasses.replace(OAK, named={"first": Leaf(length=2.0)}, rings=[1, 2])
    save_as(tmp_path / "tree.json", tree)
    assert load_as(tmp_path / "tree.json", Tree) == unseal_line(seal_line(tree), Tree) == tree


def test_a_missing_field_is_named_even_if_it_has_a_default() -> None:
    payload = dataclasses.asdict(OAK)
    for name in ("schema", "best", "named", "rings"):
        with pytest.raises(RecordError, match=f"^{name} is missing"):
            unseal_line(sealed({key: payload[key] for key in payload if key != name}), Tree)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "ash"}, r"kind must be one of oak, elm, got 'ash' \(str\)"),
        ({"kind": None}, r"kind must be one of oak, elm, got None"),
        ({"leaves": None}, r"leaves must be a list, got None"),
        ({"leaves": [{"length": 1, "torn": 0}]}, r"leaves\[0\]\.torn must be true or false, got 0"),
        ({"leaves": [{"torn": True}]}, r"leaves\[0\]\.length is missing"),
        ({"best": 3}, r"best must be an object, got 3 \(int\)"),
        ({"named": {"a": None}}, r"named\.a must be an object, got None"),
        ({"rings": [1.0]}, r"rings\[0\] must be a whole number, got 1\.0 \(float\)"),
        ({"schema": 2}, r"schema must be 3, got 2; read it with the advreg that wrote it"),
        ({"schema": True}, r"schema must be a whole number, got True"),
        ({"named": {"\x1b[31m": 1}}, r"named\.\\x1b\[31m must be an object, got 1"),
    ],
)
def test_values_of_other_types_are_refused_by_field(change: dict[str, Any], message: str) -> None:
    text = sealed(dataclasses.asdict(OAK) | change)
    with pytest.raises(RecordError, match=f"^{message}"):
        unseal_line(text, Tree)


# --- earlier schemas


def _count_leaves(tree: Payload) -> Payload:
    """Schema 1 held a number of leaves of equal length."""
    leaves = [{"length": tree["length"], "torn": False}] * tree["count"]
    kept = {key: tree[key] for key in tree if key not in ("length", "count")}
    return kept | {"leaves": leaves}


def _name_the_best(tree: Payload) -> Payload:
    """Schema 2 had no best leaf."""
    return tree | {"best": tree["leaves"][0]}


@dataclass(frozen=True, kw_only=True)
class OldTree(Tree):
    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _count_leaves, 2: _name_the_best}


SHRUB = {"kind": "elm", "named": {}, "rings": [3]}
OLD = {
    1: SHRUB | {"schema": 1, "length": 0.5, "count": 2},
    2: SHRUB | {"schema": 2, "leaves": [{"length": 0.5, "torn": False}] * 2},
    3: SHRUB | {"schema": 3, "leaves": [{"length": 0.5, "torn": False}] * 2, "best": None},
}


@pytest.mark.parametrize("schema", OLD)
def test_a_record_of_any_earlier_schema_is_read_by_all_upgrades_from_there(schema: int) -> None:
    leaf = Leaf(length=0.5)
    best = leaf if schema < 3 else None
    read = unseal_line(sealed(OLD[schema]), OldTree)
    assert read == OldTree(kind="elm", leaves=[leaf, leaf], best=best, rings=[3])


def test_the_seal_of_an_earlier_schema_is_that_of_its_own_text() -> None:
    text = sealed(OLD[1])
    with pytest.raises(RecordError, match=r"^checksum does not match the content"):
        unseal_line(text.replace('"count":2', '"count":3'), OldTree)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 0}, r"schema must be 1 to 3, got 0; read it with the advreg that wrote it"),
        ({"schema": 4}, r"schema must be 1 to 3, got 4; update advreg"),
        ({"count": None}, r"record is not a whole record of schema 1 \(TypeError"),
        ({"kind": "ash"}, r"kind must be one of oak, elm, got 'ash'"),
        ({"length": "long"}, r"leaves\[0\]\.length must be a number, got 'long'"),
    ],
)
def test_what_no_upgrade_fits_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}"):
        unseal_line(sealed(OLD[1] | change), OldTree)


def test_a_field_that_an_earlier_schema_must_have_is_named() -> None:
    with pytest.raises(RecordError, match=r"schema 1 \(KeyError\('count'\)\)"):
        unseal_line(sealed({key: OLD[1][key] for key in OLD[1] if key != "count"}), OldTree)


def test_portable_refuses_what_could_not_be_read_back() -> None:
    with pytest.raises(RecordError, match=r"best\.length must be a number, got None"):
        portable(dataclasses.replace(OAK, best=Leaf(length=math.nan)))


# --- plain values


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
        a_record(method=MethodInfo(name="arch", settings={"loop": loop})).save(
            tmp_path / "run.json"
        )


def test_an_integer_that_no_float_can_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"method\.settings\.long must be a number below 1\.8e308"
    ):
        a_record(method=MethodInfo(name="arch", settings={"long": 10**5000})).save(
            tmp_path / "run.json"
        )


# --- damaged files


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
    "content",
    [
        b"[" * 100_000,
        b"1" * 5_000,
        b'{"a": 1e999}',
        b'{"a": 1' + b"0" * 400 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b"NaN",
    ],
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
    ("schema", "remedy"), [(3, "update advreg"), (0, "read it with the advreg that wrote it")]
)
def test_a_record_of_another_schema_says_which_advreg_to_use(
    saved: Path, schema: int, remedy: str
) -> None:
    # the other schema's fields are unknown here, and must not be what the message is about
    edit(saved, lambda payload: payload.update(schema=schema, colour="red"))
    with pytest.raises(
        RecordError, match=rf"run\.json: schema must be 1 to 2, got {schema}; {remedy}"
    ):
        load(saved)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(RecordError, match=r"run\.json: is not a regular file; give a file that"):
        load(tmp_path / "run.json")


def test_a_file_of_another_encoding_names_the_byte(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes('{"name": "café"}'.encode("latin-1"))
    with pytest.raises(RecordError, match=r"run\.json: is not UTF-8 \(.* at byte 13\)"):
        load(tmp_path / "run.json")


def test_line_ends_converted_by_a_checkout_do_no_harm(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes().replace(b"\n", b"\r\n"))
    assert load(saved) == a_record()


# --- writing


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
