"""What processes tell each other, in three real ones; with one, nothing is exchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.memory.exchange import gathered, summed
from exchange_jobs import CACHED, rows_of
from processes import together


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("exchange")
    return together("exchange_jobs:exchange", 3, folder, 120, dtype="float16")


def test_every_process_gets_the_rows_of_all_however_many_each_has(
    found: list[dict[str, Any]],
) -> None:
    for rank in found:
        parts = rank["gathered"]
        assert [part.tolist() for part in parts] == [[], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]]


def test_sums_wrap_around_at_64_bits(found: list[dict[str, Any]]) -> None:
    assert {rank["summed"] for rank in found} == {(3 * 2**63 + 3) % 2**64}
    assert summed(2**64 - 1, torch.device("cpu"), 1) == 2**64 - 1


def test_one_process_alone_needs_nobody() -> None:
    rows = torch.randn(3, 2)
    assert gathered(rows, 1)[0] is rows


def test_rows_of_the_cache_set_come_in_the_order_of_the_ids(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["assembled"][:, 0].tolist() == CACHED


def test_shared_means_are_the_means_of_those_who_hold_the_samples(
    found: list[dict[str, Any]],
) -> None:
    """To the bit; what its process has not written is marked so."""
    seen = [0, 0, 0]
    for place, index in enumerate(CACHED):
        owner = index % 3
        written = seen[owner] < 2
        for rank in found:
            assert torch.equal(rank["means"][place], found[owner]["own"][seen[owner]])
            assert rank["written"][place] == (1 if written else -1)
            if written:
                assert torch.allclose(rank["means"][place], rows_of(index).mean(0), atol=0.05)
        seen[owner] += 1


def test_what_is_exchanged_is_a_mean_row_and_an_epoch_for_each_cached_sample(
    found: list[dict[str, Any]],
) -> None:
    assert {rank["nbytes"] for rank in found} == {len(CACHED) * (3 * 4 + 8)}
