"""A plan explained: for each statement what is measured, what is computed from it, and what DuckDB does afterwards.

Everything is made from what the plan will measure, not from the statement's text: a reader who compares the
two sees what was understood.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpsql.common.quoting import identifier
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.text import figure
from dpsql.sql import Answer
from dpsql.sql.outer.relation import ERRORS, HIDDEN, OTHER
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.sensitivity import share_reached
from dpsql.workloads.expr.batch import CaseKey, Core, Derived, Key, KeyOutput, Output, RangeKey, Ranked
from dpsql.workloads.expr.condition_text import Lines, condition_text, output_text
from dpsql.workloads.expr.conditions import TRUE, And, Condition, conjunction
from dpsql.workloads.expr.formulas import (
    Comparison,
    Default,
    Fit,
    Formula,
    Gini,
    Independence,
    Leaf,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Sum,
    Variance,
)
from dpsql.workloads.expr.regions import Axis, LineAxis, RunAxis

STATEMENTS = 60
_NUMBERS = 8
_WIDTH = 118
_LONGEST = 600
_LABEL = 11
_MARK = re.compile(r" #[0-9a-f]{16}")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NOISY = re.compile(r'\(SELECT \* FROM \(SELECT \* FROM ("(?:[^"]|"")*")\)\)|\(SELECT \* FROM ("(?:[^"]|"")*")\)')


def explain(plan: PlannedBatch, head: Sequence[str]) -> str:
    """The plan's parts as text: ``head`` (guarantee, cost, sizes, strategy), then every statement.

    "private" is what spends the budget, "derived" what is computed from those numbers with an interval of its own,
    "afterwards" the SQL that DuckDB runs over the noisy tables; the last two are free and reveal nothing more.
    Cost: linear in the statements; at most 60 are shown.
    """
    lines = [*head, *_changes(plan)]
    cores = iter(plan.cores)
    layouts = _by_table(plan.compiled.layouts)
    for number, answer in enumerate(plan.queries):
        mine = [next(cores) for _ in answer.cores]
        if number == STATEMENTS:
            lines += ["", f"... and {len(plan.queries) - STATEMENTS:,} more statements"]
            break
        lines += ["", *_statement(plan, answer, mine, layouts)]
    lines += [
        "",
        "Private numbers are measured together, once, for the cost above. What is derived from them, and what",
        "follows, costs nothing and reveals nothing more.",
    ]
    return "\n".join(lines)


def _changes(plan: PlannedBatch) -> list[str]:
    """A line that says how the sensitivity was computed: from a complete list of contributions, or from a bound.

    Only of units with several rows, where cells are listed.
    """
    units, noise = plan.contributions, plan.noise
    if units is None or all(layout.source.unit is None for layout in plan.compiled.layouts):
        return []
    share = share_reached(noise.kind, plan.strategy.measured, units, noise.blocks)
    if share is None:
        return []
    if units.listable:
        ways = f"{units.by_column.shape[1]:,} contributions, which cover all that one unit can change"
        return [f"The sensitivity is the largest norm of {ways}."]
    found = "the largest contribution of one unit that was found"
    return [f"The sensitivity is an upper bound; {found} reaches {share:.1%} of it."]


def _statement(
    plan: PlannedBatch, answer: Answer, cores: Sequence[tuple[Core, tuple[slice, ...]]], layouts: dict[str, Layout]
) -> list[str]:
    lines = [answer.name]
    for number, (core, slices) in enumerate(cores):
        mark = "" if len(cores) == 1 else f" (noisy_{number + 1})"
        layout = layouts[core.queries[0].table]
        shared = _shared(core)
        text = [condition_text(part, _lines_of(layout)) for part in shared]
        where = f", where {' AND '.join(f'({t})' if ' OR ' in t else t for t in text)}" if text else ""
        lines += _item("private" if number == 0 else "", f"{_rows(layout)}{where}{_grouped(core.keys)}{mark}")
        lines += _numbers(plan, core, slices, layouts, frozenset(shared))
        for column in core.columns:
            if isinstance(column, Derived | Ranked):
                lines += _item("derived", _derived(column, core))
    if not cores:
        lines += _item("private", "nothing of its own: it reads results of this batch, which are noisy already")
    if answer.outer is None:
        lines += _item("afterwards", "nothing: the noisy table is the result")
    else:
        lines += _item("afterwards", _outer(answer))
    return lines


def _by_table(layouts: Sequence[Layout]) -> dict[str, Layout]:
    """One layout a table: of several, one with the axes of all, whose entries mean nothing."""
    found: dict[str, Layout] = {}
    axes: dict[str, dict[int, Axis]] = {}
    for layout in layouts:
        found.setdefault(layout.table, layout)
        axes.setdefault(layout.table, {}).update({id(axis): axis for axis in layout.cells.axes})
    several = {name for name in found if sum(layout.table == name for layout in layouts) > 1}
    return {
        name: replace(layout, cells=Grid(tuple(axes[name].values()))) if name in several else layout
        for name, layout in found.items()
    }


def _item(label: str, text: str, hang: int = 2) -> list[str]:
    """``text`` under a label, wrapped; tables of units go without the mark that tells them apart."""
    text = _MARK.sub("", text)
    first = f"  {label}".ljust(2 + _LABEL)
    rest = " " * (2 + _LABEL + hang)
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _rows(layout: Layout) -> str:
    """What a scan reads: the table, its joins, which rows of a unit count."""
    source = layout.source
    parts = [f"rows of {source.table}" if source.of is None else f"each {source.of.unit} of {source.table} as one row"]
    if source.windows is not None:
        parts.append(f", with {', '.join(column.name for column in source.windows.columns)}")
    joined = [join.name for join in source.joins]
    if joined:
        parts.append(f", each with at most one row of {', '.join(joined)}")
    if source.unit is not None and source.of is None:
        unit = source.unit.name
        if source.counts_units:
            parts.append(f", each {unit} once a cell and in at most {source.limit:,} cells")
        else:
            parts.append(f", at most {source.limit:,} of each {unit}")
    if source.each is not None:
        parts.append(f", each value of {source.each.column} once a cell")
    return "".join(parts)


def _grouped(keys: Sequence[Key]) -> str:
    if not keys:
        return ""
    return ", by " + " and ".join(f"{key.name} ({_groups(key)})" for key in keys)


def _groups(key: Key) -> str:
    several = f"{len(key):,} group{'' if len(key) == 1 else 's'}"
    if isinstance(key, CaseKey | RangeKey):
        return several
    extra = [word for word, there in (("other", key.other), ("NULL", key.nulls)) if there]
    return several + (f", {' and '.join(extra)} among them" if extra else "")


def _conjuncts(condition: Condition) -> tuple[Condition, ...]:
    if isinstance(condition, And):
        return condition.operands
    return () if condition == TRUE else (condition,)


def _shared(core: Core) -> tuple[Condition, ...]:
    """The conditions that every number of the core asks of its rows: said once."""
    every = [_conjuncts(term.condition) for output in core.outputs for term in output.terms]
    return tuple(part for part in every[0] if all(part in other for other in every)) if every else ()


def _without(output: Output, shared: frozenset[Condition]) -> Output:
    terms = tuple(
        replace(term, condition=conjunction(*(part for part in _conjuncts(term.condition) if part not in shared)))
        for term in output.terms
    )
    return replace(output, terms=terms)


def _numbers(
    plan: PlannedBatch,
    core: Core,
    slices: Sequence[slice],
    layouts: dict[str, Layout],
    shared: frozenset[Condition],
) -> list[str]:
    """The private numbers of a core: what is counted or summed, and how far off it may be."""
    lines: list[str] = []
    names = {
        column.output: column.title or column.name
        for column in core.columns
        if not isinstance(column, KeyOutput | Derived | Ranked)
    }
    for number, (output, part) in enumerate(zip(core.outputs, slices, strict=True)):
        if number == _NUMBERS:
            return lines + _item("", f"... and {len(core.outputs) - _NUMBERS:,} more like them", 4)
        layout = layouts[core.queries[core.places[number][0]].table]
        what = output_text(_without(output, shared), _lines_of(layout))
        if layout.source.each is not None:
            what = what.replace("COUNT(*)", f"COUNT(DISTINCT {layout.source.each.column})", 1)
        elif layout.source.distinct and layout.source.unit is not None:
            what = what.replace("COUNT(*)", f"COUNT(DISTINCT {layout.source.unit.name})", 1)
        name = f"{names[number]} = " if number in names else ""
        error = float(np.sqrt(plan.mean_square(part)))
        groups = f" in each of {core.rows:,} groups" if core.keys else ""
        lines += _item("", f"[{number + 1}] {name}{what}{groups}, standard error {figure(error)}", 4)
    return lines


def _lines_of(layout: Layout) -> Lines:
    return {axis.column: axis.line for axis in layout.cells.axes if isinstance(axis, LineAxis | RunAxis)}


def _derived(column: Derived | Ranked, core: Core) -> str:
    title = column.title or column.name
    if isinstance(column, Ranked):
        first, last = column.prefixes[0] + 1, column.prefixes[-1] + 1
        return (
            f"{title} = the value at rank {column.q:g} of the prefix counts [{first}] to [{last}]; its interval holds "
            "the values whose ranks are within the counts' errors"
        )
    return f"{title} = {_formula(column.formula)}; {_interval(column.formula)}"


def _formula(formula: Formula, nested: bool = False) -> str:
    """A formula over the numbers in brackets."""
    match formula:
        case Leaf(index):
            return f"[{index + 1}]"
        case Number(value):
            return f"{float(value):.10g}"
        case Negative(of):
            return f"-{_formula(of, True)}"
        case Default(of):
            return f"coalesce({_formula(of)}, 0)"
        case Root(of):
            return f"sqrt({_formula(of)})"
        case Variance(count, total, squares, _, sample):
            parts = ", ".join(_formula(part) for part in (count, total, squares))
            return f"{'sample ' if sample else ''}variance from ({parts})"
        case Fit(moments, what=what, at=at):
            number = f" {at}" if what in ("coefficient", "stderr", "p_value") else ""
            return f"{what}{number} of least squares from {_listed(moments)}"
        case Comparison(groups, what=what):
            return f"{what} of Welch's test from {_listed([part for group in groups for part in group])}"
        case Independence(counts, what=what):
            return f"{what} of independence from {_listed(counts)}"
        case Gini(prefixes):
            return f"Gini's coefficient from the prefix counts {_listed(prefixes)}"
        case Sum(parts):
            text = " + ".join(_formula(part, True) for part in parts).replace("+ -", "- ")
        case Product(parts):
            text = " * ".join(_formula(part, True) for part in parts)
        case Quotient(numerator, denominator):
            text = f"{_formula(numerator, True)} / {_formula(denominator, True)}"
    return f"({text})" if nested else text


def _listed(parts: Sequence[Formula]) -> str:
    """The first and the last of the numbers that a statistic is made of."""
    return _formula(parts[0]) if len(parts) == 1 else f"{_formula(parts[0])} to {_formula(parts[-1])}"


def _interval(formula: Formula) -> str:
    """How the interval of a formula is made."""
    match formula:
        case Quotient(_, _, bounds):
            within = "" if bounds is None else f", within {_end(bounds[0])} to {_end(bounds[1])}"
            return f"Fieller's interval of a ratio{within}"
        case Root(Variance()):
            return "the roots of the ends of the variance's interval"
        case Variance():
            return "Fieller's interval about the estimated mean"
        case Fit(what="stderr" | "p_value") | Comparison() | Independence():
            return "its law includes the noise, so that it has no interval"
        case Fit() | Gini():
            return "Fieller's interval of the ratio that it is, linearised"
        case Default(of):
            return _interval(of)
        case Root():
            return "the roots of the ends of an interval"
    return "the intervals of its parts, combined"


def _end(value: float) -> str:
    return "any number" if not np.isfinite(value) else f"{value:g}"


def _outer(answer: Answer) -> str:
    """The outer SQL over noisy tables, with the names that the statement gives to columns."""
    assert answer.outer is not None  # noqa: S101 - narrows the type for the checker
    sql = answer.outer.sql(False)
    tables = {
        identifier(core.name): "noisy" if len(answer.cores) == 1 else f"noisy_{at + 1}"
        for at, core in enumerate(answer.cores)
    }
    tables |= {identifier(name): _bare(name) for name in answer.reads}
    sql = _NOISY.sub(lambda found: tables.get(found[1] or found[2], found[0]), sql)
    for core in answer.cores[:1]:
        for column in core.columns:
            shown = column.key.name if isinstance(column, KeyOutput) else column.title
            for suffix in ("", *OTHER, *ERRORS, *HIDDEN):
                sql = sql.replace(identifier(column.name + suffix), _bare((shown or column.name) + suffix))
    sql = re.sub(r'"([a-z_][a-z_0-9]*)"', r"\1", sql)
    sql = re.sub(r"\b(\w+) AS \1\b", r"\1", sql)
    sql = " ".join("".join(c if c.isprintable() else " " for c in sql).split())
    shown = sql if len(sql) <= _LONGEST else sql[: _LONGEST - 4] + " ..."
    return f"free, by DuckDB: {shown}"


def _bare(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else identifier(name)
