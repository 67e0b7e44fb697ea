"""The trainers in several processes: one run, whoever trains on what; and its checkpoints in any
number of them.
"""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor
from transformers import TrainingArguments

from advreg.core.shard import Shard
from observe import features_of
from process_jobs import OPTIONS, outcome, resumed, train_and_save, train_dealt, trainer_of
from processes import together
from tiny_models import tiny_batch

EVERY_METHOD = [{"name": name} for name in OPTIONS]
STOCK = {"name": "standard", "is_stock": True}
SIZE, WORLD = 13, 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("runs")
    alone = train_and_save(str(folder / "one"), per_device_train_batch_size=4)
    ranks = together(
        "process_jobs:everything",
        WORLD,
        folder,
        300,
        folder=str(folder),
        runs=[*EVERY_METHOD, STOCK],
    )
    return {"folder": folder, "alone": alone, "dealt": train_dealt(EVERY_METHOD), "ranks": ranks}


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert set(one) == set(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def rows_by_id(caches: list[dict[str, Tensor]]) -> dict[int, Tensor]:
    """Each cached sample's perturbation, from the caches of all processes."""
    found: dict[int, Tensor] = {}
    for cache in caches:
        blocks = cache["cache.tokens.rows"][:-1].split(cache["cache.tokens.lengths"].tolist())
        found |= dict(zip(cache["cache.ids"].tolist(), blocks, strict=True))
    return found


def neighbours_by_id(caches: list[dict[str, Tensor]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for rank, cache in enumerate(caches):
        ids = Shard(SIZE, rank, len(caches)).ids
        found |= dict(zip(ids, cache["neighbours.tokens"].tolist(), strict=True))
    return found


def same_memory(one: list[dict[str, Tensor]], other: list[dict[str, Tensor]]) -> bool:
    mine, theirs = rows_by_id(one), rows_by_id(other)
    assert len(mine) == int(SIZE * OPTIONS["arch"]["cache_fraction"])
    same = set(mine) == set(theirs) and all(
        torch.equal(mine[index], theirs[index]) for index in mine
    )
    return same and neighbours_by_id(one) == neighbours_by_id(other)


WITH_A_STEP = [
    number for number, name in enumerate(OPTIONS) if name != "standard"
]  # which shards as stock does


@pytest.mark.parametrize(
    "number", WITH_A_STEP, ids=[list(OPTIONS)[number] for number in WITH_A_STEP]
)
def test_the_same_data_dealt_to_two_processes_trains_as_one(
    number: int, found: dict[str, Any]
) -> None:
    """Three epochs of 13 samples, which divide by nothing; for ARCH they refresh, reuse and
    refresh.
    """
    one, (first, second) = (
        found["dealt"][number],
        [rank["dealt"][number] for rank in found["ranks"]],
    )
    assert one["steps"] == first["steps"] == 6
    assert farthest(one["weights"], first["weights"]) < 1e-12
    assert equal(first["weights"], second["weights"])
    for mine, theirs in zip(one["logs"], first["logs"], strict=True):
        assert theirs["task_loss"] == pytest.approx(mine["task_loss"], abs=1e-5)
        assert theirs.get("penalty") == pytest.approx(mine.get("penalty"), abs=1e-5)


def test_standard_in_two_processes_is_the_stock_trainer(found: dict[str, Any]) -> None:
    """It averages the means of the processes, whose last batches differ in size here."""
    number = list(OPTIONS).index("standard")
    for rank in found["ranks"]:
        assert equal(rank["dealt"][number]["weights"], rank["dealt"][-1]["weights"])


def test_processes_cache_their_own_samples_and_find_the_neighbours_one_finds(
    found: dict[str, Any],
) -> None:
    number = list(OPTIONS).index("arch")
    one, two = (
        found["dealt"][number]["memory"],
        [rank["dealt"][number]["memory"] for rank in found["ranks"]],
    )
    for rank, cache in enumerate(two):
        assert {index % WORLD for index in cache["cache.ids"].tolist()} == {rank}
    mine, theirs = rows_by_id([one]), rows_by_id(two)
    assert set(mine) == set(theirs)
    assert all(torch.allclose(mine[index], theirs[index], atol=1e-6) for index in mine)
    assert neighbours_by_id([one]) == neighbours_by_id(two)


def test_as_many_processes_resume_in_mid_epoch_bit_for_bit(found: dict[str, Any]) -> None:
    for rank in found["ranks"]:
        assert equal(rank["whole"]["weights"], rank["resumed"]["weights"])
        assert equal(rank["whole"]["memory"], rank["resumed"]["memory"])
    assert not equal(found["ranks"][0]["whole"]["memory"], found["ranks"][0]["recalled"])


def test_one_process_goes_on_with_all_that_two_had_cached(
    found: dict[str, Any], tmp_path: Path
) -> None:
    alone = resumed(str(found["folder"] / "two"), 6, per_device_train_batch_size=4)
    assert same_memory([alone.recalled], [rank["recalled"] for rank in found["ranks"]])
    assert alone.state.global_step == 16


def test_two_processes_go_on_with_all_that_one_had_cached(found: dict[str, Any]) -> None:
    saved = resumed(str(found["folder"] / "one"), 9, per_device_train_batch_size=4).recalled
    assert same_memory([saved], [rank["of one"] for rank in found["ranks"]])
    assert outcome(found["alone"])["steps"] == 16


def test_a_part_that_cannot_be_written_costs_that_checkpoint_and_not_the_run(
    found: dict[str, Any],
) -> None:
    kept = [f"checkpoint-{step}" for step in (12, 15, 16, 6, 9)]
    assert [rank["checkpoints"] for rank in found["ranks"]] == [kept, kept]


# ---- which batches


class Second(TrainingArguments):
    """Arguments of the second of two processes, as far as a sampler asks."""

    world_size = property(lambda _: 2)  # type: ignore[assignment]
    process_index = property(lambda _: 1)  # type: ignore[assignment]


def second(tmp_path: Path, data: Any = None, **fields: Any) -> Any:
    trainer = trainer_of("r3f", str(tmp_path))
    trainer.train_dataset = features_of(tiny_batch("bert", batch=SIZE)) if data is None else data
    settings = {
        "per_device_train_batch_size": 2,
        "seed": 3,
        "report_to": "none",
        "use_cpu": True,
        **fields,
    }
    trainer.args = Second(str(tmp_path), **settings)
    return trainer


def test_the_trainer_s_settings_reach_the_batches(tmp_path: Path) -> None:
    plain = second(tmp_path).advreg.samples.shard_batches()
    assert (plain.shard, plain.batch_size, plain.seed, plain.shuffle) == (
        Shard(SIZE, 1, 2),
        2,
        3,
        True,
    )
    other = {"data_seed": 8, "dataloader_drop_last": True, "train_sampling_strategy": "sequential"}
    batches = second(tmp_path, **other).advreg.samples.shard_batches()
    assert (batches.seed, batches.shuffle) == (8, False)
    assert list(batches) == [[1, 3], [5, 7], [9, 11]]
    loader = second(tmp_path, train_sampling_strategy="sequential").get_train_dataloader()
    assert [len(batch["input_ids"]) for batch in loader] == [2, 2, 1, 1]


@pytest.mark.parametrize("kind", ["list", "dataset", "length column"])
def test_samples_are_grouped_by_the_length_they_have(kind: str, tmp_path: Path) -> None:
    rows: Any = features_of(tiny_batch("bert", batch=SIZE))
    lengths = [len(row["input_ids"]) for row in rows]
    if kind == "length column":
        lengths = list(range(50, 50 + SIZE))
        rows = [row | {"length": length} for row, length in zip(rows, lengths, strict=True)]
    data = rows if kind == "list" else datasets.Dataset.from_list(rows)
    found = second(
        tmp_path, data, train_sampling_strategy="group_by_length"
    ).advreg.samples.shard_batches()
    assert found.lengths.tolist() == lengths[1::2]


def test_a_strategy_that_would_move_samples_between_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="must be one of random, sequential, group_by_length, got 'batch_rebalance'",
    ):
        second(tmp_path, train_sampling_strategy="batch_rebalance").get_train_dataloader()


# ---- what takes longer


VARIANTS: list[dict[str, Any]] = [
    *EVERY_METHOD,
    STOCK,
    *({"name": name, "gradient_accumulation_steps": 2} for name in OPTIONS),
    STOCK | {"gradient_accumulation_steps": 2},
    *({"name": name, "family": "marian"} for name in ("freelb", "smart", "arch")),
    {"name": "arch", "neighbour_choice": "random"},
    {"name": "arch", "cache_dtype": "float16"},
    {"name": "arch", "cache_device": "disk"},
]


def check_runs(
    runs: list[dict[str, Any]], one: list[dict[str, Any]], many: list[dict[str, Any]]
) -> None:
    """Hold runs in many processes to those in one; Standard to the stock trainer in as many, which
    averages the means of the processes.
    """
    for number, run in enumerate(runs):
        found = many[number]["weights"]
        if run["name"] != "standard":
            assert farthest(one[number]["weights"], found) < 1e-12, run
        elif not run.get("is_stock"):
            assert equal(many[runs.index(run | STOCK)]["weights"], found), run


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_every_variant_dealt_to_many_processes_trains_as_one(world: int, tmp_path: Path) -> None:
    one = train_dealt(VARIANTS)
    ranks = together("process_jobs:train_dealt", world, tmp_path, 500, runs=VARIANTS)
    check_runs(VARIANTS, one, ranks[0])
    for number, run in enumerate(VARIANTS):
        assert all(equal(ranks[0][number]["weights"], rank[number]["weights"]) for rank in ranks), (
            run
        )


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3])
def test_processes_stay_identical_for_fifty_steps_on_data_that_do_not_divide(
    batch_size: int, tmp_path: Path
) -> None:
    ranks = together("process_jobs:train_fifty", 3, tmp_path, 500, batch_size=batch_size)
    for number, name in enumerate(OPTIONS):
        assert ranks[0][number]["steps"] == 50, name
        assert all(equal(ranks[0][number]["weights"], rank[number]["weights"]) for rank in ranks), (
            name
        )


