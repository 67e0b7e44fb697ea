"""Settings of a measurement, checked before anything is built."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from advreg.core.checks import check_count, check_not_negative, check_share
from advreg.core.options import Checked, option
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
        name, _, rest = text.partition(":")
        options = {}
        for pair in filter(None, rest.split(",")):
            key, equals, value = pair.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"method takes NAME:OPTION=VALUE,OPTION=VALUE, got '{text}'")
            options[key.strip()] = value.strip()
        spec = cls(name.strip(), options)
        spec.create()  # built once to refuse bad names and values here
        return spec

    def create(self, **defaults: Any) -> Method:
        """The method, with ``defaults`` for those of its options that were not given."""
        known = {each.name for each in describe(self.name)}
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
class BenchSettings(Checked):
    """What is measured, and how often."""

    model: str = option(
        "small", "a preset of :mod:`advreg.lab.kinds.architectures`, a folder or a hub name"
    )
    shapes: tuple[str, ...] = option(DEFAULT_SHAPES, "batch sizes and lengths")
    methods: tuple[str, ...] = option(
        DEFAULT_METHODS, "method specs, see :meth:`Spec.parse`; Standard is always measured"
    )
    padding: float = option(
        0.0, "share of positions that are padding; lengths then vary", check=check_share
    )
    precision: Precision = option("fp32", "fp32; bf16 or fp16 by autocast")
    compile: bool = option(False, "run the model through ``torch.compile``")
    compile_mode: str | None = option(None, "mode of ``torch.compile``")
    device: DeviceChoice = option("auto", "cpu, cuda, or auto: cuda where there is one")
    reuse_only: bool = option(False, "leave ARCH's refresh steps out")
    two_pass: bool = option(False, "also r3f and arch with two passes instead of the fused one")
    trainers: bool = option(True, "also steps of the Trainer: the stock one, and ours")
    peers: bool = option(False, "also other packages that are installed")
    samples: int = option(
        10_000, "size of the synthetic data set that ARCH caches", check=check_count
    )
    batches: int = option(64, "different batches that take turns, at most", check=check_count)
    warmup: int = option(3, "steps of each contender before timing", check=check_not_negative)
    steps: int = option(10, "steps of each contender in a round", check=check_count)
    rounds: int = option(10, "rounds", check=check_count)
    optimizer: bool = option(True, "whether clipping and AdamW are part of a step")
    epochs: int = option(150, "of the whole run that times are projected to", check=check_count)
    refresh_every: int = option(15, "ARCH's T_c, unless a spec gives it", check=check_count)
    seed: int = option(0, "of weights, data and the order in each round", check=check_not_negative)

    def __post_init__(self) -> None:
        super().__post_init__()
        largest = max(self.parsed_shapes, key=lambda shape: shape.batch)
        if largest.batch > self.samples:
            raise ValueError(
                f"samples must be at least the batch size, got {self.samples} for the shape "
                f"{largest}; raise samples"
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
