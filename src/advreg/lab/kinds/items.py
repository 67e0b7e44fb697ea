"""The outcome of each evaluated sample of a run, in a small file next to its record.

From these a comparison resamples the evaluated samples without another pass of the model; see
:meth:`advreg.lab.kinds.description.Description.rescore`.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.records.sealed import UNEDITED, RecordError, naming, seal_line, unseal_line

ITEMS_FILE = "items.json.gz"

Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, kw_only=True)
class Items:
    """What a run left for each sample of the sets that it was evaluated on.

    Args:
        kind: of the task: ``classification``, ``translation``, ….
        fingerprint: of the data.
        main: the set whose metrics have no prefix.
        sets: by set, columns with one entry a sample; which columns there are is up to the kind.
    """

    schema: int = 1
    kind: str
    fingerprint: str
    main: str
    sets: dict[str, dict[str, list[Any]]]

    @property
    def sizes(self) -> dict[str, int]:
        """Samples of each set."""
        return {name: len(next(iter(columns.values()))) for name, columns in self.sets.items()}

    def prefix(self, name: str) -> str:
        """What the metrics of a set begin with."""
        return "" if name == self.main else f"{name}_"

    def save(self, folder: Path) -> None:
        """Write the file of a run, atomically; equal items make equal bytes."""
        path = folder / ITEMS_FILE
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(gzip.compress(seal_line(self).encode("utf-8"), mtime=0))
        os.replace(temporary, path)

    @classmethod
    def load(cls, folder: Path) -> Items:
        """Read the file of a run."""
        path = folder / ITEMS_FILE
        with naming(path):
            try:
                text = gzip.decompress(path.read_bytes()).decode("utf-8")
            except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
                raise RecordError(f"is damaged ({error})", UNEDITED) from None
            return unseal_line(text, cls)
