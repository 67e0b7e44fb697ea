"""Manifests of checkpoints, of every schema that was ever written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.hf.checkpoint.manifest import MANIFEST_FILE, Manifest
from advreg.records.sealed import RecordError, load_as
from sample_records import sealed

FIRST: dict[str, Any] = {"schema": 1, "run": "one", "sizes": {"a": 3}, "digests": {"a": "9f"}}


@pytest.mark.parametrize(
    ("payload", "since", "at"),
    [
        (FIRST, 0, 0.0),
        (FIRST | {"since": 7}, 7, 0.0),
        (FIRST | {"since": 7, "at": 1.5}, 7, 1.5),
        (FIRST | {"since": 7, "at": 1.5, "schema": 2}, 7, 1.5),
    ],
)
def test_a_manifest_of_any_schema_is_read(
    payload: dict[str, Any], since: int, at: float, tmp_path: Path
) -> None:
    path = tmp_path / MANIFEST_FILE
    path.write_text(sealed(payload))
    expected = Manifest(run="one", sizes={"a": 3}, digests={"a": "9f"}, since=since, at=at)
    assert load_as(path, Manifest) == expected


def test_a_manifest_of_the_newest_schema_lacks_nothing(tmp_path: Path) -> None:
    path = tmp_path / MANIFEST_FILE
    path.write_text(sealed(FIRST | {"schema": 2}))
    with pytest.raises(RecordError, match="at is missing"):
        load_as(path, Manifest)
