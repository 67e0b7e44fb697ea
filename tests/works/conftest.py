from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _dropout_is_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-Drop refuses a model without dropout, where its penalty is 0, and so is held to stock
    there.
    """
    for place in ("view.view", "guards.requirements"):
        monkeypatch.setattr(f"advreg.hf.{place}.has_dropout", lambda *_, **__: True)
