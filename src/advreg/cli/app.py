"""The commands and their flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer.core import TyperGroup

from advreg.cli.flags import completed, given_of, normalised, parse_assignments, with_flags
from advreg.lab.runs import bases
from advreg.records.environment import require_clean_tree


class Commands(TyperGroup):
    """Commands whose errors name the rejected value, and suggest the option for an abbreviation."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, completed(name or "") or command, rest

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
        except Exception as error:
            if hasattr(error, "possibilities") and getattr(error, "ctx", None) is not None:
                error.possibilities = _meant(error) or _listed(error)
            raise


def _meant(error: Any) -> list[str]:
    """Options with the given initials: ``--lr`` means ``--learning-rate``."""
    options = [name for each in error.ctx.command.params for name in each.opts]
    initials = {name: "".join(word[:1] for word in name.split("-")) for name in options}
    return [name for name in options if f"--{initials[name]}" == error.option_name]


def _listed(error: Any) -> list[str]:
    """The suggestions without options of single methods, unless such an option was given."""
    return [
        name for name in error.possibilities or () if "." not in name or "." in error.option_name
    ]


app = typer.Typer(
    cls=Commands,
    help="Adversarial regularisation for language models, with cached perturbations.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"token_normalize_func": normalised},
)
console = Console(  # names of folders and columns are text; only the first process prints
    quiet=os.environ.get("RANK", "0") != "0", markup=False, emoji=False
)


def user_errors() -> tuple[type[BaseException], ...]:
    """Errors whose text is meant for users; anything else is a bug and keeps its traceback."""
    from safetensors import SafetensorError
    from torch import OutOfMemoryError

    from advreg.cli import USER_ERRORS
    from advreg.hf.view.injection import InjectionError

    return (*USER_ERRORS, InjectionError, OutOfMemoryError, SafetensorError)


def print_version(wanted: bool) -> None:
    if wanted:
        from advreg import __version__

        console.print(f"advreg {__version__}", highlight=False)
        raise typer.Exit


def say_preset(settings: bases.AnySettings) -> None:
    """Print the preset if it is not the default of its kind of task."""
    if settings.preset not in (None, type(settings).preset):
        console.print(
            f"preset {settings.preset}: sets options that you do not give; use --preset none to "
            "omit it",
            highlight=False,
            soft_wrap=True,
        )


def see_only(devices: str | None) -> None:
    """Let this process, where runs are rehearsed, see the GPUs of its workers; CUDA reads the
    variable only once, when it initialises.
    """
    if devices is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "" if devices == "cpu" else "".join(devices.split())


_RUNS, _CONFIGURATION = "Runs", "Configuration"
# what several commands share
Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with any of the settings; flags override it",
        rich_help_panel=_CONFIGURATION,
    ),
]
GridConfig = Annotated[
    Path | None,
    typer.Option(
        help=r"TOML file with any of the settings, and \[grid]: the options to tune or vary",
        rich_help_panel=_CONFIGURATION,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE, any field of TrainingArguments",
        rich_help_panel=_CONFIGURATION,
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seeds", help="number of seeds, or a list: 0,5,7", show_default="3"),
]
Jobs = Annotated[
    int | None,
    typer.Option(help="parallel runs", show_default="one per GPU; else per core, 4 at most"),
]
Devices = Annotated[
    str | None,
    typer.Option(
        help="GPUs to use: 0,1; or cpu", show_default="all", callback=see_only, expose_value=False
    ),
]
AllowDirty = Annotated[
    bool,
    typer.Option(
        "--allow-dirty",
        help="run advreg with uncommitted changes; the record notes it",
        rich_help_panel=_CONFIGURATION,
    ),
]
KeepModels = Annotated[
    bool, typer.Option("--keep-models", help="keep models and checkpoints of all runs")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="train nothing: check settings, list remaining runs")
]


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=print_version
        ),
    ] = False,
) -> None:
    pass  # the version is printed before a command is asked for