SHARDED: list[dict[str, Any]] = [
    *({"name": name} for name in OPTIONS if name != "smart"),
    STOCK,
    *({"name": name, "gradient_accumulation_steps": 2} for name in OPTIONS if name != "smart"),
    STOCK | {"gradient_accumulation_steps": 2},
    {"name": "smart", "proximal_weight": 0.0},
    {"name": "arch", "gradient_checkpointing": True},
]


@pytest.mark.slow
def test_weights_spread_over_processes_by_fsdp2_train_as_in_one(tmp_path: Path) -> None:
    one = train_dealt(SHARDED)
    ranks = together("process_jobs:train_sharded", 2, tmp_path, 500, runs=SHARDED)
    check_runs(SHARDED, one, ranks[0]["found"])
    for found, run in zip(ranks[0]["found"], SHARDED, strict=True):
        assert found["sharded"] > 0, run
    needing = "must be off under FSDP: it needs all weights in every process; turn it off, or train under DDP"
    assert ranks[0]["refused"] == [f"proximal_weight of smart {needing}"]


@pytest.mark.slow
def test_weights_spread_over_processes_are_saved_and_resumed_bit_for_bit_and_a_full_disk_costs_a_save(
    tmp_path: Path,
) -> None:
    for rank in together("process_jobs:resume_sharded", 2, tmp_path, 300, folder=str(tmp_path)):
        assert set(rank) == {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}
        for kind, runs in rank.items():
            assert runs["whole"]["steps"] == runs["resumed"]["steps"] == 16
            assert equal(runs["whole"]["weights"], runs["resumed"]["weights"]), kind
            assert equal(runs["whole"]["memory"], runs["resumed"]["memory"]), kind
            assert runs["filled"] == {0: [6, 9, 12, 15, 16], 1: [6, 9, 12, 15, 16]}, kind
