"""Samples are read from files of every form, and divided by prompts."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from advreg.lab.kinds.language.samples import LanguageData, Sample, load_files, load_task
from advreg.lab.kinds.sources import DataError
from tiny_language import questions, write_lines

ROWS = [{"prompt": "Say it", "completion": "it", "references": ["it", "It."]}] * 2 + [
    {"prompt": "And this", "completion": "this", "references": ["this"]}
]
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            lists = [
                {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}
                for row in rows
            ]
            writer.writerows(lists)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        write_lines(path, rows)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".parquet"])
def test_every_format_holds_the_same_samples(suffix: str, tmp_path: Path) -> None:
    prompts = load_files({"train": write(tmp_path / f"a{suffix}", ROWS)}, {})
    everything = (*prompts.splits["train"], *prompts.splits["dev"])
    assert (
        sorted(everything, key=str)[1:]
        == [Sample((("user", "Say it"), ("assistant", "it")), ("it", "It."))] * 2
    )
    assert (prompts.name, prompts.kind, prompts.scored_on) == ("a", "prompts", "dev")
    both = write(tmp_path / f"chats{suffix}", [{"messages": CHAT}] * 2)
    chat = load_files({"train": both, "dev": both}, {})
    turns = tuple((turn["role"], turn["content"]) for turn in CHAT[:3])  # the last is not answered
    assert chat.splits["train"] == (Sample(turns), Sample(turns))
    assert chat.splits["train"][0].prompt == turns[:2]
    assert chat.splits["train"][0].answers == ("Hi",)


def test_empty_lines_divide_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One\nline\n\n \nTwo  \n\n\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfThree"))
    data = load_files({"train": tmp_path / "a.txt", "dev": tmp_path / "b.txt.gz"}, {})
    assert [each.turns[0] for each in data.splits["train"]] == [("", "One\nline"), ("", "Two")]
    assert data.splits["dev"] == (Sample((("", "Three"),)),)
    assert (data.name, data.kind) == ("a", "text")


@given(st.integers(1, 9), st.integers(0, 5))
def test_samples_of_a_prompt_are_held_out_together(rows: int, seed: int) -> None:
    prompts = [index % 6 for index in range(14)]
    samples = tuple(
        Sample((("user", str(prompt)), ("assistant", str(index))))
        for index, prompt in enumerate(prompts)
    )
    data = LanguageData("a", "prompts", {"train": samples, "dev": samples, "test": samples})
    found = data.held_out(0.5, seed, rows)
    train, dev = found.splits["train"], found.splits["dev"]
    assert not {each.prompt for each in train} & {each.prompt for each in dev}
    assert sorted((*train, *dev), key=samples.index) == list(samples)
    assert rows <= len(dev) < rows + 3
    assert set(found.splits) == {"train", "dev"}
    assert found == data.held_out(0.1, seed, rows)
    assert found.fingerprint() != data.fingerprint()


def test_one_prompt_alone_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a: must have samples of two prompts, .* got 2 samples"):
        load_files({"train": write_lines(tmp_path / "a.jsonl", ROWS[:2])}, {})


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            {"prompt": "a", "completion": " "},
            "row 2: completion must be a text, not empty, got ' '",
        ),
        ({"prompt": "a", "completion": 3}, "row 2: completion must be a text, not empty, got 3"),
        ({"prompt": "a", "completion": "b", "references": "c"}, "references must be a JSON list"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0], row])
    with pytest.raises(DataError, match=told):
        load_files({"train": path}, {})


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ("Hello", "messages must be a JSON list, got 'Hello'"),
        (CHAT[:2], "must have a turn with the role assistant, which is learnt, got 2 turns"),
        ([{"from": "human"}], "a turn must have a role and content, got {'from': 'human'}"),
    ],
)
def test_bad_chats_are_named(turns: Any, told: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"messages": turns}])
    with pytest.raises(DataError, match=told):
        load_files({"train": path}, {})


def test_a_known_task_is_read_from_the_folder_of_the_data(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / "sft" / "gsm8k").mkdir(parents=True, exist_ok=True)
        write(tmp_path / "sft" / "gsm8k" / f"{split}.jsonl.gz", questions(3))
    data = load_task("gsm8k", tmp_path)
    assert {name: len(part) for name, part in data.splits.items()} == {
        "train": 3, "dev": 3, "test": 3,
    }  # fmt: skip
    assert (data.name, data.scored_on) == ("gsm8k", "test")
    with pytest.raises(DataError, match=r"e2e_low.train.jsonl.gz: must be a file, got nothing"):
        load_task("e2e_low", tmp_path)


def test_a_task_that_the_hub_does_not_have_needs_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVREG_DATA", raising=False)
    with pytest.raises(
        DataError, match="'e2e_low' is not on the Hugging Face hub; give the folder"
    ):
        load_task("e2e_low")
