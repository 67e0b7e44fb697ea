"""The interface carries methods that are not shaped like ARCH: one that moves the weights along the
optimizer's momentum, one without a task loss, and one that a contributor adds with three files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainingArguments

import advreg
from advreg.core.ball import Ball, Start
from advreg.core.divergence import kl
from advreg.core.schedule import Clock
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.methods import Method, MethodInfo, ModelView, Step, StepReport, registry
from advreg.methods.base import Batch, Constraint, Passes, option
from observe import Padded, batch_of, close, content_noise, exact, features_of, gradients, take

SymNoise = import_module("methods.symnoise_module").SymNoise
del registry["symnoise"]  # the laws are to see it in the copy below alone

# ---- MSAM: the weights are moved along the momentum


@dataclass
class MSAM(Method):
    """Momentum-SAM: the gradient is taken at θ − ρ v/‖v‖, v the optimizer's momentum.

    Reference: Becker et al., *Momentum-SAM: Sharpness Aware Minimization without Computational
    Overhead*, 2024, algorithm 1. Differs from it: the shift is undone after the update instead of
    before it, which is the same for SGD.
    """

    info = MethodInfo(
        "msam", "MSAM", "Becker et al. 2024", "1 forward, 1 backward", frozenset({"labels"})
    )
    rho: float = option(0.5, "ρ, length of the shift")
    _shift: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def constraints(self) -> list[Constraint]:
        return [Constraint("writes_weights", "rho", "it shifts weights")]

    @torch.no_grad()
    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        if not self._shift:  # else the group of micro-batches has begun
            momentum = self._momentum(view, step.optimizer)
            norm = torch.stack(
                [value.norm() for value in momentum.values()] or [torch.ones(())]
            ).norm()
            self._shift = {name: -self.rho * value / norm for name, value in momentum.items()}
            self._move(view, 1.0)
        with torch.enable_grad():
            loss = view.loss_at(batch)
        return StepReport(loss, loss.detach())

    def updated(self, view: ModelView) -> None:
        self._move(view, -1.0)
        self._shift = {}

    def passes(self) -> Passes:
        return Passes(1, 1)

    def _momentum(
        self, view: ModelView, optimizer: torch.optim.Optimizer | None
    ) -> dict[str, Tensor]:
        assert optimizer is not None
        found = {name: optimizer.state.get(value, {}) for name, value in view.parameters().items()}
        return {
            name: state["momentum_buffer"]
            for name, state in found.items()
            if "momentum_buffer" in state
        }

    @torch.no_grad()
    def _move(self, view: ModelView, factor: float) -> None:
        for name, value in view.parameters().items():
            if name in self._shift:
                value.add_(self._shift[name], alpha=factor)


def msam_by_hand(
    model: Any, batches: list[Batch], rho: float, lr: float, mu: float
) -> dict[str, Tensor]:
    """Algorithm 1, weight by weight."""
    weights = dict(model.named_parameters())
    v = {name: torch.zeros_like(value) for name, value in weights.items()}
    for batch in batches:
        norm = sum(float(one.pow(2).sum()) for one in v.values()) ** 0.5
        start = {name: value.detach().clone() for name, value in weights.items()}
        with torch.no_grad():
            for name, value in weights.items():
                value -= rho * v[name] / norm if norm else 0.0
        model.zero_grad()
        model(**batch).loss.backward()
        with torch.no_grad():
            for name, value in weights.items():
                v[name] = mu * v[name] + (0.0 if value.grad is None else value.grad)
                value.copy_(start[name] - lr * v[name])
    return {name: value.detach() for name, value in weights.items()}


def known(batch: Batch) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name != "sample_id"}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_msam_reads_the_momentum_of_the_optimizer(accumulation: int, tmp_path: Path) -> None:
    model, reference = exact("bert"), exact("bert")
    batch = batch_of("bert", 4)
    trainer = AdversarialTrainer(
        model=model,
        args=TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4 // accumulation,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=4,
            save_strategy="no",
            report_to="none",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            use_cpu=True,
        ),
        train_dataset=features_of(batch),
        data_collator=Padded(0),
        method=MSAM(rho=0.5),
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    )
    trainer.train()
    expected = msam_by_hand(reference, [known(batch)] * 4, 0.5, 0.1, 0.9)
    assert close(dict(model.named_parameters()), expected, 1e-9)
    plain = msam_by_hand(exact("bert"), [known(batch)] * 4, 0.0, 0.1, 0.9)
    assert not close(dict(model.named_parameters()), plain, 1e-5)


def test_msam_trains_in_a_plain_loop_too() -> None:
    model, reference = exact("marian"), exact("marian")
    view, method, whole = HFModelView(model.eval()), MSAM(rho=0.3), batch_of("marian", 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    batches = [take(whole, rows) for rows in ([0, 1], [2, 3], [3, 0])]
    for number, batch in enumerate(batches):
        method.step(view, batch, Step(Clock(0, number), optimizer=optimizer))
        optimizer.step()
        optimizer.zero_grad()
        method.updated(view)
    expected = msam_by_hand(reference.eval(), list(map(known, batches)), 0.3, 0.05, 0.8)
    assert close(dict(model.named_parameters()), expected, 1e-9)


# ---- VAT: no labels, no task loss


@dataclass
class VAT(Method):
    """Virtual adversarial training: α · KL(f(x) ‖ f(x + r)), r = ε · unit(∇_r KL at ξ · noise).

    A batch without labels has no task loss; one with labels has both. Reference: Miyato et al.,
    *Virtual Adversarial Training*, 2017, equations 8 to 12.
    """

    info = MethodInfo(
        "vat",
        "VAT",
        "Miyato et al. 2017",
        "3 forward, 2 backward",
        frozenset({"predictions", "perturbation"}),
    )
    epsilon: float = option(0.5, "ε, size of the perturbation of a sentence")
    xi: float = option(0.01, "ξ, size of the noise from which the gradient is taken")

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        clean = view.peek(batch).detach()
        start = Start("uniform").draw(view.zeros(batch), Ball(self.xi))
        gradient = view.gradient(kl(clean, view.probe(batch, leaf := start.leaf())).sum(), leaf)
        delta = Ball(self.epsilon).rescale(gradient)
        penalty = kl(clean, view.peek(batch, delta)).mean()
        task_loss = view.loss_at(batch) if "labels" in batch else torch.zeros_like(penalty)
        return StepReport(task_loss + penalty, task_loss.detach(), penalty.detach())

    def passes(self) -> Passes:
        return Passes(3, 2)


def vat_by_hand(
    model: Any, batch: Mapping[str, Tensor], epsilon: float, xi: float, noise: Tensor
) -> Tensor:
    """The penalty sentence by sentence, on the model's own embeddings."""
    total, table = torch.zeros(()), model.get_input_embeddings()
    for row, mask in enumerate(batch["attention_mask"]):
        tokens = batch["input_ids"][row][mask == 1]

        def predict(moved: Tensor | float, tokens: Tensor = tokens) -> Tensor:
            return model(inputs_embeds=(table(tokens) + moved)[None]).logits[0].log_softmax(-1)

        p = predict(0.0).detach()
        r = noise[row][mask == 1]
        r = (xi * r / r.norm()).requires_grad_()
        (g,) = torch.autograd.grad((p.exp() * (p - predict(r))).sum(), r)
        total = total + (p.exp() * (p - predict(epsilon * g / g.norm()))).sum()
    return total / len(batch["input_ids"])


