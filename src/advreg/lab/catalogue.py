"""The methods and their options, read from the source without importing torch.

The command's help and the reports need names, titles, types and defaults, and nothing that
computes. So the modules of the methods are parsed for the arguments of ``@register`` and for each
``name: type = option(default, help)`` of a class and its bases. These may use literals, ``Literal``
types and constants of advreg.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from advreg.core.checks import unknown_method
from advreg.core.options import OptionInfo

_ROOT = Path(__file__).parents[1]
_METHODS = "advreg.methods"


@dataclass(frozen=True)
class Entry:
    """A method: its name, the arguments of ``@register``, its options and its docstring."""

    name: str
    about: Mapping[str, Any]
    options: tuple[OptionInfo, ...]
    text: str

    @property
    def title(self) -> str:
        return str(self.about["title"])


@cache
def catalogue() -> Mapping[str, Entry]:
    """The methods of advreg by name, in the order of the imports in ``advreg.methods``."""
    entries = (
        _entry(node.module, alias.name)
        for node in _bound(_METHODS).values()
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    )
    return {entry.name: entry for entry in entries if entry is not None}


def is_method(name: str) -> bool:
    """Whether a method, or each part of a sum, is known.

    Example:
        >>> is_method("arch"), is_method("smart+temporal"), is_method("smart+smrt")
        (True, True, False)
    """
    return set(name.split("+")) <= set(catalogue())


def entry_of(name: str) -> Entry:
    """A method by name, or an error that names the closest one."""
    if name not in catalogue():
        raise ValueError(unknown_method(name, catalogue()))
    return catalogue()[name]


def options_of_method(name: str) -> list[OptionInfo]:
    """The options of a method; in a sum each has the name of its part in front.

    Example:
        >>> [option.name for option in options_of_method("ols+rdrop")][:2]
        ['ols.weight', 'ols.start_at']
    """
    if "+" not in name:
        return list(entry_of(name).options)
    return [
        replace(option, name=f"{part}.{option.name}")
        for part in name.split("+")
        for option in entry_of(part).options
    ]


def title_of(name: str) -> str | None:
    """The title of a method, or of a sum of methods; ``None`` for other names.

    Example:
        >>> title_of("rdrop"), title_of("smart+temporal"), title_of("smart-pytorch")
        ('R-Drop', 'SMART + Cached prediction', None)
    """
    known = catalogue()
    return " + ".join(known[part].title for part in name.split("+")) if is_method(name) else None


def _entry(module: str, name: str) -> Entry | None:
    node = _bound(module).get(name)
    if not isinstance(node, ast.ClassDef):
        return None
    for call in node.decorator_list:
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "register":
            options: dict[str, OptionInfo] = {}
            for base in reversed(_value_of(module, name).__mro__):
                options |= vars(base).get("options", {})
            about = {key.arg: _value(module, key.value) for key in call.keywords if key.arg}
            text = ast.get_docstring(node) or ""
            return Entry(_value(module, call.args[0]), about, tuple(options.values()), text)
    return None


@cache
def _bound(module: str) -> dict[str, ast.stmt]:
    """The statement that binds each name of a module: an import from advreg, a class, a
    constant.
    """
    stem = _ROOT.joinpath(*module.split(".")[1:])
    path = stem / "__init__.py" if stem.is_dir() else stem.with_suffix(".py")
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("advreg."):
            found |= {alias.name: node for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


@cache
def _value_of(module: str, name: str) -> Any:
    """The value of a name in a module; for a class, one with its bases and options alone."""
    node = _bound(module)[name]
    if isinstance(node, ast.ImportFrom):
        return _value_of(str(node.module), name)
    if isinstance(node, ast.ClassDef):
        bases = [b.id for b in node.bases if isinstance(b, ast.Name) and b.id in _bound(module)]
        options = {option.name: option for option in _options(module, node)}
        return type(name, tuple(_value_of(module, base) for base in bases), {"options": options})
    assert isinstance(node, ast.Assign)
    return _value(module, node.value)


def _options(module: str, node: ast.ClassDef) -> list[OptionInfo]:
    return [
        OptionInfo(
            field.target.id,
            _value(module, field.annotation),
            *(_value(module, argument) for argument in field.value.args),
        )
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(field.value, ast.Call) and getattr(field.value.func, "id", "") == "option"
    ]


def _value(module: str, node: ast.expr) -> Any:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    known = {name: _value_of(module, name) for name in names & set(_bound(module))}
    code = compile(ast.Expression(node), module, "eval")
    return eval(code, {"Literal": Literal, **known})