@app.command()
@with_flags
def train(
    *,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="resume the runs in the output folder; with --output alone, with their settings",
        ),
    ] = False,
    spare: Annotated[
        Path | None,
        typer.Option(
            help="folder for a model that the output folder does not take",
            show_default="the temporary folder",
            rich_help_panel=_CONFIGURATION,
        ),
    ] = None,
    config: Config = None,
    set_: Assignments = None,
    allow_dirty: AllowDirty = False,
    **flags: Any,
) -> None:
    """Train a classifier, regressor, translator or language model with one or more methods, and
    compare them.

    Without any flag: a small Transformer on sentences of Python's own documentation, Standard
    against ARCH, two seeds each. Options of the methods are flags too; `advreg methods NAME`
    explains them.
    """
    given, training = given_of(flags), parse_assignments(set_ or [])
    output = given.get("output")
    saved = bases.saved_settings(Path(output)) if resume and output else {}
    bases.inspect(config, {**saved, **given})
    require_clean_tree(allow_dirty)
    try:
        settings = bases.read_settings(config, given, training, saved)
        say_preset(settings)
        from advreg.cli.train import run_all

        code = run_all(settings, resume, console, spare)
    except KeyboardInterrupt:
        hint = (
            "interrupted; finished steps are in the last checkpoint. Resume with the same command "
            "and --resume"
        )
        typer.echo(hint, err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(code)


@app.command()
@with_flags
def compare(
    *,
    task: Annotated[
        list[str] | None,
        typer.Option(help="tasks, as for train: a or a,b", show_default="docstrings"),
    ] = None,
    seeds: Seeds = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            help="settings tried per method and task; 0: no tuning",
            show_default="8",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="add seeds until all is decided or this is spent: a time (2h) or a number of runs",
            show_default="up to 20 seeds; with --seeds none are added",
        ),
    ] = None,
    controls: Annotated[
        bool | None,
        typer.Option(
            "--controls/--no-controls",
            help="also train Standard longer and with averaged weights",
            show_default="controls",
        ),
    ] = None,
    jobs: Jobs = None,
    devices: Devices = None,
    reference: Annotated[
        str | None,
        typer.Option(help="reference method for differences", show_default="standard"),
    ] = None,
    keep_models: KeepModels = False,
    dry_run: DryRun = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="folder; runs that it holds are resumed", show_default="runs/compare-DATA-MODEL"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="train nothing: print the tables of this folder from its records"),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="gradient norms, as .svg")] = None,
    config: GridConfig = None,
    set_: Assignments = None,
    allow_dirty: AllowDirty = False,
    **flags: Any,
) -> None:
    """Find the method that pays on your data. Every method is tuned with the same effort.

    Candidates from a grid are trained on part of the training data and selected on the rest, never
    on dev; options that you give as flags are not tuned. Seeds are added until each method pays,
    does not pay, or the budget ends. The winner's model is in FOLDER/best. Repeat the command to
    resume a comparison.
    """
    given = given_of({**flags, "task": task, "seeds": seeds, "output": output})
    training = parse_assignments(set_ or [])
    if table is None:
        bases.inspect(config, given)
        require_clean_tree(allow_dirty or dry_run)
    from advreg.cli.compare import run_comparison, show_comparison
    from advreg.cli.running import RunOptions

    options = RunOptions(jobs, picture, dry_run)
    if table is not None:
        show_comparison(table, picture, console)
        return
    from advreg.lab.search.compare_settings import read_compare

    own = {
        "candidates": candidates,
        "budget": budget,
        "controls": controls,
        "reference": reference,
        "keep_models": keep_models or None,
    }
    settings = read_compare(config, given, training, **own)
    raise typer.Exit(run_comparison(settings, options, console))


