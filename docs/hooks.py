"""What mkdocs does to the pages before it renders them: tables from the code, sections of other
files, formulas.

``{{ options("arch") }}`` and its like (see ``FILLERS``) are filled in from the code, so that no
page can drift from it; ``$…$`` and ``$$…$$`` become MathML, so that no script draws formulas; and
links to the records in ``results/`` lead to copies on the site.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from latex2mathml.converter import convert

from advreg.core.coerce import type_text
from advreg.core.options import options_of
from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.translation.corpora import CORPORA
from advreg.lab.runs.settings import RunSettings
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.methods import create, describe, preset, registry
from advreg.methods.presets import Preset

ROOT = Path(__file__).resolve().parent.parent
METHODS, RESULTS = "Methods", "Results"
RECORDS = "results/records"
OPTIONAL = ("scale.md", "reliability.md")  # pages that may not be there yet
_FILLED = re.compile(r"\{\{ (\w+)\(([^)]*)\) \}\}")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", flags=re.MULTILINE | re.DOTALL)
_BLOCK, _INLINE = (
    re.compile(r"\$\$(.+?)\$\$", flags=re.DOTALL),
    re.compile(r"(?<![\\\w$])\$([^$\n]+?)\$(?![\w$])"),
)
_FROM_ROOT = (
    (r"\]\(docs/", "]("),
    (r"\]\(results/", f"]({RECORDS}/"),
    (r"\]\((CHANGELOG|CONTRIBUTING)\.md\)", "](#)"),
)


# ---- what pages ask for


def options(method: str) -> str:
    """The options of a method, and what presets set them to."""
    if not describe(method):
        return "It has no options."
    papers = {family: preset(family, method) for family in get_args(Preset)}
    shown = {family: values for family, values in papers.items() if values}
    lines = [
        ["option", "takes", "default", *(f"`--preset {family}`" for family in shown), "meaning"]
    ]
    for option in describe(method):
        given = [
            _code(values[option.name]) if option.name in values else "" for values in shown.values()
        ]
        takes = type_text(option.type)
        lines.append([f"`{option.name}`", takes, _code(option.default), *given, option.help])
    return _table(lines)


def passes(method: str) -> str:
    """What a step costs, as a formula and with the default options."""
    usual = create(method).passes()
    return (
        f"Passes over the model per step: {registry[method].info.cost}. With the default options "
        f"{usual.forward:.2f} forward and {usual.backward:.2f} backward."
    )


def part(method: str, beginning: str) -> str:
    """The paragraph of a method's docstring that begins so."""
    paragraphs = inspect.cleandoc(registry[method].__doc__ or "").split("\n\n")
    (found,) = (text for text in paragraphs if text.startswith(beginning))
    return found.replace("``", "`")


def corpora() -> str:
    """Known corpora of translation: size, where they are on the hub, and how they are trained and
    decoded.
    """
    lines = [["`--task`", "training pairs", "on the hub", "model", "beam", "length penalty"]]
    for task, spec in CORPORA.items():
        paths = (
            []
            if spec.hub is None
            else dict.fromkeys(where.path for where in spec.hub.splits.values())
        )
        beam = TranslationSettings(task=task).search()
        shown = [_code(spec.settings["model"]), f"{beam.beam}", f"{beam.length_penalty:g}"]
        lines.append([_code(task), f"{spec.train:,}", ", ".join(map(_code, paths)) or "–", *shown])
    return _table(lines)


def translation_settings() -> str:
    """The settings of a translation run, without the options of methods."""
    return _settings(TranslationSettings)


def language_settings() -> str:
    """The settings of a run of language modelling, without the options of methods."""
    return _settings(LanguageSettings)


def _settings(kind: type[RunSettings]) -> str:
    shared = {each.name: each.help for each in options_of(RunSettings)}
    lines = [["setting", "default", "meaning"]]
    for each in options_of(kind):
        default = None if each.default is dataclasses.MISSING else each.default
        lines.append([_code(each.name), _usual(default), each.help or shared[each.name]])
    return _table(lines)


