from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sklearn import metrics as reference

from advreg.lab.kinds.items import Items
from advreg.lab.kinds.registry import KINDS, kind_of, kind_of_model, main_metrics
from advreg.lab.kinds.translation.bleu import score
from advreg.records.run import TaskInfo

WORDS = ["one", "two", "three", "four", "five", "six"]


def test_reports_know_the_kinds_without_torch() -> None:
    code = "import sys, advreg.lab.kinds.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_task_is_of_two_kinds() -> None:
    names = [task for kind in KINDS.values() for task in kind.tasks]
    assert len(set(names)) == len(names)
    assert all(name == kind.name for name, kind in KINDS.items())


@pytest.mark.parametrize(
    ("details", "kind"),
    [
        ({"labels": ["a", "b"]}, "classification"),
        ({"labels": None}, "classification"),
        ({"languages": ["en", "de"]}, "translation"),
        ({}, "classification"),
    ],
)
def test_a_record_is_known_by_its_task(details: dict[str, object], kind: str) -> None:
    assert kind_of(TaskInfo(name="any", details=details)).name == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("BertForSequenceClassification", "classification"),
        ("MarianMTModel", "translation"),
        ("BartForConditionalGeneration", "translation"),
    ],
)
def test_a_model_is_known_by_its_class(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    assert kind_of_model(tmp_path).name == kind


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"architectures": null}', '{"architectures": ["BertModel"]}']
)
def test_a_folder_without_a_model_of_a_known_class_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"must be the folder of a run or of a model|must be of a c"
    ):
        kind_of_model(tmp_path)


def test_no_class_of_models_is_of_two_kinds() -> None:
    ends = [end for kind in KINDS.values() for end in kind.architectures]
    assert not [(a, b) for a in ends for b in ends if a != b and a.endswith(b)]


def test_a_run_without_a_known_metric_is_judged_by_none() -> None:
    assert main_metrics("reviews", {"loss": 1.0}) == ()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12), st.data()
)
def test_a_resample_of_texts_is_scored_as_the_drawn_samples_are(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    predictions, labels = map(list, zip(*rows, strict=True))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=20))
    items = Items(
        kind="classification",
        fingerprint="",
        main="dev",
        sets={
            "dev": {"predictions": predictions, "labels": labels},
            "mm": {"predictions": labels, "labels": labels},
        },
    )
    found = KINDS["classification"].rescore(
        items, ["accuracy", "matthews", "mm_accuracy"], {"dev": chosen}
    )
    drawn = [rows[row] for row in chosen]
    assert found["accuracy"] == sum(guess == label for guess, label in drawn) / len(drawn)
    expected = reference.matthews_corrcoef(
        [label for _, label in drawn], [guess for guess, _ in drawn]
    )
    assert found["matthews"] == pytest.approx(expected, abs=1e-9)
    assert found["mm_accuracy"] == 1.0  # a set that is not named is scored whole


def test_a_resample_of_values_is_scored_by_their_correlation() -> None:
    draw = np.random.default_rng(0)
    labels = draw.normal(size=30)
    predictions = labels + draw.normal(size=30)
    sets = {"dev": {"predictions": predictions.tolist(), "labels": labels.tolist()}}
    items = Items(kind="classification", fingerprint="", main="dev", sets=sets)
    chosen = draw.integers(0, 30, size=30).tolist()
    found = KINDS["classification"].rescore(items, ["pearson"], {"dev": chosen})
    expected = np.corrcoef(predictions[chosen], labels[chosen])[0, 1]
    assert found == {"pearson": pytest.approx(expected)}


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_resample_of_translations_has_the_bleu_of_the_drawn_sentences(
    tokenised: bool, seed: int
) -> None:
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) + " ." for _ in range(12)]
    guesses = [
        text if draw.random() < 0.3 else f"{text[:-8]} {draw.choice(WORDS)}" for text in texts
    ]
    scores = score(guesses, texts, tokenised)
    items = Items(
        kind="translation", fingerprint="", main="test", sets={"test": dict(scores.counts)}
    )
    names = ["bleu", "tokenised_bleu"] if tokenised else ["bleu"]
    rescore = KINDS["translation"].rescore
    assert rescore(items, names, {}) == {
        name: pytest.approx(value, rel=1e-12)
        for name, value in scores.metrics().items()
        if name in names
    }
    chosen = [draw.randrange(12) for _ in range(12)]
    kind = {"tokenize": "none", "force": True} if tokenised else {}
    expected = BLEU(**kind).corpus_score(  # type: ignore[arg-type]
        [guesses[row] for row in chosen], [[texts[row] for row in chosen]]
    )
    found = rescore(items, names, {"test": chosen})
    assert found[names[-1]] == pytest.approx(expected.score, rel=1e-12)
    assert math.isfinite(found["bleu"])