@app.command()
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
            help="TOML file with the values to vary", show_default="the paper's figure, and more"
        ),
    ] = None,
    write_grid: Annotated[
        Path | None,
        typer.Option(help="train nothing: write the default grid to this new file"),
    ] = None,
    jobs: Jobs = None,
    devices: Devices = None,
    keep_models: KeepModels = False,
    dry_run: DryRun = False,
    output: Annotated[
        str | None,
        typer.Option(
            help="folder; runs that it holds are resumed", show_default="runs/study-DATA-MODEL"
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="train nothing: print and draw the study of this folder from its record"),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="the picture, as .svg",
            show_default="study.svg in the folder",
        ),
    ] = None,
    config: GridConfig = None,
    set_: Assignments = None,
    allow_dirty: AllowDirty = False,
    **flags: Any,
) -> None:
    """Vary one option of a method at a time: the paper's parameter study, on any task.

    Every point is trained with every seed, next to SMART and Standard; runs that several studies
    share are made once. Repeat the command to resume a study.
    """
    given = given_of({**flags, "seeds": seeds, "output": output})
    training = parse_assignments(set_ or [])
    if table is None and write_grid is None:
        bases.inspect(config, given)
        require_clean_tree(allow_dirty or dry_run)
    from advreg.cli.running import RunOptions
    from advreg.cli.study import run_study, show_study
    from advreg.lab.search import study_settings

    options = RunOptions(jobs, picture, dry_run)
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
    own = {"method": methods, "baselines": baselines, "keep_models": keep_models or None}
    settings = study_settings.read_study(config, grid, studies or [], given, training, **own)
    raise typer.Exit(run_study(settings, options, console))


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="folder of a run, or a model folder")],
    *,
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            help="txt (a text a line), csv, tsv, jsonl or parquet",
            show_default="standard input",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="txt, csv or jsonl", show_default="standard output"),
    ] = None,
    input_format: Annotated[
        str | None,
        typer.Option(help="txt, csv or jsonl", show_default="by the file's name; else txt"),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            help="txt, csv or jsonl",
            show_default="by the file's name; else csv, or txt for a translation",
        ),
    ] = None,
    text_column: Annotated[
        str | None,
        typer.Option(help="column of the text", show_default="as in the training, else guessed"),
    ] = None,
    pair_column: Annotated[
        str | None,
        typer.Option(
            help="column of the second text of a pair",
            show_default="as in the training, else guessed",
        ),
    ] = None,
    all_classes: Annotated[
        bool, typer.Option("--all-classes", help="a column with the probability of each class")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda", show_default="cuda if there is one")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="NAME=VALUE: precision; batch_size of a classifier; beam, length_penalty, "
            "max_tokens of a translator; answer_length of a language model",
        ),
    ] = None,
) -> None:
    """Predict with a trained model: `advreg predict RUN < texts`, or with --input and --output.

    A classifier adds the class and its probability to each row, a regressor a number, a translator
    a translation. Texts are cut as in the training. Progress goes to stderr.
    """
    from advreg.cli.predict import Order, predict_standard_streams

    given = parse_assignments(set_ or [])
    given |= {"device": device} if device is not None else {}
    given |= {"all_classes": True} if all_classes else {}
    order = Order(
        model, input_, output, input_format, output_format, text_column, pair_column, given
    )
    predict_standard_streams(order)


@app.command()
def translate(
    model: Annotated[Path, typer.Argument(help="folder of a translation run, or its model folder")],
    *,
    beam: Annotated[
        int | None, typer.Option(help="beam size; 1 is greedy", show_default="the model's own")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="values above 0 favour long outputs", show_default="the model's own"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="positions per batch, including beams", show_default="by device"),
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16")] = "fp32",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda", show_default="cuda if there is one")
    ] = None,
) -> None:
    """Translate lines: `advreg translate MODEL < source > output`; `advreg predict` with the
    options of translation as flags.
    """
    from advreg.cli.predict import Order, predict_standard_streams

    options = {
        "beam": beam,
        "length_penalty": length_penalty,
        "max_tokens": max_tokens,
        "precision": precision,
        "device": device,
    }
    given = {name: value for name, value in options.items() if value is not None}
    predict_standard_streams(Order(model, output_form="txt", options=given))