def test_vat_trains_on_a_batch_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    content_noise(monkeypatch)
    model, reference, batch = exact("bert"), exact("bert"), batch_of("bert")
    unlabelled = {name: value for name, value in batch.items() if name != "labels"}
    view, method = HFModelView(model), VAT()
    noise = Start("uniform").draw(view.zeros(unlabelled), Ball(1.0)).values["tokens"]
    report = method.step(view, unlabelled, Step(Clock(0, 0)))
    expected = vat_by_hand(reference, unlabelled, 0.5, 0.01, noise)
    expected.backward()
    assert float(report.loss) == pytest.approx(float(expected.detach()), abs=1e-9)
    assert float(report.task_loss) == 0.0
    assert close(gradients(model), gradients(reference), 1e-9)
    before = float(report.loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number in range(5):
        optimizer.step()
        optimizer.zero_grad()
        report = method.step(view, unlabelled, Step(Clock(0, number)))
    assert float(report.loss) < 0.9 * before
    both = method.step(view, batch, Step(Clock(0, 9)))
    assert float(both.loss) == pytest.approx(float(both.task_loss + both.penalty))


def test_vat_trains_by_the_trainer_on_data_without_labels(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"]} for row in features_of(batch_of("bert", 8))]
    collate = Padded(0)

    def unlabelled(features: list[dict[str, Any]]) -> Batch:
        batch = collate([{**row, "labels": 0} for row in features])
        return {name: value for name, value in batch.items() if name != "labels"}

    trainer = AdversarialTrainer(
        model=exact("bert"),
        args=TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            num_train_epochs=6,
            learning_rate=0.02,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            use_cpu=True,
            remove_unused_columns=False,
        ),
        train_dataset=rows,
        data_collator=unlabelled,
        method=VAT(epsilon=1.0),
    )
    trainer.train()
    logs = [line for line in trainer.state.log_history if "penalty" in line]
    assert len(logs) == 12
    assert all(line["task_loss"] == 0 for line in logs)
    assert logs[-1]["loss"] == pytest.approx(logs[-1]["penalty"], rel=1e-3)
    assert sum(line["penalty"] for line in logs[-2:]) < sum(line["penalty"] for line in logs[:2])


# ---- SymNoise: a module, an import line and this test


def test_symnoise_agrees_with_its_reference() -> None:
    model, reference, batch = exact("bert"), exact("bert"), batch_of("bert")
    view, method = HFModelView(model), SymNoise(alpha=3.0)
    torch.manual_seed(0)
    report = method.step(view, batch, Step(Clock(0, 0)))
    torch.manual_seed(0)
    noise = method.draw(view.zeros(batch)).values["tokens"]
    table, losses = reference.get_input_embeddings(), []
    for row, mask in enumerate(batch["attention_mask"]):
        tokens, z = batch["input_ids"][row][mask == 1], noise[row][mask == 1]
        assert torch.allclose(z.abs(), torch.full_like(z, 3.0 / z.numel() ** 0.5))
        for moved in (z, -z):
            logits = reference(inputs_embeds=(table(tokens) + moved)[None]).logits
            losses.append(F.cross_entropy(logits, batch["labels"][row][None]))
    torch.stack(losses).mean().backward()
    assert float(report.loss) == pytest.approx(float(torch.stack(losses).mean()), abs=1e-9)
    assert close(gradients(model), gradients(reference), 1e-9)


SELECTED = (
    "tests/contract",
    "tests/cli/test_methods.py",
    "tests/cli/test_flags.py",
    "tests/lab/search/test_grids.py",
    "tests/lab/test_catalogue.py",
    "tests/smoke/test_training.py",
    "tests/hf/checkpoint/test_deepspeed.py",
)


@pytest.mark.slow
def test_a_method_that_is_added_is_held_to_every_law_without_another_edit(tmp_path: Path) -> None:
    """A copy of the package with one more module and one more import line: flags, tables, grids and
    the laws take the method from the registry.
    """
    root, package = Path(__file__).parents[2], Path(advreg.__file__).parent
    copy = tmp_path / "src" / "advreg"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).with_name("symnoise_module.py"), copy / "methods/noise/symnoise.py")
    with (copy / "methods" / "__init__.py").open("a") as module:
        module.write("from advreg.methods.noise.symnoise import SymNoise as SymNoise\n")
    asked = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTED]
    done = subprocess.run(
        [*asked, "-k", "symnoise or listed or registry or grid"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(done.stdout.rsplit(" passed", 1)[0].rsplit(maxsplit=1)[-1])
    assert passed > 50
