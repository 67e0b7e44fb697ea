from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.records.diagnostics import HealthRecord, Histogram, MemoryHealth, TokenNorms, load
from advreg.records.sealed import RecordError


@given(st.lists(st.floats(-2, 2)), st.integers(1, 50))
def test_every_value_is_counted_once_in_the_bin_whose_ends_hold_it(
    values: list[float], bins: int
) -> None:
    found = Histogram.of("tokens", values, -1.0, 1.0, bins)
    assert len(found.counts) == bins
    assert sum(found.counts) == len(values)
    edges = [-1 + 2 * place / bins for place in range(1, bins)]
    for place, edge in enumerate(edges, start=1):
        below = (
            sum(value < edge - 1e-9 for value in values),
            sum(value < edge + 1e-9 for value in values),
        )
        assert below[0] <= sum(found.counts[:place]) <= below[1]


def test_what_is_written_is_read_again_and_an_edit_is_noticed(tmp_path: Path) -> None:
    memory = MemoryHealth(
        sizes=[Histogram(stream="tokens", low=0.0, high=1.0, counts=[0, 3])],
        written={"-1": 1, "4": 2},
        similarity=[],
        tokens=[TokenNorms(sample=7, stream="tokens", norms=[0.5, 0.25], tokens=["a", "b"])],
    )
    record = HealthRecord(peak_bytes=12, memory=memory)
    record.save(tmp_path)
    assert load(tmp_path) == record
    path = tmp_path / "health.json"
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(RecordError, match=r"health\.json: checksum does not match"):
        load(tmp_path)


def test_a_run_may_have_left_none(tmp_path: Path) -> None:
    assert load(tmp_path) is None