@app.command()
def doctor(
    model: Annotated[
        str,
        typer.Argument(help="folder of a run or a model, minilm, or a name on the hub"),
    ],
    site: Annotated[
        str, typer.Option(help="place of δ: tokens, block, or the name of a module")
    ] = "tokens",
    radius: Annotated[
        float, typer.Option(help="l2 norm of the tested perturbation, per sentence")
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
    """Check with one batch that perturbations reach a model and have the intended effect."""
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
        bool, typer.Option("--reuse-only", help="skip ARCH's refresh steps")
    ] = False,
    two_pass: Annotated[
        bool, typer.Option("--two-pass", help="also r3f and arch without the fused pass")
    ] = False,
    no_trainers: Annotated[
        bool,
        typer.Option("--no-trainers", help="skip steps of the Trainer, the stock one and ours"),
    ] = False,
    peers: Annotated[
        bool, typer.Option("--peers", help="also smart-pytorch, if installed")
    ] = False,
    samples: Annotated[
        int, typer.Option(help="size of the synthetic data set that ARCH caches for")
    ] = 10_000,
    warmup: Annotated[int, typer.Option(help="untimed warm-up steps of each method")] = 3,
    steps: Annotated[int, typer.Option(help="steps of each method in a round")] = 10,
    rounds: Annotated[int, typer.Option(help="rounds, each with all methods")] = 10,
    no_optimizer: Annotated[
        bool, typer.Option("--no-optimizer", help="skip clipping and AdamW")
    ] = False,
    epochs: Annotated[int, typer.Option(help="epochs of a whole run, for projected times")] = 150,
    refresh_every: Annotated[int, typer.Option(help="ARCH's T_c, unless its spec sets it")] = 15,
    seed: Annotated[int, typer.Option(help="of weights, data and order")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="the record", show_default="runs/bench-MODEL.json")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="bars, as .svg")] = None,
    from_: Annotated[
        list[Path] | None,
        typer.Option("--from", help="measure nothing: print and draw this record; may be repeated"),
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="of the code, where it is not a git checkout")
    ] = None,
) -> None:
    """Measure what each method costs: passes, time per step, memory.

    All methods alternate on one model in every round; ratios to Standard are taken within a
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
    epochs: Annotated[int, typer.Option(help="epochs of a head's training")] = 10,
    batch_size: Annotated[int, typer.Option(help="texts per training step of a head")] = 32,
    learning_rate: Annotated[float, typer.Option(help="peak learning rate of a head")] = 1e-3,
    dropout: Annotated[float, typer.Option(help="dropout before the head")] = 0.1,
    max_length: Annotated[
        int | None, typer.Option(help="tokens at which texts are truncated")
    ] = None,
    pooling: Annotated[
        Literal["head", "mean"],
        typer.Option(
            help="representation of a text: input of the encoder's head (head), or its mean token "
            "(mean)"
        ),
    ] = "head",
    out: Annotated[Path, typer.Option(help="the record")] = Path("runs/probe.json"),
    picture: Annotated[Path | None, typer.Option(help="scores of the heads, as .svg")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the record")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", help="fit nothing: print and draw this record")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="of the code, where it is not a git checkout")
    ] = None,
) -> None:
    """Probe representations: freeze encoders and fit only a head on other tasks."""
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
            help="folders of runs (searched recursively), or files of compare, study, "
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
    """Write a report of all runs: scores, cost, curves, studies, perturbations, failures.

    The report is a single file that needs no network. It is made from records alone.
    """
    from advreg.cli.report import write_report

    write_report(runs, output, title, console)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="folder to search, recursively")] = Path("runs"),
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
        list[str] | None, typer.Option(help="only finished, failed or unfinished runs")
    ] = None,
    sort: Annotated[str, typer.Option(help="a column; -score sorts the highest first")] = "run",
    tuning: Annotated[bool, typer.Option("--tuning", help="include runs for tuning")] = False,
    json_: Annotated[bool, typer.Option("--json", help="print every field as JSON")] = False,
    csv_: Annotated[bool, typer.Option("--csv", help="print every field as CSV")] = False,
) -> None:
    """List runs with their settings, scores, times and reasons for failure."""
    from advreg.cli.runs import list_runs

    if json_ and csv_:
        raise ValueError("choose one of --json and --csv, got both")
    wanted = {"method": method, "task": task, "model": model, "seed": seed, "status": status}
    given = {name: values or [] for name, values in wanted.items()}
    list_runs(folder, given, sort, tuning, "json" if json_ else "csv" if csv_ else "table", console)
