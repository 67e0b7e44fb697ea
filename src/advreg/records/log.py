"""Many runs in one compressed file: one sealed record a line.

The file is a sequence of gzip members, one for each record: ``zcat`` reads it and ``cat`` joins
several. A process that is killed while it appends leaves an incomplete member at the end. Readers
skip it and say so; the next append truncates it.
"""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from advreg.records.run import RunRecord
from advreg.records.sealed import RecordError, naming, require_file, seal_line, unseal_line, utf8

LOG_SUFFIX = ".jsonl.gz"
_AT_ONCE = 2**16
_GZIP = 16 + zlib.MAX_WBITS  # zlib's code for the gzip format

logger = logging.getLogger(__name__)


class IncompleteError(RecordError):
    """The last record of a file was not written to its end."""


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
                with naming(self.path):
                    self._whole = max((end for _, end in members(self.path)), default=0)
                file.truncate(self._whole)
            file.write(member)
            file.flush()
            os.fsync(file.fileno())
        self._whole += len(member)

    def records(self) -> list[RunRecord]:
        """All complete records, in order; RecordError where one was damaged or edited."""
        complete: list[RunRecord] = []
        for found in self.each() if self.path.exists() else ():
            if isinstance(found, IncompleteError):
                logger.warning("%s", found)
            elif isinstance(found, RecordError):
                raise found
            else:
                complete.append(found)
        return complete

    def each(self) -> Iterator[RunRecord | RecordError]:
        """Every line in order: its record, or the error that says why it cannot be read.

        After a part that is not gzip, nothing more is read.
        """
        number = end = 0
        try:
            for content, member_end in members(self.path):
                end = member_end
                for line in filter(None, content.split(b"\n")):
                    number += 1
                    yield self._unsealed(line, number)
        except RecordError as error:
            yield error.at(self.path, number + 1)
        else:
            if rest := self.path.stat().st_size - end:
                problem = f"is incomplete: its writer was stopped, {rest} bytes are passed over"
                yield IncompleteError(problem, "repeat the run", path=self.path, line=number + 1)

    def _unsealed(self, line: bytes, number: int) -> RunRecord | RecordError:
        try:
            return unseal_line(f"{utf8(line)}\n", RunRecord)
        except RecordError as error:
            return error.at(self.path, number)


def members(path: Path) -> Iterator[tuple[bytes, int]]:
    """The content of each complete member of a gzip file, and the byte at which the member ends.

    Raises:
        RecordError: where a member is followed by bytes that are not gzip.
    """
    end = 0
    require_file(path)
    with open(path, "rb") as file:
        rest = file.read(_AT_ONCE)
        while rest:
            unpacking, parts = zlib.decompressobj(_GZIP), list[bytes]()
            while rest and not unpacking.eof:
                try:
                    parts.append(unpacking.decompress(rest))
                except zlib.error as error:
                    remedy = "restore the file, or truncate it there"
                    raise RecordError(f"is damaged after byte {end} ({error})", remedy) from None
                rest = unpacking.unused_data or file.read(_AT_ONCE)
            if unpacking.eof:
                end = file.tell() - len(rest)
                yield b"".join(parts), end
