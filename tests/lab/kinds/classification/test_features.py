from __future__ import annotations

import pytest
import torch

from advreg.lab.kinds.classification.features import frozen_features
from observe import Padded
from tiny_models import tiny, tiny_batch

# where the head of each family reads
READS = {
    "bert": "pooler",
    "distilbert": "first",
    "mpnet": "first",
    "roberta": "first",
    "gpt2": "last",
    "llama": "last",
}


def samples_of(family: str, lengths: list[int]) -> list[dict[str, object]]:
    batch = tiny_batch(family, batch=len(lengths), lengths=lengths)
    rows = zip(batch["input_ids"], batch["attention_mask"], strict=True)
    return [{"input_ids": ids[mask == 1].tolist(), "labels": 0} for ids, mask in rows]


def padding(side: str):
    """A collator that pads token ids on this side."""

    def collate(rows):
        width = max(len(row["input_ids"]) for row in rows)
        return {
            "input_ids": Padded.fill([row["input_ids"] for row in rows], 1, side),
            "attention_mask": Padded.fill([[1] * len(row["input_ids"]) for row in rows], 0, side)[
                :, :width
            ],
        }

    return collate


# GPT-2's positions would count padding on the left
@pytest.mark.parametrize(
    ("family", "side"), [*((family, "right") for family in READS), ("llama", "left")]
)
def test_each_text_gets_the_vector_its_head_would_read_whatever_it_is_batched_with(
    family: str, side: str
) -> None:
    model = tiny(family, dropout=0.5)
    samples = samples_of(family, [7, 3, 5, 9, 4])
    found = frozen_features(model, samples, padding(side), batch_size=2)
    model.eval()
    for vector, sample in zip(found, samples, strict=True):
        ids = torch.tensor([sample["input_ids"]])
        with torch.no_grad():
            output = model.base_model(input_ids=ids, attention_mask=torch.ones_like(ids))
        read = READS[family]
        expected = (
            output.pooler_output[0]
            if read == "pooler"
            else output.last_hidden_state[0, 0 if read == "first" else -1]
        )
        torch.testing.assert_close(vector, expected, rtol=1e-4, atol=1e-5)


def test_progress_counts_every_sample_once() -> None:
    model, told = tiny("bert"), []
    frozen_features(
        model, samples_of("bert", [3, 4, 5]), padding("right"), batch_size=2, advance=told.append
    )
    assert sum(told) == 3


def test_attention_takes_batches_of_any_shape_without_a_plan_for_each() -> None:
    planned: list[bool] = []
    told = lambda _: planned.append(torch.backends.cuda.cudnn_sdp_enabled())  # noqa: E731
    frozen_features(
        tiny("bert"), samples_of("bert", [3, 4, 5]), padding("right"), batch_size=2, advance=told
    )
    assert set(planned) == {False}


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_mean_token_is_that_of_the_real_tokens(family: str) -> None:
    model = tiny(family, dropout=0.5)
    samples = samples_of(family, [7, 3, 5])
    found = frozen_features(model, samples, padding("right"), batch_size=2, pooling="mean")
    model.eval()
    for vector, sample in zip(found, samples, strict=True):
        with torch.no_grad():
            states = model.base_model(
                input_ids=torch.tensor([sample["input_ids"]])
            ).last_hidden_state[0]
        torch.testing.assert_close(vector, states.mean(0), rtol=1e-4, atol=1e-5)
