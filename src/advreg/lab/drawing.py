"""What pictures share: one colour for each method, the formats, and a refusal that comes before the
work.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from advreg.lab.catalogue import catalogue

# Okabe and Ito's palette, which colour-blind readers can tell apart, and shades between its colours
_PALETTE = (
    *("#999999", "#CC79A7", "#E69F00", "#D55E00", "#56B4E9", "#8C6BB1", "#B35806", "#004D40"),
    *("#7A8B00", "#0072B2", "#117733", "#882255", "#44AA99", "#661100", "#332288", "#AA4499"),
)
COLOURS = {**dict(zip(catalogue(), _PALETTE, strict=False)), "smart-pytorch": "#009E73"}
"""A colour for each method, in the order in which they are registered."""
OTHERS = "#F0E442"
FORMATS = (".svg", ".png", ".pdf")


class PictureError(ValueError):
    """A picture cannot be drawn; says what is missing."""


def check_drawable(path: Path) -> None:
    """Refuse a picture that could not be written, before anything is computed for it."""
    if path.suffix.lower() not in FORMATS:
        raise PictureError(f"picture must end in {', '.join(FORMATS)}, got '{path}'")
    if importlib.util.find_spec("matplotlib") is None:
        raise PictureError(
            "picture needs matplotlib, which is not installed; pip install 'advreg[plot]'"
        )


@contextmanager
def canvas(path: Path, width: float, height: float, words_as_text: bool = False) -> Iterator[Any]:
    """A figure of matplotlib's to draw on, which is written to ``path`` at the end; the same
    drawing is the same file.

    Args:
        path: .svg, .png or .pdf.
        width, height: in inches.
        words_as_text: in .svg, words a reader can select, in the reader's own font.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fonts = "none" if words_as_text else "path"
    with matplotlib.rc_context({"svg.hashsalt": "advreg", "svg.fonttype": fonts, "font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(
            path, dpi=160, metadata={"Date": None} if path.suffix.lower() == ".svg" else None
        )
