"""What a notebook shows of a result: its cells as text, cut to size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsql.release import Result
from dpsql.release.text_table import Grid, clean, decimals_of, is_number, show

STYLES = ("interval", "columns")
MOST_COLUMNS = 40


@dataclass(frozen=True)
class Look:
    """How results are shown: at most ``row_limit`` rows; ``style`` "interval" writes ``12.3 ± 4.5`` where a number has
    columns of errors, "columns" shows all columns as they are.
    """

    row_limit: int = 40
    style: str = "interval"


def grid_of(result: Result, look: Look, level: str | None = None) -> Grid:
    """The shown part of a result. ``level``: the confidence of its intervals as text, where it is known."""
    rows = result.rows
    shown = list(rows[: look.row_limit])
    decimals = decimals_of(result.columns, shown)
    errors = error_columns(result) if look.style == "interval" else {}
    beside = {at for held in errors.values() for at in held}
    kept = [at for at in range(len(result.columns)) if at not in beside]
    hidden = len(kept) - MOST_COLUMNS
    kept = kept[:MOST_COLUMNS]
    heads = [clean(result.columns[at]) + _sign(at in errors, level) for at in kept]
    cells = [
        tuple(_interval(row, at, errors[at], decimals) if at in errors else show(row[at], decimals[at]) for at in kept)
        for row in shown
    ]
    right = [at in errors or is_number(result.types[at], [row[at] for row in shown]) for at in kept]
    return Grid(tuple(heads), tuple(right), tuple(cells), _note(len(rows), len(shown), hidden))


def error_columns(result: Result) -> dict[int, tuple[int, int, int]]:
    """Places of c_stderr, c_low and c_high for the place of each private column c that has all three."""
    places = {name.lower(): at for at, name in enumerate(result.columns)}
    found = {}
    for name, at in places.items():
        beside = [places.get(f"{name}_{part}") for part in ("stderr", "low", "high")]
        held = [place for place in beside if place is not None]
        if len(held) == 3:
            found[at] = (held[0], held[1], held[2])
    return found


def half_width(value: object, low: object, high: object) -> float | None:
    """How far the farther end of an interval is from the value; None where one of them is missing or no number."""
    numbers = [float(v) for v in (value, low, high) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 3 or not all(map(math.isfinite, numbers)):
        return None
    return max(numbers[0] - numbers[1], numbers[2] - numbers[0])


def _interval(row: Sequence[object], at: int, beside: tuple[int, int, int], chosen: Sequence[int | None]) -> str:
    _, low, high = (row[place] for place in beside)
    decimals = chosen[at]
    value, half = row[at], half_width(row[at], low, high)
    if low is None and high is None:
        return show(value, decimals)
    if half is None:
        return f"{show(value, decimals)} ({show(low, decimals)} to {show(high, decimals)})"
    middle = (float(low) + float(high)) / 2  # type: ignore[arg-type]  # half_width has seen numbers
    if abs(middle - float(value)) > 1e-6 * max(half, 1e-300):  # type: ignore[arg-type]
        return f"{show(value, decimals)} ({show(low, decimals)} to {show(high, decimals)})"
    return f"{show(value, decimals)} ± {show(half, chosen[beside[0]])}"


def _sign(interval: bool, level: str | None) -> str:
    if not interval:
        return ""
    return f" ± ({level})" if level else " ±"


def _note(count: int, shown: int, hidden: int) -> str:
    rows = f"{count:,} row{'' if count == 1 else 's'}"
    if shown < count:
        rows += f", the first {shown:,} shown; .df() has them all"
    if hidden > 0:
        rows += f"; {hidden:,} more column{'' if hidden == 1 else 's'} in .columns"
    return rows
