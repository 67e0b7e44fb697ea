"""Every trap on the list names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_trap_has_a_test_that_exists():
    rows = re.findall(
        r"^\| (\d+) \| .* \| (`test_.*`) \|$",
        (ROOT / "docs" / "traps.md").read_text(),
        flags=re.MULTILINE,
    )
    assert [int(number) for number, _ in rows] == list(range(1, 30))
    there = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    named = {name for _, names in rows for name in re.findall(r"`(test_\w+)`", names)}
    assert named <= there, named - there
