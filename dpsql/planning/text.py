"""A plan as people read it: one text of 80 columns for the terminal, notebooks, psql and agents.

``plan_text`` makes its parts, which ``str(plan)`` prints and pages set in HTML: labelled facts and notes, the error of
every result column, and what the words mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpsql.common.arrays import Json
from dpsql.common.chain import order_of
from dpsql.common.pattern_block import PatternBlock
from dpsql.errors import listed, printable
from dpsql.planning.figures import Columns, aligned, budget_name, counted, figure, releases_named, under
from dpsql.planning.guesses import Guesses
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.remarks import remarks, squared_error
from dpsql.planning.target_errors import wanted_text
from dpsql.planning.words import words
from dpsql.privacy.amounts import show
from dpsql.sql import Answer
from dpsql.strategies.choose.task import BY_SOURCE
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.scan_cost import scan_text
from dpsql.workloads.expr.batch import Core, KeyOutput, Measured

SHOWN = 60
WIDE = 0.05  # a gap that is said to be wide, and why; up to it no other way is tried for counts of units
MORE = "plan.explain() or dpsql plan --explain; all words: dpsql glossary"


@dataclass(frozen=True)
class PlanText:
    """The parts of a plan's text: ``facts`` and notes with their labels, a table of errors, ``words`` explained.

    ``rows`` has the columns ``head``; of a plan with very many columns ``more`` says how many are left out.
    """

    facts: tuple[tuple[str, str], ...]
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str
    words: tuple[tuple[str, str], ...]

    @property
    def facts_text(self) -> str:
        """The facts as lines of at most 80 columns."""
        return "\n".join(line for label, text in self.facts for line in under(label, text, Columns.LABEL))

    @property
    def words_text(self) -> str:
        """The words as lines of at most 80 columns."""
        return "\n".join(line for word, text in self.words for line in under(word, text, Columns.WORD))

    def __str__(self) -> str:
        left = [at for at, name in enumerate(self.head) if name in ("result", "column", "by")]
        table = [*aligned(self.head, self.rows, left, Columns.ALL), *([self.more] if self.more else [])]
        return "\n\n".join([self.facts_text, "\n".join(table), self.words_text])


def plan_rows(plan: PlannedBatch) -> list[dict[str, Any]]:
    """One record a private column: result, column, numbers, stderr (root mean square, largest), half_width, naive.

    Errors of averages, ratios and quantiles depend on the answer: they are estimates, and ``group_rows`` are the rows
    of a group that they assume (``dpsql.planning.guesses``), None for all others. ``expected``: the answer in a group
    where ``expected_rows`` of the policy spread evenly, and all of them met the conditions. None, too, where there is
    none.
    """
    rows, guesses = [], Guesses(plan)
    answers = [answer for answer in plan.queries for _ in answer.cores]
    for answer, (core, slices) in zip(answers, plan.cores, strict=True):
        groups = _groups(core, answer)
        for column in core.columns:
            if isinstance(column, KeyOutput):
                continue
            row: dict[str, Any] = {
                "result": core.name.split("#")[0],
                "column": column.title or column.name,
                "groups": groups,
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
                ceilings = plan.compiled.ceilings
                if row["expected"] is not None and ceilings is not None:  # there are no more values than so many
                    row["expected"] = min(row["expected"], float(ceilings[part].min()))
            elif (guessed := guesses.errors(core, slices, column)) is not None:
                row.update(stderr=guessed.stderr, half_width=guessed.half_width, naive_stderr=guessed.naive)
                row.update(group_rows=guessed.rows, expected=guessed.value)
            rows.append(row)
    return rows


def _groups(core: Core, answer: Answer) -> str:
    """The columns that a core groups by, as the result calls them, or by their SQL where it does not show them."""
    keys = [column for column in core.columns if isinstance(column, KeyOutput)]
    if answer.outer is None:
        return ", ".join(dict.fromkeys(column.name for column in keys))
    return ", ".join(dict.fromkeys(answer.aliases.get(column.name, column.key.name) for column in keys))


def plan_text(plan: PlannedBatch, results: Sequence[str] = ()) -> PlanText:
    """The parts of the plan's text, the first of its facts the guarantee; its table of these ``results`` alone."""
    rows = plan_rows(plan)
    facts = [*_facts(plan, details=False), *remarks(plan, rows)]
    chosen = [row for row in rows if not results or row["result"] in results]
    shown = chosen if len(chosen) <= SHOWN else chosen[: SHOWN - 10]
    more = len(rows) - len(shown)
    grouped = any(row["groups"] for row in rows)
    head = ("result", "column", "by", "numbers", "std error", f"{100 * (1 - plan.alpha):g} % within", "gain")
    body = [plan_cells(row) for row in shown]
    kept = [at for at, name in enumerate(head) if name != "by" or grouped]
    said = "\n".join(text for _, text in facts)
    return PlanText(
        tuple((label, str(text)) for label, text in facts),
        tuple(head[at] for at in kept),
        tuple(tuple(cells[at] for at in kept) for cells in body),
        f"... and {counted(more, 'more result column')}; plan.rows() has them all" if more else "",
        (*words(plan, said, rows), ("more", MORE)),
    )


