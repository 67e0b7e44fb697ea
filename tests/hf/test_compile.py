"""Under torch.compile: the same numbers, a graph for each kind of pass and no more, and δ in every
one that has it.
"""

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from accelerate.utils import compile_regions
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from transformers import TrainerCallback, TrainingArguments

from advreg.core.perturbation import Perturbation
from advreg.hf.patches.layerdrop import layers_kept
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.injection import InjectionError, is_compiled, uncompiled
from advreg.hf.view.view import HFModelView
from advreg.lab.doctor import examine
from advreg.methods import Method, create, registry
from observe import Batch, Padded, batch_of, close, exact, features_of, gradients, ready, step
from tiny_models import tiny, tiny_batch

SETTINGS: dict[str, dict[str, Any]] = {
    "freeat": {"replays": 2, "radius": 0.05, "step_size": 0.03},
    "freelb": {"radius": 0.5, "ascent_steps": 2, "step_size": 0.3, "start_scale": 0.3},
    "smart": {
        "radius": 0.5,
        "ascent_steps": 2,
        "step_size": 0.4,
        "proximal_weight": 0.5,
        "proximal_momentum": 0.5,
    },
    "r3f": {"noise_scale": 0.1},
    "simcut": {"cut": 0.4},
    "temporal": {"weight": 3.0},
    "ols": {"weight": 3.0},
    "arch": {
        "radius": 0.5,
        "ascent_steps": 2,
        "step_size": 0.4,
        "refresh_every": 2,
        "cache_fraction": 0.5,
    },
}
# Kinds of passes: clean, perturbed, in the ascent, with averaged weights; ARCH's fused pass doubles
# the batch.
KINDS = {
    "standard": 1,
    "freeat": 1,
    "freelb": 1,
    "r3f": 1,
    "smart": 4,
    "arch": 4,
    "simcut": 1,
    "temporal": 1,
    "ols": 1,
}
# The copies of R-Drop differ by dropout alone, for which compiled graphs draw other random numbers.
COMPARED = [name for name in registry if "dropout" not in registry[name].info.needs]
LENGTHS = (
    10,
    10,
    10,
    10,
    12,
    11,
    14,
    13,
    10,
    17,
    18,
    19,
)  # as a batch is padded, step by step; an epoch each
slow = pytest.mark.slow
pytestmark = pytest.mark.usefixtures("graphs")


def method_of(name: str, **options: Any) -> Method:
    return create(name, **SETTINGS.get(name, {}) | options)


def noise_of(task: HFModelView, batch: Batch, scale: float = 0.1) -> Perturbation:
    generator = torch.Generator().manual_seed(0)
    return task.zeros(batch).map(
        lambda values, _: scale * torch.randn(values.shape, generator=generator, dtype=values.dtype)
    )


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


class Compiled:
    """A model of a family, compiled, beside an equal one that is not; and how many graphs the one
    has become.
    """

    def __init__(
        self, family: str, backend: str = "aot_eager", half: bool = False, **settings: Any
    ) -> None:
        self.graphs = CompileCounterWithBackend(backend)
        self.eager = HFModelView(exact(family, **settings), half=half)
        self.task = HFModelView(
            torch.compile(exact(family, **settings), backend=self.graphs), half=half
        )

    @property
    def count(self) -> int:
        return int(self.graphs.frame_count)


