"""Settings of a measurement, checked before anything is built."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch

from advreg.core.checks import check_choice, check_not_negative, check_whole
from advreg.methods import Method, create, describe

Precision = Literal["fp32", "bf16", "fp16"]
DeviceChoice = Literal["auto", "cpu", "cuda"]

DEFAULT_METHODS = ("standard", "r3f", "arch", "freelb", "smart")
DEFAULT_SHAPES = ("32x64",)


@dataclass(frozen=True)
class Shape:
    """Samples in a batch, and tokens per sample (for a translation model, in source and target
    each).
    """

    batch: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Parse a shape.

        Example:
            >>> Shape.parse("32x64")
            Shape(batch=32, tokens=64)
        """
        found = re.fullmatch(r"\s*([1-9]\d*)\s*[x×]\s*([1-9]\d*)\s*", text)
        if found is None:
            raise ValueError(f"shape must be BATCHxTOKENS, for example 32x64, got '{text}'")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.batch}x{self.tokens}"


@dataclass(frozen=True)
class Spec:
    """A method and its given options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a method: its name, and its options after a colon.

        Example:
            >>> Spec.parse("arch:cache_device=host,cache_fraction=0.5").options
            {'cache_device': 'host', 'cache_fraction': '0.5'}
        """
        name, colon, rest = text.partition(":")
        options = {}
        for pair in rest.split(",") if colon else ():
            option, equals, value = pair.partition("=")
            if not equals or not option.strip():
                raise ValueError(f"method takes NAME:OPTION=VALUE,OPTION=VALUE, got '{text}'")
            options[option.strip()] = value.strip()
        spec = cls(name.strip(), options)
        spec.create()  # built once to refuse bad names and values here
        return spec

    def create(self, **defaults: Any) -> Method:
        """The method, with ``defaults`` for options that were not given."""
        known = {option.name for option in describe(self.name)}
        return create(
            self.name,
            **{name: value for name, value in defaults.items() if name in known} | self.options,
        )

    @property
    def label(self) -> str:
        """The name of its row."""
        given = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name} ({given})" if given else self.name


@dataclass(frozen=True)
class BenchSettings:
    """Subject and repetitions of a measurement.

    Args:
        model: a preset of :mod:`advreg.lab.kinds.architectures`, a folder or a hub name.
        shapes: batch sizes and lengths.
        methods: method specs; see :meth:`Spec.parse`. Standard is measured whether it is named or
            not.
        padding: share of positions that are padding; lengths then vary.
        precision: fp32; bf16 or fp16 by autocast.
        compile: run the model through ``torch.compile``?
        compile_mode: its mode.
        device: cpu, cuda, or auto: cuda where there is one.
        reuse_only: leave ARCH's refresh steps out?
        two_pass: also r3f and arch with two passes instead of the fused one?
        trainers: also steps of the Trainer, the stock one and ours with each method?
        peers: also other packages that are installed?
        samples: size of the synthetic data set that ARCH's cache is for.
        batches: different batches that are gone through in turn, at most.
        warmup: steps of each contender before anything is timed.
        steps: steps of each contender in a round.
        rounds: rounds.
        optimizer: is clipping and AdamW part of a step?
        epochs: of the whole run that times are projected to.
        refresh_every: ARCH's T_c, where a spec says nothing else.
        seed: of weights, data and the order in each round.
    """

    model: str = "small"
    shapes: tuple[str, ...] = DEFAULT_SHAPES
    methods: tuple[str, ...] = DEFAULT_METHODS
    padding: float = 0.0
    precision: Precision = "fp32"
    compile: bool = False
    compile_mode: str | None = None
    device: DeviceChoice = "auto"
    reuse_only: bool = False
    two_pass: bool = False
    trainers: bool = True
    peers: bool = False
    samples: int = 10_000
    batches: int = 64
    warmup: int = 3
    steps: int = 10
    rounds: int = 10
    optimizer: bool = True
    epochs: int = 150
    refresh_every: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.padding < 1:
            raise ValueError(
                f"padding must be a share of at least 0 and below 1, got {self.padding}"
            )
        for name in ("samples", "batches", "steps", "rounds", "epochs", "refresh_every"):
            check_whole(name, getattr(self, name), least=1)
        check_whole("warmup", self.warmup, least=0)
        check_not_negative("seed", self.seed)
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("device", self.device, get_args(DeviceChoice))
        for shape in self.parsed_shapes:
            if shape.batch > self.samples:
                raise ValueError(
                    f"samples must be at least the batch size, got {self.samples} for the shape "
                    f"{shape}; raise samples"
                )
        self.specs  # parsed once to refuse bad values here  # noqa: B018
        place = self.place()
        if self.precision == "fp16" and place.type == "cpu":
            raise ValueError(
                "precision must be fp32 or bf16 on a CPU, got 'fp16'; autocast to float16 needs a "
                "GPU"
            )
        if self.compile_mode is not None and not self.compile:
            raise ValueError(
                f"compile_mode '{self.compile_mode}' does nothing without compile; add --compile"
            )

    @property
    def parsed_shapes(self) -> tuple[Shape, ...]:
        return tuple(dict.fromkeys(Shape.parse(text) for text in self.shapes))

    @property
    def specs(self) -> list[Spec]:
        """The contenders, Standard first."""
        found = [Spec("standard"), *(Spec.parse(text) for text in self.methods)]
        return list({spec.label: spec for spec in found}.values())

    def place(self) -> torch.device:
        """The measured device."""
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError(
                "device must be cpu or auto here, got 'cuda': torch finds no CUDA device"
            )
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")
