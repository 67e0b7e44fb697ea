from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from advreg.memory.prefetch import Courier

CPU = torch.device("cpu")


class Shelf:
    """Rows by id, and a note of who fetched which."""

    def __init__(self) -> None:
        self.rows = torch.arange(10.0)
        self.fetched: list[tuple[str, list[int]]] = []
        self.open = threading.Event()
        self.open.set()

    def gather(self, ids: Tensor) -> dict[str, Tensor]:
        self.open.wait(timeout=10)
        thread = "worker" if threading.current_thread().name.startswith("advreg-cache") else "main"
        self.fetched.append((thread, ids.tolist()))
        return {"rows": self.rows[ids].clone()}


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    shelf.open.set()


def test_rows_that_were_not_expected_are_gathered_when_asked_for(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    assert courier.bring(torch.tensor([3, 1]))["rows"].tolist() == [3, 1]
    assert shelf.fetched == [("main", [3, 1])]


def test_expected_rows_are_gathered_by_the_worker_and_only_once(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    courier.prefetch(torch.tensor([2, 5]))
    courier.prefetch(torch.tensor([2, 5]))
    assert courier.bring(torch.tensor([2, 5]))["rows"].tolist() == [2, 5]
    assert shelf.fetched == [("worker", [2, 5])]


def test_expecting_does_not_wait_for_the_rows(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    shelf.open.clear()
    courier.prefetch(torch.tensor([4]))  # would hang here
    assert shelf.fetched == []
    shelf.open.set()
    assert courier.bring(torch.tensor([4]))["rows"].tolist() == [4]


def test_several_batches_can_be_expected_and_asked_for_in_any_order(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    for first in (0, 3, 6):
        courier.prefetch(torch.arange(first, first + 3))
    assert courier.bring(torch.tensor([6, 7, 8]))["rows"].tolist() == [6, 7, 8]
    assert courier.bring(torch.tensor([0, 1, 2]))["rows"].tolist() == [0, 1, 2]
    assert courier.bring(torch.tensor([3, 4, 5]))["rows"].tolist() == [3, 4, 5]
    assert {thread for thread, _ in shelf.fetched} == {"worker"}


def test_rows_that_change_after_they_were_gathered_ahead_are_gathered_again(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    courier.prefetch(torch.tensor([1, 2]))
    courier.prefetch(torch.tensor([7, 8]))
    courier.forget(torch.tensor([2, 3]))
    shelf.rows[2] = 99
    assert courier.bring(torch.tensor([1, 2]))["rows"].tolist() == [1, 99]
    assert courier.bring(torch.tensor([7, 8]))["rows"].tolist() == [7, 8]
    assert ("main", [1, 2]) in shelf.fetched
    assert ("worker", [7, 8]) in shelf.fetched


def test_batches_that_are_never_asked_for_do_not_pile_up(shelf: Shelf) -> None:
    courier = Courier(shelf.gather, CPU)
    for sample in range(10):
        for other in range(10):
            courier.prefetch(torch.tensor([sample, other]))
    assert len(courier._awaited) <= 64
    assert courier.bring(torch.tensor([0, 0]))["rows"].tolist() == [0, 0]


def test_an_error_of_the_worker_is_raised_where_the_rows_are_asked_for() -> None:
    def broken(ids: Tensor) -> dict[str, Tensor]:
        raise OSError("the disk is gone")

    courier = Courier(broken, CPU)
    courier.prefetch(torch.tensor([1]))
    with pytest.raises(OSError, match="the disk is gone"):
        courier.bring(torch.tensor([1]))
