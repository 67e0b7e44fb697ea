"""The commands and their flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperGroup

from advreg.cli.flags import given_of, parse_assignments, with_flags
from advreg.cli.translation_flags import is_translation, with_translation_flags
from advreg.lab.runs.settings import SettingsError, read_settings
from advreg.lab.tasks.textdata import DataError


class Commands(TyperGroup):
    """Commands that name the value they refuse: typer tells the flag, and what is wrong with what
    it got.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            found: list[Any] = getattr(
                error.__cause__, "errors", list
            )()  # pydantic's, with which typer reads values
            if found and "input" in found[0]:
                error.message = f"{error.message}, got '{found[0]['input']}'"
            raise


app = typer.Typer(
    cls=Commands,
    help="Adversarial regularisation for language models, with perturbations that are cached and "
    "reused.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console(quiet=os.environ.get("RANK", "0") != "0")  # of many processes one speaks


def user_errors() -> tuple[type[BaseException], ...]:
    """Errors whose text is meant for users; anything else is a bug and keeps its traceback."""
    from torch import OutOfMemoryError

    from advreg.hf.checkpoint.state import CheckpointError
    from advreg.hf.guards.nonfinite import NonFiniteLossError
    from advreg.hf.view.gradient import CheckpointingError
    from advreg.hf.view.injection import InjectionError
    from advreg.lab.kinds.models import ModelError
    from advreg.records.sealed import RecordError

    return (
        CheckpointError, CheckpointingError, DataError, InjectionError, ModelError,
        NonFiniteLossError, RecordError, SettingsError, OSError, ValueError, FloatingPointError,
        OutOfMemoryError,
    )  # fmt: skip


def print_version(wanted: bool) -> None:
    if wanted:
        from advreg import __version__

        console.print(f"advreg {__version__}", highlight=False)
        raise typer.Exit


def see_only(devices: str | None) -> None:
    """Let this process, where runs are rehearsed, see the GPUs of its workers: at once, since CUDA
    looks but once.
    """
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if devices == "cpu" else "".join(devices.split())


# what compare and study take alike
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", help="how many, from 0 on, or which: 0,5,7", show_default="3"),
]
Jobs = Annotated[
    int | None,
    typer.Option(help="runs side by side", show_default="one per GPU; else per core, 4 at most"),
]
Devices = Annotated[
    str | None,
    typer.Option(
        help="GPUs to use: 0,1; or cpu", show_default="all", callback=see_only, expose_value=False
    ),
]
KeepModels = Annotated[
    bool, typer.Option("--keep-models", help="leave models and checkpoints of all runs")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="train nothing: check it, and say what is left to do")
]


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and leave.", is_eager=True, callback=print_version
        ),
    ] = False,
) -> None:
    pass  # the version is printed before a command is asked for


@app.command()
@with_translation_flags
@with_flags
def train(
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of the settings; flags override it")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, any field of TrainingArguments")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the runs in the output folder")
    ] = False,
    **flags: Any,
) -> None:
    """Train a classifier, a regressor or a translator with one or more methods, and compare them.

    Without any flag: a small Transformer on sentences of Python's own documentation, Standard
    against ARCH, two seeds each. Options of the methods are flags too; `advreg methods NAME`
    explains them.
    """
    from advreg.cli.train import run_all

    given = given_of(flags)
    training = parse_assignments(set_ or [])
    try:
        if is_translation(config, given):
            from advreg.cli.translate import train_translation

            train_translation(config, given, training, resume, console)
        else:
            run_all(read_settings(config, given, training), resume, console)
    except KeyboardInterrupt:
        hint = (
            "interrupted; finished steps are in the last checkpoint. Go on with the same command "
            "and --resume"
        )
        typer.echo(hint, err=True)
        raise typer.Exit(130) from None


