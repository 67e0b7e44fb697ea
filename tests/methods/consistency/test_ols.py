from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import naive
from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.view.view import HFModelView
from advreg.methods import create, registry
from observe import batch_of, close, exact, gradients, step, take


def updated(model: nn.Module) -> None:
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    model.zero_grad()


@pytest.mark.parametrize(("family", "size"), [("bert", 12), ("marian", 4)])
def test_online_label_smoothing_agrees_with_its_reference(family: str, size: int) -> None:
    model, other = exact(family), exact(family)
    task, batch = HFModelView(model), batch_of(family, size)
    method = create("ols", weight=2.0)
    reference = naive.OLS(2.0, 3 if family == "bert" else 50)
    parts = [take(batch, list(range(size // 2))), take(batch, list(range(size // 2, size)))]
    for epoch in range(4):
        for part in parts:
            report = step(method, task, part, epoch=epoch)
            expected = reference.step(other, part, epoch)
            assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
            assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
            assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
            assert close(gradients(model), gradients(other))
            updated(model)
            updated(other)
    assert len(reference.targets) > 1
    assert expected.penalty > 1e-4


def test_with_equal_weights_half_of_it_is_the_mean_of_two_cross_entropies() -> None:
    """½ CE(y) + ½ CE(s_y), up to the entropy of s_y."""
    task, batch = HFModelView(exact("bert")), batch_of("bert", 12)
    method = create("ols", weight=1.0)
    step(method, task, batch)
    task.model.zero_grad()
    step(method, task, batch, epoch=1)
    mine = {name: value / 2 for name, value in gradients(task.model).items()}
    task.model.zero_grad()
    logits, labels = task.logits(batch), batch["labels"]
    targets = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    for label in range(3):
        right = torch.softmax(logits.detach(), -1)[(labels == label) & (logits.argmax(-1) == label)]
        targets[label] = right.mean(0) if len(right) else targets[label]
    assert not torch.allclose(targets, targets[0])
    soft = -(targets[labels] * torch.log_softmax(logits, -1)).sum(-1).mean()
    (0.5 * task.loss(logits, batch) + 0.5 * soft).backward()
    assert close(mine, gradients(task.model), 1e-12)


def test_the_first_epoch_is_standard_training_to_the_bit() -> None:
    task, batch = HFModelView(exact("bert")), batch_of("bert")
    report = step(create("ols", weight=5.0), task, batch)
    mine = gradients(task.model)
    task.model.zero_grad()
    assert float(report.loss) == float(step(create("standard"), task, batch).loss)
    assert all(torch.equal(value, mine[name]) for name, value in gradients(task.model).items())
    assert float(report.penalty) == 0


def test_a_class_that_was_never_right_is_held_to_the_uniform_distribution() -> None:
    task, batch = HFModelView(exact("bert")), batch_of("bert")
    method = create("ols")
    with torch.no_grad():
        task.model.classifier.bias[:] = torch.tensor([100.0, 0.0, 0.0])  # class 0 whatever the text
    step(method, task, batch)
    step(method, task, batch, epoch=1)
    targets = method.memory.state().tensors["targets"]
    assert torch.allclose(targets[0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), atol=1e-6)
    assert torch.allclose(targets[1:], torch.full((2, 3), 1 / 3, dtype=torch.float64))


def test_a_run_killed_within_an_epoch_goes_on_with_what_it_had_counted(tmp_path: Path) -> None:
    task, batch = HFModelView(exact("bert")), batch_of("bert", 6)
    method = create("ols", weight=2.0)
    step(method, task, take(batch, [0, 1, 2]))
    updated(task.model)
    save_method(method, tmp_path)
    fresh, other = create("ols", weight=2.0), HFModelView(deepcopy(task.model))
    load_method(fresh, tmp_path)
    for epoch, rows in ((0, [3, 4, 5]), (1, [0, 1, 2]), (1, [3, 4, 5])):
        for one, its_task in ((method, task), (fresh, other)):
            step(one, its_task, take(batch, rows), epoch=epoch)
            updated(its_task.model)
    pairs = zip(task.model.parameters(), other.model.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert method.memory.bytes == 8 * (3 * 3 * 2 + 3)


@pytest.mark.parametrize(
    ("settings", "labels", "message"),
    [
        (
            {"num_labels": 1},
            [0.5, 1.0],
            "ols needs one class for each prediction, got a regression; use temporal",
        ),
        (
            {"problem_type": "multi_label_classification"},
            [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]],
            "ols needs one class for each prediction, got several labels at once; use temporal",
        ),
        ({"num_labels": 600}, [0, 599], "for each of at most 512 classes, got 600; use temporal"),
    ],
)
def test_what_has_no_classes_or_too_many_is_refused(
    settings: dict[str, Any], labels: list[Any], message: str
) -> None:
    dtype = torch.int64 if isinstance(labels[0], int) else torch.float64
    batch = {**batch_of("bert", 2), "labels": torch.tensor(labels, dtype=dtype)}
    with pytest.raises(ValueError, match=message):
        step(create("ols"), HFModelView(exact("bert", **settings)), batch)


def test_several_processes_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(
        ValueError,
        match="ols trains in one process so far, got 2; start one, or use rdrop or simcut",
    ):
        step(create("ols"), HFModelView(exact("bert")), batch_of("bert"))


def test_ols_refuses_a_weight_that_is_none() -> None:
    with pytest.raises(ValueError, match="weight must be a finite number of 0 or more, got -1"):
        registry["ols"](weight=-1.0)
