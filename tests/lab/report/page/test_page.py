from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

from advreg.lab.report.page.page import render
from advreg.lab.report.page.parts import Bullets, Folded, Heading, Section, Tiles
from advreg.lab.report.pictures.figures import Lines, Look, Row, Rows, Series
from advreg.lab.report.tables import Cell, Table

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&"


class Reader(HTMLParser):
    """Elements by name with their attributes, and the texts that stand in them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.elements[-1][0], data))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*parts: object, title: str = "A report") -> str:
    return render(title, "lead", "foot", [Section("first", "First", "intro", parts)])  # type: ignore[arg-type]


def everything(text: str) -> list[object]:
    look = Look(text, "#0072B2")
    return [
        Heading(text),
        Bullets(text, [text]),
        Tiles([(text, text, text)]),
        Table(text, [text, text], [[text, text]]),
        Folded(text, [Table(text, [text], [[text]])]),
        Rows(title=text, x=text, marks=[Row(look, 1.0)]),
        Lines(title=text, x=text, y=text, marks=[Series(look, [0.0], [1.0])]),
    ]


def test_nothing_that_a_record_holds_becomes_markup() -> None:
    page = page_of(*everything(EVIL), title=EVIL)
    harmless = "x" * len(EVIL)
    plain = Reader(page_of(*everything(harmless), title=harmless))
    found = Reader(page)
    assert [name for name, _ in found.elements] == [name for name, _ in plain.elements]
    assert [sorted(attributes) for _, attributes in found.elements] == [
        sorted(a) for _, a in plain.elements
    ]
    assert "<script>document" not in page


def test_the_policy_lets_the_pages_own_script_run_and_no_other() -> None:
    page = page_of()
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page


def test_nothing_is_fetched() -> None:
    found = Reader(page_of(*everything("x")))
    for tag in ("link", "img", "iframe", "object", "embed", "video", "audio", "source"):
        assert found.named(tag) == []
    assert all("src" not in attributes for _, attributes in found.elements)
    assert all((link["href"] or "").startswith("#") for link in found.named("a"))
    urls = re.findall(r"https?://[^\s\"')]+", page_of(*everything("x")))
    assert urls == []


def test_tables_are_tables_with_headers_and_the_best_is_strong() -> None:
    sheet = Table("Scores.", ["", "RTE"], [["Standard", "70.0"], ["ARCH", Cell("72.0", bold=True)]])
    page = page_of(sheet)
    assert '<th scope="col">RTE</th>' in page
    assert '<th scope="row">ARCH</th><td><strong>72.0</strong></td>' in page
    assert '<th scope="row">Standard</th><td>70.0</td>' in page


def test_pictures_and_small_tables_stand_side_by_side_and_wide_tables_do_not() -> None:
    picture = Rows(title="t", x="x", marks=[Row(Look("a", "#000000"), 1.0)])
    narrow, wide = Table("", ["a", "b"], [["1", "2"]]), Table("", list("abcdef"), [list("123456")])
    page = page_of(picture, narrow, wide, picture)
    groups = [
        piece.partition("</section>")[0] for piece in page.split('<div class="pictures">')[1:]
    ]
    assert [group.count('role="img"') for group in groups] == [1, 1]
    assert [group.partition("</figure></div>")[0].count("<table>") for group in groups] == [1, 0]
