"""A page of results is written with its pictures, and checked against them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import keep


def run(
    monkeypatch: pytest.MonkeyPatch,
    page: Path,
    *arguments: str,
    text: str = "# ε\n",
    picture: str = "<svg/>",
) -> None:
    monkeypatch.setattr("sys.argv", ["page.py", *arguments])
    keep(
        "about",
        page,
        text,
        lambda folder: (folder / "norms.svg").write_text(picture, encoding="utf-8"),
    )


def test_a_page_that_was_written_is_up_to_date(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "docs" / "page.md"
    run(monkeypatch, page)
    assert page.read_text(encoding="utf-8") == "# ε\n"
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, page, "--check")
    assert ended.value.code == 0


def test_what_would_change_is_named_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(SystemExit, match=r"not up to date: norms\.svg, page\.md"):
        run(monkeypatch, page, "--check")
    assert not page.exists()
    run(monkeypatch, page)
    with pytest.raises(SystemExit, match=r"not up to date: norms\.svg$"):
        run(monkeypatch, page, "--check", picture="<svg></svg>")
    with pytest.raises(SystemExit, match=r"not up to date: page\.md$"):
        run(monkeypatch, page, "--check", text="another")
    assert page.read_text(encoding="utf-8") == "# ε\n"
