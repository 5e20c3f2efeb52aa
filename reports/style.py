"""How methods look in figures: colours that the colour-blind can tell apart, markers, hatches."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from reports.grouping import TITLES, in_order
from reports.reading import Record

# Okabe and Ito's palette, the yellow left out (too pale for lines on white), a grey,
# a wine red and an olive added.
COLOURS = (
    "#0072B2",
    "#56B4E9",
    "#D55E00",
    "#E69F00",
    "#000000",
    "#CC79A7",
    "#009E73",
    "#7F7F7F",
    "#882255",
    "#999933",
)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*", "<", ">", "p", "h")
HATCHES = ("", "//", "--", "\\\\", "..", "xx", "++", "||", "oo", "**", "O", "/o")
LINES = ("-", "--", ":", "-.")
WIDTH = 4.0
DPI = 200


class Look(NamedTuple):
    """Colour, marker and hatch of a method."""

    colour: str
    marker: str
    hatch: str


def looks(records: Sequence[Record]) -> dict[str, Look]:
    """The look of each method: fixed for the known ones, the next free for others."""
    others = dict.fromkeys(record.run.method for record in in_order(records))
    methods = [*TITLES, *(name for name in others if name not in TITLES)]
    return {
        method: Look(
            COLOURS[place % len(COLOURS)],
            MARKERS[place % len(MARKERS)],
            HATCHES[place % len(HATCHES)],
        )
        for place, method in enumerate(methods)
    }


@contextmanager
def drawing(height: float) -> Iterator[tuple[Any, Any]]:
    """A figure with one pair of axes, narrow so that its text is readable on a phone.

    Args:
        height: Height in inches; the width is always the same.

    Example:

        with drawing(3.0) as (figure, axes):
            axes.plot([1, 2], [3, 4])
            figure.savefig("lines.png", dpi=DPI)
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.size": 10.5,
        "axes.labelsize": 10.5,
        "xtick.labelsize": 10,
        "ytick.labelsize": 10,
        "legend.fontsize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "hatch.linewidth": 0.6,
        "figure.dpi": DPI,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.add_subplot()
