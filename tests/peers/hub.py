"""Stand-ins for what the suites load from the Hugging Face hub: tiny models with fixed weights, tokenizers, data.

They lie in a folder as on the hub, ``owner/name``. transformers and datasets load an id that is also a folder below the
working directory from that folder, so no patches are needed.

python -m peers.hub transformers FOLDER CHECKOUT    # CHECKOUT: the library's repository
python -m peers.hub trl FOLDER CHECKOUT
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

from peers.vision import import_torchvision

SEED = 0


class Hub:
    """A folder that looks like the hub.

    Args:
        folder: where the stand-ins go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, name: str, *parts: Any) -> None:
        """Save models, tokenizers and processors under one hub id."""
        for part in parts:
            part.save_pretrained(self.folder / name)

    def save_data(self, name: str, config: str, splits: dict[str, Any]) -> None:
        """Save the splits of a dataset, which may have several configurations."""
        folder = self.folder / name / config
        folder.mkdir(parents=True, exist_ok=True)
        for split, data in splits.items():
            data.to_parquet(folder / f"{split}.parquet")
        card = self.folder / name / "README.md"
        card.write_text(
            data_card(sorted({file.parent for file in card.parent.glob("*/*.parquet")})),
            encoding="utf-8",
        )

    def save_code(self, name: str, code: str) -> None:
        """Save a metric, whose folder has a module of its name."""
        (self.folder / name).mkdir(parents=True)
        (self.folder / name / f"{name}.py").write_text(code, encoding="utf-8")


def data_card(folders: Iterable[Path]) -> str:
    """The head of a dataset's card, which says what files its configurations have."""
    lines = ["---", "configs:"]
    for folder in folders:
        lines += [f"- config_name: {folder.name}", "  data_files:"]
        for file in sorted(folder.glob("*.parquet")):
            lines += [f"  - split: {file.stem}", f"    path: {folder.name}/{file.name}"]
    return "\n".join([*lines, "---", ""])


def byte_pairs(texts: Iterable[str], size: int, special: Sequence[str]) -> Tokenizer:
    """A tokenizer learnt from texts, of a kind that most models' own classes can take over."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet
        ),
    )
    return core


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A model whose weights do not depend on what was made before it."""
    torch.manual_seed(SEED)
    return make()


def quieten() -> None:
    """No bars and no notes of the libraries."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", choices=("transformers", "trl"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkout", type=Path)
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    import_torchvision()
    quieten()
    importlib.import_module(f"peers.{given.suite}_stand_ins").build(
        Hub(given.folder), given.checkout
    )


if __name__ == "__main__":
    main()
