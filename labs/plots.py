"""The look of every figure, and the few drawings that experiments share.

No pyplot and no global state: `figure` makes a `matplotlib.figure.Figure`, `png` and `svg` turn it into bytes that
are the same for the same figure (no date, no version, a fixed salt for SVG identifiers). Draw inside `style()`; the
command line and `Result.figures` do so. Colours are Okabe and Ito's, which readers with colour-blindness can tell
apart; text is large enough that a figure can be read at half its size.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from labs.stats import t_interval, wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, YELLOW, BLACK, GREY = "#CC79A7", "#56B4E9", "#F0E442", "#222222", "#8A8A8A"
CYCLE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK)

#: Colour maps that stay ordered in grey: amounts from none to all, and differences around zero.
AMOUNT, DIFFERENCE = "Blues", "PuOr"

#: Widths in inches: one column of a page, a full page.
WIDTHS = {"column": 5.0, "page": 9.0}

#: Dots per inch of a PNG.
DPI = 150

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.labelsize": 12,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "figure.dpi": 100,
    "figure.titlesize": 14,
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.8,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "svg.fonttype": "path",
    "svg.hashsalt": "labs",
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
}


@contextmanager
def style() -> Iterator[None]:
    """The lab's style while drawing and saving, on top of matplotlib's defaults rather than of a user's settings."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        matplotlib.rcParams["axes.prop_cycle"] = cycler(color=CYCLE)
        yield


def figure(
    rows: int = 1, columns: int = 1, *, width: str = "page", height: float = 4.2, **options: Any
) -> tuple[Figure, Any]:
    """A figure with constrained layout and its axes: one `Axes`, or an array of them as `Figure.subplots` gives.

    Args:
        rows, columns: of axes.
        width: "column" or "page".
        height: in inches.
        **options: for `Figure.subplots` (`sharex`, `width_ratios`, ...).
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(WIDTHS[width], height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, **options)


def label(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and axis names; every axis name carries its unit, as in ``"time (simulated s)"``."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def band(axes: Axes, x: Sequence[float], rows: Sequence[Sequence[float]], color: str, text: str, **line: Any) -> str:
    """The mean over seeds with its 95 % t interval at every point; the bare line for one seed.

    Args:
        axes: where.
        x: `[points]`.
        rows: `[seeds][points]`.
        color: of line and band.
        text: the legend's name of the line.
        **line: for `Axes.plot`.

    Returns:
        What the band is, for the title or legend: "" for one seed.
    """
    intervals = [t_interval(column) for column in zip(*rows, strict=True)]
    axes.plot(x, [i.value for i in intervals], color=color, label=text, **line)
    if len(rows) == 1:
        return ""
    axes.fill_between(
        x, [_number(i.low) for i in intervals], [_number(i.high) for i in intervals], color=color, alpha=0.25, lw=0
    )
    return f"band: {intervals[0].name} of the mean over {len(rows)} seeds"


def rate(axes: Axes, x: Sequence[float], rates: Sequence[float], n: int, color: str, text: str, **line: Any) -> str:
    """The rate of one seed with the 95 % Wilson interval of its `n` draws at every point; returns what the band is."""
    intervals = [wilson(round(r * n, 6), n) for r in rates]
    axes.plot(x, rates, color=color, label=text, **line)
    axes.fill_between(
        x, [_number(i.low) for i in intervals], [_number(i.high) for i in intervals], color=color, alpha=0.25, lw=0
    )
    return f"band: {intervals[0].name} of {n:,} draws, one seed"


def exact(axes: Axes, x: Sequence[float], y: Sequence[float], text: str, color: str = BLACK) -> None:
    """An exact or theoretical value: the dashed line of every figure."""
    axes.plot(x, y, color=color, ls="--", lw=1.6, label=text, zorder=4)


def heatmap(
    axes: Axes,
    table: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colors: str = AMOUNT,
    form: str = "{:.2f}",
    slant: bool = False,
) -> Any:
    """A table as colour with its numbers written in; returns the image, for a colour bar.

    Args:
        axes: where.
        table: `[rows][columns]`.
        rows, columns: their names.
        low, high: the values at the ends of the colours.
        colors: `AMOUNT` or `DIFFERENCE`.
        form: of a number.
        slant: turn the names of the columns, where they are too long to stand side by side.
    """
    image: Any = axes.imshow(table, cmap=colors, vmin=low, vmax=high, aspect="auto")
    axes.grid(False)
    turned: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slant else {}
    axes.set_xticks(range(len(columns)), columns, **turned)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            axes.text(j, i, form.format(value), ha="center", va="center", color="white" if dark else BLACK)
    return image


def legend_below(fig: Figure, axes: Axes, columns: int = 3) -> None:
    """One legend under all axes, so that it never covers data."""
    fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def logarithmic(axes: Axes) -> None:
    """A logarithmic y axis where anything drawn so far is positive; a linear one otherwise, which shows the zeros."""
    if math.isfinite(axes.yaxis.get_minpos()):
        axes.set_yscale("log")


def settle(fig: Figure) -> None:
    """Lay the figure out now and for good, on positions rounded to a millionth of its size.

    The solver behind constrained layout orders its unknowns by memory address, so the last bits of a position differ
    from process to process, and with them identifiers in an SVG.
    """
    engine = fig.get_layout_engine()
    if engine is None or not fig.get_constrained_layout():
        return
    engine.execute(fig)
    fig.set_layout_engine("none")
    for axes in fig.axes:
        x, y, width, height = (round(v, 6) for v in axes.get_position(original=True).bounds)
        axes.set_position((x, y, width, height), which="original")


def png(fig: Figure, dots: int = DPI) -> bytes:
    """The figure as PNG of `dots` per inch, without metadata that changes from one matplotlib to the next."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    settle(fig)
    out, dpi = io.BytesIO(), fig.dpi
    fig.set_dpi(dots)
    try:
        # Without `savefig`, which draws everything once more to find out how large it is.
        canvas: Any = FigureCanvasAgg(fig)
        canvas.print_png(out, metadata={"Software": None})
    finally:
        fig.set_dpi(dpi)
    return out.getvalue()


def svg(fig: Figure) -> bytes:
    """The figure as SVG, without a date and with identifiers that depend on the figure alone."""
    settle(fig)
    out = io.BytesIO()
    fig.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def files(drawn: Mapping[str, Figure], with_svg: bool = False) -> dict[str, bytes]:
    """Every figure as the files of a run: `<name>.png`, and `<name>.svg` on demand."""
    out = {}
    with style():
        for name, fig in drawn.items():
            out[f"{name}.png"] = png(fig)
            if with_svg:
                out[f"{name}.svg"] = svg(fig)
    return out


def _number(bound: float | None) -> float:
    return float("nan") if bound is None else bound
