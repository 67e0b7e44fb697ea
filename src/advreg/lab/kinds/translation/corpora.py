"""Known corpora of parallel text, by name.

They are looked for as ``mt/<corpus>/<split>.<language>.xz`` in the folder of the data (``--data``
or ADVREG_DATA); without a folder they are loaded by ``datasets`` from the Hugging Face hub, where
it has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advreg.core.checks import suggest
from advreg.lab.kinds.sources import (
    DATA_VARIABLE,
    DataError,
    HubSplit,
    data_folder,
    load_split,
    require_columns,
)
from advreg.lab.kinds.translation.parallel import (
    TEST,
    TRAIN,
    VALID,
    Bitext,
    ParallelData,
    read_folder,
    whole_pairs,
)

_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Beam:
    """Beam size and length penalty that a paper decoded a task with."""

    beam: int
    length_penalty: float


@dataclass(frozen=True)
class HubText:
    """Where a corpus is on the Hugging Face hub.

    Args:
        splits: ours and theirs.
        held_out: pairs at the end of their training set that become ours to validate on, where they
            have no such set.
    """

    splits: Mapping[str, HubSplit]
    held_out: int = 0


@dataclass(frozen=True)
class CorpusSpec:
    """One direction of a known corpus.

    Args:
        folders: its names under ``mt``; the first that is there is taken.
        source, target: languages.
        train: how many pairs the official training set has.
        tokenised: is its text tokenised?
        decoding: what the ARCH paper decodes it with (its table of inference settings), if it is in
            there.
        settings: what the paper trains it with, or what suits it: settings of ``advreg train``.
        where: how to get it.
        hub: where the Hugging Face hub has it, if it does.
    """

    folders: tuple[str, ...]
    source: str
    target: str
    train: int
    tokenised: bool
    decoding: Beam | None
    where: str
    settings: Mapping[str, Any]
    hub: HubText | None = None


def _both_ways(
    name: str,
    folders: tuple[str, ...],
    languages: tuple[str, str],
    train: int,
    decodings: tuple[Beam | None, Beam | None],
    where: str,
    settings: Mapping[str, Any],
    tokenised: bool = False,
    hub: HubText | None = None,
) -> dict[str, CorpusSpec]:
    ways = (languages, languages[::-1])
    return {
        f"{name}-{source}-{target}": CorpusSpec(
            folders, source, target, train, tokenised, decoding, where, settings, hub
        )
        for (source, target), decoding in zip(ways, decodings, strict=True)
    }


_IWSLT = (
    "the TED talks of the International Conference on Spoken Language Translation (wit3.fbk.eu)"
)
_MULTI30K = "github.com/multi30k/dataset, task 1, raw"
_BASE = {"model": "transformer-base", "update_tokens": 64_000}
_NARROW = {"model": "transformer-iwslt", "update_tokens": 64_000}
_CAPTIONS = {
    "model": "transformer-iwslt",
    "max_tokens": 4096,
    "update_tokens": 4096,
    "learning_rate": 5e-4,
}


def _on_the_hub(path: str, held_out: int = 0, **splits: str) -> HubText:
    return HubText(
        {ours: HubSplit(path, None, theirs) for ours, theirs in splits.items()}, held_out
    )


# the validation set there is a copy of its test set, tst2013
_HUB_IWSLT15 = _on_the_hub("thainq107/iwslt2015-en-vi", held_out=1553, train="train", test="test")
_HUB_MULTI30K = _on_the_hub("bentrevett/multi30k", train="train", valid="validation", test="test")
_HUB_WMT = HubText(  # wmt16 validates on later years
    {
        TRAIN: HubSplit("wmt/wmt16", "de-en", "train"),
        VALID: HubSplit("wmt/wmt14", "de-en", "validation"),
        TEST: HubSplit("wmt/wmt14", "de-en", "test"),
    }
)

CORPORA: dict[str, CorpusSpec] = {
    **_both_ways(
        "iwslt15", ("iwslt15_en-vi",), ("en", "vi"), 133_166, (Beam(10, 1.0), Beam(15, 0.3)),
        "Stanford's release, nlp.stanford.edu/projects/nmt: train, tst2012 as valid, tst2013 as "
        "test", _BASE, tokenised=True, hub=_HUB_IWSLT15,
    ),
    **_both_ways(
        "iwslt14", ("iwslt14_de-en", "iwslt14_de-en_small"), ("de", "en"), 160_239,
        (Beam(9, 1.5), Beam(10, 1.5)),
        f"{_IWSLT}, prepared by fairseq's examples/translation/prepare-iwslt14.sh", _NARROW,
    ),
    **_both_ways(
        "iwslt16", ("iwslt16_en-fr",), ("en", "fr"), 224_000, (Beam(10, 0.2), Beam(10, 2.0)),
        _IWSLT, _BASE,
    ),
    **_both_ways(
        "multi30k", ("multi30k_en-de",), ("en", "de"), 29_000, (None, None),
        _MULTI30K, _CAPTIONS, hub=_HUB_MULTI30K,
    ),
    **_both_ways(
        "multi30k", ("multi30k_en-fr",), ("en", "fr"), 29_000, (None, None), _MULTI30K, _CAPTIONS,
    ),
    "wmt16-en-de": CorpusSpec(
        ("wmt16_en-de",), "en", "de", 4_500_966, False, Beam(4, 0.6),
        "fairseq's examples/scaling_nmt: the WMT'16 En-De training set that Google prepared, "
        "newstest2013 as valid, newstest2014 as test",
        {
            "model": "transformer-big", "vocabulary": 32_000, "update_tokens": 450_000,
            "weights": "average",
        },
        _HUB_WMT,
    ),
}  # fmt: skip
"""Known corpora by task."""


# ---- loading


def load_corpus(task: str, folder: Path | None = None) -> ParallelData:
    """A known corpus: from ``folder`` or the one ADVREG_DATA names, and where neither is given from
    the hub.
    """
    if task not in CORPORA:
        raise DataError(
            f"unknown translation task '{task}'{suggest(task, CORPORA)}; there are "
            f"{', '.join(CORPORA)}"
        )
    spec = CORPORA[task]
    place = _corpus_folder(task, spec, folder)
    if place is None:
        assert spec.hub is not None  # there would have been an error
        splits, notes = _hub_splits(task, spec, spec.hub), _hub_notes(task, spec.hub)
        details = {"corpus": spec.hub.splits[TRAIN].path}
    else:
        splits, notes = read_folder(place, spec.source, spec.target), []
        details = {"corpus": place.name}
    pairs = len(splits[TRAIN]) + splits[TRAIN].dropped
    if subset := pairs < 0.98 * spec.train:
        notes.append(
            f"{task}: a subset of the training set, {pairs:,} of {spec.train:,} pairs; not "
            "comparable with published scores"
        )
    return ParallelData(
        name=task,
        languages=(spec.source, spec.target),
        splits=splits,
        tokenised=spec.tokenised,
        notes=tuple(notes),
        details={**details, "subset": subset, "official_train": spec.train},
    )


def _corpus_folder(task: str, spec: CorpusSpec, folder: Path | None) -> Path | None:
    """Where its files are; None for the hub."""
    given = data_folder(folder)
    first = f"{TRAIN}.{spec.source}.xz"
    if given is None:
        if spec.hub is not None:
            return None
        raise DataError(
            f"task '{task}' needs its files; give the folder that holds mt/{spec.folders[0]}/"
            f"{first} with --data or {DATA_VARIABLE}. To get them: {spec.where}"
        )
    places = [parent / name for parent in (given / "mt", given) for name in spec.folders]
    found = next(filter(Path.is_dir, places), None)
    if found is None:
        online = f"; or leave --data and {DATA_VARIABLE} out to load it from the hub"
        raise DataError(
            f"task '{task}' is not in '{given}': there is no "
            f"mt/{' and no mt/'.join(spec.folders)} with {first} and {TRAIN}.{spec.target}.xz. "
            f"To get it: {spec.where}{'' if spec.hub is None else online}"
        )
    return found


# ---- the hub


def _hub_splits(task: str, spec: CorpusSpec, hub: HubText) -> dict[str, Bitext]:
    splits = {name: _hub_bitext(task, spec, where) for name, where in hub.splits.items()}
    if hub.held_out:
        train = splits[TRAIN]
        first = len(train) - hub.held_out
        if first < 1:
            raise DataError(
                f"'{hub.splits[TRAIN].path}': train must have more than {hub.held_out:,} pairs, "
                f"got {len(train):,}; "
                "the hub's data set has changed, give files with --data"
            )
        splits[VALID] = train.take(range(first, len(train)))
        splits[TRAIN] = replace(train.take(range(first)), dropped=train.dropped)
    return splits


def _hub_notes(task: str, hub: HubText) -> list[str]:
    """What a user should know."""
    if not hub.held_out:
        return []
    return [
        f"{task}: '{hub.splits[TRAIN].path}' has no validation set; the last "
        f"{hub.held_out:,} training "
        "pairs are validated on"
    ]


def _hub_bitext(task: str, spec: CorpusSpec, where: HubSplit) -> Bitext:
    """A split whose rows are pairs: a column for each language, or a column ``translation`` that
    has both.
    """
    dataset = load_split(task, where)
    nested = "translation" in dataset.column_names
    if not nested:
        require_columns(dataset, (spec.source, spec.target), where, f"{task}/{where.split}")
    source: list[str] = []
    target: list[str] = []
    for rows in dataset.iter(_ROWS_AT_ONCE):
        for language, side in ((spec.source, source), (spec.target, target)):
            texts = (
                [pair.get(language) for pair in rows["translation"]] if nested else rows[language]
            )
            side += map(_one_line, texts)
    return whole_pairs(source, target, f"'{where.path}' {where.split}")


def _one_line(text: str | None) -> str:
    return "" if text is None else text.replace("\r", " ").replace("\n", " ").strip()
