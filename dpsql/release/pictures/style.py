"""One look for all pictures: colours that colour-blind readers tell apart, few lines, readable at small sizes."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpsql.common.extras import install_command
from dpsql.errors import InterfaceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Okabe and Ito's palette, in an order in which neighbours also differ in lightness.
BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#222222"
COLOURS = (BLUE, ORANGE, GREEN, SKY, RED, PINK)
PALE, FAINT = "0.75", "0.92"
SMALL, NORMAL = 8.0, 9.5
SEQUENTIAL, DIVERGING = "cividis", "RdBu_r"


def figure(width: float, height: float) -> Figure:
    """A new figure of that size in inches, which a notebook shows and pyplot does not know.

    Raises InterfaceError where matplotlib is not installed.
    """
    missing = False
    try:
        from matplotlib.figure import Figure as Base
    except ImportError:
        missing = True
    if missing:
        raise InterfaceError(f"a picture needs matplotlib; install it with: {install_command('plot')}")
    made: Figure = _picture_class(Base)(figsize=(width, height), layout="constrained")
    return made


def canvas(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    """The axes to draw into and their figure; a new one of that size in inches without ``ax``."""
    made, (axes,) = panels(ax, width, height)
    return made, axes


def panels(
    ax: Axes | None, width: float, height: float, down: int = 1, across: int = 1, heights: Sequence[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """``ax`` alone and its figure; without it the panels of a new figure of that size in inches, row by row."""
    if ax is not None:
        return ax.figure, [ax]  # type: ignore[return-value]
    made = figure(width, height)
    return made, made.subplots(down, across, squeeze=False, height_ratios=heights).ravel().tolist()


def tidy(ax: Axes, *, grid: str = "x") -> None:
    """Small ticks, a faint grid along ``grid``, no box."""
    ax.tick_params(labelsize=SMALL, length=2.5, color=PALE)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(PALE)
    if grid in ("x", "y"):
        ax.grid(axis=grid, color=FAINT, linewidth=0.8)  # type: ignore[arg-type]
        ax.set_axisbelow(True)


def title(ax: Axes, text: str) -> None:
    """A heading over the left end."""
    ax.set_title(text, fontsize=NORMAL, loc="left", color=BLACK)


def legend_beside(ax: Axes, heading: str, *, reverse: bool = False) -> None:
    """A legend to the right of the axes."""
    ax.legend(
        title=heading, title_fontsize=SMALL, fontsize=SMALL, frameon=False,
        loc="upper left", bbox_to_anchor=(1.0, 1.02), borderaxespad=0.2, reverse=reverse,
    )  # fmt: skip


def plain(text: object, most: int = 32) -> str:
    """One line of at most ``most`` printable characters, none of which matplotlib takes for mathematics."""
    joined = " ".join(str(text).split())
    shown = "".join(c if c.isprintable() else "?" for c in joined)
    shown = shown if len(shown) <= most else shown[: most - 1] + "…"
    return shown.replace("$", r"\$")


def number(value: float) -> str:
    """Few digits, thousands apart."""
    if value != value:
        return "NULL"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text in ("-0", "") else text


def with_thousands(axis: Axis, most: int = 5) -> None:
    """At most ``most`` + 1 ticks, written as ``number`` does."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: number(value))


def with_dates(axis: Axis) -> None:
    """At most 7 ticks, each as short as its neighbours allow."""
    from matplotlib import dates

    locator = dates.AutoDateLocator(minticks=2, maxticks=6)  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def picture_bytes(made: Figure, kind: str = "svg") -> bytes:
    """The figure as SVG text or PNG bytes, the same for the same figure."""
    from matplotlib import rc_context

    held = io.BytesIO()
    with rc_context({"svg.hashsalt": "dpsql", "svg.fonttype": "path"}):
        metadata: dict[str, str | None] = {"Date": None} if kind == "svg" else {}
        made.savefig(held, format=kind, dpi=144, facecolor="white", metadata=metadata)
    return held.getvalue()


@functools.cache
def _picture_class(base: Any) -> type[Figure]:
    class Picture(base):  # type: ignore[misc]
        """A figure that a notebook shows by itself, whichever backend it has."""

        def _repr_png_(self) -> bytes:
            return picture_bytes(self, "png")

    return Picture
