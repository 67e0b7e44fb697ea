"""``advreg translate``: lines in, lines out."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from advreg.core.checks import check_whole
from advreg.lab.kinds.sources import decoded
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.kinds.translation.translator import Translator

# bytes that are not UTF-8 become surrogates, from which they can be had again
_ESCAPE = "surrogateescape"
LINES_AT_ONCE = 10_000  # so that a long stream needs little memory, and its first lines come early


def translate_stream(
    model: Path,
    source: TextIO,
    output: TextIO,
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    max_tokens: int | None = None,
    precision: str = "fp32",
    device: str | None = None,
    errors: TextIO | None = None,
) -> int:
    """Translate lines to lines, in their order; an empty line stays empty. Returns how many there
    were.

    Args:
        model: folder of a translation run, or the model folder in it.
        source, output: text streams.
        beam, length_penalty: of the search; by default what the model was exported with.
        max_tokens: positions of a batch, beams counted; by default what suits the device.
        precision: fp32 or bf16.
        device: cpu or cuda; by default cuda if there is one.
        errors: where progress is told; nowhere if not given.
    """
    if max_tokens is not None:
        check_whole("max_tokens", max_tokens, 1)
    quiet_libraries()
    translator = Translator.load(model, device)
    given = {"beam": beam, "length_penalty": length_penalty}
    chosen = {name: value for name, value in given.items() if value is not None}
    decoding = dataclasses.replace(translator.decoding, **chosen)  # type: ignore[arg-type]  # None was left out
    done = 0
    for lines in _in_parts(source, LINES_AT_ONCE):
        advance = _Counter(errors, done)
        for line in translator.translate(lines, decoding, max_tokens, precision, advance):
            output.write(f"{line}\n")
        output.flush()
        done += len(lines)
    if errors is not None:
        errors.write(f"\r{done} lines translated\n")
    return done


def translate_standard_streams(model: Path, **options: Any) -> int:
    """:func:`translate_stream` from stdin to stdout, UTF-8 whatever the locale, progress on
    stderr.
    """
    for stream, errors in ((sys.stdin, _ESCAPE), (sys.stdout, "strict")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                encoding="utf-8", errors=errors, newline="\n"
            )  # only a line feed ends a line
    return translate_stream(model, sys.stdin, sys.stdout, errors=sys.stderr, **options)


class _Counter:
    """Tells of sentences as they are done."""

    def __init__(self, errors: TextIO | None, done: int) -> None:
        self.errors, self.done = errors, done

    def __call__(self, more: int) -> None:
        self.done += more
        if self.errors is not None and self.errors.isatty():
            self.errors.write(f"\r{self.done} sentences translated")
            self.errors.flush()


def _in_parts(source: TextIO, size: int) -> Iterator[list[str]]:
    """Lines without their ends, so many at a time; bytes that a stream could not decode and escaped
    are refused.
    """
    numbered = enumerate(source, start=1)
    while part := list(islice(numbered, size)):
        yield [
            decoded(line.encode("utf-8", _ESCAPE), "input", number).rstrip("\r\n")
            for number, line in part
        ]
