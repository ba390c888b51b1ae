"""How the command line shows things: aligned tables, wrapped prose, colours, JSON, and progress on stderr.

Colours are for terminals only: none where NO_COLOR is set or the terminal is a dumb one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Self, TextIO

from dpsql.common.progress import PATIENCE
from dpsql.common.quoting import identifier
from dpsql.driver.connection import Connection
from dpsql.planning.plan import Plan
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.values import shown
from dpsql.privacy.accountant import BudgetState
from dpsql.release import Result
from dpsql.release.release import Release
from dpsql.release.text_table import in_json

_VALUES = 6  # of a column that are written out
_LABEL = re.compile(r"[A-Z][a-z]+ {2,}")
_BOUND = re.compile(r"_(low|high)(_\d+)?$", re.IGNORECASE)


def width() -> int:
    """Columns of the terminal, 120 where there is none."""
    return max(60, shutil.get_terminal_size((120, 40)).columns)


def show(text: str) -> None:
    """``text`` on stdout, in colours where that is a terminal."""
    print(painted(text, sys.stdout))


def print_json(value: object) -> None:
    """One JSON document on stdout, a table row to a line. NaN and infinity, which JSON lacks, become null."""
    print(json_text(value))


def json_text(value: object) -> str:
    """One JSON document, a table row to a line; NaN and infinity become null."""
    return _json(in_json(value), "")


def _json(value: object, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        items = [f"{inner}{json.dumps(key)}: {_json(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _json(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, allow_nan=False)


def table_json(result: Result) -> dict[str, object]:
    """A table for programs: columns with DuckDB types, and rows."""
    columns = [{"name": name, "type": kind} for name, kind in zip(result.columns, result.types, strict=True)]
    return {"columns": columns, "rows": result.fetchall()}


def plan_json(plan: Plan) -> dict[str, object]:
    """A plan for programs: guarantee, cost, sizes, strategy, and a row for each result column."""
    return {
        "dataset": plan.dataset,
        "guarantee": plan.charge.guarantee,
        "privacy": plan.privacy,
        "purse": plan.charge.account,
        "cost": plan.charge.amount,
        "affordable": plan.affordable,
        "statements": len(plan.queries),
        "cells": plan.cells,
        "strategy": plan.strategy.method,
        "measurements": plan.strategy.shape[0],
        "noise": plan.noise.kind,
        "gap": plan.gap,
        "estimated": plan.estimated,
        "alpha": plan.alpha,
        "alternatives": [
            {"guarantee": way.charge.guarantee, "purse": way.charge.account, "cost": way.charge.amount}
            for way in plan.alternatives
        ],
        "rows": plan.rows(),
        "notes": list(plan.notes),
        "local": None if plan.local_comparison is None else plan.local_comparison.as_dict(),
    }


def budget_json(state: BudgetState) -> dict[str, object]:
    """A budget for programs: comparable totals, and the accounts whose numbers add up."""
    return {
        "measure": state.measure,
        "delta": state.delta,
        "total": state.total,
        "spent": state.spent,
        "remaining": state.remaining,
        "purses": [
            {"name": p.name, "measure": p.measure, "total": p.total, "spent": p.spent, "remaining": p.remaining}
            for p in state.accounts
        ],
        "labels": [
            {"label": s.label, "purse": s.account, "spent": s.cost, "charges": s.count, "results": list(s.results)}
            for s in state.by_label()
        ],
    }


def release_json(release: Release, state: BudgetState) -> dict[str, object]:
    """A run for programs: what it cost, its tables, and the budget after it."""
    return {
        "release": release.id,
        "guarantee": release.guarantee,
        "cost": release.cost,
        "tables": [{"name": name, **table_json(release[name])} for name in release],
        **({"notes": list(release.notes)} if release.notes else {}),
        "budget": budget_json(state),
    }


def declared_columns(con: Connection) -> list[tuple[str, str, str, str]]:
    """Name, kind, column and values: of the policy's tables and views what it declares, of released views the types."""
    rows: list[tuple[str, str, str, str]] = []
    for name, kind in con.cursor().execute("SHOW TABLES"):
        if kind == "released":
            held = con.sql(f"SELECT * FROM dp.{identifier(name)} LIMIT 0")  # noqa: S608 - a quoted name
            rows += [(name, kind, column, type_) for column, type_ in zip(held.columns, held.types, strict=True)]
        elif kind == "private view":
            rows.append((name, kind, "", " ".join(con.policy.views[name].split())))
        else:
            rows += [(name, kind, c.name, _domain(c)) for c in con.policy.tables[name].columns.values()]
    return rows


