"""What pages of results share: writing and checking them, means of what was logged, and the commits
of records.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from advreg.lab.report.labels import counted
from advreg.records.run import RunRecord


def keep(
    about: str, page: Path, text: str, draw: Callable[[Path], object] = lambda folder: None
) -> None:
    """Write a page and its pictures; with ``--check``, name outdated ones instead.

    Args:
        about: what ``--help`` says.
        page: its file; pictures are saved next to it.
        text: what it should say.
        draw: writes all pictures into a folder.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if something would change"
    )
    if parser.parse_args().check:
        old = differing(page, text, draw)
        sys.exit(f"not up to date: {', '.join(old)}" if old else 0)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, encoding="utf-8")
    draw(page.parent)


def differing(page: Path, text: str, draw: Callable[[Path], object]) -> list[str]:
    """Names of the files that are not there, or are not what they should be."""
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder))
        fresh = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    fresh[page.name] = text.encode()
    return [name for name, content in fresh.items() if _content(page.with_name(name)) != content]


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def logged_mean(
    runs: Mapping[Any, RunRecord], task: str, method: str, name: str, last: bool = False
) -> float:
    """The mean of the logged values of a name, or of the last epoch's; nan if there is none."""
    lines = [
        line[name]
        for (of, mine, _), run in runs.items()
        for line in run.outcome.history
        if (of, mine) == (task, method) and name in line
        if not last
        or line["epoch"] > run.training.epochs - 0.9  # a line is of the steps since the one before
    ]
    return statistics.mean(lines) if lines else math.nan


def commits_of(runs: Iterable[RunRecord]) -> str:
    """The commits of runs and the state of their trees; how many runs each has, if there are
    several.
    """
    found = Counter(tree(run.environment["git"]) for run in runs)
    if len(found) == 1:
        return f"Commit {next(iter(found))}"
    several = (f"{told} ({counted(count, 'run')})" for told, count in found.most_common())
    return f"Commits {'; '.join(several)}"


def tree(git: Mapping[str, Any] | None) -> str:
    """The commit of a tree, and whether it had uncommitted changes."""
    if git is None:
        return "unknown"
    state = {
        True: " with uncommitted changes",
        False: "",
        None: ", uncommitted changes not recorded",
    }
    return git["commit"][:7] + state[git["dirty"]]
