"""What of a batch enters the model."""

import pytest

from advreg.hf.view.inputs import decoder_inputs
from advreg.hf.view.view import HFModelView
from observe import quiet
from tiny_models import ENCODER_DECODERS, tiny_batch


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_the_decoder_reads_the_start_token_and_then_the_labels(family: str) -> None:
    model, batch = quiet(family), tiny_batch(family)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    read = decoder_inputs(model, batch["labels"])
    for row, labels in zip(read.tolist(), batch["labels"].tolist(), strict=True):
        assert row == [start, *(pad if label == -100 else label for label in labels[:-1])]


def test_a_missing_sample_id_is_explained() -> None:
    with pytest.raises(
        KeyError,
        match=r"no 'sample_id'.*train with AdversarialTrainer, advreg\.attach or advreg\.prepare",
    ):
        HFModelView(quiet("bert")).sample_ids(tiny_batch("bert"))
