"""Parallel text prepared for training: subwords, encoded pairs, and counts of excluded pairs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.hf.checkpoint.ranks import first_decides
from advreg.lab.kinds.training import Notice
from advreg.lab.kinds.translation.batching import Pairs
from advreg.lab.kinds.translation.parallel import (
    TRAIN,
    VALID,
    Bitext,
    Kept,
    ParallelData,
    filter_pairs,
)
from advreg.lab.kinds.translation.subwords import Subwords, learn_subwords, translator_folder
from advreg.lab.kinds.translation.translator import cut
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.records.sealed import write_text

POSITIONS = 1024  # of the models
_FACTS_FILE = "learnt_from.json"
_SUBWORD_SETTINGS = ("vocabulary", "joint", "subwords", "character_coverage")


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training.

    Args:
        data: the text.
        subwords: learnt from its training split.
        train, valid: encoded pairs.
        kept: what the filter left of the training pairs.
    """

    data: ParallelData
    subwords: Subwords
    train: Pairs
    valid: Pairs
    kept: Kept


def prepare_data(
    settings: TranslationSettings, data: ParallelData, folder: Path | None, notice: Notice
) -> Prepared:
    """Learn the subwords, or load those in ``folder`` if they are the same; encode and filter."""
    for name, text in data.splits.items():
        if text.dropped:
            notice(
                f"{text.dropped:,} of {len(text) + text.dropped:,} {name} pairs had an empty side "
                "and were dropped"
            )
    subwords = first_decides(lambda: _subwords(settings, data, folder, notice))
    train, kept = training_pairs(data.splits[TRAIN], subwords, settings.longest, settings.max_ratio)
    filtered = kept.note(settings.longest, settings.max_ratio)
    if filtered is not None:
        notice(filtered)
    return Prepared(data, subwords, train, encode_pairs(data.splits[VALID], subwords), kept)


def training_pairs(
    text: Bitext, subwords: Subwords, longest: int, max_ratio: float
) -> tuple[Pairs, Kept]:
    """Pairs as ids, without pairs that are too long or too unlike in length."""
    source, target = subwords.source.encode(text.source), subwords.target.encode(text.target)
    lengths = [[len(row) - 1 for row in rows] for rows in (source, target)]
    kept = filter_pairs(lengths[0], lengths[1], longest, max_ratio)
    return Pairs(_chosen(source, kept.indices), _chosen(target, kept.indices)), kept


def _chosen(rows: Sequence[list[int]], indices: Sequence[int]) -> list[list[int]]:
    return [rows[index] for index in indices]


def encode_pairs(text: Bitext, subwords: Subwords) -> Pairs:
    """Both sides as ids; what is longer than the model's positions is cut."""
    sides = subwords.source.encode(text.source), subwords.target.encode(text.target)
    return Pairs(*(cut(rows, POSITIONS) for rows in sides))


def validation_text(text: Bitext, count: int) -> Bitext:
    """Pairs to translate at a validation, the same ones in every run; all of them if ``count`` is
    0.
    """
    chosen = list(range(len(text)))
    if 0 < count < len(chosen):
        chosen = sorted(random.Random(0).sample(chosen, count))
    return text.take(chosen)


# ---- subwords


def _subwords(
    settings: TranslationSettings, data: ParallelData, folder: Path | None, notice: Notice
) -> Subwords:
    """The subwords of the model to train further, saved subwords, or new ones;
    learning again gives the same.
    """
    if settings.start is not None:
        return Subwords.load(translator_folder(settings.start))
    if folder is not None and _saved_facts(folder) == _facts(settings, data):
        return Subwords.load(folder)
    train = data.splits[TRAIN]
    each = "" if settings.joint else " for each language"
    notice(
        f"{data.name}: learning {settings.vocabulary:,} subwords{each} from {len(train):,} pairs "
        "of lines"
    )
    learnt_with = (getattr(settings, name) for name in _SUBWORD_SETTINGS)
    return learn_subwords(train.source, train.target, *learnt_with)


def _facts(settings: TranslationSettings, data: ParallelData) -> str:
    """The settings that determine the subwords."""
    facts: dict[str, Any] = {"model": settings.model}
    if settings.start is None:
        text = ParallelData("", data.languages, {TRAIN: data.splits[TRAIN]}).fingerprint()
        facts = {name: getattr(settings, name) for name in _SUBWORD_SETTINGS} | {"text": text}
    return json.dumps(facts)


def _saved_facts(folder: Path) -> str | None:
    """The file with the settings of the subwords in a folder; it is written last."""
    path = folder / _FACTS_FILE
    return path.read_bytes().decode("utf-8", "replace") if path.is_file() else None


def keep_subwords(settings: TranslationSettings, prepared: Prepared, folder: Path) -> None:
    """Save the subwords for later runs, once."""
    if _saved_facts(folder) is None:
        prepared.subwords.save(folder)
        write_text(folder / _FACTS_FILE, _facts(settings, prepared.data))