def details_text(plan: PlannedBatch) -> tuple[str, str]:
    """The head of an explanation, and its words: the facts with the charge as the ledger counts it, the cells, and the
    strategy in the place of the noise.
    """
    rows = plan_rows(plan)
    facts = tuple(
        (label, str(text)) for label, text in [*_facts(plan, details=True), *remarks(plan, rows, details=True)]
    )
    said = "\n".join(text for _, text in facts)
    meant = words(plan, f"{said} strategy measurement cell", ())
    text = PlanText(facts, (), (), "", tuple(pair for pair in meant if not pair[0].endswith("within")))
    return text.facts_text, text.words_text


def _facts(plan: PlannedBatch, *, details: bool) -> list[tuple[str, str]]:
    """Guarantee, cost, target, periods, sizes, the scan, earlier releases, noise or strategy, each labelled."""
    facts = [("Guarantee", plan.privacy), ("Cost", _cost(plan))]
    if details:
        what = "mu squared" if plan.charge.measure == "mu^2" else plan.charge.measure
        facts.append(("Charge", f"{what} {plan.charge.amount:.6g} of the {budget_name(plan.charge.account)}"))
    if plan.wanted is not None:  # the error that the budget was found for
        facts.append(("Target", wanted_text(plan.wanted, plan.alpha)))
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
    if details:
        return [*facts, ("Strategy", _strategy(plan))]
    gap = (plan.without_earlier or plan).gap
    return [*facts, ("Noise", _noise(plan)), *([] if gap is None else [("Proof", _proof(plan, gap))])]


def _rests(plan: PlannedBatch) -> str:
    """Which earlier releases the answers rest on, too."""
    without = plan.without_earlier
    gain = "" if without is None else f"; without, {(without.error / plan.error) ** 0.5:.2f} times the error"
    return f"rests on {releases_named(plan.rests_on)} and the new measurement, which alone is charged{gain}"


def plan_cells(row: Json, depends: str = "depends") -> tuple[str, ...]:
    """A record of ``plan_rows`` as people read it: result, column, by, numbers, error, half-width, gain.

    ``depends`` stands for an error that depends on the answer.
    """
    names = printable(row["result"]), printable(row["column"]), printable(row["groups"]), f"{row['numbers']:,}"
    if row["stderr"] is None:
        return *names, depends, "", ""
    about = "" if row["group_rows"] is None else "~"
    if not row["half_width"]:
        return *names, f"{about}0", f"{about}±0", ""
    gain = row["naive_stderr"] / row["stderr"] if row["stderr"] else 0.0
    times = "" if not gain else ">1,000x" if gain > 1_000 else f"{gain:.1f}x"
    return *names, f"{about}{figure(row['stderr'])}", f"{about}±{figure(row['half_width'])}", times


