from __future__ import annotations

import pytest

from advreg.report.words import bytes_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "–"),
        (0, "–"),
        (12, "12.0 B"),
        (999, "999.0 B"),
        (8_192, "8.2 kB"),
        (999_000, "999.0 kB"),
        (1_000_000, "1.0 MB"),
        (2_560_000_000, "2.6 GB"),
    ],
)
def test_bytes_are_shown_in_units_that_fit(count: int | None, text: str) -> None:
    assert bytes_text(count) == text