@app.command()
@with_translation_flags
@with_flags
def compare(
    *,
    task: Annotated[
        list[str] | None,
        typer.Option(help="tasks, as for train; several: a,b", show_default="docstrings"),
    ] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="methods: a,b", show_default="standard,arch"),
    ] = None,
    seeds: Seeds = None,
    budget: Annotated[
        int | None,
        typer.Option(
            help="candidates tried per method and task; 0: use settings as they are",
            show_default="4",
        ),
    ] = None,
    jobs: Jobs = None,
    devices: Devices = None,
    reference: Annotated[
        str | None,
        typer.Option(help="method that the others are compared with", show_default="arch"),
    ] = None,
    keep_models: KeepModels = False,
    dry_run: DryRun = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="folder; what it holds is gone on with", show_default="runs/compare-TASKS-MODEL"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="train nothing: print the tables of this folder, from its records"),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="gradient norms, as .svg")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any of the settings, and [grid]: what is tuned"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, any field of TrainingArguments")
    ] = None,
    **flags: Any,
) -> None:
    """Compare methods on equal terms: tasks × methods × seeds, each method tuned with the same
    budget.

    Candidates from a grid are trained on a part of the training data and chosen on the rest, never
    on dev; what is given as a flag is not tuned. The same command goes on with a comparison that
    was stopped.
    """
    from advreg.cli.compare import run_comparison, show_comparison
    from advreg.cli.running import Orders

    orders = Orders(jobs, picture, dry_run)
    if table is not None:
        show_comparison(table, picture, console)
        return
    from advreg.lab.search.compare_settings import read_compare

    several = {"task": task, "methods": methods, "seeds": seeds, "output": output}
    given = given_of({**flags, **several})
    own = {"budget": budget, "reference": reference, "keep_models": keep_models or None}
    settings = read_compare(config, given, parse_assignments(set_ or []), **own)
    raise typer.Exit(run_comparison(settings, orders, console))


@app.command()
@with_translation_flags
@with_flags
def study(
    *,
    studies: Annotated[
        list[str] | None,
        typer.Argument(help="studies of the grid", show_default="ema refresh neighbours fraction"),
    ] = None,
    methods: Annotated[
        str | None, typer.Option("--method", help="method to study", show_default="arch")
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="methods drawn as lines: a,b; or none", show_default="smart,standard"),
    ] = None,
    seeds: Seeds = None,
    grid: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of what is varied", show_default="the paper's figure, and more"
        ),
    ] = None,
    write_grid: Annotated[
        Path | None,
        typer.Option(help="train nothing: write the default grid to this new file, to be edited"),
    ] = None,
    jobs: Jobs = None,
    devices: Devices = None,
    keep_models: KeepModels = False,
    dry_run: DryRun = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="folder; what it holds is gone on with", show_default="runs/study-TASK-MODEL"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="train nothing: print and draw the study of this folder, from its record"
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="the picture, as .svg",
            show_default="study.svg in the folder",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any of the settings, and [grid]: what is varied"),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, any field of TrainingArguments")
    ] = None,
    **flags: Any,
) -> None:
    """Vary one thing of a method at a time: the paper's parameter study, on any task.

    Every point is trained with every seed, beside SMART and Standard; what several studies need is
    trained once. The same command goes on with a study that was stopped.
    """
    from advreg.cli.running import Orders
    from advreg.cli.study import run_study, show_study
    from advreg.lab.search import study_settings

    orders = Orders(jobs, picture, dry_run)
    if write_grid is not None:
        study_settings.write_grid(write_grid)
        console.print(
            f"written: {write_grid}; edit it, then advreg study --grid {write_grid}",
            highlight=False,
        )
        return
    if table is not None:
        show_study(table, picture, console)
        return
    given = given_of({**flags, "seeds": seeds, "output": output})
    lines: Any = [] if baselines == "none" else baselines
    own: dict[str, Any] = {
        "method": methods,
        "baselines": lines,
        "keep_models": keep_models or None,
    }
    settings = study_settings.read_study(
        config, grid, studies or [], given, parse_assignments(set_ or []), **own
    )
    raise typer.Exit(run_study(settings, orders, console))


@app.command()
def translate(
    model: Annotated[
        Path, typer.Argument(help="folder of a translation run, or the model folder in it")
    ],
    *,
    beam: Annotated[
        int | None, typer.Option(help="beam size; 1 is greedy", show_default="the model's own")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="above 0 favours long translations", show_default="the model's own"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="positions of a batch, beams counted", show_default="by device"),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda", show_default="cuda if there is one")
    ] = None,
) -> None:
    """Translate lines: `advreg translate MODEL < source > output`. Progress goes to stderr."""
    from advreg.cli.translate import translate_standard_streams

    translate_standard_streams(
        model,
        beam=beam,
        length_penalty=length_penalty,
        max_tokens=max_tokens,
        precision=precision,
        device=device,
    )


