"""A run record with something in every field, and edits of the file that holds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from advreg.records.run import MethodInfo, ModelInfo, Outcome, RunRecord, TaskInfo, TrainingInfo

json_texts = st.text(max_size=20)
json_numbers = st.integers(-(2**70), 2**70) | st.floats()
json_values = st.recursive(
    st.none() | st.booleans() | json_numbers | json_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_texts, inner, max_size=3),
    max_leaves=8,
)


def a_record(**changes: Any) -> RunRecord:
    record = RunRecord(
        name="sst2-arch-1",
        method=MethodInfo(
            name="arch", settings={"radius": 1e-5, "steps": 1, "norm": "l2", "refresh_every": 2}
        ),
        task=TaskInfo(
            name="glue/sst2", fingerprint="9f2c", sizes={"train": 67349, "validation": 872}
        ),
        model=ModelInfo(name="FacebookAI/roberta-base", parameters=124_647_170),
        training=TrainingInfo(
            epochs=3,
            batch_size=32,
            learning_rate=1e-5,
            precision="bf16",
            seed=1,
            more={"warmup": 0.06, "δ": None},
        ),
        environment={"python": "3.11.7", "device": None, "arguments": ["train", "--seed", "1"]},
        started="2025-01-02T03:04:05+00:00",
        finished="2025-01-02T04:04:05+00:00",
        outcome=Outcome(
            status="finished",
            metrics={"accuracy": 0.951, "loss": None},
            history=[{"step": 1, "loss": 0.7}, {"step": 2, "loss": 0.6}],
            timing={"train_seconds": 3600.0},
            passes={"forward": 1.5, "backward": 1.25},
            cache_bytes=12_345,
        ),
    )
    return dataclasses.replace(record, **changes)


def sealed(payload: dict[str, Any]) -> str:
    """Reference: a line with the digest of its own text, taken with 64 zeros in its place."""
    blank = json.dumps({"checksum": "0" * 64, **payload}, separators=(",", ":")) + "\n"
    return blank.replace("0" * 64, hashlib.sha256(blank.encode()).hexdigest(), 1)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the file's JSON, leaving its checksum as it is."""
    payload = json.loads(path.read_text(encoding="utf-8"))
    change(payload)
    path.write_text(json.dumps(payload), encoding="utf-8")
