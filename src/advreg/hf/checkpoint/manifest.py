"""Whether a checkpoint can be trusted: a manifest with the size and the digest of every file,
written last.

A checkpoint is written under a temporary name, flushed to the disk, sealed, and only then renamed.
A folder with its final name is therefore complete, and later damage (a truncated or changed file, a
folder of another run) is detected.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advreg.records.paths import stays_inside
from advreg.records.sealed import Payload, RecordError, Upgrade, load_as, save_as, sync_folder

MANIFEST_FILE = "advreg_manifest.json"
STAGING = (
    "_saving"  # where checkpoints are written; uploads to the hub leave out what begins with _
)


def _know_the_beginning(manifest: Payload) -> Payload:
    """Manifests of schema 1 did not always hold ``since`` and ``at``."""
    return {"since": 0, "at": 0.0} | manifest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The files of a checkpoint. The digest is SHA-256, which processors compute in hardware: a GB
    takes less than a second.

    Args:
        run: token of the run it belongs to.
        sizes, digests: of each file, by its path in the folder.
        since: the first step that belongs to the run, which began at a checkpoint of another
            Trainer below that step.
        at: when it was sealed, in seconds since 1970.
    """

    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _know_the_beginning}

    run: str
    sizes: dict[str, int]
    digests: dict[str, str]
    since: int = 0
    at: float = 0.0
    schema: int = 2


def seal(folder: Path, run: str, since: int = 0) -> None:
    """Flush every file of a folder to the disk, and write their manifest."""
    sizes, digests = {}, {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != MANIFEST_FILE:
            name = path.relative_to(folder).as_posix()
            with path.open("rb") as file:
                os.fsync(file.fileno())
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
            sizes[name] = path.stat().st_size
        elif path.is_dir():
            sync_folder(path)
    save_as(
        folder / MANIFEST_FILE,
        Manifest(run=run, sizes=sizes, digests=digests, since=since, at=time.time()),
    )


def publish(staged: Path, folder: Path) -> None:
    """Give a sealed folder its final name, in place of a folder that has it."""
    if folder.exists():
        os.rename(folder, _aside(folder))
    os.rename(staged, folder)
    sync_folder(folder.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def discard(folder: Path) -> None:
    """Delete a checkpoint; an incomplete deletion leaves no folder of its name."""
    with suppress(OSError):  # one that cannot be deleted stays
        os.rename(folder, aside := _aside(folder))
        shutil.rmtree(aside.parent, ignore_errors=True)


def _aside(folder: Path) -> Path:
    """Where a checkpoint goes before it is deleted; the next run clears what a kill leaves."""
    aside = folder.parent / STAGING / f"{folder.name}.old"
    shutil.rmtree(aside, ignore_errors=True)
    aside.parent.mkdir(exist_ok=True)
    return aside


def flaw(folder: Path, run: str | None = None) -> str | None:
    """What is wrong with a checkpoint, or None.

    Args:
        folder: the checkpoint.
        run: token of the run that it must belong to; None: any run."""
    try:
        manifest = load_as(folder / MANIFEST_FILE, Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return (
            f"{MANIFEST_FILE} is missing, so it was not saved to its end; if a Trainer without "
            "advreg saved it, move "
            "it to another folder"
        )
    except (OSError, RecordError) as error:
        return f"{MANIFEST_FILE} cannot be read ({error})"
    if run is not None and manifest.run != run:
        return "it belongs to another run"
    return next(_flaws(folder, manifest), None)


def _flaws(folder: Path, manifest: Manifest) -> Iterator[str]:
    for name, size in manifest.sizes.items():
        path = folder / name
        if not stays_inside(name):
            yield f"{MANIFEST_FILE} names '{name}', which is not in the folder"
            continue
        try:
            found = path.stat().st_size
            if found != size:
                yield f"{name} has {found} bytes instead of {size}"
                continue
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != manifest.digests.get(name):
                    yield f"{name} is not what was saved (its checksum differs)"
        except OSError as error:
            yield f"{name} cannot be read ({error.strerror})"


# ---- whose checkpoints they are


def new_token() -> str:
    """A token for a run that begins."""
    return secrets.token_hex(8)


def token_of(checkpoint: Path) -> str:
    """The token of the run that a complete checkpoint belongs to."""
    return load_as(checkpoint / MANIFEST_FILE, Manifest).run


def claimed(folder: Path) -> str | None:
    """The token of the run that sealed the latest checkpoint of a folder, or None."""
    latest = _latest(folder)
    return None if latest is None else latest.run


def _latest(folder: Path) -> Manifest | None:
    """The manifest that was written last among a folder's checkpoints."""
    found = []
    for path in folder.glob(f"checkpoint-*/{MANIFEST_FILE}"):
        with suppress(OSError, RecordError):
            found.append(load_as(path, Manifest))
    return max(found, key=lambda manifest: manifest.at, default=None)


def is_foreign(checkpoint: Path) -> bool:
    """Whether a checkpoint was saved without advreg: it holds no file of ours, and no run of ours
    claims it.
    """
    if any(checkpoint.glob("advreg_*")):
        return False
    step, latest = step_of(checkpoint), _latest(checkpoint.parent)
    return step is None or latest is None or step < latest.since


def step_of(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint, or None.

    Example:
        >>> step_of(Path("run/checkpoint-40")), step_of(Path("run/best"))
        (40, None)
    """
    found = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return None if found is None else int(found[1])
