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
from functools import cache
from typing import Any

import accelerate
import pytest
import transformers
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback

import advreg.hf
import advreg.lab.kinds
from advreg.hf.components.component import Component
from advreg.hf.components.run import Events
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


def components() -> list[type]:
    """The components of an attachment."""
    return [kind for kind in classes() if issubclass(kind, Component)]


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


def read_of(kind: type, *owners: str) -> set[str]:
    """The names that a class looks up on a trainer or a part of one, under these names."""
    return set().union(*(lookups(kind, owner) for owner in owners))


def needs(kinds: list[type]) -> set[tuple[type, str]]:
    """Classes, and the names that a Trainer must have for them."""
    return {
        (kind, name)
        for kind in kinds
        for name in {
            *getattr(kind, "hooks", ()),
            *read_of(kind, "self.own", "self.trainer", "trainer"),
        }
    }


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
            for name in read_of(kind, f"self.trainer.{part}", f"trainer.{part}", part)
            if not hasattr(getattr(trainer, part), name)
        }
    )


# ---- the laws


def test_every_hook_of_the_stock_trainer_exists(stock: Any) -> None:
    gone = gone_from(stock, components())
    assert not gone, "\n".join(gone)


def test_arguments_accelerator_and_state_have_what_is_read_of_them(stock: Any) -> None:
    gone = gone_from_parts(stock, components())
    assert not gone, "\n".join(gone)


def test_an_override_takes_the_arguments_that_the_stock_method_takes() -> None:
    refused = set()
    for kind, name in needs(components()):
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


def test_the_events_that_are_followed_exist() -> None:
    followed = {name for name in vars(Events) if name.startswith("on_")}
    assert "on_step_end" in followed
    gone = {
        ("Events", f"TrainerCallback.{name}")
        for name in followed
        if not hasattr(TrainerCallback, name)
    }
    assert told(gone) == []


# ---- what would be found


class Outdated(Component):
    """Needs what no Trainer has."""

    hooks = ("_hooked", "train")

    def evaluate(self) -> Any:
        trainer = self.trainer
        return (
            self.own._called(),
            self.own.train(),
            trainer._read,
            self.trainer.model,
            self.trainer._signature_columns,
            trainer.args.no_field,
            self.trainer.args.seed,
            self.trainer.accelerator.no_method,
            trainer.state.no_state,
        )


def test_names_that_are_gone_are_found_and_named_with_the_version(stock: Any) -> None:
    version = f"transformers {transformers.__version__} (accelerate {accelerate.__version__})"
    names = ("_called", "_hooked", "_read")
    assert gone_from(stock, [Outdated]) == [
        f"{version} has no Trainer.{name}, which Outdated needs" for name in names
    ]
    gone = gone_from_parts(stock, [Outdated])
    owners = ("Accelerator.no_method", "Seq2SeqTrainingArguments.no_field", "TrainerState.no_state")
    assert gone == [f"{version} has no {name}, which Outdated needs" for name in owners]


def test_the_hooks_that_matter_most_are_among_those_looked_up() -> None:
    names = {name for _, name in needs(components())}
    assert {
        "_get_grad_norm",
        "_maybe_log_save_evaluate",
        "_save_checkpoint",
        "get_batch_samples",
    } <= names
    assert "settle" not in names
