from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from advreg.lab.kinds.items import ITEMS_FILE, Items
from advreg.records.sealed import RecordError

ITEMS = Items(
    kind="classification",
    fingerprint="abc",
    main="dev",
    sets={
        "dev": {"predictions": [0, 1, 1], "labels": [0, 1, 0]},
        "mm": {"predictions": [0.5], "labels": [None]},
    },
)


def test_items_are_read_as_they_were_written_and_equal_items_make_equal_bytes(
    tmp_path: Path,
) -> None:
    ITEMS.save(tmp_path)
    first = (tmp_path / ITEMS_FILE).read_bytes()
    assert Items.load(tmp_path) == ITEMS
    ITEMS.save(tmp_path)
    assert (tmp_path / ITEMS_FILE).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [ITEMS_FILE]


def test_sizes_and_prefixes_are_told_by_set() -> None:
    assert ITEMS.sizes == {"dev": 3, "mm": 1}
    assert (ITEMS.prefix("dev"), ITEMS.prefix("mm")) == ("", "mm_")


def test_a_damaged_or_edited_file_is_named(tmp_path: Path) -> None:
    ITEMS.save(tmp_path)
    path = tmp_path / ITEMS_FILE
    whole = path.read_bytes()
    for damaged, message in (
        (whole[:-9], "is damaged"),
        (b"no gzip", "is damaged"),
        (gzip.compress(gzip.decompress(whole).replace(b"[0,1,1]", b"[0,1,0]")), "checksum"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=rf"{ITEMS_FILE}: .*{message}"):
            Items.load(tmp_path)