def section(file: str, heading: str) -> str:
    """A section of a file of the repository, without its heading."""
    text = (ROOT / file).read_text(encoding="utf-8")
    (found,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL
    )
    for pattern, replacement in _FROM_ROOT:
        found = re.sub(pattern, replacement, found)
    return str(found.strip())


def page_of(method: str) -> str:
    """The page of a method: the one that was written, else its docstring and what it costs and
    takes.
    """
    written = ROOT / "docs" / "methods" / f"{method}.md"
    if written.is_file():
        return written.read_text(encoding="utf-8")
    text = inspect.cleandoc(registry[method].__doc__ or "")
    asked = f'## What it costs\n\n{{{{ passes("{method}") }}}}\n\n## Options\n\n{{{{ options("{method}") }}}}'
    return f"# {registry[method].__name__}\n\n```text\n{text}\n```\n\n{asked}\n"


FILLERS: dict[str, Callable[..., str]] = {
    filler.__name__: filler
    for filler in (options, passes, part, corpora, translation_settings, language_settings, section)
}


def _table(lines: list[list[str]]) -> str:
    """The first line is the header."""
    cells = [
        [cell.replace("|", r"\|") for cell in line]
        for line in (lines[0], ["---"] * len(lines[0]), *lines[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _usual(value: Any) -> str:
    """A default, for people."""
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return _code("yes" if value else "no")
    return ", ".join(map(_code, value)) if isinstance(value, tuple) else _code(value)


def _code(value: Any) -> str:
    return "`none`" if value is None else f"`{value}`"


def filled(markdown: str) -> str:
    """The page with everything filled in."""

    def fill(found: re.Match[str]) -> str:
        arguments = re.findall(r'"([^"]*)"', found[2])
        return FILLERS[found[1]](*arguments)

    return _FILLED.sub(fill, markdown)


def with_formulas(markdown: str) -> str:
    """Formulas as MathML; code is left alone."""
    parts = _CODE.split(markdown)
    for place in range(0, len(parts), 2):
        text = _BLOCK.sub(
            lambda found: f'\n<div class="formula">{_mathml(found[1], "block")}</div>\n',
            parts[place],
        )
        parts[place] = _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)
    return "".join(parts)


def _mathml(latex: str, display: str) -> str:
    return re.sub(r"\s+", " ", convert(latex.strip(), display=display))


# ---- mkdocs


def on_config(config: Any) -> Any:
    """Put all methods and the pages of results that there are into the navigation; leave out what
    is not there yet.
    """
    folder = Path(config["docs_dir"])
    for entry in config["nav"]:
        for title, pages in entry.items():
            if title == RESULTS:
                entry[title] = [
                    f"results/{path.name}" for path in sorted((folder / "results").glob("*.md"))
                ]
            elif title == METHODS:
                named = {_path(page) for page in pages}
                pages += [page for name in registry if (page := f"methods/{name}.md") not in named]
            elif isinstance(pages, list):
                entry[title] = [
                    page
                    for page in pages
                    if not (name := _path(page))
                    or name not in OPTIONAL
                    or (folder / name).is_file()
                ]
    return config


def _path(page: Any) -> str:
    return str(next(iter(page.values()))) if isinstance(page, dict) else str(page)


def on_files(files: Any, config: Any) -> Any:
    """Records are on the site too, for the links to them; and a method without a page gets one."""
    from mkdocs.structure.files import File

    for method in registry:
        if files.get_file_from_path(f"methods/{method}.md") is None:
            files.append(File.generated(config, f"methods/{method}.md", content=page_of(method)))
    for path in sorted((ROOT / "results").rglob("*.json*")):
        place = f"{RECORDS}/{path.relative_to(ROOT / 'results').as_posix()}"
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    text = filled(markdown)
    if page.file.src_uri.startswith("results/"):
        text = text.replace("](../../results/", "](records/")
    return with_formulas(text)
