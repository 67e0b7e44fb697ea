"""What our trainers override, call and read of the stock Trainer exists in the versions that are
installed.

All names are found in the code of ``advreg.hf`` and ``advreg.lab.kinds``, so that a new hook is held to it without an edit
here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import accelerate
import pytest
import transformers
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback

import advreg.hf
import advreg.lab.kinds
from advreg.hf.trainer import AdversarialSeq2SeqTrainer
from tiny_models import tiny

pytestmark = pytest.mark.smoke

STOCK = (Seq2SeqTrainer, Trainer)
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
PARTS = ("args", "accelerator", "state")  # of a trainer: what is read of them is looked up too


# ---- what the code says


def classes() -> list[type]:
    """All that the packages that import transformers define."""
    modules = [
        importlib.import_module(found.name)
        for package in (advreg.hf, advreg.lab.kinds)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    return [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
    ]


def trainers() -> list[type]:
    """The mixins and trainers among them."""
    ours = {
        kind for kind in AdversarialSeq2SeqTrainer.__mro__ if kind.__module__.startswith("advreg.")
    }
    return [kind for kind in classes() if kind in ours or issubclass(kind, tuple(ours))]


@cache
def code_of(kind: type) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind)))))


def lookups(kind: type, owner: str, context: type[ast.expr_context] = ast.Load) -> set[str]:
    """The names that a class looks up on an expression, or assigns to it."""
    return {
        node.attr
        for node in code_of(kind)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == owner
        and isinstance(node.ctx, context)
    }


def own_names(kinds: list[type]) -> set[str]:
    """What the classes define or assign themselves, so that nothing else need have it."""
    defined = {name for kind in kinds for name in vars(kind)}
    return defined.union(*(lookups(kind, "self", ast.Store) for kind in kinds))


@cache
def mentioned() -> set[str]:
    """Every attribute that a line of advreg looks up."""
    package = Path(advreg.__file__).parent
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in package.rglob("*.py")]
    return {
        node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


def called_above(kind: type) -> set[str]:
    """What a class calls by ``super()``, less what one of its ancestors defines."""
    return lookups(kind, "super()") - {name for above in kind.__mro__[1:] for name in vars(above)}


def called_from_above(kinds: list[type]) -> Iterator[tuple[type, str]]:
    """Methods that only the stock Trainer can call, since advreg does not."""
    called = mentioned().union(*(lookups(kind, "self") for kind in kinds))
    for kind in kinds:
        for name, value in vars(kind).items():
            if inspect.isfunction(value) and not name.startswith("__") and name not in called:
                yield kind, name


def needs(kinds: list[type]) -> set[tuple[type, str]]:
    """Classes, and the names that a Trainer must have for them."""
    own = own_names(kinds)
    looked_up = {
        (kind, name)
        for kind in kinds
        for name in called_above(kind) | (lookups(kind, "self") - own)
    }
    return looked_up | set(called_from_above(kinds))


# ---- what is installed


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Any:
    arguments = Seq2SeqTrainingArguments(
        str(tmp_path_factory.mktemp("stock")), report_to="none", use_cpu=True
    )
    return Seq2SeqTrainer(tiny("marian"), arguments)


def missing(trainer: Any, name: str) -> bool:
    return not (
        hasattr(trainer, name) or any(name in lookups(kind, "self", ast.Store) for kind in STOCK)
    )


def told(gone: set[tuple[str, str]]) -> list[str]:
    """One line for each name that is gone: what it is, who needs it, and which version lacks it."""
    installed = f"transformers {transformers.__version__} (accelerate {accelerate.__version__})"
    return sorted(f"{installed} has no {name}, which {who} needs" for who, name in gone)


def gone_from(trainer: Any, kinds: list[type]) -> list[str]:
    """What the classes need of a trainer, and it lacks."""
    return told(
        {
            (kind.__name__, f"Trainer.{name}")
            for kind, name in needs(kinds)
            if missing(trainer, name)
        }
    )


def gone_from_parts(trainer: Any, kinds: list[type]) -> list[str]:
    """What the classes read of a trainer's arguments, accelerator and state, and these lack."""
    return told(
        {
            (kind.__name__, f"{type(getattr(trainer, part)).__name__}.{name}")
            for kind in kinds
            for part in PARTS
            for name in lookups(kind, f"self.{part}")
            if not hasattr(getattr(trainer, part), name)
        }
    )


# ---- the laws


def test_every_hook_of_the_stock_trainer_exists(stock: Any) -> None:
    gone = gone_from(stock, trainers())
    assert not gone, "\n".join(gone)


def test_arguments_accelerator_and_state_have_what_is_read_of_them(stock: Any) -> None:
    gone = gone_from_parts(stock, trainers())
    assert not gone, "\n".join(gone)


def test_an_override_takes_the_arguments_that_the_stock_method_takes() -> None:
    refused = set()
    for kind, name in needs(trainers()):
        above, ours = getattr(Seq2SeqTrainer, name, None), vars(kind).get(name)
        if inspect.isfunction(above) and inspect.isfunction(ours):
            given = [
                each
                for each in inspect.signature(above).parameters.values()
                if each.kind in BY_POSITION
            ]
            try:
                inspect.signature(ours).bind(*given)
            except TypeError as error:
                refused.add((kind.__name__, f"Trainer.{name} without more arguments ({error})"))
    assert told(refused) == []


def test_callbacks_wait_for_events_that_there_are() -> None:
    waiting = {
        (kind.__name__, f"TrainerCallback.{name}")
        for kind in classes()
        if issubclass(kind, TrainerCallback)
        for name in vars(kind)
        if name.startswith("on_")
    }
    assert waiting
    assert (
        told(
            {
                (who, name)
                for who, name in waiting
                if not hasattr(TrainerCallback, name.split(".")[1])
            }
        )
        == []
    )


# ---- what would be found


class Outdated:
    """Needs what no Trainer has."""

    def __init__(self) -> None:
        self._mine = self._helper()

    def _helper(self) -> None: ...

    def _never_called_by_advreg(self) -> None: ...

    def _from_above(self) -> Any:
        return (
            super()._from_above(),
            super().train(),
            self._mine,
            self.model,
            self._read,
            self._signature_columns,
        )  # type: ignore[misc]

    def evaluate(self) -> Any:
        return self.args.no_field, self.args.seed, self.accelerator.no_method, self.state.no_state  # type: ignore[attr-defined]


def test_names_that_are_gone_are_found_and_named_with_the_version(stock: Any) -> None:
    version = f"transformers {transformers.__version__} (accelerate {accelerate.__version__})"
    names = ("_from_above", "_never_called_by_advreg", "_read")
    assert gone_from(stock, [Outdated]) == [
        f"{version} has no Trainer.{name}, which Outdated needs" for name in names
    ]
    gone = gone_from_parts(stock, [Outdated])
    owners = ("Accelerator.no_method", "Seq2SeqTrainingArguments.no_field", "TrainerState.no_state")
    assert gone == [f"{version} has no {name}, which Outdated needs" for name in owners]


def test_the_hooks_that_matter_most_are_among_those_looked_up() -> None:
    names = {name for _, name in needs(trainers())}
    assert {
        "_get_grad_norm",
        "_maybe_log_save_evaluate",
        "_save_checkpoint",
        "get_batch_samples",
    } <= names
    assert "_settle" not in names