def _domain(column: ColumnPolicy) -> str:
    """What the policy says of a column's values."""
    said = ""
    if column.values is not None:
        listed = ", ".join(str(shown(value)).strip('"') for value in column.values[:_VALUES])
        more = len(column.values) - _VALUES
        said = listed + (f" and {more:,} more" if more > 0 else "")
    elif column.lower is not None and column.upper is not None:
        said = f"{shown(column.lower)} to {shown(column.upper)}"
        said += "" if column.step in (None, Fraction(1)) else f" by {shown(column.step or Fraction(1))}"
    said += " or other" if column.other else ""
    return f"{said} or NULL" if said and column.nulls else said


def prose(text: str) -> str:
    """``text`` with long lines wrapped at the terminal's width, under their label where they have one."""
    lines = []
    for line in text.split("\n"):
        label = _LABEL.match(line)
        indent = " " * (label.end() if label else len(line) - len(line.lstrip()))
        wrapped = textwrap.wrap(line, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        lines.extend(wrapped or [""])
    return "\n".join(lines)


def grid(columns: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[object]], indent: int = 0) -> str:
    """An aligned table without the count of its rows; ``rows`` must be all that is to be shown."""
    from dpsql.release.text_table import grid_of

    return textwrap.indent(replace(grid_of(columns, types, rows, len(rows)), note="").text(), " " * indent)


def table_text(result: Result) -> str:
    """A result that fits the terminal: _low and _high are left out of a wide one, a very wide one goes row by row."""
    full = result.table_text()
    if _widest(full) <= width():
        return full
    kept = [i for i, name in enumerate(result.columns) if not _is_bound(name, result.columns)]
    if len(kept) < len(result.columns):
        rows = [[row[i] for i in kept] for row in result]
        short = str(Result([result.columns[i] for i in kept], [result.types[i] for i in kept], rows))
        if _widest(short) <= width():
            return short[:-1] + ", too wide for the _low and _high columns)"
    return "\n\n".join(_record(result, number) for number in range(len(result))) or full


def _record(result: Result, number: int) -> str:
    """One row of a result, a line to a value with its error and interval."""
    from dpsql.release.text_table import show as one

    row = dict(zip(result.columns, result.fetchall()[number], strict=True))
    beside = {name: _beside(name, row) for name in row}
    held = {part for parts in beside.values() for part in parts}
    names = max(len(name) for name in row if name not in held)
    room = max(width() - names - 2, 20)
    lines = [f"row {number + 1} of {len(result)}"]
    for name, value in row.items():
        if name in held:
            continue
        shown = one(value, None) if isinstance(value, float | None) else str(value)
        if beside[name]:
            error, low, high = (row[part] for part in beside[name])
            (shown, off), span = _digits(value, error), f"{_digits(low, error)[0]} to {_digits(high, error)[0]}"
            shown = f"{shown} (standard error {off}; {span})"
        lines.append(f"{name.ljust(names)}  {textwrap.shorten(shown, room, placeholder=' ...')}")
    return "\n".join(lines)


def _beside(name: str, row: Mapping[str, object]) -> tuple[str, ...]:
    """The columns of a number's error and interval, if it has them and all are numbers or NULL."""
    parts = tuple(f"{name}_{part}" for part in ("stderr", "low", "high"))
    numbers = all(part in row and isinstance(row[part], float | None) for part in parts)
    return parts if numbers and isinstance(row[name], float | None) else ()


def _is_bound(name: str, columns: Sequence[str]) -> bool:
    """Whether ``name`` is the end of an interval, not a column that a user called so."""
    found = _BOUND.search(name)
    known = {column.lower() for column in columns}
    return found is not None and (name[: found.start()] + "_stderr").lower() in known


def _widest(text: str) -> int:
    return max(len(line) for line in text.splitlines())


