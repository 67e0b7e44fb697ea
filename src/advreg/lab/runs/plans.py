"""The plan of a run, saved with it, so that a resumed run uses the same settings and data."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from advreg.hf.checkpoint.ranks import first_decides, is_first_process
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.runs.settings import RunSettings, SettingsError, decisive
from advreg.methods.base import decisive_options, registry, upgraded_options
from advreg.records import run as records
from advreg.records.sealed import write_text

PLAN_FILE, RECORD_FILE = "plan.json", "record.json"


def run_facts(settings: RunSettings, data: str, method: str, seed: int) -> dict[str, Any]:
    """The facts that identify a run, and all its settings; ``data`` is the fingerprint of the
    samples.
    """
    options = decisive_options(settings.method(method))
    return {
        "data": data,
        "method": method,
        "options": options,
        "seed": seed,
        **settings.facts(),
        "settings": settings.saved(),
    }


def agree(name: str, folder: Path, facts: Mapping[str, Any], resume: bool) -> None:
    """Save the facts in the run's folder, and refuse to resume a run that was started with others.

    Args:
        name, folder: of the run.
        facts: plain values that a resumed run must share with the original run.
        resume: whether to resume the run.
    """
    path, mine = folder / PLAN_FILE, json.loads(json.dumps(facts))
    for half in folder.glob(".*.tmp"):  # a run that was killed while it wrote a record
        half.unlink(missing_ok=True)
    if resume and path.is_file():
        saved = _as_then(read_plan(folder))
        differences = _differences(decisive(saved), decisive(mine))
        told = "; ".join(f"{fact} was {was}, is {now}" for fact, was, now in differences)
        if told:
            anew = (
                ""
                if _holds_work(folder)
                else ", which has no results yet: delete it to start again"
            )
            raise SettingsError(
                f"{name} cannot be resumed, because its settings or data changed: {told}. Resume "
                "with the same data and "
                f"settings, or choose another --output; the run is in '{folder}'{anew}"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(mine, indent=1))


def _differences(
    saved: Mapping[str, Any], mine: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Changed facts as (name, old, new); options and fields are listed by their own names."""
    for fact, now in mine.items():
        then = saved.get(fact)
        if isinstance(then, dict) and isinstance(now, dict):
            yield from (
                (name, then.get(name), now.get(name))
                for name in {**then, **now}
                if then.get(name) != now.get(name)
            )
        elif then != now:
            yield fact, then, now


def _holds_work(folder: Path) -> bool:
    """Whether deleting the folder of a run would lose results."""
    path = folder / RECORD_FILE
    return any(folder.glob("checkpoint-*")) or (
        path.is_file() and records.load(path).outcome.status == "finished"
    )


def _as_then(saved: dict[str, Any]) -> dict[str, Any]:
    """The facts of a plan, with options that its method has gained since."""
    if saved.get("method") not in registry or not isinstance(saved.get("options"), dict):
        return saved
    method = registry[saved["method"]]
    options = {
        name: value
        for name, value in upgraded_options(method, saved["options"]).items()
        if name not in method.info.movable
    }
    return {**saved, "options": options}


def read_plan(folder: Path) -> dict[str, Any]:
    """The facts that a run was started with."""
    path = folder / PLAN_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        facts = error
    if not isinstance(facts, dict):
        told = facts if isinstance(facts, Exception) else f"it holds {type(facts).__name__}"
        raise SettingsError(f"{path} is damaged ({told}); restore it, or choose another --output")
    return facts


def finished(name: str, folder: Path, facts: Mapping[str, Any]) -> records.RunRecord | None:
    """The record of a finished run with these facts."""
    path = folder / RECORD_FILE
    if not path.is_file():
        return None
    record = records.load(path)
    agree(name, folder, facts, resume=True)
    return record if record.outcome.status == "finished" else None


def begun(record: records.RunRecord, folder: Path) -> records.RunRecord:
    """The record of a starting run, with the errors of earlier attempts in its folder."""
    path = folder / RECORD_FILE
    return record.after(records.load(path)) if path.is_file() else record


@contextmanager
def failures_recorded(
    record: records.RunRecord, folder: Path, logged: Sequence[Mapping[str, Any]]
) -> Iterator[None]:
    """On failure within this context, save the error and the log so far in the folder's record."""
    try:
        yield
    except Exception as error:
        if is_first_process():
            record.fail(error, logged).save(folder / RECORD_FILE)
        raise


def choose_folder(settings: RunSettings, resume: bool) -> Path:
    """The folder of the runs: the given one, or runs/DATA-MODEL with a number if that is taken."""
    # refused here, before any data is read; processes meet, as they will for training, so that one
    # can choose for all
    training_arguments(Path("runs"), settings.precision, settings.training)
    return first_decides(lambda: writable(_chosen_folder(settings, resume)))


def _chosen_folder(settings: RunSettings, resume: bool) -> Path:
    if settings.output is not None:
        folder = Path(settings.output)
        if has_runs(folder) and not resume:
            raise SettingsError(
                f"output '{folder}' holds runs already; add --resume to resume them, or choose "
                "another folder"
            )
        return folder
    stem = f"{settings.title}-{Path(settings.model).name}"
    taken = _taken(Path("runs"), stem)
    newest = max(taken, default=0)
    if resume and taken:
        return taken[newest]
    return Path("runs") / (f"{stem}-{newest + 1}" if taken else stem)


def _taken(parent: Path, stem: str) -> dict[int, Path]:
    """Folders with runs by their numbers; there are gaps where some were deleted."""
    numbered = {1: parent / stem}
    for folder in parent.glob(f"{glob.escape(stem)}-*"):
        number = folder.name.removeprefix(f"{stem}-")
        if number.isdecimal():
            numbered[int(number)] = folder
    return {number: folder for number, folder in numbered.items() if has_runs(folder)}


def writable(folder: Path) -> Path:
    """The folder, if it is writable or can be created; it is not created yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    problem = None if there.is_dir() else "a file"
    if problem is None and not os.access(there, os.W_OK | os.X_OK):
        problem = "a folder without write permission"
    if problem is not None:
        raise SettingsError(
            f"output must be a folder that can be written to, got '{folder}': '{there}' is "
            f"{problem}; choose another"
        )
    return folder


def has_runs(folder: Path) -> bool:
    """Whether the folder holds runs."""
    return folder.is_dir() and any(folder.glob(f"*/{PLAN_FILE}"))
