from __future__ import annotations

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from advreg.core.retry import Fitting
from padded import few


@few
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 60))
def test_every_sample_is_worked_on_once_in_its_order_in_parts_that_fit(
    size: int, width: int, room: int
) -> None:
    fits = max(1, room // width)  # samples

    def work(rows: slice) -> list[int]:
        part = list(range(size))[rows]
        if len(part) > fits:
            raise torch.OutOfMemoryError("out of memory")
        return part

    fitting = Fitting()
    parts = fitting(size, width, work)
    assert sum(parts, []) == list(range(size))  # noqa: RUF017 - short
    assert max(map(len, parts)) <= fits
    assert max(map(len, parts)) > fits // 2 or size <= fits  # no smaller than halving makes it
    assert fitting(size, width, work) == parts  # it is remembered: nothing runs out the second time


def test_what_does_not_fit_alone_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def work(rows: slice) -> None:
        raise torch.OutOfMemoryError("not even one")

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(torch.OutOfMemoryError, match="not even one"),
    ):
        Fitting()(5, 7, work)
    assert [record.getMessage()[-30:] for record in caplog.records] == [
        f"the ascent continues with {part} at a time"[-30:] for part in (3, 2, 1)
    ]


def test_other_errors_are_not_swallowed() -> None:
    def work(rows: slice) -> None:
        raise RuntimeError("expected scalar type Long")

    with pytest.raises(RuntimeError, match="scalar type"):
        Fitting()(4, 1, work)
