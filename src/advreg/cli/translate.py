"""``advreg translate``: lines in, lines out; and ``advreg train`` for translation tasks."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import TaskID
from rich.table import Table

from advreg.cli.saying import Notices, bars, logs_above, note
from advreg.cli.train import filled, leave_card
from advreg.core.checks import check_whole
from advreg.hf.checkpoint.ranks import is_first_process
from advreg.lab.kinds.fine_tuning import quiet_libraries
from advreg.lab.kinds.translator import Translator
from advreg.lab.report.labels import metric_name
from advreg.lab.runs.plans import choose_folder
from advreg.lab.runs.translation import run_translation
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.tasks.parallel import decoded
from advreg.records.run import RunRecord

# bytes that are not UTF-8 become surrogates, from which they can be had again
_ESCAPE = "surrogateescape"
LINES_AT_ONCE = 10_000  # so that a long stream needs little memory, and its first lines come early


# ---- translating


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


# ---- training


def train_translation(settings: TranslationSettings, resume: bool, console: Console) -> None:
    """Every method with every seed under progress bars, then the comparison."""
    folder = choose_folder(settings, resume)
    quiet_libraries()
    notices = Notices(console)
    with bars(console) as progress, logs_above(progress.console):
        begun: dict[str, TaskID] = {}

        def on_step(name: str, step: int, total: int, logs: Mapping[str, float]) -> None:
            if name not in begun:
                begun[name] = progress.add_task(name, note="")
            progress.update(begun[name], completed=step, total=total, note=note(logs))

        done = run_translation(settings, folder, on_step, notices, resume)
    for record in done if is_first_process() else ():
        leave_card(record, folder / record.name / "model")
    console.print(comparison(done))
    console.print(
        f"each run's record.json, model and translations: {folder}/METHOD-seedN",
        highlight=False,
        soft_wrap=True,
    )


def comparison(done: Sequence[RunRecord]) -> Table:
    """The table: scores over seeds, and what each method costs beside Standard."""
    details = done[0].task.details
    score = "tokenised_bleu" if details["tokenised"] else "bleu"
    subset = ", a subset" if details.get("subset") else ""
    table = Table(
        title=f"{done[0].task.name}{subset}: {details['scored']} scores, mean ± sd over seeds",
        caption=f"{details['signatures'][score]}\ntime: of a step, relative to Standard",
    )
    names = list(dict.fromkeys((score, "bleu")))
    columns = ("n", *map(metric_name, names), "time")
    return filled(
        table,
        columns,
        done,
        lambda record: [record.outcome.metrics[name] or 0.0 for name in names],
        2,
    )
