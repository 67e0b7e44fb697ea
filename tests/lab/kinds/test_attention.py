"""Which kernel attention over batches of many shapes may not take."""

from collections.abc import Iterator

import pytest
import torch

from advreg.lab.kinds.attention import for_any_shape


@pytest.fixture(autouse=True)
def flag_as_it_was() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("before", [True, False])
def test_the_kernel_that_plans_for_every_shape_is_out_and_allowed_again_only_if_it_was(
    before: bool,
) -> None:
    torch.backends.cuda.enable_cudnn_sdp(before)
    with pytest.raises(KeyError, match="False"), for_any_shape():
        raise KeyError(torch.backends.cuda.cudnn_sdp_enabled())
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_a_function_in_a_function_does_not_allow_it_too_early() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)

    @for_any_shape()
    def inner() -> bool:
        return torch.backends.cuda.cudnn_sdp_enabled()

    with for_any_shape():
        assert not inner()
        assert not inner()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
