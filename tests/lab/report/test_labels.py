from __future__ import annotations

import pytest

from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.kinds.translation.corpora import CORPORA
from advreg.lab.report.labels import TASK_NAMES, bytes_text, task_name


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


def test_every_known_task_has_a_name_that_people_write() -> None:
    assert set(TASK_NAMES) == {*TASKS, *CORPORA}
    assert (
        task_name("iwslt15-vi-en")
        == task_name("iwslt15-vi-en", "the title of its data")
        == "IWSLT'15 Vi-En"
    )
