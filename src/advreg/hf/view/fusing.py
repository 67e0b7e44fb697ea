"""Whether clean and perturbed copies of a batch go in one pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from advreg.hf.view.doubling import reason_against, twice
from advreg.hf.view.head import Head

logger = logging.getLogger(__name__)


class Fusing:
    """Decides whether clean and perturbed copies go in one pass.

    Args:
        core: the Hugging Face model without wrappers.
        head: its prediction head.
    """

    def __init__(self, core: nn.Module, head: Head) -> None:
        self._core, self._head = core, head
        self._allowed = True
        self._reported: set[str] = set()
        self._used = False  # in the last trained pass

    def begin_pass(self) -> None:
        """A trained pass begins, which is not fused yet."""
        self._used = False

    def doubled(self, inputs: Mapping[str, Any], keeps_labels: bool) -> dict[str, Any] | None:
        """The inputs of a fused pass; None if there must be two."""
        self._used = self.may_double(inputs, keeps_labels)
        return twice(inputs) if self._used else None

    def may_double(self, inputs: Mapping[str, Any], keeps_labels: bool = False) -> bool:
        """Whether a doubled pass is valid and has the same loss; the log says once why not.

        Args:
            inputs: the arguments of the forward pass.
            keeps_labels: whether the labels are among them, for a loss that only the model can
                compute.
        """
        if not self._allowed:
            return False
        self._refuse_batch_statistics()
        if keeps_labels:
            reason: str | None = (
                f"{type(self._core).__name__} computes a loss that is not known to be a plain mean"
            )
        elif self._head.adds_router_loss(inputs):
            reason = "the router's loss covers all rows"
        else:
            reason = reason_against(inputs)
        if reason is not None and reason not in self._reported:
            self._reported.add(reason)
            logger.warning("clean and perturbed copies go in two passes: %s", reason)
        return reason is None

    def stop(self) -> bool:
        """Make two passes from now on if the last trained pass was fused, as memory ran out.

        Returns false if that cannot help: nothing was fused, or there are several processes, which
        would wait for the one that repeats a pass.
        """
        if not self._used or torch.distributed.is_initialized():
            return False
        self._allowed = self._used = False
        logger.warning(
            "out of memory in the fused pass; clean and perturbed copies go in two passes from now "
            "on"
        )
        return True

    @cached_property
    def _batch_norms(self) -> dict[str, nn.Module]:
        kind = nn.modules.batchnorm._BatchNorm
        return {
            name: module for name, module in self._core.named_modules() if isinstance(module, kind)
        }

    def _refuse_batch_statistics(self) -> None:
        for name, module in self._batch_norms.items():
            if module.training:
                raise ValueError(
                    f"fuse must be off for this model: '{name}' takes statistics over the batch, "
                    "and the fused pass would mix clean and perturbed samples in them"
                )
