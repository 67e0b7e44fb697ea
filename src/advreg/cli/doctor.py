"""``advreg doctor``: the findings as a table, and a remedy for each failure."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from advreg.lab.doctor import Finding, examine
from advreg.lab.kinds.models import load_any
from advreg.lab.kinds.training import quiet_libraries


def report(
    name: str,
    site: str,
    radius: float,
    dtype: str,
    checkpointing: bool,
    console: Console,
    trusted: bool = False,
) -> int:
    """Examine a model, or the model of a run, and print the findings; returns 0 if all checks pass,
    1 otherwise.
    """
    quiet_libraries()
    model = load_any(_model_of(name), dtype, trusted)
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    findings = examine(model, site=site, radius=radius)
    console.print(_table(findings, f"{type(model).__name__}, site {site}, {dtype}"))
    failed = [finding for finding in findings if not finding.passed]
    for finding in failed:
        console.print(
            f"[red]✗[/red] {finding.stream}: {finding.check}: {finding.remedy}", highlight=False
        )
    if not failed:
        console.print(
            "[green]✓[/green] all checks passed; this model can be trained with every method"
        )
    return 1 if failed else 0


def _model_of(name: str) -> str:
    """The model folder in the folder of a run; other names are unchanged."""
    inner = Path(name) / "model"
    return str(inner) if inner.is_dir() and not (Path(name) / "config.json").exists() else name


def _table(findings: list[Finding], title: str) -> Table:
    table = Table("", "stream", "check", "seen", title=title)
    for finding in findings:
        table.add_row(
            "[green]✓[/green]" if finding.passed else "[red]✗[/red]",
            finding.stream,
            finding.check,
            finding.seen,
        )
    return table
