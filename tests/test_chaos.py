"""`make chaos` in miniature, and what its page says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.methods import create
from advreg.records.sealed import load_as
from chaos import (
    CHAOS,
    PAGE,
    RECORDS,
    SOAK,
    ChaosRecord,
    SoakRecord,
    chaos_file,
    soak,
    with_page,
)
from command_server import GRACE_SECONDS
from tiny_models import tiny
from tiny_runs import ARCH, end_of, same_end, tiny_trainer


def test_the_page_is_made_of_the_record() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_page(text, RECORDS) == text


def test_every_kill_of_the_record_was_survived() -> None:
    record = load_as(RECORDS / CHAOS, ChaosRecord)
    assert len(record.kills) >= 50
    assert [kill for kill in record.kills if not kill.survived] == []
    assert {"save", "refresh", "reuse"} <= {kill.hit for kill in record.kills}


def test_every_kill_of_a_process_of_two_was_survived_by_the_run_and_ended_the_other() -> None:
    record = load_as(RECORDS / chaos_file(2), ChaosRecord)
    assert record.ranks == 2
    assert len(record.kills) >= 20
    assert [kill for kill in record.kills if not kill.survived] == []
    assert {kill.rank for kill in record.kills} == {0, 1, None}
    assert max(kill.seconds for kill in record.kills) < GRACE_SECONDS


def test_the_long_run_of_the_record_did_not_grow() -> None:
    found = load_as(RECORDS / SOAK, SoakRecord).soak
    assert found.steps >= 19_992
    assert found.growth < 0.01
    assert found.descriptors[-1] <= found.descriptors[2]
    assert found.left_behind == []


def test_a_run_whose_cache_moves_ends_as_one_whose_cache_stays_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    def trainer(folder: str, tier: str) -> Any:
        options = {**ARCH, "cache_device": tier, "cache_folder": str(tmp_path)}
        return tiny_trainer(
            tmp_path / folder,
            create("arch", **options),
            tiny("bert", dropout=0.1),
            num_train_epochs=6,
        )

    straight = trainer("straight", "device")
    straight.train()
    for step, tier in ((3, "disk"), (6, "host"), (9, "disk")):
        moved = trainer("moved", tier)
        checkpoint = tmp_path / ("straight" if step == 3 else "moved") / f"checkpoint-{step}"
        moved.train(resume_from_checkpoint=str(checkpoint))
    assert same_end(end_of(moved), end_of(straight))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "straight"]


def test_a_short_soak_leaves_no_file_open_or_behind(tmp_path: Path) -> None:
    found = soak(tmp_path, steps=40, moves=4)
    assert found.left_behind == []
    assert found.descriptors[-1] <= found.descriptors[2]  # every tier was used once by then
    assert found.growth < 0.2


@pytest.mark.slow
def test_a_long_soak_does_not_grow(tmp_path: Path) -> None:
    found = soak(tmp_path, steps=20_000, moves=12)
    assert found.left_behind == []
    assert found.descriptors[-1] <= found.descriptors[2]
    assert found.growth < 0.01
