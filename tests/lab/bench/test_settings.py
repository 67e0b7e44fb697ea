from __future__ import annotations

from typing import Any

import pytest
import torch

from advreg.lab.bench.settings import BenchSettings, Shape, Spec


@pytest.mark.parametrize("text", ["32x64", "32×64", " 32 x 64 "])
def test_a_shape_is_batch_times_tokens(text: str) -> None:
    assert Shape.parse(text) == Shape(32, 64)


@pytest.mark.parametrize("text", ["32by64", "32", "0x64", "32x-1", "", "32x64x2"])
def test_another_shape_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        ValueError, match=f"shape must be BATCHxTOKENS, for example 32x64, got '{text}'"
    ):
        Shape.parse(text)


def test_a_spec_creates_the_method_with_its_options_turned_into_values() -> None:
    method: Any = Spec.parse("arch:cache_fraction=0.5,refresh_every=none").create()
    assert (method.info.name, method.cache_fraction, method.refresh_every) == ("arch", 0.5, None)


def test_defaults_give_way_to_the_spec_and_skip_methods_that_do_not_know_them() -> None:
    given: Any = Spec.parse("arch:refresh_every=3").create(refresh_every=7)
    silent: Any = Spec.parse("arch").create(refresh_every=7)
    assert (given.refresh_every, silent.refresh_every) == (3, 7)
    assert Spec.parse("smart").create(refresh_every=7).info.name == "smart"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("archh", r"unknown method 'archh' \(did you mean 'arch'\?\)"),
        ("arch:radus=1", r"method 'arch' has no option 'radus' \(did you mean 'radius'\?\)"),
        ("arch:radius=-1", "radius must be a finite number of 0 or more, got -1.0"),
        ("arch:radius", "method takes NAME:OPTION=VALUE,OPTION=VALUE, got 'arch:radius'"),
    ],
)
def test_a_spec_that_names_nothing_is_refused_before_anything_is_built(
    text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BenchSettings(methods=(text,), device="cpu")


def test_standard_comes_first_and_nothing_twice() -> None:
    settings = BenchSettings(
        methods=("smart", "standard", "smart", "smart:ascent_steps=1"), device="cpu"
    )
    assert [spec.label for spec in settings.specs] == [
        "standard",
        "smart",
        "smart (ascent_steps=1)",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "precision must be fp32 or bf16 on a CPU, got 'fp16'"),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16, got 'fp8'"),
        ({"padding": 1.0}, "padding must be at least 0 and below 1, got 1.0"),
        ({"rounds": 0}, "rounds must be a whole number of 1 or more, got 0"),
        ({"samples": 31}, "samples must be at least the batch size, got 31 for the shape 32x64"),
        (
            {"compile_mode": "max-autotune"},
            "compile_mode 'max-autotune' does nothing without compile; add --compile",
        ),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, got 'tpu'"),
    ],
)
def test_bad_settings_are_refused_by_name_value_and_remedy(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BenchSettings(**({"device": "cpu"} | settings))


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match="device must be cpu or auto here, got 'cuda': torch finds no CUDA device"
    ):
        BenchSettings(device="cuda")
    assert BenchSettings().place() == torch.device("cpu")
