"""Known corpora come from a folder, or from the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from advreg.lab.kinds.sources import DataError
from advreg.lab.kinds.translation.corpora import CORPORA, load_corpus
from parallel_files import write

# ---- files


def test_a_known_corpus_is_found_with_or_without_its_parent_and_both_ways(tmp_path: Path) -> None:
    folder = write(tmp_path / "mt" / "multi30k_en-de", train__en="one\n", train__de="eins\n")
    write(folder, valid__en="two\n", valid__de="zwei\n")
    for place in (tmp_path, tmp_path / "mt"):
        assert load_corpus("multi30k-en-de", place).splits["train"].source == ("one",)
    turned = load_corpus("multi30k-de-en", tmp_path)
    assert (turned.languages, turned.splits["train"].source) == (("de", "en"), ("eins",))


def test_a_subset_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "mt" / "iwslt14_de-en_small", train__en="one\n", train__de="eins\n")
    write(folder, valid__en="two\n", valid__de="zwei\n")
    monkeypatch.setenv("ADVREG_DATA", str(tmp_path))
    data = load_corpus("iwslt14-de-en")
    assert data.details["subset"] is True
    assert data.notes == (
        "iwslt14-de-en: a subset of the training set, 1 of 160,239 pairs; not comparable with "
        "published scores",
    )


@pytest.mark.parametrize("task", ["iwslt16-en-fr", "wmt16-en-de"])
def test_a_corpus_that_is_not_here_says_what_is_missing_and_where_to_get_it(
    task: str, tmp_path: Path
) -> None:
    with pytest.raises(
        DataError,
        match=rf"task '{task}' is not in '.*': there is no mt/.* with train\.en\.xz .*To get",
    ):
        load_corpus(task, tmp_path)


def test_a_corpus_that_is_neither_here_nor_on_the_hub_needs_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ADVREG_DATA", raising=False)
    with pytest.raises(
        DataError,
        match=r"needs its files; .* with --data or ADVREG_DATA\. To get them: the TED talks",
    ):
        load_corpus("iwslt14-de-en")
    with pytest.raises(DataError, match=r"unknown translation task 'iwslt15-en-v'.*did you mean"):
        load_corpus("iwslt15-en-v")


def test_the_papers_inference_settings_are_those_of_its_table() -> None:
    table = {
        "iwslt15-en-vi": (10, 1.0), "iwslt15-vi-en": (15, 0.3), "iwslt14-en-de": (10, 1.5), "iwslt14-de-en": (9, 1.5),
        "iwslt16-en-fr": (10, 0.2), "iwslt16-fr-en": (10, 2.0), "wmt16-en-de": (4, 0.6),
    }  # fmt: skip
    found = {task: spec.decoding for task, spec in CORPORA.items() if spec.decoding is not None}
    assert {task: (beam.beam, beam.length_penalty) for task, beam in found.items()} == table


# ---- the hub

WORDS = {"en": ["one", "two", "three"], "de": ["eins", "zwei", "drei"]}


class FakeHub:
    """`load_dataset` over real data sets in memory."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, str]] = []
        self.columns: dict[tuple[str, str | None, str], dict[str, list[Any]]] = {}

    def __call__(self, path: str, name: str | None = None, *, split: str) -> datasets.Dataset:
        self.asked.append((path, name, split))
        return datasets.Dataset.from_dict(self.columns[path, name, split])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(datasets, "load_dataset", fake)
    monkeypatch.delenv("ADVREG_DATA", raising=False)
    return fake


def in_files(folder: Path) -> Path:
    """The words as files: each a training pair, the first to validate and the last to test."""
    place = folder / "mt" / "multi30k_en-de"
    for name, part in {"train": slice(None), "valid": slice(1), "test": slice(2, 3)}.items():
        write(
            place,
            **{
                f"{name}__{language}": "\n".join(words[part]) + "\n"
                for language, words in WORDS.items()
            },
        )
    return folder


def multi30k(hub: FakeHub) -> None:
    for split, part in {"train": slice(None), "validation": slice(1), "test": slice(2, 3)}.items():
        hub.columns["bentrevett/multi30k", None, split] = {
            name: words[part] for name, words in WORDS.items()
        }


