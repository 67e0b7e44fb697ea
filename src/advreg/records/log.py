"""Many runs in one compressed file: one sealed record a line.

The file is a sequence of gzip members, one for each record: ``zcat`` reads it and ``cat`` joins
several. A process that is killed while it appends leaves an incomplete member at the end. Readers
skip it, and the next append truncates it.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from advreg.records.run import RunRecord
from advreg.records.sealed import RecordError, seal_line, unseal_line

_AT_ONCE = 2**16
_GZIP = 16 + zlib.MAX_WBITS  # zlib's code for the gzip format


class RecordLog:
    """A file of records, to which one process appends at a time.

    Args:
        path: of the file, usually ``….jsonl.gz``; created by the first append.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._whole = 0  # bytes of complete records that this process has seen

    def append(self, record: RunRecord) -> None:
        """Add a record at the end; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        member = gzip.compress(seal_line(record).encode("utf-8"), mtime=0)
        with open(self.path, "ab") as file:
            if file.tell() != self._whole:  # this process has not written to it yet
                self._whole = members(self.path.read_bytes())[1]
                file.truncate(self._whole)
            file.write(member)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(member)

    def records(self) -> list[RunRecord]:
        """All complete records, in order; RecordError where one was damaged or edited."""
        return [self._unsealed(line, number) for number, line in enumerate(self._lines(), start=1)]

    def _lines(self) -> Iterator[str]:
        content = self.path.read_bytes() if self.path.is_file() else b""
        for text in members(content)[0]:
            yield from (f"{line}\n" for line in text.decode("utf-8").split("\n") if line)

    def _unsealed(self, line: str, number: int) -> RunRecord:
        try:
            return unseal_line(line, RunRecord)
        except RecordError as error:
            raise RecordError(
                f"line {number}: {error.problem}", error.remedy, field=error.field, path=self.path
            ) from None


def members(content: bytes) -> tuple[Sequence[bytes], int]:
    """The contents of the complete members of a gzip file, and their total size in bytes.

    Raises:
        RecordError: where a member is followed by bytes that are not gzip.
    """
    found: list[bytes] = []
    whole = 0
    while whole < len(content):
        unpacking, place, parts = zlib.decompressobj(_GZIP), whole, list[bytes]()
        try:
            while not unpacking.eof and place < len(content):
                parts.append(unpacking.decompress(content[place : place + _AT_ONCE]))
                place += _AT_ONCE
        except zlib.error as error:
            remedy = "restore the file, or truncate it there"
            raise RecordError(f"is damaged after byte {whole} ({error})", remedy) from None
        if not unpacking.eof:
            break
        found.append(b"".join(parts))
        whole = min(place, len(content)) - len(unpacking.unused_data)
    return found, whole
