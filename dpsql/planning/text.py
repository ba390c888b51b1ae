"""A plan as people read it: the guarantee, the cost, the noise, and an error bar on every number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpsql.common.arrays import Json
from dpsql.errors import Error, listed
from dpsql.planning.guesses import Guesses
from dpsql.planning.one_by_one import HELD
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.target_errors import wanted_text
from dpsql.privacy.amounts import show
from dpsql.strategies.choose.task import BY_SOURCE
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.scan_cost import scan_text
from dpsql.workloads.compile.sparse_counts import compile_sparse
from dpsql.workloads.compile.structured import Structured
from dpsql.workloads.expr.batch import KeyOutput, Measured

SHOWN = 60
_QUICKLY_BOUNDED = 256  # cells up to which a bound for pure noise takes next to no time
_WIDE = 0.05  # a gap that is said to be wide, and why
_MANY_GROUPS = 1_000  # of a count by groups, from which on most may be empty
_MANY_ROWS = 1_000_000  # from which on it is no matter of course that a table has so many


def plan_rows(plan: PlannedBatch) -> list[dict[str, Any]]:
    """One record a private column: result, column, numbers, stderr (root mean square, largest), half_width, naive.

    Errors of averages, ratios and quantiles depend on the answer: they are estimates, and ``group_rows`` are the rows
    of a group that they assume (``dpsql.planning.guesses``), None for all others. ``expected``: the answer in a group
    where ``expected_rows`` of the policy spread evenly, and all of them met the conditions. None, too, where there is
    none.
    """
    rows, guesses = [], Guesses(plan)
    for core, slices in plan.cores:
        for column in core.columns:
            if isinstance(column, KeyOutput):
                continue
            row: dict[str, Any] = {
                "result": core.name.split("#")[0],
                "column": column.title or column.name,
                "groups": ", ".join(key.name for key in core.keys),
                "numbers": core.rows,
                "stderr": None,
                "stderr_max": None,
                "half_width": None,
                "naive_stderr": None,
                "group_rows": None,
                "expected": None,
            }
            if isinstance(column, Measured):
                part = slices[column.output]
                row["stderr"] = float(np.sqrt(plan.mean_square(part)))
                row["stderr_max"] = float(plan.errors[part].max())
                row["half_width"] = float(plan.widths[part].max())
                row["naive_stderr"] = float(np.sqrt(plan.naive_square(part)))
                row["expected"] = guesses.answer(core, core.outputs[column.output])
                ceilings = plan.compiled.ceilings if isinstance(plan.compiled, Compiled) else None
                if row["expected"] is not None and ceilings is not None:  # there are no more values than so many
                    row["expected"] = min(row["expected"], float(ceilings[part].min()))
            elif (guessed := guesses.errors(core, slices, column)) is not None:
                row.update(stderr=guessed.stderr, half_width=guessed.half_width, naive_stderr=guessed.naive)
                row.update(group_rows=guessed.rows, expected=guessed.value)
            rows.append(row)
    return rows


def plan_head(plan: PlannedBatch, rows: Sequence[Json] = (), *, details: bool = False) -> list[str]:
    """The facts of a plan as text, a line each under a label of one width."""
    return [f"{label:<11}{text}" for label, text in plan_facts(plan, rows, details=details)]


def plan_facts(plan: PlannedBatch, rows: Sequence[Json] = (), *, details: bool = False) -> list[tuple[str, str]]:
    """Guarantee, cost, sizes, the scan, noise, what else could have paid, notes on the conditions, each labelled.

    A warning where errors of ``rows``, those of ``plan_rows``, are as large as the answers, or rest on sizes of groups
    that the policy does not declare.
    ``details`` adds what only readers of the mathematics ask for: the charge as the ledger counts it, the cells that
    the batch tells apart, and the strategy that is measured, which stands in the place of the noise.
    """
    facts = [("Guarantee", plan.privacy), ("Cost", _cost(plan))]
    if details:
        facts.append(("Charge", f"{plan.charge.measure} {plan.charge.amount:.6g} of the {plan.charge.account} account"))
    if plan.wanted is not None:  # the error that the budget was found for
        facts.append(("Wanted", wanted_text(plan.wanted, plan.alpha)))
    if plan.reads is not None:
        most = plan.reads.most
        units = "" if most in (None, 1) else f"; the budget holds for units with rows in up to {most} of them"
        facts.append(
            ("Periods", f"{plan.reads}, charged to {'it' if len(plan.reads.read) == 1 else 'each'} alone{units}")
        )
    facts.append(("Batch", _batch(plan)))
    if details:
        facts.append(("Cells", _cells(plan)))
    scan = scan_text(plan.compiled.layouts, plan.expected_rows)
    if scan:
        facts.append(("Scan", scan))
    if plan.rests_on:
        facts.append(("Earlier", _rests(plan)))
    facts.append(("Strategy", _strategy(plan)) if details else ("Noise", _noise(plan)))
    facts += [("Instead", text) for text in _alternatives(plan, details=details)]
    if plan.local_comparison is not None:
        facts.append(("Local", str(plan.local_comparison)))
    lost, worse = hidden_text(plan, rows), "" if plan.estimated else worse_text(rows)
    guessed = "" if plan.estimated else undeclared_text(plan, rows)
    return [
        *facts,
        *[("Warning", text) for text in (lost, guessed) if text],
        *([("Note", worse)] if worse else []),
        *[("Note", note) for note in plan.notes],
    ]


def _rests(plan: PlannedBatch) -> str:
    """Which earlier releases the answers rest on, too."""
    without = plan.without_earlier
    gain = "" if without is None else f"; without, {(without.error / plan.error) ** 0.5:.2f} times the error"
    return f"rests on {releases_named(plan.rests_on)} and the new measurement, which alone is charged{gain}"


def plan_text(plan: PlannedBatch) -> str:
    """The whole plan as text, its first line the guarantee."""
    level = f"{100 * (1 - plan.alpha):g}%"
    rows = plan_rows(plan)
    lines = [*plan_head(plan, rows), ""]
    header = ("result", "column", "numbers", "std error", f"{level} within", "one by one", "gain")
    body = [(*plan_cells({**row, "column": _shortened(row["column"])}), _gain(row)) for row in rows]
    shown = body if len(body) <= SHOWN else body[: SHOWN - 10]
    lines += aligned(header, shown, left=(0, 1))
    if len(shown) < len(body):
        lines.append(f"... and {len(body) - len(shown)} more result columns; plan.rows() has them all")
    lines.append("")
    if said := getattr(plan.strategy, "errors_said", ""):
        lines.append(said)
    elif plan.estimated:
        lines.append(
            "Errors depend on the data. These are estimated, not certified: root mean squares over runs on public "
            f"stand-ins (rows spread evenly, by Zipf's law, in few cells); '{level} within' is a normal law's "
            "multiple. What a release states is larger where its measurements show more rows than expected, or a worse "
            "fit."
        )
    else:
        sources = [layout.source for layout in plan.compiled.layouts]
        cut = any(source.unit is not None and not source.single for source in sources)
        lines.append(
            f"Errors are known before anything is spent. '{level} within' holds for each number by itself; it leaves "
            f"out what clamping to declared bounds changes{', and rows of a unit beyond those that count' * cut}."
        )
    lines += [text for text in [guess_text(plan, rows)] if text]
    if any(row["stderr"] is None for row in rows):
        lines.append("'depends': an average, ratio or quantile of such numbers; its error depends on the answer.")
    lines.append(
        "'one by one' is the standard error if each result column were measured apart, with the same noise and total "
        "budget."
    )
    lines.append("What the words mean: dpsql glossary. How it is measured: plan.explain(), or dpsql plan --explain.")
    return "\n".join(lines)


def plan_cells(row: Json, depends: str = "depends") -> tuple[str, str, str, str, str, str]:
    """A record of ``plan_rows`` as people read it: result, column by groups, numbers, error, half-width, one by one.

    ``depends`` stands for an error that depends on the answer.
    """
    column = row["column"] + (f" by {row['groups']}" if row["groups"] else "")
    errors = (depends, "", "")
    if row["stderr"] is not None:
        about = "" if row["group_rows"] is None else "~"
        shown = figure(row["stderr"]), "±" + figure(row["half_width"]), figure(row["naive_stderr"])
        errors = about + shown[0], about + shown[1], about + shown[2]
    return row["result"], column, f"{row['numbers']:,}", *errors


def guess_text(plan: PlannedBatch, rows: Sequence[Json]) -> str:
    """What estimated errors of averages, ratios and quantiles rest on, and what they leave out: which share of the
    rows the limits of a unit keep is not public. Empty where there are none.
    """
    sizes = sorted({row["group_rows"] for row in rows if row["group_rows"] is not None})
    if not sizes:
        return ""
    span = figure(sizes[0]) if len(sizes) == 1 else f"{figure(sizes[0])} to {figure(sizes[-1])}"
    limits = [
        f"{_count(source.most, 'row')} a {source.unit.name} in {source.table}"
        for source in dict.fromkeys(layout.source for layout in plan.compiled.layouts)
        if source.unit is not None and source.of is None and not source.single and not source.counts_units
    ]
    many = len(limits) > 1
    left_out = (
        f" Where the limit{'s' * many} of {listed(limits, 3)} let{'s' * (not many)} only a share k of these rows "
        "count, such errors are about 1/k times as large: twice for a half."
    )
    return (
        f"'~': estimated, as the error of an average, ratio or quantile depends on the answer: for groups of {span} "
        "rows, with values spread evenly within their bounds. expected_rows in the policy says how many rows to expect "
        f"within its limits.{left_out if limits else ''}"
    )


def hidden_text(plan: PlannedBatch, rows: Sequence[Json]) -> str:
    """Which answers the noise is likely to hide, as their intervals are as wide as what is expected; empty for none."""
    hidden = [row for row in rows if row["expected"] and row["half_width"] >= abs(row["expected"])]
    if not hidden:
        return ""
    named = [
        f"{row['result']}.{row['column']} (±{figure(row['half_width'])}, about {figure(row['expected'])} expected)"
        for row in hidden
    ]
    return (
        f"the noise is likely to hide {listed(named, 3)}, where expected_rows spread evenly over the groups; ask for "
        f"fewer or coarser groups or spend more, as plan.what_if() or dpsql plan --what-if has it{_sparse(plan)}"
    )


def undeclared_text(plan: PlannedBatch, rows: Sequence[Json]) -> str:
    """Which errors rest on no declared number of rows, and which counts need very many; empty for none.

    ``expected`` of an average, ratio or quantile is None where its group's size is assumed.
    """
    tables = [layout.source.table for layout in plan.compiled.layouts]
    silent = [table for table in dict.fromkeys(tables) if table not in plan.expected_rows]
    guessed = [row for row in rows if row["group_rows"] is not None and row["expected"] is None]
    outputs = [
        core.outputs[column.output] if isinstance(column, Measured) and core.keys else None
        for core, _ in plan.cores
        for column in core.columns
        if not isinstance(column, KeyOutput)
    ]
    needed = [
        (row["numbers"] * row["half_width"], row)
        for row, output in zip(rows, outputs, strict=False)
        if output is not None and output.counts and row["expected"] is None
    ]
    counts = [(total, row) for total, row in needed if total >= _MANY_ROWS]
    if not silent or not (guessed or counts):
        return ""
    said = []
    if guessed:
        size = figure(guessed[0]["group_rows"])
        said.append(f"errors marked '~' assume {size} rows in each group and are larger where there are fewer")
    if counts:
        total, row = max(counts, key=lambda pair: pair[0])
        said.append(
            f"the noise hides most of {row['result']}.{row['column']} (±{figure(row['half_width'])} in each of "
            f"{row['numbers']:,} groups) unless there are some {total / 1e6:,.0f} million rows"
        )
    many = _sparse(plan) if counts else ""
    return (
        f"nothing declares how many rows there are in {listed(silent, 3)}: {', and '.join(said)}; add expected_rows "
        f"to the policy, a public guess that changes no answer{many}"
    )


def _sparse(plan: PlannedBatch) -> str:
    """The method that shows the large ones of very many groups alone, where the batch is one for it; else empty."""
    if plan.origin is None or plan.charge.epsilon is None or plan.compiled.numbers < _MANY_GROUPS:
        return ""
    understood = plan.origin.prepared.understood
    try:
        compile_sparse(understood.queries, understood.tables)
    except Error:
        return ""
    return "; method='sparse' shows the groups that stand out of the noise alone, and lists no empty ones"


def worse_text(rows: Sequence[Json]) -> str:
    """Which columns of counts and sums the batch serves worse than each alone would be; empty for none."""
    worse = [
        f"{row['result']}.{row['column']} ({row['stderr'] / row['naive_stderr']:.2f} times the error)"
        for row in rows
        if row["group_rows"] is None and row["stderr"] and row["stderr"] > HELD**0.5 * (row["naive_stderr"] or np.inf)
    ]
    if not worse:
        return ""
    return (
        f"the others gain at the cost of {listed(worse, 3)}, beside one by one; ask for it in a batch of its own, or "
        "let it count more with /*+ WEIGHT(2) */"
    )


def errors_said(rows: Sequence[Json]) -> str:
    """The standard errors of the columns ``rows`` in a few words, of several numbers the largest; empty for none."""
    shown = [
        f"{row['result']}.{row['column']} {'up to ' * (row['numbers'] > 1)}{figure(row['stderr_max'] or row['stderr'])}"
        for row in rows
        if row["stderr"] is not None
    ]
    return f"standard error{'s' * (len(shown) > 1)}: {listed(shown, 6)}" if shown else ""


def _gain(row: Json) -> str:
    return f"{row['naive_stderr'] / row['stderr']:.1f}x" if row["stderr"] else ""


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def releases_named(numbers: Sequence[int]) -> str:
    return f"release{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """A table as lines; columns are set right but for those of ``left``."""
    widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
    return [
        "  ".join(
            text.ljust(w) if i in left else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *rows]
    ]


def figure(value: float) -> str:
    """A number to three significant digits, without an exponent where it is short."""
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else name[:29] + "..."


def cost_text(guarantee: str, noise: str, account: str, amount: float) -> str:
    """What a charge takes, in the figures that people ask with: epsilon, with delta, or rho.

    ``amount`` is in the account's own measure. A rho policy pays for Laplace noise in rho: half of mu squared.
    """
    rho = (noise, account) == ("laplace", "gaussian")
    asked = f"rho {amount / 2:.6g}" if rho else guarantee.removesuffix(" (pure)")
    return f"{asked} from the {account} budget account"


def _cost(plan: PlannedBatch) -> str:
    charge = plan.charge
    account = None if plan.origin is None else plan.origin.state.account(charge.account)
    share = "" if account is None else f", {show(Fraction(100 * charge.units, account.total_units), 3)}% of it"
    short = ""
    if not plan.affordable:
        above = plan.origin is not None and not plan.origin.state.budget.allows(charge)
        short = " (more than one release may cost)" if above else " (more than is left of it)"
    text = cost_text(charge.guarantee, charge.noise, charge.account, charge.amount)
    return f"{text}{share}, once for the whole batch{short}"


def _batch(plan: PlannedBatch) -> str:
    compiled = plan.compiled
    tables = dict.fromkeys(_scan(layout) for layout in compiled.layouts)
    if isinstance(compiled, Structured):
        tables = dict.fromkeys(table.replace("one scan", "scans") for table in tables)
    return f"{_count(len(plan.queries), 'statement')}, {_count(compiled.numbers, 'number')}, {', '.join(tables)}"


def _cells(plan: PlannedBatch) -> str:
    layouts = plan.compiled.layouts
    if isinstance(plan.compiled, Structured):
        return f"{_size(plan.cells)}, counted in {_count(len(layouts), 'histogram')}"
    combinations = sum(layout.cells.combinations for layout in layouts)
    return f"{plan.cells:,}" + (f", of {combinations:,} combinations" if combinations != plan.cells else "")


def _size(number: int) -> str:
    """A number of cells: its digits, or its order where they are many."""
    return f"{number:,}" if number < 10**12 else f"about 10^{len(str(number)) - 1}"


def _scan(layout: Layout) -> str:
    source = layout.source
    if source.each is not None:
        return f"one of the values of {source.each.column} in {source.table}"
    if source.distinct:
        return f"one of the units of {source.table}"
    joined = [table for table in source.tables if table != source.table]
    return f"one scan of {source.table}" + (f" with {', '.join(joined)}" if joined else "")


def _kind(plan: PlannedBatch) -> str:
    if plan.strategy.blocks:
        return f"noise in {_blocks(plan.strategy.blocks)}, by the K-norm mechanism of the max-norm"
    return {"gaussian": "Gaussian noise", "laplace": "Laplace noise"}[plan.strategy.noise]


def _blocks(sizes: tuple[int, ...]) -> str:
    """The blocks of measurements, in words: "a block of 7, 2 blocks of 3 and 12 blocks of 1"."""
    counts = sorted(Counter(sizes).items(), reverse=True)
    shown = [f"a block of {size:,}" if count == 1 else f"{count:,} blocks of {size:,}" for size, count in counts[:3]]
    if len(counts) > 3:
        shown.append(f"{len(counts) - 3} more sizes")
    return listed(shown)


def _certified(plan: PlannedBatch, gap: float, of: str) -> str:
    """How near the error is to the least of all mechanisms ``of`` a kind."""
    without = f"without {releases_named(plan.rests_on)} " if plan.rests_on else ""
    against = f" for units that {plan.against}" if plan.against else ""
    squared = squared_error(plan.strategy.objective)
    return f"{squared} {without}certified within {max(gap, 1e-4):.2%} of the least of {of}{against}"


def _noise(plan: PlannedBatch) -> str:
    """The kind of noise, and how near its error is to the least."""
    strategy, gap = plan.strategy, (plan.without_earlier or plan).gap
    if getattr(strategy, "described", ""):
        short: str = getattr(strategy, "short", "")
        return (
            short or f"integer {_kind(plan)} on questions that are chosen privately by the data; errors are estimated"
        )
    if gap is not None:
        return f"integer {_kind(plan)}; {_certified(plan, gap, 'any plan with such noise')}"
    if strategy.noise == "gaussian":
        what = "largest squared error" if strategy.objective == "max" else "error"
        return f"integer Gaussian noise; how near the {what} is to the least possible is not certified for such a batch"
    if plan.named:
        return f"integer {_kind(plan)}, measured by {plan.named}, which the call names"
    return f"integer {_kind(plan)}, in the way of least error of all that were tried"


def _strategy(plan: PlannedBatch) -> str:
    strategy = plan.strategy
    described: str = getattr(strategy, "described", "")
    if described:
        return described
    residuals: Any = getattr(strategy, "residuals", ())
    parts = f" of {len(residuals):,} residuals" if residuals else ""
    gap = (plan.without_earlier or plan).gap
    if gap is None and parts and strategy.noise == "gaussian":
        proof = "the error is exact; how near it is to the least possible is not certified for such a batch"
    elif gap is None:
        considered = ", ".join(dict.fromkeys(name for name, _ in strategy.considered))
        proof = "the call names it" if plan.named else f"the best by computed error of {considered}"
        least = (plan.without_earlier or plan).least_of_pure
        if least is not None:  # a balanced error is a total: its weights are in the rows
            error = squared_error("max" if strategy.objective == "max" else "total")
            units = f" for units that {plan.against}" if plan.against else ""
            proof += f"; its {error} is at most {least[0]:.2f} times the least of {least[1]}{units}"
    else:
        proof = _certified(plan, gap, "any Gaussian matrix mechanism") + _why_wide(plan, gap)
    measured = f"{_count(strategy.shape[0], 'measurement')}{parts}"
    return f"{strategy.method}, {measured} with integer {_kind(plan)}; {proof}"


def squared_error(objective: str) -> str:
    """What an objective minimises, in words."""
    return {"max": "largest squared error", "balanced": "balanced squared error"}.get(objective, "total squared error")


def _why_wide(plan: PlannedBatch, gap: float) -> str:
    """What a wide certificate stands for."""
    if gap <= _WIDE or plan.named:
        return ""
    if plan.strategy.method == BY_SOURCE:
        return "; all that one unit can change at once is too much to list, so that sources are planned one by one"
    own = plan.strategy.gap
    if own is not None and own < gap / 2:
        return "; the bound is for units with rows in one table, and the rest is what units with rows in several cost"
    return "; the search ended there (tolerance, time_limit)"


def cut_short(plan: PlannedBatch, limit: float, late: Sequence[str]) -> str:
    """What a time limit left out of the search for the plan, ``late`` as of ``planning.prepare.watched``, and by how
    much more time could make its error less, where a bound tells that at once.
    """
    squared, gap = squared_error(plan.strategy.objective), plan.gap
    left_out = listed(sorted({name for name in late if name}))
    said = f"the time limit of {limit:g} s ended the search" + (f" before {left_out}" if left_out else "")
    if gap is not None:
        return f"{said}; the {squared} is at most {1 + gap:.2f} times the least of any plan with such noise"
    least = plan.least_of_pure if plan.compiled.cells <= _QUICKLY_BOUNDED else None
    if least is not None:
        return f"{said}; the {squared} is at most {least[0]:.2f} times the least of {least[1]}"
    return f"{said}; how near the {squared} is to the least is not known"


def _alternatives(plan: PlannedBatch, *, details: bool) -> list[str]:
    chosen = plan.error
    roots = {"max": "largest error", "balanced": "balanced error"}
    what = roots.get(plan.strategy.objective, "root mean squared error")
    return [
        f"{other.charge.guarantee} from the {other.charge.account} budget account"
        + (f" ({other.method}): " if details else ": ")
        + ("at least " if other.at_least else "")
        + ("the same wanted error" if plan.wanted else f"{(other.error / chosen) ** 0.5:.2f} times the {what}")
        + ("" if other.affordable else ", but more than is left of that account or than one release may cost")
        for other in plan.alternatives
    ]