@pytest.mark.parametrize("task", ["multi30k-en-de", "multi30k-de-en"])
def test_the_hub_and_a_folder_give_the_same_text(task: str, hub: FakeHub, tmp_path: Path) -> None:
    multi30k(hub)
    online, offline = load_corpus(task), load_corpus(task, in_files(tmp_path))
    assert online.splits == offline.splits
    assert (online.languages, online.notes) == (offline.languages, offline.notes)
    assert online.fingerprint() == offline.fingerprint()
    assert online.details["corpus"] == "bentrevett/multi30k"


def test_a_folder_goes_before_the_hub(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVREG_DATA", str(in_files(tmp_path)))
    load_corpus("multi30k-en-de")
    assert hub.asked == []


def test_pairs_in_one_column_become_lines_and_those_without_a_side_are_dropped(
    hub: FakeHub,
) -> None:
    pairs = [
        {"en": "one\nline ", "de": "eine Zeile"},
        {"en": None, "de": "nichts"},
        {"en": "two", "de": "zwei"},
    ]
    hub.columns["wmt/wmt16", "de-en", "train"] = {"translation": pairs}
    for split in ("validation", "test"):
        hub.columns["wmt/wmt14", "de-en", split] = {"translation": pairs[2:]}
    data = load_corpus("wmt16-en-de")
    train = data.splits["train"]
    assert (train.source, train.target, train.dropped) == (
        ("one line", "two"),
        ("eine Zeile", "zwei"),
        1,
    )
    assert data.splits["valid"].source == data.splits["test"].source == ("two",)


def test_where_the_hub_validates_on_the_test_set_the_last_training_pairs_are_taken(
    hub: FakeHub,
) -> None:
    there = {
        "en": [f"e{number}" for number in range(2000)],
        "vi": [f"v{number}" for number in range(2000)],
    }
    for split in ("train", "validation", "test"):
        hub.columns["thainq107/iwslt2015-en-vi", None, split] = there
    data = load_corpus("iwslt15-vi-en")
    assert {split for _, _, split in hub.asked} == {"train", "test"}
    assert data.splits["train"].source == tuple(there["vi"][:447])
    assert data.splits["valid"].source == tuple(there["vi"][447:])
    assert data.splits["valid"].target == tuple(there["en"][447:])
    assert data.notes[0] == (
        "iwslt15-vi-en: 'thainq107/iwslt2015-en-vi' has no validation set; the last "
        "1,553 training pairs "
        "are validated on"
    )


def test_a_data_set_of_the_hub_that_has_changed_is_refused(hub: FakeHub) -> None:
    few = {"en": ["one"], "vi": ["một"]}
    for split in ("train", "test"):
        hub.columns["thainq107/iwslt2015-en-vi", None, split] = few
    with pytest.raises(
        DataError, match=r"train must have more than 1,553 pairs, got 1; .* give files with --data"
    ):
        load_corpus("iwslt15-en-vi")
    multi30k(hub)
    hub.columns["bentrevett/multi30k", None, "train"] = {"en": ["one"], "german": ["eins"]}
    with pytest.raises(
        DataError, match=r"multi30k-en-de/train must have a column 'de', got en, german; .* --data"
    ):
        load_corpus("multi30k-en-de")


def test_without_a_connection_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach it")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    monkeypatch.delenv("ADVREG_DATA", raising=False)
    with pytest.raises(
        DataError,
        match=r"'bentrevett/multi30k' \(multi30k-en-de, train\) cannot be loaded .* --data",
    ):
        load_corpus("multi30k-en-de")


def test_a_corpus_that_a_folder_lacks_may_come_from_the_hub_says_the_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"or leave --data and ADVREG_DATA out to load it from the hub$"
    ):
        load_corpus("multi30k-en-de", tmp_path)


def test_a_corpus_in_the_form_of_the_hub_is_read_by_the_real_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder NAMESPACE/NAME in the working directory goes before the hub's of that name."""
    place = tmp_path / "bentrevett" / "multi30k"
    place.mkdir(parents=True)
    for name, part in {"train": slice(None), "val": slice(1), "test": slice(2, 3)}.items():
        rows = [dict(zip(WORDS, pair, strict=True)) for pair in zip(*WORDS.values(), strict=True)][
            part
        ]
        (place / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADVREG_DATA", raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    online = load_corpus("multi30k-en-de")
    assert online.fingerprint() == load_corpus("multi30k-en-de", in_files(tmp_path)).fingerprint()