@app.command()
def doctor(
    model: Annotated[
        str, typer.Argument(help="a folder, minilm, or a name on the Hugging Face hub")
    ],
    site: Annotated[
        str, typer.Option(help="where δ is added: tokens, block, or a module's name")
    ] = "tokens",
    radius: Annotated[
        float, typer.Option(help="l2 size of the perturbation that is tried, per sentence")
    ] = 0.1,
    dtype: Annotated[
        str, typer.Option(help="dtype of the weights: float32, bfloat16, float16")
    ] = "float32",
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="with gradient checkpointing")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run code that comes with the model")
    ] = False,
) -> None:
    """Prove with one batch that the perturbation reaches a model and does what it should."""
    from advreg.cli.doctor import report

    raise typer.Exit(report(model, site, radius, dtype, checkpointing, console, trust_remote_code))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="show the options of this method")] = None,
) -> None:
    """List the methods and what they cost; with a name, explain that method and its options."""
    from advreg.cli.methods import print_method, print_methods

    if name is None:
        print_methods(console)
    else:
        print_method(name, console)


@app.command()
def bench(
    *,
    model: Annotated[
        str,
        typer.Option(
            help="bert-base, minilm, transformer-base, transformer-iwslt, small; a folder; a hub "
            "name"
        ),
    ] = "small",
    shape: Annotated[
        list[str] | None, typer.Option(help="BATCHxTOKENS; may be repeated", show_default="32x64")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:OPTION=VALUE,OPTION=VALUE; may be repeated",
            show_default="standard, r3f, arch, freelb, smart",
        ),
    ] = None,
    padding: Annotated[
        float, typer.Option(help="share of positions that are padding; lengths then vary")
    ] = 0.0,
    precision: Annotated[str, typer.Option(help="fp32, bf16 or fp16")] = "fp32",
    compile_: Annotated[
        bool, typer.Option("--compile", help="run the model through torch.compile")
    ] = False,
    compile_mode: Annotated[str | None, typer.Option(help="mode of torch.compile")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    reuse_only: Annotated[
        bool, typer.Option("--reuse-only", help="leave ARCH's refresh steps out")
    ] = False,
    two_pass: Annotated[
        bool, typer.Option("--two-pass", help="also r3f and arch without the fused pass")
    ] = False,
    no_trainers: Annotated[
        bool,
        typer.Option(
            "--no-trainers", help="leave steps of the Trainer out, the stock one and ours"
        ),
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="also smart-pytorch, if installed")
    ] = False,
    samples: Annotated[
        int, typer.Option(help="size of the synthetic data set that ARCH caches for")
    ] = 10_000,
    warmup: Annotated[int, typer.Option(help="steps of each contender that are not timed")] = 3,
    steps: Annotated[int, typer.Option(help="steps of each contender in a round")] = 10,
    rounds: Annotated[
        int, typer.Option(help="rounds, in each of which every contender has its turn")
    ] = 10,
    no_optimizer: Annotated[
        bool, typer.Option("--no-optimizer", help="leave clipping and AdamW out")
    ] = False,
    epochs: Annotated[int, typer.Option(help="of the whole run that times are projected to")] = 150,
    refresh_every: Annotated[
        int, typer.Option(help="ARCH's T_c, where its spec says nothing else")
    ] = 15,
    seed: Annotated[int, typer.Option(help="of weights, data and order")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="the record", show_default="runs/bench-MODEL.json")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="bars, as .svg")
    ] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", help="measure nothing: print and draw this record; may be repeated"),
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="of the code, where it is not a git checkout")
    ] = None,
) -> None:
    """Measure what each method costs: passes, time per step, memory.

    All contenders take turns on one model in every round; a ratio to Standard is taken within a
    round.
    """
    from advreg.cli.bench import measure, redraw
    from advreg.lab.bench.settings import DEFAULT_METHODS, DEFAULT_SHAPES, BenchSettings

    if from_:
        redraw(from_, picture, console)
        return
    settings = BenchSettings(
        model=model,
        shapes=tuple(shape or DEFAULT_SHAPES),
        methods=tuple(method or DEFAULT_METHODS),
        padding=padding,
        precision=precision,  # type: ignore[arg-type]  # checked there
        compile=compile_,
        compile_mode=compile_mode,
        device=device,  # type: ignore[arg-type]
        reuse_only=reuse_only,
        two_pass=two_pass,
        trainers=not no_trainers,
        peers=peers,
        samples=samples,
        warmup=warmup,
        steps=steps,
        rounds=rounds,
        optimizer=not no_optimizer,
        epochs=epochs,
        refresh_every=refresh_every,
        seed=seed,
    )
    raise typer.Exit(measure(settings, out, picture, commit, console))


