"""A plan explained: for each statement what is measured, what is computed from it, and what DuckDB does afterwards.

Everything is made from what the plan will measure, not from the statement's text: a reader who compares the
two sees what was understood.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpsql.common.chain import shown
from dpsql.planning.figures import Columns, figure, shortened, wrapped
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.prepare import understood_for
from dpsql.planning.text import details_text
from dpsql.policy import Policy
from dpsql.sql import Answer
from dpsql.sql.outer.readable import readable
from dpsql.sql.outer.relation import ERRORS, HIDDEN, OTHER, Relation, gathered
from dpsql.sql.rules import RULES
from dpsql.sql.rules.rule import Heard, listening
from dpsql.strategies import Strategy
from dpsql.strategies.core.reduce import reductions
from dpsql.workloads.cells.grid import Grid
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.sensitivity import share_reached
from dpsql.workloads.expr.batch import Core, Derived, Key, KeyOutput, Output, Ranked
from dpsql.workloads.expr.condition_text import Lines, condition_text, output_text
from dpsql.workloads.expr.conditions import TRUE, And, Condition, conjunction
from dpsql.workloads.expr.formulas import (
    Dated,
    Default,
    Formula,
    Leaf,
    Monotone,
    Negative,
    Number,
    Product,
    Quotient,
    Root,
    Statistic,
    Sum,
    Variance,
    leaves,
)
from dpsql.workloads.expr.regions import Axis, KeyDomain, LineAxis, RunAxis

STATEMENTS = 60
_NUMBERS = 8
_LONGEST = 600
_MARK = re.compile(r" #[0-9a-f]{16}")


def chain(plan: PlannedBatch) -> str:
    """The reductions from the statements to what is measured, a line or more each (``dpsql.common.chain``)."""
    strategy, steps = plan.strategy, plan.compiled.steps
    if isinstance(strategy, Strategy):
        reduced = () if strategy.reduced is None else reductions(strategy.reduced)
        steps = (*strategy.as_measured(plan.compiled).steps, *reduced, *strategy.steps)
    return _MARK.sub("", shown(steps))


def explain(plan: PlannedBatch) -> str:
    """The plan's parts as text: guarantee, cost, sizes, strategy, then every statement.

    "private" is what spends the budget, "derived" what is computed from those numbers with an interval of its own,
    "afterwards" the SQL that DuckDB runs over the noisy tables; the last two are free and reveal nothing more.
    Cost: linear in the statements; at most 60 are shown.
    """
    head, words = details_text(plan)
    lines = [head, *_changes(plan), "", "How the statements become what is measured", *chain(plan).splitlines()]
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
        "Private numbers are measured together, once, for the cost above. What is",
        "derived from them, and what follows, costs nothing and reveals nothing more.",
        "",
        words,
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
        return wrapped(f"The sensitivity is the largest norm of {ways}.", "", "")
    found = "the largest contribution of one unit that was found"
    return wrapped(f"The sensitivity is an upper bound; {found} reaches {share:.1%} of it.", "", "")


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
        lines += _item("afterwards", _outer(answer, answer.outer))
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
    return wrapped(_MARK.sub("", text), f"  {label}".ljust(Columns.EXPLAINED), " " * (Columns.EXPLAINED + hang))


def _rows(layout: Layout) -> str:
    """What a scan reads: the table, its joins, which rows of a unit count."""
    source = layout.source
    of = source.of
    names = "" if of is None else " and ".join(name for name, *_ in of.keys)
    each = f" for each {names}" if names else ""
    parts = [f"rows of {source.table}" if of is None else f"each {of.unit} of {source.table} as one row{each}"]
    if source.windows is not None:
        parts.append(f", with {', '.join(column.name for column in source.windows.columns)}")
    joined = [join.name for join in source.joins]
    if joined:
        parts.append(f", each with at most one row of {', '.join(joined)}")
    if source.unit is not None and source.of is None:
        unit = source.unit.name
        if source.added is not None:
            parts.append(f", added up for each {unit} in each cell")
        elif source.counts_units:
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
    if not isinstance(key, KeyDomain):
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
        case Dated(of, start):
            return f"{_formula(of, True)} days after {np.datetime64(0, 'D') + int(start)}"
        case Monotone(of):
            return f"{formula.words}({_formula(of)})"
        case Statistic():
            return f"{formula.words} from {_listed(formula)}"
        case Sum(parts):
            text = " + ".join(_formula(part, True) for part in parts).replace("+ -", "- ")
        case Product(parts):
            text = " * ".join(_formula(part, True) for part in parts)
        case Quotient(numerator, denominator):
            text = f"{_formula(numerator, True)} / {_formula(denominator, True)}"
    return f"({text})" if nested else text


def _listed(formula: Statistic) -> str:
    """The numbers that a statistic is made of: the first and the last of more than three."""
    used = [f"[{index + 1}]" for index in dict.fromkeys(leaves(formula))]
    if len(used) > 3:
        return f"{used[0]} to {used[-1]}"
    return f"({', '.join(used)})" if len(used) > 1 else used[0]


def _interval(formula: Formula) -> str:
    """How the interval of a formula is made."""
    match formula:
        case Quotient(_, _, bounds):
            within = "" if bounds is None else f", within {_end(bounds[0])} to {_end(bounds[1])}"
            return f"Fieller's interval of a ratio{within}"
        case Root(Variance()):
            return "the roots of the ends of the variance's interval"
        case Statistic():
            return formula.interval
        case Default(of) | Dated(of):
            return _interval(of)
        case Monotone():
            return f"the {formula.words} of the ends of an interval"
    return "the intervals of its parts, combined"


def _end(value: float) -> str:
    return "any number" if not np.isfinite(value) else f"{value:g}"


def _outer(answer: Answer, relation: Relation) -> str:
    """The outer SQL over noisy tables, with the names that the statement gives to columns."""
    several = len(answer.cores) > 1
    tables = {core.name: f"noisy_{at + 1}" if several else "noisy" for at, core in enumerate(answer.cores)}
    if len(answer.cores) > 12:  # too many to be written out
        relation, unions = gathered(relation)
        tables |= dict.fromkeys(unions, f"noisy_1_to_{len(answer.cores)}")
    titles: dict[str, set[str]] = {}
    for column in (column for core in answer.cores for column in core.columns):
        title = column.key.name if isinstance(column, KeyOutput) else column.title or column.name
        titles.setdefault(column.name, set()).add(title)
    columns = {
        name + suffix: title + suffix
        for name, (title, *others) in titles.items()
        if not others  # a name that means different columns in two noisy tables stays as it is
        for suffix in ("", *OTHER, *ERRORS, *HIDDEN)
    }
    return f"free, by DuckDB: {shortened(readable(relation, tables, columns), _LONGEST)}"


def stages_of(sql: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Heard:
    """The stages that the statements pass, in order, each with what it made. Plans nothing; raises as ``prepare``."""
    with listening() as heard:
        understood_for(sql, policy, schemas)
    return heard


def stages_text(heard: Sequence[tuple[str, str]]) -> str:
    """The same for people: what a stage leaves as it was is not printed again."""
    does = {rule.name: rule.does for rule in RULES}
    lines, before = [], ""
    for name, made in heard:
        same = made == before
        lines += [f"{name:<10} {does[name]}", textwrap.indent("unchanged" if same else made, "  "), ""]
        before = made
    return "\n".join(lines).rstrip()
