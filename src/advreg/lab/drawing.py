"""What pictures share: a colour for each method, and the refusal of a file before the work."""

from __future__ import annotations

from pathlib import Path

from advreg.lab.catalogue import catalogue

# Okabe and Ito's palette, which colour-blind readers can tell apart, and shades between its colours
_PALETTE = (
    *("#999999", "#CC79A7", "#E69F00", "#D55E00", "#56B4E9", "#8C6BB1", "#B35806", "#004D40"),
    *("#7A8B00", "#0072B2", "#117733", "#882255", "#44AA99", "#661100", "#332288", "#AA4499"),
)
COLOURS = {**dict(zip(catalogue(), _PALETTE, strict=False)), "smart-pytorch": "#009E73"}
"""A colour for each method, in the order in which they are registered."""
OTHERS = "#F0E442"


class PictureError(ValueError):
    """A picture cannot be drawn; says what is missing."""


def check_drawable(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed for it."""
    if path.suffix.lower() != ".svg":
        raise PictureError(
            f"picture must end in .svg, got '{path}'; a browser prints it as PDF, and tools such "
            "as rsvg-convert turn it into PNG"
        )
