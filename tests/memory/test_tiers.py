from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from advreg.memory import tiers
from advreg.memory.tiers import Place, choose_tier, device_budget, host_budget, mapped_zeros


@pytest.mark.parametrize(
    ("needed", "tier"),
    [(0, "device"), (10, "device"), (11, "host"), (100, "host"), (101, "disk"), (10**15, "disk")],
)
def test_the_nearest_tier_with_room_is_chosen(needed: int, tier: str) -> None:
    assert choose_tier(needed, device_budget=10, host_budget=100) == tier


def test_a_stated_budget_is_taken_at_its_word() -> None:
    assert device_budget(torch.device("cpu"), stated_gb=0.5) == 5e8
    assert device_budget(torch.device("cpu"), stated_gb=0) == 0


def test_without_a_word_a_model_on_a_cpu_may_use_half_of_the_available_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = type("Memory", (), {"available": 8_000})
    monkeypatch.setattr(tiers.psutil, "virtual_memory", lambda: memory)
    assert host_budget() == 4_000
    assert device_budget(torch.device("cpu")) == 4_000


def test_the_processes_of_a_host_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = type("Memory", (), {"available": 8_000})
    monkeypatch.setattr(tiers.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert host_budget() == 1_000


def test_a_mapped_tensor_reads_and_writes_as_any_other_and_begins_with_zeros(
    tmp_path: Path,
) -> None:
    mapped = mapped_zeros((5, 3), torch.float32, str(tmp_path))
    assert mapped.shape == (5, 3)
    assert not mapped.any()
    mapped[torch.tensor([1, 4])] = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    assert mapped.sum().item() == 21
    assert mapped[4].tolist() == [4, 5, 6]


def test_the_file_is_on_the_disk_asked_for_but_its_name_is_gone_so_that_nothing_is_left_behind(
    tmp_path: Path,
) -> None:
    mapped = Place(tier="disk", folder=str(tmp_path)).zeros((1000, 10), torch.int8)
    assert list(tmp_path.iterdir()) == []
    backing = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line
    ]
    assert any("advreg-cache" in line and "(deleted)" in line for line in backing)
    mapped[999, 9] = 7
    assert mapped.sum().item() == 7


@pytest.mark.parametrize("shape", [(0, 4), (1, 1)])
def test_small_shapes_are_mapped_too(shape: tuple[int, int], tmp_path: Path) -> None:
    assert mapped_zeros(shape, torch.float16, str(tmp_path)).shape == shape


def test_a_full_disk_is_an_error_before_training_that_names_size_folder_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tiers.os, "posix_fallocate", full)
    with pytest.raises(
        OSError, match=r"cannot keep 0\.40 GB of cache in .*No space left.*set cache_folder"
    ):
        mapped_zeros((10**8,), torch.float32, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_space_that_a_real_disk_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot keep .* GB of cache"):
        mapped_zeros((2**50,), torch.float32, str(tmp_path))


def test_a_folder_that_is_not_there_is_named_and_to_be_created(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"cache_folder must be a folder that exists, got '.*nowhere/x'; create it"
    ):
        mapped_zeros((3,), torch.float32, str(tmp_path / "nowhere" / "x"))


@pytest.mark.parametrize(("device", "tier", "near"), [
    ("cpu", "device", True), ("cpu", "host", True), ("cpu", "disk", False),
    ("cuda", "device", True), ("cuda", "host", False), ("cuda", "disk", False),
])  # fmt: skip
def test_rows_are_near_where_the_models_device_reads_them_itself(
    device: str, tier: str, near: bool
) -> None:
    assert Place(torch.device(device), tier).is_near is near  # type: ignore[arg-type]