def errors_said(rows: Sequence[Json]) -> str:
    """The standard errors of the columns ``rows`` in a few words, of several numbers the largest; empty for none."""
    shown = [
        f"{row['result']}.{row['column']} {'up to ' * (row['numbers'] > 1)}{figure(row['stderr_max'] or row['stderr'])}"
        for row in rows
        if row["stderr"] is not None
    ]
    return f"standard error{'s' * (len(shown) > 1)}: {listed(shown, 6)}" if shown else ""


def cost_text(guarantee: str, noise: str, account: str, amount: float) -> str:
    """What a charge takes, in the figures that people ask with: epsilon, with delta, or rho.

    ``amount`` is in the account's own measure. A rho policy pays for Laplace noise in rho: half of mu squared.
    """
    rho = (noise, account) == ("laplace", "gaussian")
    asked = f"rho {amount / 2:.6g}" if rho else guarantee.removesuffix(" (pure)")
    return f"{asked} from the {budget_name(account)}"


def _cost(plan: PlannedBatch) -> str:
    """Which share of which budget the batch uses."""
    charge = plan.charge
    account = None if plan.origin is None else plan.origin.state.account(charge.account)
    rho = f" (rho {charge.amount / 2:.6g})" if (charge.noise, charge.account) == ("laplace", "gaussian") else ""
    what = charge.guarantee.removesuffix(" (pure)")
    share = what if account is None else f"{show(Fraction(100 * charge.units, account.total_units), 3)} %"
    short = ""
    if not plan.affordable:
        above = plan.origin is not None and not plan.origin.state.budget.allows(charge)
        short = "; this is more than one release may cost" if above else "; this is more than is left of it"
    return f"uses {share} of the {budget_name(charge.account)}{rho}, once for the whole batch{short}"


def _batch(plan: PlannedBatch) -> str:
    compiled = plan.compiled
    tables = dict.fromkeys(_scan(layout) for layout in compiled.layouts)
    if compiled.blocks:
        tables = dict.fromkeys(table.replace("one scan", "scans") for table in tables)
    return f"{counted(len(plan.queries), 'statement')}, {counted(compiled.numbers, 'number')}, {', '.join(tables)}"


def _cells(plan: PlannedBatch) -> str:
    layouts = plan.compiled.layouts
    if plan.compiled.blocks:
        return f"{order_of(plan.cells)}, counted in {counted(len(layouts), 'histogram')}"
    combinations = sum(layout.cells.combinations for layout in layouts)
    return f"{plan.cells:,}" + (f", of {combinations:,} combinations" if combinations != plan.cells else "")


def _scan(layout: Layout) -> str:
    source = layout.source
    if source.each is not None:
        return f"one scan of {source.table} that counts each value of {source.each.column} once"
    if source.distinct and source.unit is not None:
        does = "counts each" if source.added is None else "adds up the rows of each"
        return f"one scan of {source.table} that {does} {source.unit.name}{' once' * (source.added is None)}"
    joined = [table for table in source.tables if table != source.table]
    return f"one scan of {source.table}" + (f" with {', '.join(joined)}" if joined else "")


def _kind(plan: PlannedBatch) -> str:
    """The noise as readers of the mathematics call it."""
    if any(isinstance(block, PatternBlock) for block in plan.strategy.blocks):
        return f"noise in {_blocks(plan.strategy.blocks)}, by K-norm mechanisms of what one unit can change"
    if plan.strategy.blocks:
        return f"noise in {_blocks(plan.strategy.blocks)}, by the K-norm mechanism of the max-norm"
    return f"{_law(plan)} noise"


def _law(plan: PlannedBatch) -> str:
    return {"gaussian": "Gaussian", "laplace": "Laplace"}[plan.strategy.noise]


