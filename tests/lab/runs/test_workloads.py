from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advreg.lab.kinds.classification.workload import Texts
from advreg.lab.kinds.translation import workload as translation
from advreg.lab.kinds.translation.workload import Translations
from advreg.lab.runs.bases import AnySettings
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.runs.workloads import load_workload, source_of
from advreg.lab.search.jobs import TrainRun
from advreg.records import run as records
from little_tables import scored, sentiment, tiny_folder, write_table
from number_words import SOURCE, TARGET, write_numbers


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workloads")


@pytest.fixture(scope="module")
def text(home: Path) -> TrainSettings:
    return TrainSettings(
        task="files",
        train=str(write_table(home / "mrpc.csv", sentiment(40))),
        model=str(tiny_folder(home / "tiny")),
    )


@pytest.fixture(scope="module")
def numbers(home: Path) -> TranslationSettings:
    return TranslationSettings(
        data=str(write_numbers(home / "numbers", train=60, valid=10, test=8)), source=SOURCE, target=TARGET,
        model="transformer-small", vocabulary=55, max_ratio=3.0, methods=("standard",), seeds=(0,), epochs=1,
        max_tokens=128, update_tokens=100, beam=1,
    )  # fmt: skip


def test_each_kind_says_what_it_is_judged_by_and_on_which_set(
    text: TrainSettings, numbers: TranslationSettings, home: Path
) -> None:
    tasks: Mapping[str, AnySettings] = {
        "text": text,
        "scores": replace(text, train=str(write_table(home / "pairs.csv", scored(40)))),
        "numbers": numbers,
        "tokens": replace(numbers, tokenised=True),
    }
    found = {name: load_workload(settings) for name, settings in tasks.items()}
    judged = {name: (*work.main_metrics, work.scored_on) for name, work in found.items()}
    assert judged == {
        "text": ("accuracy", "dev"),  # though its file is named like a known task
        "scores": ("pearson", "dev"),
        "numbers": ("bleu", "test"),
        "tokens": ("tokenised_bleu", "test"),
    }
    assert found["numbers"].sizes == {"train": 60, "valid": 10, "test": 8}
    assert found["numbers"].held_out(0.1, 0).sizes == {"train": 54, "valid": 6}
    assert found["numbers"].held_out(0.1, 0).scored_on == "valid"
    assert isinstance(found["text"], Texts)


def test_settings_that_name_the_same_data_are_known_by_it(
    text: TrainSettings, numbers: TranslationSettings
) -> None:
    assert source_of(text) == source_of(replace(text, epochs=9, site="block"))
    assert source_of(text) != source_of(replace(text, train="other.csv"))
    assert source_of(numbers) == source_of(replace(numbers, epochs=9))
    assert source_of(numbers) != source_of(replace(numbers, source=TARGET, target=SOURCE))


def test_a_rehearsal_refuses_what_cannot_work_and_writes_nothing(
    text: TrainSettings, numbers: TranslationSettings, tmp_path: Path
) -> None:
    for settings, message in ((text, "is no module of Bert"), (numbers, "is no module of Marian")):
        workload = load_workload(settings)
        workload.rehearse(settings, "arch", tmp_path, lambda _: None)
        with pytest.raises(RuntimeError, match=message):
            workload.rehearse(replace(settings, site="nowhere"), "arch", tmp_path, lambda _: None)
    with pytest.raises(ValueError, match="vocabulary"):
        load_workload(numbers).rehearse(
            replace(numbers, vocabulary=9000), "arch", tmp_path, lambda _: None
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields",
    [{}, {"gradient_accumulation_steps": 3}, {"max_steps": 4}, {"dataloader_drop_last": True}],
)
def test_a_rehearsal_counts_the_steps_of_the_run(
    text: TrainSettings, tmp_path: Path, fields: dict[str, Any]
) -> None:
    settings = replace(
        text,
        epochs=2,
        batch_size=7,
        training={**fields, "eval_strategy": "no", "save_strategy": "no"},
    )
    record = TrainRun(settings, "standard", 0, tmp_path / "run")(Quiet())
    counted = load_workload(settings).rehearse(settings, "standard", tmp_path, lambda _: None)
    assert record.outcome.timing["steps"] == counted


def test_subwords_are_learnt_once_for_settings_that_agree_on_them(
    numbers: TranslationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    learnt: list[int] = []
    really = translation.prepare_data
    monkeypatch.setattr(
        translation,
        "prepare_data",
        lambda asked, *rest: learnt.append(asked.vocabulary) or really(asked, *rest),
    )
    workload = load_workload(numbers)
    assert isinstance(workload, Translations)
    for settings in (numbers, replace(numbers, epochs=7), replace(numbers, vocabulary=54), numbers):
        workload.prepared(settings, lambda _: None)
    assert learnt == [55, 54, 55]


class Quiet:
    def step(self, *_: Any) -> None: ...

    def notice(self, _: str) -> None: ...


def test_a_translation_is_a_run_like_any_other(
    numbers: TranslationSettings, tmp_path: Path
) -> None:
    run = TrainRun(numbers, "standard", 0, tmp_path / "run")
    record = run(Quiet())
    assert record.outcome.timing["steps"] == load_workload(numbers).rehearse(
        numbers, "standard", tmp_path, lambda _: None
    )
    names = sorted(path.name for path in run.folder.iterdir())
    assert names == [
        "health.json",
        "items.json.gz",
        "plan.json",
        "record.json",
        "test.translations.txt",
        "valid.translations.txt",
    ]
    fingerprint = load_workload(numbers).fingerprint
    assert run.settled(fingerprint) == records.load(run.folder / "record.json") == record.portable()
    with pytest.raises(SettingsError, match="epochs was 1, is 2"):
        replace(run, settings=replace(numbers, epochs=2)).settled(fingerprint)
