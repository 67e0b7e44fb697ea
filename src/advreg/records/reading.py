"""Reading records of any kind: each says what it is, so nothing is guessed from names or keys.

* :func:`read_any` reads a file that must be a record.
* :func:`read_each` reads a file that was found in a folder: one record, many, or none.
* :func:`load_all` reads the runs of a folder.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from advreg.records.bench import BenchRecord
from advreg.records.compare import COMPARE_FILE, CompareRecord
from advreg.records.diagnostics import HEALTH_FILE, HealthRecord
from advreg.records.log import LOG_SUFFIX, RecordLog
from advreg.records.probe import ProbeRecord
from advreg.records.run import RECORD_FILE, RunRecord, load
from advreg.records.sealed import (
    Payload,
    RecordError,
    naming,
    require_file,
    shown,
    text_of,
    unseal,
)
from advreg.records.study import STUDY_FILE, StudyRecord

Record = RunRecord | CompareRecord | StudyRecord | ProbeRecord | BenchRecord | HealthRecord

_KINDS: Mapping[str, type[Record]] = {
    cls.kind: cls
    for cls in (RunRecord, CompareRecord, StudyRecord, ProbeRecord, BenchRecord, HealthRecord)
}
_RECORDS = (RECORD_FILE, COMPARE_FILE, STUDY_FILE, HEALTH_FILE)  # files that hold nothing else


class UnknownKindError(RecordError):
    """A sealed file that is none of the records here, such as one of an experiment's own."""


def read_any(path: str | os.PathLike[str]) -> Record:
    """Read one record, whatever its kind; errors as in :func:`~advreg.records.sealed.load_as`."""
    path = Path(path)
    with naming(path):
        return unseal(text_of(path), _type_of)


def _type_of(payload: Payload) -> type[Record]:
    # runs of schema 1 are the only records without a kind; their upgrade adds it
    kind = payload.get("kind", "run" if "outcome" in payload else None)
    if not isinstance(kind, str) or kind not in _KINDS:
        problem = f"must be one of {', '.join(_KINDS)}, got {shown(kind)}"
        raise UnknownKindError(problem, "give a record that advreg wrote", field="kind")
    return _KINDS[kind]


def read_each(path: Path) -> Iterator[Record | RecordError]:
    """What a file holds: its records, and an error for each that cannot be read.

    Files that are not sealed, or whose kind is unknown, hold none. Those that are named like a
    record, such as ``record.json``, must be one.
    """
    try:
        require_file(path)
        if path.name in _RECORDS or _is_sealed(path):
            many = path.name.endswith(LOG_SUFFIX)
            yield from RecordLog(path).each() if many else [read_any(path)]
    except OSError as error:
        yield RecordError(f"cannot be read ({error.strerror})", "check the file", path=path)
    except RecordError as error:
        if path.name in _RECORDS or not isinstance(error, UnknownKindError):
            yield error.at(path)


def _is_sealed(path: Path) -> bool:
    """Whether a file begins as all sealed texts do; a compressed one is unpacked so far."""
    opened = gzip.open if path.suffix == ".gz" else open
    with suppress(gzip.BadGzipFile, zlib.error, EOFError), opened(path, "rb") as file:
        return re.match(rb'\s*\{\s*"checksum"', file.read(64)) is not None
    return False


def load_all(folder: str | os.PathLike[str], *patterns: str) -> list[RunRecord]:
    """Read the runs in ``folder``, one a file or many, in the order of the files' names.

    Args:
        folder: that holds them.
        patterns: of the files' names; by default all that end in ``.json`` or ``.jsonl.gz``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(
            "is not a folder", "give the folder that the runs wrote their records to", path=folder
        )
    paths = {
        path
        for pattern in patterns or ("*.json", f"*{LOG_SUFFIX}")
        for path in folder.glob(pattern)
    }
    return [record for path in sorted(paths) for record in _runs(path)]


def _runs(path: Path) -> list[RunRecord]:
    return RecordLog(path).records() if path.name.endswith(LOG_SUFFIX) else [load(path)]
