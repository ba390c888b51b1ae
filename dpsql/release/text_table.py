"""Tables as aligned text and as HTML, with no more digits than their errors justify."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from dpsql.errors import printable

SHOWN_ROWS = 40
_WIDEST = 60
# Names break where a screen is too narrow for the table, so that the numbers beside them stay in sight.
_NARROW = ";padding:0.3em 0.2em;font-size:0.92em"
_FITTING = {(tag, side): _NARROW for tag in ("th", "td") for side in ("left", "right")}
_FITTING["td", "left"] += ";overflow-wrap:anywhere;min-width:3.2em"
_DOUBLE = 15  # decimal digits that a DOUBLE tells apart


@dataclass(frozen=True)
class Grid:
    """Cells to be shown, row by row; ``right`` says which columns hold numbers, ``note`` what is not shown."""

    heads: tuple[str, ...]
    right: tuple[bool, ...]
    cells: tuple[tuple[str, ...], ...]
    note: str = ""

    def text(self, title: str = "") -> str:
        """Aligned lines: title, header, rule, rows, note; numbers to the right, text to the left."""
        widths = [max(map(cell_width, column)) for column in zip(self.heads, *self.cells, strict=True)]
        lines = [title] if title else []
        for row in [self.heads, tuple("-" * width for width in widths), *self.cells]:
            padded = []
            for cell, width, right in zip(row, widths, self.right, strict=True):
                blanks = " " * (width - cell_width(cell))
                padded.append(blanks + cell if right else cell + blanks)
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, f"({self.note})"] if self.note else lines)

    def html(self, title: str = "") -> str:
        """The same as an HTML table. All text is escaped; styles stand inline, where front ends keep them."""
        align = ["right" if right else "left" for right in self.right]

        def line(tag: str, cells: Sequence[str]) -> str:
            sides = zip(cells, align, strict=True)
            done = (
                f'<{tag} style="text-align:{side}{_FITTING[tag, side]}">{html.escape(cell)}</{tag}>'
                for cell, side in sides
            )
            return f"<tr>{''.join(done)}</tr>"

        caption = f'<caption style="text-align:left;caption-side:top"><b>{html.escape(title)}</b></caption>'
        body = "".join(line("td", row) for row in self.cells)
        return (
            f'<div style="overflow-x:auto"><table class="dpsql-table">{caption if title else ""}'
            f"<thead>{line('th', self.heads)}</thead>"
            f"<tbody>{body}</tbody></table></div>{paragraph(self.note, 'dpsql-note') if self.note else ''}"
        )


def paragraph(text: str, kind: str) -> str:
    """One escaped line of small print in HTML."""
    return f'<p class="{kind}" style="opacity:0.7;font-size:0.9em;margin:0.3em 0">{html.escape(text)}</p>'


def grid_of(
    columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]], limit: int = SHOWN_ROWS
) -> Grid:
    """At most ``limit`` rows as they are shown.

    Columns c, c_stderr, c_low and c_high show the decimals that give the smallest
    c_stderr two significant digits; other floats show six significant digits, or all before the point.
    """
    shown = rows[:limit]
    decimals = decimals_of(columns, shown)
    return Grid(
        tuple(map(clean, columns)),
        tuple(is_number(kind, [row[at] for row in shown]) for at, kind in enumerate(types)),
        tuple(tuple(show(value, digits) for value, digits in zip(row, decimals, strict=True)) for row in shown),
        _note(rows, limit),
    )


def _note(rows: Sequence[Sequence[object]], limit: int) -> str:
    count = len(rows)
    if count <= limit:
        return f"{count} row{'' if count == 1 else 's'}"
    others = getattr(rows, "others", None)  # of ``RangeRows``
    if others is not None:
        return f"the first {limit} of {count:,} rows; {others}"
    return f"{count} rows, the first {limit} shown; fetchall() and df() have them all"


def decimals_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int | None]:
    """Decimals of each column as ``show`` takes them, None where no standard error guides it."""
    places = {c.lower(): i for i, c in enumerate(columns)}
    chosen: list[int | None] = [None] * len(columns)
    for column in places:
        error = places.get(column + "_stderr")
        if error is None:
            continue
        beside = [places[name] for name in (column, column + "_low", column + "_high") if name in places]
        digits, of_error = decimals_for([row[at] for row in rows for at in beside], [row[error] for row in rows])
        for at in beside:
            chosen[at] = digits
        chosen[error] = of_error
    return chosen


def decimals_for(numbers: Sequence[object], errors: Sequence[object]) -> tuple[int | None, int | None]:
    """Decimals of numbers and of their standard errors: the smallest positive error has two significant digits.

    A DOUBLE has 15 decimal digits. Where all errors are below them, numbers have as few decimals as show all that there
    are of these, and errors two significant digits.
    """
    finite = [abs(x) for x in numbers if isinstance(x, float) and math.isfinite(x)]
    sizes = [s for s in errors if isinstance(s, float) and 0 <= s < math.inf]
    if not sizes:
        return None, None
    largest = max(finite, default=0.0)
    smallest = min((s for s in sizes if s > largest / 10**_DOUBLE), default=0.0)
    most = max(0, _DOUBLE - (math.floor(math.log10(largest)) + 1 if largest >= 1 else 0))
    digits = max(0, 1 - math.floor(math.log10(smallest))) if smallest else math.inf
    if digits <= most:
        return int(digits), int(digits)
    least = most
    while least and all(round(x, least - 1) == round(x, most) for x in finite):
        least -= 1
    return least, -2


def show(value: object, decimals: int | None) -> str:
    """A value as text: a number with so many decimals, below 0 significant digits, or six of these (None)."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        if decimals is None:
            return f"{value:.0f}" if 1e6 <= abs(value) < 10**_DOUBLE else f"{value:.6g}"
        if decimals < 0:
            return f"{value:.{-decimals}g}"
        text = f"{value:.{decimals}f}"
        return text.lstrip("-") if float(text) == 0 else text
    return clean(str(value))


def clean(text: str) -> str:
    """One line of printable characters, cut at ``_WIDEST``."""
    cut = text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
    return printable(cut)


def cell_width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) != 0 for c in text)


def is_number(kind: str, values: Sequence[object]) -> bool:
    if kind.startswith(("DECIMAL", "DOUBLE", "FLOAT")) or kind.endswith(("INT", "INTEGER")):
        return True
    known = [v for v in values if v is not None]
    return bool(known) and all(isinstance(v, int | float | Decimal) and not isinstance(v, bool) for v in known)


def in_json(value: object) -> object:
    """A value of what JSON has: NaN and infinity are null, what is no number, text or list is its text."""
    if isinstance(value, Mapping):
        return {str(key): in_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [in_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