@app.command()
def probe(
    encoders: Annotated[
        list[str] | None,
        typer.Argument(help="runs of `advreg train` or `compare`, folders of models, or hub names"),
    ] = None,
    *,
    task: Annotated[
        list[str] | None, typer.Option(help="fit heads for this task; may be repeated")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="folder of the data; without it the hub (or ADVREG_DATA)")
    ] = None,
    seeds: Annotated[int, typer.Option(help="heads for each encoder and task")] = 10,
    epochs: Annotated[int, typer.Option(help="passes over the training texts of a head")] = 10,
    batch_size: Annotated[int, typer.Option(help="texts per step of a head")] = 32,
    learning_rate: Annotated[float, typer.Option(help="peak learning rate of a head")] = 1e-3,
    dropout: Annotated[float, typer.Option(help="dropout before the head")] = 0.1,
    max_length: Annotated[int | None, typer.Option(help="tokens a text is cut to")] = None,
    pooling: Annotated[
        Literal["head", "mean"],
        typer.Option(
            help="what stands for a text: what the encoder's head reads (head), or its mean token "
            "(mean)"
        ),
    ] = "head",
    out: Annotated[Path, typer.Option(help="the record")] = Path("runs/probe.json"),
    picture: Annotated[
        Path | None, typer.Option(help="violins, as .svg")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the record")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", help="fit nothing: print and draw this record")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="of the code, where it is not a git checkout")
    ] = None,
) -> None:
    """Freeze encoders and fit only a head on other tasks: how good are their representations?"""
    from advreg.cli.probe import redraw, run_probe
    from advreg.lab.search.probing import ProbeSettings

    if from_ is not None:
        redraw(from_, picture, console)
        return
    settings = ProbeSettings(
        encoders=tuple(encoders or ()),
        tasks=tuple(task or ()),
        data=data,
        seeds=seeds,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        dropout=dropout,
        max_length=max_length,
        pooling=pooling,
    )
    run_probe(settings, out, picture, commit, resume, console)


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="folders of runs (searched with all that is in them), or files of compare, study, "
            "probe and bench"
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="the page, as .html")] = Path(
        "report.html"
    ),
    title: Annotated[
        str, typer.Option(help="heading of the page")
    ] = "Adversarial regularisation: a report",
) -> None:
    """Write one page of everything that was run: scores, cost, curves, studies, the perturbation,
    what failed.

    The page is one file that needs no network. It is drawn from records alone.
    """
    from advreg.cli.report import write_report

    write_report(runs, output, title, console)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="searched with all that is in it")] = Path("runs"),
    *,
    method: Annotated[
        list[str] | None, typer.Option(help="only this method; may be repeated")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="only this task; may be repeated")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="only this model; may be repeated")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="only this seed; may be repeated")] = None,
    status: Annotated[
        list[str] | None, typer.Option(help="only finished, failed or unfinished ones")
    ] = None,
    sort: Annotated[str, typer.Option(help="a column; -score: the highest first")] = "run",
    tuning: Annotated[
        bool, typer.Option("--tuning", help="also runs that only served to choose settings")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="print every field as JSON")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="print every field as CSV")] = False,
) -> None:
    """List runs: what they were, what they score, how long they took, and why they failed."""
    from advreg.cli.runs import list_runs

    if json_ and csv_:
        raise ValueError("choose one of --json and --csv, got both")
    wanted = {"method": method, "task": task, "model": model, "seed": seed, "status": status}
    given = {name: values or [] for name, values in wanted.items()}
    list_runs(folder, given, sort, tuning, "json" if json_ else "csv" if csv_ else "table", console)
