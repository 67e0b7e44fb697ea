"""The table of patches names every module, with the upstream reference of its docstring."""

import ast
import re
from pathlib import Path

import pytest

import advreg.hf.patches

FOLDER = Path(advreg.hf.patches.__file__).parent
MODULES = sorted(path for path in FOLDER.glob("*.py") if path.name != "__init__.py")
ENTRIES = ("What", "Why", "Upstream", "Remove when")


def rows() -> dict[str, list[str]]:
    """The cells of each row by the name of its module."""
    lines = (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if ".py` |" in line
    ]
    return {cells[0].strip("`"): cells[1:] for cells in table}


def links(text: str) -> set[str]:
    return set(re.findall(r"https://github\.com/[\w./-]+/\d+", text))


def test_every_patch_has_a_row_and_every_row_a_patch() -> None:
    assert MODULES
    assert list(rows()) == [path.name for path in MODULES]
    assert all(len(cells) == len(ENTRIES) and all(cells) for cells in rows().values())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_docstring_of_a_patch_has_the_entries_of_its_row(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert [entry for entry in ENTRIES if f"\n{entry}: " in text] == list(ENTRIES)
    upstream = rows()[path.name][ENTRIES.index("Upstream")]
    assert links(text) == links(upstream)
    assert links(text) or "none known" in text
