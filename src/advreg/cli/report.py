"""``advreg report``: one page with all runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from advreg import __version__
from advreg.lab.report.gather import Gathered, gather
from advreg.lab.report.labels import counted
from advreg.lab.report.page.page import render
from advreg.lab.report.sections.contents import sections
from advreg.records.environment import now


def write_report(places: Sequence[Path], out: Path, title: str, console: Console) -> None:
    """Read all records, and write the page atomically."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"output must end in .html, got '{out}'")
    found = gather(places)
    foot = f"Made by advreg {__version__} on {now()[:10]} from records alone."
    page = render(title, _lead(found), foot, sections(found))
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new")
    fresh.write_text(page, encoding="utf-8")
    os.replace(fresh, out)
    told = [f"left out: {each.name}: {each.reason}" for each in found.unreadable]
    size = f"{out.stat().st_size / 1e3:.0f} kB"
    told.append(f"report: {out} ({counted(len(found.runs), 'run')}, {size})")
    console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def _lead(found: Gathered) -> str:
    counts = {
        ("run", "runs"): len(found.runs),
        ("comparison", "comparisons"): len(found.comparisons),
        ("study", "studies"): len(found.studies),
        ("probing", "probings"): len(found.probes),
        ("bench", "benches"): len(found.benches),
    }
    told = [counted(count, *names) for names, count in counts.items() if count]
    return f"Made from the records of {', '.join(told)}."
