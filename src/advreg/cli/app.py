"""The commands and their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from advreg.cli.flags import parse_assignments, with_flags
from advreg.recipes.settings import SettingsError, read_settings
from advreg.recipes.textdata import DataError

app = typer.Typer(
    help="Adversarial regularisation for language models, at close to the price of plain training.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console()


def user_errors() -> tuple[type[BaseException], ...]:
    """Errors whose text is meant for users; anything else is a bug and keeps its traceback."""
    from advreg.hf.checkpoint import CheckpointError
    from advreg.hf.injection import InjectionError
    from advreg.hf.models import ModelError
    from advreg.hf.task import CheckpointingError
    from advreg.hf.trainer import NonFiniteLossError
    from advreg.record import RecordError

    return (
        CheckpointError, CheckpointingError, DataError, InjectionError, ModelError, NonFiniteLossError, RecordError,
        SettingsError, OSError, ValueError, FloatingPointError,
    )  # fmt: skip


def print_version(wanted: bool) -> None:
    if wanted:
        from advreg import __version__

        console.print(f"advreg {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    pass  # the version is printed before a command is asked for


@app.command()
@with_flags
def train(
    *,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings; flags override it")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE, any field of TrainingArguments")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the runs in the output folder")] = False,
    **flags: Any,
) -> None:
    """Train a classifier or regressor with one or more methods, and compare them.

    Without any flag: a small Transformer on sentences of Python's own documentation, Standard against ARCH, two seeds
    each. Options of the methods are flags too; `advreg methods NAME` explains them.
    """
    from advreg.cli.train import run_all

    given = {name: value for name, value in flags.items() if value not in (None, [])}
    settings = read_settings(config, given, parse_assignments(set_ or []))
    try:
        run_all(settings, resume, console)
    except KeyboardInterrupt:
        hint = "interrupted; finished steps are in the last checkpoint. Go on with the same command and --resume"
        typer.echo(hint, err=True)
        raise typer.Exit(130) from None


@app.command()
def doctor(
    model: Annotated[str, typer.Argument(help="a folder, or a name on the Hugging Face hub")],
    site: Annotated[str, typer.Option(help="where δ is added: tokens, block, or a module's name")] = "tokens",
    radius: Annotated[float, typer.Option(help="l2 size of the perturbation that is tried, per sentence")] = 0.1,
    dtype: Annotated[str, typer.Option(help="dtype of the weights: float32, bfloat16, float16")] = "float32",
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="with gradient checkpointing")] = False,
) -> None:
    """Prove with one batch that the perturbation reaches a model and does what it should."""
    from advreg.cli.doctor import report

    raise typer.Exit(report(model, site, radius, dtype, checkpointing, console))


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="show the options of this method")] = None) -> None:
    """List the methods, what they cost, and their options."""
    from advreg.cli.methods import print_method, print_methods

    if name is None:
        print_methods(console)
    else:
        print_method(name, console)
