"""The parts of a report as HTML: one self-contained page, everything that is text escaped, nothing fetched."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dpsql.errors import InterfaceError, printable
from dpsql.release import Result
from dpsql.release.pictures import picture_bytes
from dpsql.release.pictures.style import number
from dpsql.release.pictures.tables import Number, read
from dpsql.release.text_table import grid_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 200  # of a table on the page
# Inches. 84 pixels an inch make letters of 8 points more than 9 pixels high: 4.2 inches are the width of a phone.
PHONE, MOST_SQUEEZED = 4.2, 6.4

_STYLE = """
:root { --ink: #1c2733; --soft: #5b6875; --line: #d9dfe5; --blue: #0072b2; --wash: #f3f7fa; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; font: 15px/1.5 system-ui, "Segoe UI", Roboto, Helvetica,
  Arial, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 26px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 34px 0 8px; border-bottom: 1px solid var(--line);
  padding-bottom: 4px; } h3 { font-size: 16px; margin: 24px 0 6px; }
p { margin: 6px 0 10px; } .soft, figcaption, .note { color: var(--soft); font-size: 13px; }
.box { background: var(--wash); border-left: 4px solid var(--blue); padding: 12px 16px; margin: 14px 0; }
.box strong { font-size: 17px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; margin: 10px 0; }
dt { color: var(--soft); } dd { margin: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; margin: 8px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--soft); font-weight: 600; } .right { text-align: right; }
figure { margin: 12px 0; } figure img { width: calc(var(--inches) * 112px); max-width: max(100%, var(--inches) * 84px);
  height: auto; }
.bar { height: 14px; background: var(--line); border-radius: 7px; overflow: hidden; max-width: 520px; }
.bar span { display: block; height: 100%; background: var(--blue); }
pre { background: var(--wash); padding: 12px; overflow-x: auto; font-size: 12.5px; white-space: pre-wrap; }
@media (max-width: 600px) { main { padding: 20px 16px 32px; } figure img { width: calc(var(--inches) * 84px); }
  table { font-size: 12px; } th { font-size: 11px; } th, td { padding-right: 4px; }
  td:not(.right, .range) { overflow-wrap: anywhere; }
  td:first-child:not(.right) { min-width: 4.4em; } td:nth-child(3):not(.right, .range) { min-width: 3em; } }
@media print { figure img { max-width: 100%; } main { max-width: none; padding: 0; } h2, h3 { break-after: avoid; }
  figure, tr, .box { break-inside: avoid; } pre, .scroll { overflow: visible; } a { color: inherit; } }
"""

# Nothing may be loaded: styles and pictures are in the page, and a page that was tampered with cannot call home.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document of ``parts``, which are HTML already."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def text(value: object) -> str:
    """Escaped, with characters that steer terminals or reverse lines made visible."""
    return html.escape("".join(c if c in "\n\t" else printable(c) for c in str(value)))


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph; ``kind`` is a class of the page's style."""
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def heading(words: str, level: int = 2, anchor: str = "") -> str:
    name = f' id="{anchor}"' if anchor else ""
    return f"<h{level}{name}>{text(words)}</h{level}>"


def link(words: str, anchor: str) -> str:
    """A link to a heading of the same page."""
    return f'<p class="soft"><a href="#{anchor}">{text(words)}</a></p>'


def box(strong: str, words: str) -> str:
    """What a reader must not miss."""
    return f'<div class="box"><strong>{text(strong)}</strong><p>{text(words)}</p></div>'


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """Names and values below each other."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs) + "</dl>"


def share(part: float, whole: float) -> str:
    """How much of something is used, as a bar."""
    percent = 100.0 * min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0
    filled = f'<span style="width:{percent:.2f}%"></span>'
    return f'<div class="bar" role="img" aria-label="{percent:.0f} % spent">{filled}</div>'


def picture(made: Figure, caption: str) -> str:
    """A figure as SVG inside the page: as wide as a phone where that cuts nothing; a wider one scrolls there."""
    width = made.get_figwidth()
    if PHONE < width <= MOST_SQUEEZED:
        made.set_figwidth(PHONE)
        made.draw_without_rendering()
        if made.get_tightbbox().x1 > PHONE:
            made.set_figwidth(width)
    data = base64.b64encode(picture_bytes(made)).decode("ascii")
    return (
        f'<figure><div class="scroll"><img src="data:image/svg+xml;base64,{data}" '
        f'style="--inches:{made.get_figwidth():.2f}" alt="{text(caption)}"></div>'
        f"<figcaption>{text(caption)}</figcaption></figure>"
    )


def code(words: str) -> str:
    return f"<pre>{text(words.strip())}</pre>"


def rows_table(head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str]) -> str:
    """A table of texts; the kind of a column is "right" for numbers, "range" for intervals, else "" (names)."""
    sides = [f' class="{kind}"' if kind else "" for kind in kinds]
    lines = ["<tr>" + "".join(f"<th{s}>{text(h)}</th>" for h, s in zip(head, sides, strict=True)) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td{s}>{text(v)}</td>" for v, s in zip(row, sides, strict=True)) + "</tr>")
    return f'<div class="scroll"><table><thead>{lines[0]}</thead><tbody>{"".join(lines[1:])}</tbody></table></div>'


def result_table(result: Result, note: str = "", level: str = "") -> str:
    """A released table: keys, and each number with its interval beside it; 200 rows at most, then ``note``.

    ``level``: the confidence level of the intervals, such as "95 %", where it is known.
    """
    shown = result.fetchall()[:MOST_ROWS]
    more = note or (f"The first {MOST_ROWS} of {len(result):,} rows." if len(result) > len(shown) else "")
    part = Result(result.columns, result.types, shown)
    try:
        shape = read(part)
    except InterfaceError:
        return replace(grid_of(part.columns, part.types, shown, MOST_ROWS), note=more).html()
    head: list[str] = [key.name for key in shape.keys]
    kinds = ["right" if key.ordered else "" for key in shape.keys]
    columns: list[Sequence[str]] = [key.shown for key in shape.keys]
    for held in shape.numbers:
        head.append(held.name)
        kinds.append("right")
        digits = _digits(held)
        columns.append([_figure(value, digits) for value in held.values])
        if held.bounded:
            head.append(f"{level} interval".lstrip())
            kinds.append("range")
            spans = zip(held.low, held.high, strict=True)
            columns.append([f"{_figure(low, digits)} to {_figure(high, digits)}" for low, high in spans])
    return rows_table(head, list(zip(*columns, strict=True)), kinds) + (paragraph(more, "note") if more else "")


def _digits(number: Number) -> int | None:
    """Decimals that the intervals justify; None where there are none."""
    arms = number.arms.max(axis=0)
    known = arms[arms > 0]
    if not known.size:
        return None
    return min(max(0, 1 - math.floor(math.log10(float(known.min())))), 9)


def _figure(value: float, digits: int | None) -> str:
    if math.isnan(value):
        return "NULL"
    if digits is None:
        return number(value)
    shown = f"{value:,.{digits}f}"
    return shown.lstrip("-") if float(shown.replace(",", "")) == 0 else shown