def _blocks(sizes: tuple[int, ...]) -> str:
    """The blocks of measurements, in words: "a block of 7, 2 blocks of 3 and 12 blocks of 1"."""
    counts = sorted(Counter(sizes).items(), reverse=True)
    shown = [f"a block of {size:,}" if count == 1 else f"{count:,} blocks of {size:,}" for size, count in counts[:3]]
    if len(counts) > 3:
        shown.append(f"{len(counts) - 3} more sizes")
    return listed(shown)


def _proof(plan: PlannedBatch, gap: float) -> str:
    """How near the error is to the least of all plans with such noise."""
    objective = plan.strategy.objective
    error = {"max": "a largest squared error", "balanced": "squared errors"}.get(objective, "a total squared error")
    mean = ", averaged over the columns" * (objective == "balanced")
    without = f" without {releases_named(plan.rests_on)}" if plan.rests_on else ""
    less = f"{100 * max(gap, 1e-4):.2f} %"
    return f"no plan{without} with such noise has {error} more than {less} smaller{mean}{_wider(plan)}"


def _wider(plan: PlannedBatch) -> str:
    """For which units a bound on the least error is, if it is for more than the policy's."""
    return f"; this bound is for a wider class of units: those that {plan.against}" if plan.against else ""


def _noise(plan: PlannedBatch) -> str:
    """What is added to what, and how that was chosen."""
    strategy = plan.strategy
    if getattr(strategy, "described", ""):
        usual = f"random whole numbers ({_law(plan)} noise) on counts that are chosen privately by the data"
        return str(getattr(strategy, "short", "") or usual)
    name = "K-norm" if strategy.blocks else _law(plan)
    text = f"random whole numbers ({name} noise) are added to {counted(strategy.shape[0], 'count or sum')}"
    text = text.replace("count or sums", "counts and sums") + ", from which all answers follow"
    if plan.named:
        return f"{text}; chosen by the method {plan.named}, which the call names"
    tried = len(dict.fromkeys(name for name, _ in strategy.considered))
    return f"{text}; of {tried} ways to choose them, the best" if tried > 1 else text


def _strategy(plan: PlannedBatch) -> str:
    strategy = plan.strategy
    described: str = getattr(strategy, "described", "")
    if described:
        return described
    residuals: Any = getattr(strategy, "residuals", ())
    parts = f" of {len(residuals):,} residuals" if residuals else ""
    gap = (plan.without_earlier or plan).gap
    if gap is None and parts and strategy.noise == "gaussian":
        proof = "the error is exact; how near it is to the least possible is not proven for such a batch"
    elif gap is None:
        considered = ", ".join(dict.fromkeys(name for name, _ in strategy.considered))
        proof = "the call names it" if plan.named else f"least computed error of {considered}"
        least = (plan.without_earlier or plan).least_of_pure
        if least is not None:  # a balanced error is a total: its weights are in the rows
            error = squared_error("max" if strategy.objective == "max" else "total")
            proof += f"; its {error} is at most {least[0]:.2f} times the least of {least[1]}{_wider(plan)}"
    else:
        proof = _proof(plan, gap) + _why_wide(plan, gap)
    measured = f"{counted(strategy.shape[0], 'measurement')}{parts}"
    return f"{strategy.method}, {measured} with integer {_kind(plan)}; {proof}"


def _why_wide(plan: PlannedBatch, gap: float) -> str:
    """What a wide certificate stands for."""
    if gap <= WIDE or plan.named:
        return ""
    if plan.strategy.method == BY_SOURCE:
        return "; all that one unit can change at once is too much to list, so that sources are planned one by one"
    own = plan.strategy.gap
    if own is not None and own < gap / 2:
        return "; the bound is for units with rows in one table, and the rest is what units with rows in several cost"
    return "; the search ended there (tolerance, time_limit)"
