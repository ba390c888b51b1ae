"""Tables as aligned text and as HTML, with no more digits than their errors justify."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

SHOWN_ROWS = 40
_WIDEST = 60
_SUFFIXES = ("_stderr", "_low", "_high")


def text_table(
    columns: Sequence[str],
    types: Sequence[str],
    rows: Sequence[Sequence[object]],
    limit: int = SHOWN_ROWS,
) -> str:
    """Header, rule and at most ``limit`` rows; numbers to the right, text to the left.

    Columns c, c_stderr, c_low and c_high show the decimals that give the smallest
    c_stderr two significant digits; other floats show six significant digits.
    """
    shown = rows[:limit]
    cells = _cells(columns, shown)
    right = [is_number(types[i], [row[i] for row in shown]) for i in range(len(columns))]
    lines = []
    heads = [clean(c) for c in columns]
    widths = [
        max([cell_width(head), *(cell_width(line[i]) for line in cells)], default=0) for i, head in enumerate(heads)
    ]
    for line in [heads, ["-" * w for w in widths], *cells]:
        padded = [
            " " * (w - cell_width(cell)) + cell if r else cell + " " * (w - cell_width(cell))
            for cell, w, r in zip(line, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines.append(_note(rows, limit))
    return "\n".join(lines)


def html_table(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]], limit: int) -> str:
    """The same cells as an HTML table; everything that is text is escaped."""
    shown = rows[:limit]
    right = [is_number(types[i], [row[i] for row in shown]) for i in range(len(columns))]
    align = ["right" if r else "left" for r in right]

    def line(tag: str, values: Sequence[str]) -> str:
        tags = (f'<{tag} style="text-align:{a}">{html.escape(v)}</{tag}>' for v, a in zip(values, align, strict=True))
        return "<tr>" + "".join(tags) + "</tr>"

    body = "".join(line("td", row) for row in _cells(columns, shown))
    head = line("th", [clean(c) for c in columns])
    note = html.escape(_note(rows, limit))
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table><p>{note}</p>"


def _note(rows: Sequence[Sequence[object]], limit: int) -> str:
    count = len(rows)
    if count <= limit:
        return f"({count} row{'' if count == 1 else 's'})"
    others = getattr(rows, "others", None)  # of ``RangeRows``
    if others is not None:
        return f"(the first {limit} of {count:,} rows; {others})"
    return f"({count} rows, the first {limit} shown; fetchall() and df() have them all)"


def _cells(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[list[str]]:
    """The shown text of every value, row by row."""
    decimals = decimals_of(columns, rows)
    return [[show(value, decimals[i]) for i, value in enumerate(row)] for row in rows]


def decimals_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[int | None]:
    """Decimals of each column, None where no standard error guides it."""
    places = {c.lower(): i for i, c in enumerate(columns)}
    chosen: list[int | None] = [None] * len(columns)
    for column in places:
        error = places.get(column + "_stderr")
        if error is None:
            continue
        sizes = [row[error] for row in rows]
        positive = [s for s in sizes if isinstance(s, float) and 0 < s < math.inf]
        if not positive:
            continue
        digits = min(max(0, 1 - math.floor(math.log10(min(positive)))), 12)
        for name in (column, *(column + suffix for suffix in _SUFFIXES)):
            if name in places:
                chosen[places[name]] = digits
    return chosen


def show(value: object, decimals: int | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        if decimals is None:
            return f"{value:.6g}"
        text = f"{value:.{decimals}f}"
        return text.lstrip("-") if float(text) == 0 else text
    return clean(str(value))


def clean(text: str) -> str:
    """One line of printable characters, cut at ``_WIDEST``."""
    cut = text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


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