def release_text(release: Release) -> str:
    """All results of a release: single numbers together in one table, then the others, one after another."""
    singles: list[tuple[str, str, float | None, float | None, str]] = []
    blocks = []
    for name in release:
        result = release[name]
        found = _single(result)
        if found is None:
            blocks.append(f"{name}\n{table_text(result)}")
        else:
            singles.extend((name, *figures) for figures in found)
    if singles:
        columns = ("result", "column", "value", "value_stderr", "interval")
        # Every line has digits of its own: one table for each size of error would lose the overview.
        lines = [(n, c, *_digits(value, error), span) for n, c, value, error, span in singles]
        blocks.insert(0, grid(columns, ("VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE", "VARCHAR"), lines))
    return "\n\n".join([*blocks, *map(prose, release.notes)])


def _single(result: Result) -> list[tuple[str, float | None, float | None, str]] | None:
    """(column, value, standard error, interval) of a result that is one row of numbers with errors."""
    if len(result) != 1 or any(kind != "DOUBLE" for kind in result.types):
        return None
    row = dict(zip(result.columns, result.fetchall()[0], strict=True))
    found = []
    for name, parts in ((name, _beside(name, row)) for name in row):
        if parts:
            error, low, high = (row[part] for part in parts)
            found.append((name, row[name], error, f"{_digits(low, error)[0]} to {_digits(high, error)[0]}"))
    return found if 4 * len(found) == len(row) else None


def _digits(value: float | None, error: float | None) -> tuple[str, str]:
    """Both numbers with the digits that mean something; NULL where there is none."""
    from dpsql.release.text_table import decimals_for, show

    if error is None:
        return show(value, None), "NULL"
    decimals, of_error = decimals_for([value], [error])
    return show(value, decimals), show(error, of_error)


class Progress:
    """Says on stderr what planning (or ``what``) is at: at once on a terminal, else after two seconds, then seldom."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic, what: str = "planning") -> None:
        self._quiet = quiet
        self._what = what
        self._clock = clock
        self._start = clock()
        self._next = self._start + PATIENCE
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def __call__(self, message: str) -> None:
        """Show ``message``, which depends on public input only."""
        if self._quiet:
            return
        now = self._clock()
        if self._terminal:
            line = f"{self._what}, {now - self._start:.0f} s: {message}"
            print(f"\r\x1b[K{line[: width() - 1]}", end="", file=sys.stderr, flush=True)
            self._shown = True
        elif now >= self._next:
            print(f"dpsql: {self._what}, {now - self._start:.0f} s: {message}", file=sys.stderr, flush=True)
            self._next = now + 5 * PATIENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line on a terminal."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False


def plainly(progress: Callable[[str], None]) -> Callable[[str], None]:
    """``progress`` of planning for those who did not ask how it goes: that it goes on, without names of strategies."""
    return lambda _: progress("looking for the least error")


_BOLD, _DIM, _RED, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_RULE = re.compile(r" *-+(?:  +-+)* *\Z")
_LABELS = (
    *("Guarantee", "Cost", "Charge", "Target", "Periods", "Batch", "Cells", "Scan", "Earlier", "Noise", "Proof"),
    *("Strategy", "Limits", "Warning", "Note", "Other way", "Local"),
    *("Release", "Policy", "Budget", "Ledger", "Releases"),
)
_MARKED = re.compile(f"(?:{'|'.join(_LABELS)}) {{2,}}")


def coloured(stream: TextIO) -> bool:
    """Whether ``stream`` is shown by something that understands colours and a reader who wants them."""
    # no-color.org: any value but the empty one says no
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, stream: TextIO) -> str:
    """``text`` with heads of tables and labels of lines set off where ``stream`` takes colours; else as it is."""
    if not coloured(stream):
        return text
    lines = text.split("\n")
    for at, line in enumerate(lines):
        label = _MARKED.match(line)
        if _RULE.match(line) and at and lines[at - 1].strip():
            lines[at - 1] = f"{_BOLD}{lines[at - 1]}{_END}"
            lines[at] = f"{_DIM}{line}{_END}"
        elif label:
            lines[at] = f"{_BOLD}{label[0]}{_END}{line[label.end() :]}"
    return "\n".join(lines)


def marked(word: str, stream: TextIO) -> str:
    """The word, "error:" in red and "warning:" in yellow, where ``stream`` takes colours."""
    if not coloured(stream):
        return word
    return f"{_RED if word.startswith('error') else _YELLOW}{word}{_END}"
