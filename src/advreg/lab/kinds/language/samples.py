"""Samples of language modelling: plain text, prompts with answers, or chats; read and divided.

A sample is a sequence of turns. A prompt with its completion is a user's turn and an assistant's;
plain text is one turn without a role. Turns after the last answer are dropped.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.lab.kinds.language.forms import REFERENCES, TEXT_SUFFIXES, Form, Kind, find_form
from advreg.lab.kinds.sources import (
    DATA_VARIABLE,
    DataError,
    HubSplit,
    Table,
    data_folder,
    held_out_details,
    load_split,
    read_table,
    read_text,
    require_columns,
    table_name,
)

TRAIN, DEV, TEST = "train", "dev", "test"
USER, ASSISTANT = "user", "assistant"
_DEV_SHARE, _DEV_SEED = 0.1, 0
_FILES = {TRAIN: "train", DEV: "valid", TEST: "test"}
_HUB = {"gsm8k": ("openai/gsm8k", "main", ("question", "answer"))}

Turn = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample.

    Args:
        turns: role and content of each; plain text is one turn with the role ``""``.
        references: right answers; empty: the last turn alone.
    """

    turns: tuple[Turn, ...]
    references: tuple[str, ...] = ()

    @property
    def prompt(self) -> tuple[Turn, ...]:
        """The turns in front of the last answer; none of plain text."""
        return self.turns[:-1]

    @property
    def answers(self) -> tuple[str, ...]:
        """All right answers."""
        return self.references or (self.turns[-1][1],)


