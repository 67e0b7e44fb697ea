"""What pictures share: one colour for each method, the formats, and a refusal that comes before the work."""

from __future__ import annotations

import importlib.util
from pathlib import Path

# Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = {
    "standard": "#999999",
    "r3f": "#56B4E9",
    "arch": "#0072B2",
    "freelb": "#E69F00",
    "freeat": "#CC79A7",
    "smart": "#D55E00",
    "smart-pytorch": "#009E73",
}
OTHERS = "#F0E442"
FORMATS = (".svg", ".png", ".pdf")


class PictureError(ValueError):
    """A picture cannot be drawn; says what is missing."""


def check_drawable(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed for it."""
    if path.suffix.lower() not in FORMATS:
        raise PictureError(f"picture must end in {', '.join(FORMATS)}, got '{path}'")
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureError("picture needs matplotlib, which is not installed; pip install 'advreg[plot]'")
