from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advreg.lab.kinds.wordpieces import train_tokenizer
from advreg.lab.search.probing import Frozen, ProbeSettings, fit_heads, head_loss, probe, short_name
from advreg.records.run import MethodInfo, ModelInfo, RunRecord, TaskInfo, TrainingInfo
from tiny_models import tiny

GOOD, BAD = ["fine", "lovely", "great", "bright"], ["dull", "awful", "poor", "grim"]


def sentence(label: int, rng: random.Random) -> str:
    return " ".join(rng.choices(GOOD if label else BAD, k=5))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks whose labels are words, and one whose label is a score."""
    folder, rng = tmp_path_factory.mktemp("data"), random.Random(0)
    for task, sizes in {"sst2": (80, 40), "mr": (80, 40), "stsb": (60, 30)}.items():
        for split, size in zip(("train", "dev"), sizes, strict=True):
            path = folder / "nlu" / task / f"{split}.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            with gzip.open(path, "wt") as file:
                for index in range(size):
                    label = index % 2
                    row: dict[str, Any] = {
                        "idx": index,
                        "text_a": sentence(label, rng),
                        "label": label,
                    }
                    if task == "stsb":
                        other = rng.randrange(2)
                        row |= {
                            "text_b": sentence(other, rng),
                            "label": 5.0 if other == label else 0.0,
                        }
                    file.write(json.dumps(row) + "\n")
    return folder


def save_run(folder: Path, method: str, seed: int) -> str:
    """A run as `advreg train` leaves it: a record and a model."""
    tokenizer = train_tokenizer([" ".join(GOOD + BAD)] * 5, max_length=32)
    model = tiny("bert", vocab_size=len(tokenizer), num_labels=2, seed=seed)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    training = TrainingInfo(epochs=1, batch_size=4, learning_rate=1e-3, precision="fp32", seed=seed)
    record = RunRecord.begin(
        name=f"{method}-{seed}", method=MethodInfo(name=method), task=TaskInfo(name="sst2"),
        model=ModelInfo(name="tiny"), training=training,
    )  # fmt: skip
    record.finish(metrics={"accuracy": 0.5}).save(folder / "record.json")
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        save_run(folder / f"{method}-seed0", method, seed)
        for seed, method in enumerate(("standard", "arch"))
    ]


def test_heads_of_every_seed_are_fitted_for_every_encoder_and_task(
    runs: list[str], data: Path
) -> None:
    settings = ProbeSettings(
        tuple(runs), ("mr", "stsb"), str(data), seeds=3, epochs=30, learning_rate=0.05
    )
    kept: list[int] = []
    found = probe(settings, keep=lambda results: kept.append(len(results)))
    assert [(one.label, one.trained_on, one.task) for one in found] == [
        (label, "sst2", task) for label in ("standard", "arch") for task in ("mr", "stsb")
    ]
    assert kept == [1, 2, 3, 4]
    for one in found:
        assert len(one.scores) == len(one.metrics) == 3
        names = {"accuracy"} if one.task == "mr" else {"pearson", "spearman", "rmse"}
        assert all(set(metrics) == names for metrics in one.metrics)
    for one in found[
        ::2
    ]:  # words tell the label, so a head on any encoder that keeps them learns it
        assert min(one.scores) > 80
        assert one.scores == [100 * metrics["accuracy"] for metrics in one.metrics]


def test_the_encoder_does_not_change(runs: list[str], data: Path) -> None:
    before = Frozen.load(runs[0], None).model.state_dict()
    probe(ProbeSettings((runs[0],), ("mr",), str(data), seeds=1, epochs=1))
    after = Frozen.load(runs[0], None).model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_seed_gives_the_same_head_whichever_others_are_fitted_and_leaves_torchs_generator_alone(
    runs: list[str], data: Path
) -> None:
    settings = ProbeSettings((runs[0],), ("mr",), str(data), seeds=2, epochs=1)
    vectors, labels = torch.randn(20, 6), torch.arange(20) % 2
    state = torch.get_rng_state()
    one, other = (fit_heads(vectors, labels, 2, settings) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one[0].weight, other[0].weight)
    assert not torch.equal(one[0].weight, one[1].weight)


def naive_head(
    vectors: Tensor, labels: Tensor, outputs: int, seed: int, settings: ProbeSettings
) -> nn.Linear:
    """One head by itself."""
    generator, head = torch.Generator().manual_seed(seed), nn.Linear(vectors.shape[1], outputs)
    head.weight.data = 0.02 * torch.randn(head.weight.shape, generator=generator)
    head.bias.data.zero_()
    optimizer = torch.optim.AdamW(head.parameters(), lr=settings.learning_rate)
    steps = settings.epochs * -(-len(vectors) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in range(settings.epochs):
        for chosen in torch.split(
            torch.randperm(len(vectors), generator=generator), settings.batch_size
        ):
            kept = (
                torch.rand(len(chosen), vectors.shape[1], generator=generator) >= settings.dropout
            )
            optimizer.zero_grad()
            head_loss(
                head(vectors[chosen] * kept / (1 - settings.dropout)), labels[chosen]
            ).backward()
            optimizer.step()
            schedule.step()
    return head


@pytest.mark.parametrize(
    "labels", [torch.arange(50) % 3, torch.linspace(0, 5, 50)], ids=["classes", "scores"]
)
def test_heads_that_are_fitted_together_are_those_fitted_one_by_one(labels: Tensor) -> None:
    settings = ProbeSettings(("x",), ("mr",), seeds=3, epochs=4, batch_size=16, learning_rate=0.01)
    vectors = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    outputs = 1 if labels.is_floating_point() else 3
    for seed, head in enumerate(fit_heads(vectors, labels, outputs, settings)):
        alone = naive_head(vectors, labels, outputs, seed, settings)
        torch.testing.assert_close(head(vectors), alone(vectors), atol=1e-5, rtol=1e-5)


def test_a_head_finds_the_separating_direction_and_a_score_its_slope() -> None:
    settings = ProbeSettings(("x",), ("mr",), seeds=1, epochs=60, learning_rate=0.05, dropout=0.0)
    vectors = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    classes = (vectors[:, 1] > 0).long()
    (head,) = fit_heads(vectors, classes, 2, settings)
    assert ((head(vectors).argmax(1) == classes).float().mean()) > 0.95
    (slope,) = fit_heads(vectors, 3 * vectors[:, 2] + 1, 1, settings)
    torch.testing.assert_close(
        slope.weight[0], torch.tensor([0.0, 0.0, 3.0, 0.0]), atol=0.1, rtol=0
    )
    assert slope.bias.item() == pytest.approx(1.0, abs=0.1)


def test_what_was_done_before_is_not_done_again(runs: list[str], data: Path) -> None:
    first = probe(ProbeSettings((runs[0],), ("mr",), str(data), seeds=1, epochs=1))
    told: list[str] = []
    both = ProbeSettings(tuple(runs), ("mr",), str(data), seeds=1, epochs=1)
    found = probe(both, progress=lambda what, *_: told.append(what), done=first)
    assert found[0] == first[0]
    assert [one.label for one in found] == ["standard", "arch"]
    assert told
    assert all(what.startswith("arch:") for what in told)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoders": ()}, "encoders must name at least one, got none"),
        ({"tasks": ()}, "tasks must name at least one, got none"),
        ({"tasks": ("sst-2",)}, r"unknown task 'sst-2' \(did you mean 'sst2'\?\)"),
        ({"seeds": 0}, "seeds must be a whole number of 1 or more, got 0"),
        ({"dropout": 1.0}, r"dropout must be at least 0 and below 1, got 1\.0"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive finite number"),
        (
            {"encoders": ("a/x/arch", "b/x/arch")},
            "encoders must have different names, got 'x/arch' 2 times",
        ),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProbeSettings(**{"encoders": ("a",), "tasks": ("mr",)} | changes)


def test_short_names_hold_no_path_of_the_machine() -> None:
    assert short_name("/somewhere/deep/runs/arch-seed0") == "runs/arch-seed0"
    assert short_name("minilm") == "minilm"