def trained(
    method: Method,
    task: HFModelView,
    batches: list[Batch],
    watch: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Loss, gradients and weights of one step per batch, each in the next epoch."""
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    ready(method, task, batches[0])
    found = []
    for epoch, batch in enumerate(batches):
        report = step(method, task, batch, epoch=epoch, seed=epoch, update=update)
        found.append((float(report.loss), gradients(task.model)))
        update()
        method.updated(task)
        watch()
    return found


def require_equal(mine: list[Any], theirs: list[Any], tolerance: float) -> None:
    for (loss, found), (expected, reference) in zip(mine, theirs, strict=True):
        assert loss == pytest.approx(expected, abs=tolerance)
        assert close(found, reference, tolerance)
        assert any(bool(value.any()) for value in reference.values())


# ---- the same numbers


@pytest.mark.parametrize(
    ("name", "family", "backend"),
    [
        *((name, "bert", "eager") for name in COMPARED if KINDS.get(name) == 1),
        *(
            pytest.param(name, "bert", "aot_eager", marks=slow)
            for name in COMPARED
            if KINDS.get(name) != 1
        ),
        *(
            pytest.param(name, family, backend, marks=slow)
            for family, backend in (
                ("marian", "aot_eager"),
                ("t5", "aot_eager"),
                ("bert", "inductor"),
            )
            for name in COMPARED
        ),
        pytest.param("smart", "gpt2", "aot_eager", marks=slow),
        pytest.param("smart", "marian", "inductor", marks=slow),
    ],
)
def test_a_method_computes_compiled_what_it_computes_eagerly(
    name: str, family: str, backend: str
) -> None:
    """The losses and gradients of a refresh and a reuse, with the weights moved between; float64,
    to 1e-9.
    """
    pair = Compiled(family, backend)
    batches = [batch_of(family), batch_of(family)]
    with layers_kept():  # Marian draws for its layers otherwise, and noise would be other noise
        expected = trained(method_of(name), pair.eager, batches)
    require_equal(trained(method_of(name), pair.task, batches), expected, 1e-9)
    assert pair.count > 0


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_copies_of_r_drop_differ_compiled_too(family: str) -> None:
    task = HFModelView(torch.compile(tiny(family, dropout=0.1), backend="eager"))
    report = step(create("rdrop"), task, batch_of(family))
    assert float(report.penalty) > 1e-3


@slow
@pytest.mark.parametrize("family", ["bert", "t5", "marian"])
def test_each_stream_has_its_own_perturbation_in_every_kind_of_pass(family: str) -> None:
    """Also where encoder and decoder are one module (T5, Marian): its first call is the
    encoder's.
    """
    pair, batch = Compiled(family, "eager"), batch_of(family)
    noise, zeros = noise_of(pair.eager, batch, 0.5), pair.eager.zeros(batch)
    clean = pair.eager.bare_logits(batch)
    assert torch.allclose(pair.task.logits(batch), clean, atol=1e-9)
    for stream in noise.values:
        alone = Perturbation(
            {s: (noise if s == stream else zeros).values[s] for s in noise.values}, noise.masks
        )
        expected = pair.eager.bare_logits(batch, alone)
        assert not torch.allclose(expected, clean, atol=1e-3)
        for found in (
            pair.task.logits(batch, alone),
            pair.task.bare_logits(batch, alone),
            pair.task.ascent_logits(batch, alone.leaf()),
            pair.task.paired_logits(batch, alone)[1],
        ):
            assert torch.allclose(found, expected, atol=1e-9)
        assert torch.allclose(pair.task.paired_logits(batch, alone)[0], clean, atol=1e-9)


# ---- graphs


@pytest.mark.parametrize(
    "name", ["freelb", *(pytest.param(name, marks=slow) for name in KINDS if name != "freelb")]
)
@pytest.mark.parametrize("family", ["bert", pytest.param("t5", marks=slow)])
def test_there_is_one_graph_for_each_kind_of_pass_and_one_more_once_lengths_vary(
    name: str, family: str
) -> None:
    """New perturbations, refreshes and reuses compile nothing; nor does any length after the first
    other one.
    """
    pair, counts = Compiled(family, "eager"), []
    batches = [batch_of(family, pad_to=length) for length in LENGTHS]
    trained(method_of(name), pair.task, batches, lambda: counts.append(pair.count))
    assert counts[3] == KINDS[name]
    assert counts[-1] == counts[4 if name != "arch" else 5]
    assert counts[-1] <= 2 * KINDS[name]
    assert not counters["graph_break"]


def test_the_graph_of_an_ascent_has_no_gradient_but_that_of_the_perturbation() -> None:
    """A compiled backward pass computes every gradient of its graph, whichever is asked for."""
    computed: list[int] = []

    def backward(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        computed.append(sum(value is not None for value in output.args[0]))
        return graph

    model, batch = exact("bert"), batch_of("bert")
    flags = {name: value.requires_grad for name, value in model.named_parameters()}
    model.classifier.bias.requires_grad_(False)
    flags["classifier.bias"] = False
    eager, backend = (
        HFModelView(model),
        aot_autograd(fw_compiler=lambda graph, _: graph, bw_compiler=backward),
    )
    task = HFModelView(torch.compile(model, backend=backend))
    target, found = eager.bare_logits(batch).detach(), []
    for call in (eager.ascent_logits, task.ascent_logits, task.bare_logits):
        point = noise_of(eager, batch, 0.5).leaf()
        found.append(
            task.gradient(task.divergence(target, call(batch, point), batch, "kl"), point).values[
                "tokens"
            ]
        )
    assert computed[0] == 1
    assert computed[1] > 20  # through the model as it is: the trained parameters' too
    assert torch.allclose(found[1], found[0], atol=1e-12)
    assert torch.allclose(found[2], found[0], atol=1e-12)
    assert float(found[0].abs().max()) > 1e-5
    assert all(value.grad is None for value in model.parameters())
    assert {name: value.requires_grad for name, value in model.named_parameters()} == flags
    assert all(isinstance(value, nn.Parameter) for value in model.parameters())


# ---- hooks


def test_hooks_stay_on_a_compiled_model_until_they_are_released() -> None:
    pair, batch = Compiled("bert", "eager"), batch_of("bert")
    model = pair.task.model
    assert hooks(model) == 1
    perturbed = pair.task.logits(batch, noise_of(pair.task, batch))
    assert hooks(model) == 1
    pair.task.release()
    assert hooks(model) == 0
    before = pair.count
    assert torch.allclose(
        pair.task.logits(batch, noise_of(pair.task, batch)), perturbed, atol=1e-9
    )  # now eager
    assert pair.count == before
    assert hooks(model) == 0


def test_a_model_that_was_traced_before_its_hooks_came_is_not_trained_without_them() -> None:
    """The graph that is there has no δ in it, and torch.compile does not look again."""
    model, batch = exact("bert"), batch_of("bert")
    compiled = torch.compile(model, backend="eager")
    compiled(**{name: batch[name] for name in ("input_ids", "attention_mask")})
    task = HFModelView(compiled)
    delta = noise_of(task, batch, 0.5)
    with pytest.raises(
        InjectionError,
        match=r"called 0 times; a compiled model that ran before .*_dynamo\.reset\(\)",
    ):
        task.logits(batch, delta)
    torch._dynamo.reset()
    assert torch.allclose(
        task.logits(batch, delta), HFModelView(model).logits(batch, delta), atol=1e-9
    )


def test_a_pass_that_is_made_twice_is_noticed_in_a_graph_too() -> None:
    pair, batch = Compiled("bert", "eager"), batch_of("bert")
    task = pair.task
    inputs = task.inputs.without_labels(batch)
    with (
        pytest.raises(InjectionError, match="was called 2 times"),
        task.streams.injection.adding(noise_of(task, batch)),
    ):
        [task.calls.trained(**inputs) for _ in range(2)]
    with pytest.raises(InjectionError, match="must have the embeddings' shape"):
        task.logits(batch, task.zeros(batch_of("bert", pad_to=12)))
    delta = noise_of(task, batch)
    assert torch.allclose(task.logits(batch, delta), pair.eager.logits(batch, delta), atol=1e-9)


def test_two_tasks_of_one_model_do_not_add_each_other_s_perturbations() -> None:
    pair, batch = Compiled("bert", "eager", num_labels=3), batch_of("bert")
    other = HFModelView(pair.task.calls.trained, site="block")
    delta = noise_of(pair.eager, batch, 0.5)
    for mine, reference in (
        (pair.task, pair.eager),
        (other, HFModelView(pair.eager.model, site="block")),
    ):
        assert torch.allclose(mine.logits(batch, delta), reference.logits(batch, delta), atol=1e-9)


@pytest.mark.parametrize("sites", [("tokens", "block"), ("block", "tokens"), ("tokens", "tokens")])
def test_a_graph_serves_the_next_model_only_at_the_same_site(sites: tuple[str, str]) -> None:
    """One after the other, as runs in one process are: the first is gone, its graphs are not."""
    batch, graphs = batch_of("bert"), []
    for site in sites:
        eager = HFModelView(exact("bert"), site)
        delta = noise_of(eager, batch)
        task = HFModelView(torch.compile(exact("bert"), backend="eager"), site)
        assert torch.allclose(task.logits(batch, delta), eager.logits(batch, delta), atol=1e-9)
        graphs.append(counters["stats"]["unique_graphs"])
        del task, eager
        gc.collect()
    assert (graphs[1] == graphs[0]) == (sites[0] == sites[1])


def test_the_resolution_is_looked_at_once_and_outside_the_graph() -> None:
    model, batch = tiny("bert", dropout=0.0, dtype=torch.float16), tiny_batch("bert")
    task = HFModelView(torch.compile(model, backend="eager", fullgraph=True))
    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            task.logits(batch, noise_of(task, batch, 1e-6))
        said.append(
            [
                str(w.message)
                for w in caught
                if "survives rounding to torch.float16" in str(w.message)
            ]
        )
    assert len(said[0]) == 1
    assert said[1] == []


# ---- dropout


@slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dropout_modes_hold_in_graphs(backend: str) -> None:
    pair, batch = Compiled("bert", backend, dropout=0.3), batch_of("bert")
    task = pair.task
    zeros = task.zeros(batch)
    with task.dropout("shared"):
        shared = [
            task.bare_logits(batch),
            task.logits(batch, zeros),
            task.ascent_logits(batch, zeros.leaf()),
            task.averaged(batch, task.parameters()),
        ]
    assert all(torch.allclose(one, shared[0], atol=1e-9) for one in shared)
    with task.dropout("fresh"):
        fresh = [
            task.bare_logits(batch),
            task.bare_logits(batch),
            task.ascent_logits(batch, zeros.leaf()),
        ]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert not torch.allclose(fresh[one], fresh[other], atol=1e-2)
    pair.eager.model.eval()
    with task.dropout("off"):
        off = [
            task.bare_logits(batch),
            task.logits(batch, zeros),
            task.ascent_logits(batch, zeros.leaf()),
        ]
    assert all(torch.allclose(one, pair.eager.bare_logits(batch), atol=1e-9) for one in off)
    assert task.model.training


# ---- other ways to compile, and what goes with it


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="aot_eager")
    return model


def checkpointed(model: Any) -> nn.Module:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    compiled: nn.Module = torch.compile(model, backend="aot_eager")
    return compiled


def adapted(model: Any) -> nn.Module:
    torch.manual_seed(0)
    found: nn.Module = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["query"])
    ).double()
    return found


WAYS: dict[str, tuple[Callable[[Any], nn.Module], Callable[[Any], nn.Module]]] = {
    "in place": (lambda model: model, in_place),
    "in parts": (lambda model: model, lambda model: compile_regions(model, backend="aot_eager")),
    "checkpointed": (lambda model: model, checkpointed),
    "LoRA": (adapted, lambda model: torch.compile(adapted(model), backend="aot_eager")),
}


@slow
@pytest.mark.parametrize(
    ("way", "family"), [*((way, "bert") for way in WAYS), *((way, "t5") for way in list(WAYS)[:3])]
)
def test_smart_trains_alike_however_the_model_is_compiled(way: str, family: str) -> None:
    plain, compile_it = WAYS[way]
    batches = [batch_of(family)] * 2
    eager, task = HFModelView(plain(exact(family))), HFModelView(compile_it(exact(family)))
    assert is_compiled(task.calls.trained)
    expected = trained(method_of("smart"), eager, batches)
    require_equal(trained(method_of("smart"), task, batches), expected, 1e-9)


def test_autocast_goes_into_the_graph() -> None:
    model, batch = tiny("bert", dropout=0.0), tiny_batch("bert")
    eager, task = (
        HFModelView(one, context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
        for one in (model, torch.compile(model, backend="eager"))
    )
    delta = noise_of(eager, batch)
    found, expected = task.logits(batch, delta), eager.logits(batch, delta)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    assert not torch.equal(found.float(), HFModelView(model).logits(batch, delta))


def test_the_inner_scale_of_float16_is_tried_again_where_graphs_would_forbid_it() -> None:
    """Whatever the length: graphs of varying lengths give up what they saved after one backward
    pass.
    """
    pair = Compiled("bert", half=True)
    found = []
    for length in (10, 11, 12, 13):
        batch = batch_of("bert", pad_to=length)
        for task in (pair.task, pair.eager):
            point = noise_of(task, batch, 0.5).leaf()
            target = pair.eager.bare_logits(batch).detach()
            objective = task.divergence(target, task.ascent_logits(batch, point), batch, "kl")
            found.append(
                task.gradient(objective * 1e306, point).values["tokens"]
            )  # 2¹⁶ · 1e306 overflows
            assert task.delta_gradient.scale < 2.0**16
            task.delta_gradient.scale = 2.0**16
        assert torch.allclose(found[-2] / 1e306, found[-1] / 1e306, atol=1e-9)
        assert bool(torch.isfinite(found[-1]).all())
        assert bool(found[-1].any())


@slow
def test_the_doctor_examines_a_compiled_model() -> None:
    found = examine(torch.compile(exact("bert"), backend="eager"))
    assert [finding for finding in found if not finding.passed] == []
    assert {"hook fires once per pass", "fused pass equals two passes"} <= {
        finding.check for finding in found
    }


def test_what_was_compiled_is_found_inside() -> None:
    model = exact("bert")
    assert not is_compiled(model)
    assert uncompiled(model) is model
    whole, parts = torch.compile(model, backend="eager"), compile_regions(model, backend="eager")
    for compiled in (whole, parts):
        assert is_compiled(compiled)
        assert uncompiled(compiled) is model
    task = HFModelView(whole)
    assert task.model is model
    assert set(task.parameters()) == set(dict(model.named_parameters()))  # a checkpoint's names


# ---- the Trainer


class Look(TrainerCallback):
    """Counts the hooks at each step, and may end the run with an error."""

    def __init__(self, model: nn.Module, fail: bool = False) -> None:
        self.model, self.fail, self.seen = model, fail, list[int]()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seen.append(hooks(self.model))
        if self.fail:
            raise ZeroDivisionError


def trainer_of(
    folder: Path, method: Method, model: nn.Module, fail: bool = False, **fields: Any
) -> tuple[Any, Look]:
    settings: dict[str, Any] = {
        "num_train_epochs": 4,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
    }
    settings |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}
    look = Look(model, fail)
    trainer = AdversarialTrainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder), **settings | fields),
        train_dataset=features_of(tiny_batch("bert", batch=8)),
        data_collator=Padded(0),
        method=method,
        callbacks=[look],
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.05}),
    )
    return trainer, look


@pytest.mark.parametrize(
    "name", ["r3f", *(pytest.param(name, marks=slow) for name in KINDS if name != "r3f")]
)
def test_the_trainer_trains_compiled_as_it_trains_eagerly(name: str, tmp_path: Path) -> None:
    weights: list[dict[str, Tensor]] = []
    for fields in ({}, {"torch_compile": True, "torch_compile_backend": "eager"}):
        model = tiny("bert", dropout=0.0)
        trainer, look = trainer_of(tmp_path, method_of(name), model, **fields)
        trainer.train()
        weights.append({name: value.detach().clone() for name, value in model.named_parameters()})
        assert look.seen == [int(bool(fields) and "perturbation" in registry[name].info.needs)] * 8
        assert hooks(model) == 0
        graphs = counters["stats"]["unique_graphs"]
        assert (graphs > 0) == bool(fields)
        assert graphs <= 2 * KINDS[name]
    assert close(*weights, 1e-5)
    assert not close(weights[0], dict(tiny("bert", dropout=0.0).named_parameters()), 1e-3)


def test_the_hooks_are_off_when_a_compiled_training_fails(tmp_path: Path) -> None:
    model = tiny("bert", dropout=0.0)
    compiling = {"torch_compile": True, "torch_compile_backend": "eager"}
    trainer, look = trainer_of(tmp_path, method_of("r3f"), model, fail=True, **compiling)
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert look.seen == [1]
    assert hooks(model) == 0
