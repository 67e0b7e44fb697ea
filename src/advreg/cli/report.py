"""``advreg report``: one page of everything that was run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from advreg import __version__
from advreg.lab.kinds.registry import main_metrics
from advreg.lab.report.figures import Row as PictureRow
from advreg.lab.report.figures import Rows, looks
from advreg.lab.report.gather import Gathered, gather
from advreg.lab.report.labels import counted
from advreg.lab.report.page import render
from advreg.lab.report.parts import Part, Section
from advreg.lab.report.render import Sheet
from advreg.lab.report.sections import sections
from advreg.records.bench import STANDARD, Panel, load
from advreg.records.environment import now


def write_report(places: Sequence[Path], out: Path, title: str, console: Console) -> None:
    """Read all records, and write the page in one piece."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"output must end in .html, got '{out}'")
    found = gather(places)
    made = sections(found, main_metrics, [bench_section(found)])
    page = render(
        title,
        _lead(found),
        f"Made by advreg {__version__} on {now()[:10]} from records alone.",
        made,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{out.name}.new")
    fresh.write_text(page, encoding="utf-8")
    os.replace(fresh, out)
    for problem in found.unreadable:
        console.print(
            f"left out: {problem.name}: {problem.reason}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    told = f"report: {out} ({counted(len(found.runs), 'run')}, {out.stat().st_size / 1e3:.0f} kB)"
    console.print(told, highlight=False, markup=False, soft_wrap=True)


def _lead(found: Gathered) -> str:
    counts = {
        ("run", "runs"): len(found.runs),
        ("comparison", "comparisons"): len(found.comparisons),
        ("study", "studies"): len(found.studies),
        ("probing", "probings"): len(found.probes),
        ("bench", "benches"): len(found.benches),
    }
    told = [counted(count, *names) for names, count in counts.items() if count]
    return (
        f"Drawn from the records of {', '.join(told)}. Click a name in a legend to hide it "
        "everywhere; hover over a "
        "picture, or focus it and use the arrow keys, to read its values."
    )


# ---- benches, which the layer of reports does not know


def bench_section(found: Gathered) -> Section:
    """Tables and bars of the benches."""
    parts = [part for path in found.benches for part in _bench_parts(path)]
    intro = (
        "Time of a step, in rounds in which every method has its turn. Bars are medians over "
        "rounds."
    )
    return Section("bench", "Bench", intro, parts)


def _bench_parts(path: Path) -> Iterator[Part]:
    # here: they bring the models along, which take seconds to load
    from advreg.cli.bench import (
        STEPS_CAPTION,
        STEPS_HEADER,
        WHOLE_HEADER,
        bench_title,
        step_cells,
        whole_cells,
    )

    record = load(path)
    for panel in record.panels:
        about = bench_title(record, panel)
        yield Sheet(
            f"{about}. {STEPS_CAPTION}.", STEPS_HEADER, [step_cells(row) for row in panel.rows]
        )
        if panel.whole:
            caption = f"{about}: a whole run of {record.settings.get('epochs')} epochs."
            yield Sheet(caption, WHOLE_HEADER, [whole_cells(run) for run in panel.whole])
        yield from _bars(panel, about)


def _bars(panel: Panel, about: str) -> Iterator[Part]:
    rows = [row for row in panel.rows if row.against == STANDARD and row.phase != "sweep"]
    shown = looks(
        [row.name for row in rows], [row.method for row in rows], [row.name for row in rows]
    )
    bars = [
        PictureRow(
            shown[row.name],
            row.ratio.median,
            row.ratio.quartile_1,
            row.ratio.quartile_3,
            mark=row.arithmetic,
        )
        for row in rows
        if row.ratio is not None
    ]
    if bars:
        told = {"value": "median", "interval": "quartiles", "mark": "by arithmetic"}
        yield Rows(
            title=about, x="time of a step, × Standard", rows=bars, bars=True, base=1.0, told=told
        )
