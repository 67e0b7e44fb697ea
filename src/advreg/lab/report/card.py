"""A model's card: what it was trained with, what it scores, what it cost; as the Hugging Face hub
reads it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advreg.lab.kinds.registry import kind_of
from advreg.lab.report.labels import (
    bytes_text,
    commit_text,
    duration,
    method_name,
    metric_text,
    number_text,
    value_text,
)
from advreg.records.compare import seconds_of
from advreg.records.run import RunRecord

CARD_FILE = "README.md"
_TRAINING = ("epochs", "batch_size", "learning_rate", "precision", "seed")
_NOT_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")
_SEAL = re.compile(r"<!-- advreg card ([0-9a-f]{64}) -->\n?\Z")


def card(
    record: RunRecord, main_metrics: Sequence[str], paper: str = "", base_model: str | None = None
) -> str:
    """The card of a finished run's model.

    Args:
        record: of the run.
        main_metrics: the scores it is judged by; they come first.
        paper: of the method, as author and year.
        base_model: name on the hub of the model it was fine-tuned from.
    """
    record = record.portable()
    metrics = {name: value for name, value in record.outcome.metrics.items() if value is not None}
    ranked = {name: metrics[name] for name in (*main_metrics, *metrics) if name in metrics}
    kind = kind_of(record.task)
    front = _front_matter(record, ranked, kind.pipeline, base_model)
    model = _line(record.model.name.rpartition("/")[2])
    title = f"# {model} on {_line(record.task.name)}, trained with "
    method = method_name(record.method.name)
    scores = [[name, metric_text(name, value)] for name, value in ranked.items()]
    body = "\n\n".join(
        [
            title + method,
            f"Trained by `advreg` with {method}{f' ({paper})' if paper else ''} on "
            f"{_line(record.task.name)}: "
            f"{', '.join(f'{count} {name}' for name, count in record.task.sizes.items())} samples. "
            "One run, with seed "
            f"{record.training.seed}; another seed gives another score.",
            f"## Scores\n\n{_table(['metric', 'value'], scores)}",
            f"## Settings\n\n{_table(['option', 'value'], _settings(record))}",
            f"## Cost\n\n{_table(['', ''], _cost(record))}",
            f"## Use\n\n```python\n{kind.usage}\n```",
            f"## How it was made\n\n{_origin(record)}",
        ]
    )
    return _sealed(f"---\n{front}---\n\n{body}\n")


def write_card(folder: Path, text: str) -> bool:
    """Write the card into a model's folder, and return whether it was written.

    A card that a user wrote or edited is kept.
    """
    path = folder / CARD_FILE
    if path.exists() and not is_untouched(path.read_text(encoding="utf-8", errors="replace")):
        return False
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


def is_untouched(text: str) -> bool:
    """Whether a card is unchanged since advreg wrote it."""
    seal = _SEAL.search(text)
    return seal is not None and _digest(text[: seal.start()]) == seal[1]


def _sealed(text: str) -> str:
    return f"{text}\n<!-- advreg card {_digest(text + chr(10))} -->\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _front_matter(
    record: RunRecord, metrics: Mapping[str, float], kind: str, base_model: str | None
) -> str:
    """YAML; every value is written as JSON, which YAML contains, so that nothing in a name can
    break it.
    """
    scores = [{"type": name, "name": name, "value": value} for name, value in metrics.items()]
    data = {"name": record.task.name, "type": record.task.name}
    fields: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": kind,
        "tags": ["advreg", "adversarial-regularisation", record.method.name],
        **({"base_model": base_model} if base_model is not None else {}),
        "metrics": [name for name in metrics if name != "loss"],
        "model-index": [
            {
                "name": record.name,
                "results": [{"task": {"type": kind}, "dataset": data, "metrics": scores}],
            }
        ],
    }
    return "".join(f"{name}: {_yaml(value)}\n" for name, value in fields.items())


def _yaml(value: Any) -> str:
    """JSON that is YAML too: what YAML takes for a line's end, or not at all, is escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _settings(record: RunRecord) -> list[list[str]]:
    chosen = {"method": record.method.name, **record.method.settings}
    chosen |= {name: getattr(record.training, name) for name in _TRAINING}
    return [[name, value_text(value)] for name, value in chosen.items()]


def _cost(record: RunRecord) -> list[list[str]]:
    outcome = record.outcome
    passes = [number_text(outcome.passes.get(kind), 2) for kind in ("forward", "backward")]
    step = outcome.timing.get("seconds_per_step")
    return [
        ["passes per step: forward, backward", ", ".join(passes)],
        ["milliseconds per step", number_text(None if step is None else 1000 * step, 1)],
        ["steps", number_text(outcome.timing.get("steps"), 0)],
        ["training", duration(seconds_of(record))],
        ["cache of perturbations", bytes_text(outcome.cache_bytes)],
        ["device", _line(str(record.environment.get("device") or "unknown"))],
    ]


def _origin(record: RunRecord) -> str:
    environment, commit = record.environment, commit_text(record)
    versions = ", ".join(
        f"{name} {version}" for name, version in environment.get("packages", {}).items()
    )
    told = f", commit {commit}" if commit else ""
    return f"advreg {environment.get('advreg')}{told}; {versions}. Finished {record.finished}."


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_line(cell) for cell in line)} |" for line in lines)


def _line(text: str) -> str:
    """Text that stays in its line and cell, and is no markup."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")
