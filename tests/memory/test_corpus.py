from __future__ import annotations

import torch

from advreg.memory.corpus import Corpus


def test_a_corpus_is_as_long_as_it_has_samples_and_not_as_it_has_streams() -> None:
    lengths = {"encoder": torch.tensor([3, 1, 2, 5]), "decoder": torch.tensor([2, 2, 4, 1])}
    vectors = {"encoder": torch.zeros(4, 6), "decoder": torch.zeros(4, 7)}
    assert len(Corpus(lengths, {"encoder": 6, "decoder": 7}, vectors, "")) == 4