@dataclass(frozen=True)
class LanguageData:
    """Samples of one form.

    Args:
        name: of the data.
        kind: of the samples.
        splits: ``train``, ``dev``, and ``test`` where there is one.
        notes: what a user should know.
        details: what the record says of the data.
    """

    name: str
    kind: Kind
    splits: Mapping[str, tuple[Sample, ...]]
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scored_on(self) -> str:
        """The set that a run is judged by."""
        return TEST if TEST in self.splits else DEV

    def fingerprint(self) -> str:
        """SHA-256 of the samples in order, and of their form."""
        splits = {name: [asdict(each) for each in part] for name, part in self.splits.items()}
        content = json.dumps([self.kind, splits], sort_keys=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()

    def held_out(self, share: float, seed: int, rows: int | None = None) -> LanguageData:
        """A task within the training samples; all samples of a prompt are held out together.

        At least ``share`` of the samples, or this many ``rows``, become ``dev``; both parts keep
        their order and depend on ``seed`` alone.
        """
        train = self.splits[TRAIN]
        held = _drawn(train, max(1, round(share * len(train))) if rows is None else rows, seed)
        if not 0 < len(held) < len(train):
            asked = f"share {share}" if rows is None else f"rows {rows}"
            raise DataError(
                f"{self.name}: must have samples of two prompts, to hold some out and train on "
                f"others, got {len(train)} samples and {asked}; add samples or hold fewer out"
            )
        kept = tuple(each for index, each in enumerate(train) if index not in held)
        out = tuple(train[index] for index in sorted(held))
        details = held_out_details(share, seed, rows, len(train))
        return replace(
            self,
            splits={TRAIN: kept, DEV: out},
            details={**self.details, "held_out": details},
        )

    def swapped(self) -> LanguageData:
        """The same with the samples to train and to evaluate on exchanged: the other fold."""
        return replace(self, splits={TRAIN: self.splits[DEV], DEV: self.splits[TRAIN]})


def _drawn(samples: Sequence[Sample], count: int, seed: int) -> set[int]:
    """Indices of all samples of randomly drawn prompts, at least ``count``."""
    groups: dict[Any, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.prompt or index, []).append(index)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    held: set[int] = set()
    for group in order:
        if len(held) >= count:
            break
        held.update(group)
    return held


# ---- files of the user


def load_files(paths: Mapping[str, Path], columns: Mapping[str, str]) -> LanguageData:
    """Read the user's files.

    Args:
        paths: by set; without ``dev`` a tenth of the training samples is held out.
        columns: named columns, by what they hold.
    """
    first = paths[TRAIN]
    if first.name.lower().endswith(TEXT_SUFFIXES):
        name = re.sub(r"\.txt(\.gz)?$", "", first.name, flags=re.IGNORECASE)
        blocks = {split: _blocks(path) for split, path in paths.items()}
        return _with_dev(LanguageData(name, "text", blocks))
    tables = {split: read_table(path) for split, path in paths.items()}
    form = find_form(tables[TRAIN], columns)
    splits = {split: _samples(table, form) for split, table in tables.items()}
    return _with_dev(LanguageData(table_name(first), form.kind, splits))


def _with_dev(data: LanguageData) -> LanguageData:
    """The data with a set to evaluate on: a tenth of the training samples, if there is no other."""
    if DEV in data.splits:
        return data
    held = data.held_out(_DEV_SHARE, _DEV_SEED)
    note = (
        f"{data.name}: {len(held.splits[DEV])} of {len(data.splits[TRAIN])} training samples are "
        f"held out as {DEV}"
    )
    return replace(held, splits={**data.splits, **held.splits}, notes=(note,))


def _blocks(path: Path) -> tuple[Sample, ...]:
    """A sample for each block of a text file; empty lines divide blocks."""
    blocks = re.split(r"\n\s*\n", read_text(path).strip())
    found = tuple(Sample((("", block),)) for block in blocks if block.strip())
    if not found:
        raise DataError(f"{path}: must hold text, got none")
    return found


def _samples(table: Table, form: Form) -> tuple[Sample, ...]:
    for name in form.columns:
        if name not in table.columns:
            raise DataError(
                f"{table.path}: must have a column {name!r} like the training table, got "
                f"{table.listed}"
            )
    return tuple(_sample(row, form, f"{table.path}, row {n}") for n, row in table.rows)


def _sample(row: Mapping[str, Any], form: Form, place: str) -> Sample:
    cells = [row.get(name) for name in form.columns]
    if form.kind == "chat":
        turns = _turns(cells[0], form.columns[0], place)
    else:
        texts = [_text(*pair, place) for pair in zip(cells, form.columns, strict=True)]
        roles = ("",) if form.kind == "text" else (USER, ASSISTANT)
        turns = tuple(zip(roles, texts, strict=True))
    given = _parsed(row.get(REFERENCES), REFERENCES, place) or ()
    references = tuple(_text(each, REFERENCES, place) for each in given)
    return Sample(turns, () if form.kind == "text" else references)


def _turns(cell: object, column: str, place: str) -> tuple[Turn, ...]:
    turns = _parsed(cell, column, place)
    if not isinstance(turns, list):
        raise DataError(f"{place}: {column} must be a list of turns, got {cell!r}")
    found = [(_of(turn, "role", place), _of(turn, "content", place)) for turn in turns]
    while found and found[-1][0] != ASSISTANT:
        found.pop()
    if not found:
        raise DataError(
            f"{place}: {column} must have a turn with the role {ASSISTANT}, which is learnt, got "
            f"{len(turns)} turns without; drop the row"
        )
    return tuple(found)


def _of(turn: object, name: str, place: str) -> str:
    if not isinstance(turn, dict) or name not in turn:
        raise DataError(f"{place}: a turn must have a role and content, got {turn!r}; correct it")
    return _text(turn[name], name, place)


def _parsed(cell: object, column: str, place: str) -> Any:
    """A list, which csv files hold as JSON."""
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell) if cell.strip() else None
    except ValueError as error:
        raise DataError(f"{place}: {column} must be a JSON list, got {cell[:40]!r}") from error


def _text(value: object, column: str, place: str) -> str:
    if not isinstance(value, str) or (column != "content" and not value.strip()):
        raise DataError(
            f"{place}: {column} must be a text, not empty, got {value!r}; fill it in or drop the "
            "row"
        )
    return value


# ---- known tasks


def load_task(name: str, folder: Path | None = None) -> LanguageData:
    """A known task, from ``TASK/SPLIT.jsonl.gz`` in the folder or its ``sft``, else from the hub.

    The hub's data have no validation set: a tenth of the training samples is held out.
    """
    where = data_folder(folder)
    if where is not None:
        place = (where / "sft" if (where / "sft").is_dir() else where) / name
        paths = {split: place / f"{file}.jsonl.gz" for split, file in _FILES.items()}
        return replace(load_files(paths, {}), name=name)
    if name not in _HUB:
        raise DataError(
            f"task '{name}' is not on the Hugging Face hub; give the folder that holds it with "
            f"--data or {DATA_VARIABLE}"
        )
    path, config, columns = _HUB[name]
    splits = {}
    for split in (TRAIN, TEST):
        hub = HubSplit(path, config, split)
        rows = load_split(name, hub)
        require_columns(rows, columns, hub, split)
        form = Form("prompts", columns)
        splits[split] = tuple(_sample(row, form, f"'{path}' {split}") for row in rows)
    return _with_dev(LanguageData(name, "prompts", splits))
