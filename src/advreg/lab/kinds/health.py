"""The health of a run, written next to its record when training has ended; costs neither a pass nor
a wait in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from advreg.records.diagnostics import HealthRecord, TokenNorms

Naming = Callable[[str, Sequence[int]], Sequence[str]]  # stream, ids of tokens → their texts


def forget_peak() -> None:
    """Memory is counted from here on."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def save_health(trainer: Any, folder: Path, names: Naming) -> None:
    """Write what the trainer's method remembers, with the texts of the tokens it tells apart.

    Args:
        trainer: an adversarial one that has trained.
        folder: of the run.
        names: texts of token ids.
    """
    if not trainer.is_world_process_zero():
        return
    memory = trainer.method.memory and trainer.method.memory.diagnostics()
    if memory is not None:
        memory = replace(memory, tokens=[_named(trainer, entry, names) for entry in memory.tokens])
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    HealthRecord(peak_bytes=peak, memory=memory).save(folder)


def _named(trainer: Any, entry: TokenNorms, names: Naming) -> TokenNorms:
    batch = trainer.data_collator([trainer.train_dataset[entry.sample]])
    ids, mask = trainer.task.tokens(batch)[entry.stream]
    return replace(entry, tokens=list(names(entry.stream, ids[mask].tolist())))
