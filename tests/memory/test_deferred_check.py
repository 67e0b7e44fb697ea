"""A check that is looked at late: what lives on the host is looked at at once; tests/gpu shows the
rest.
"""

from __future__ import annotations

import pytest
import torch

from advreg.memory.deferred_check import LateCheck


def complain() -> None:
    raise ValueError("not fine")


def test_on_the_host_what_is_not_fine_is_told_immediately() -> None:
    check = LateCheck()
    check.put(torch.tensor(True), complain)
    with pytest.raises(ValueError, match="not fine"):
        check.put(torch.tensor(False), complain)


def test_nothing_is_told_twice_or_out_of_nothing() -> None:
    check = LateCheck()
    check.settle()
    with pytest.raises(ValueError, match="not fine"):
        check.put(torch.tensor(False), complain)
    check.settle()
