"""Which errors are failed writes, which a run survives."""

from __future__ import annotations

import pytest

from advreg.hf.checkpoint.saving import failed_write


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at inline_container.cc:664] . unexpected pos 576 vs 534",
        "basic_ios::clear: iostream error",  # torch.save where the disk fills as it ends the file
    ],
)
def test_what_torch_raises_on_a_full_disk_is_a_failed_write(text: str) -> None:
    def write() -> None:
        raise RuntimeError(text)

    assert str(failed_write(write)) == text


def test_another_error_is_raised() -> None:
    def write() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="CUDA error"):
        failed_write(write)
