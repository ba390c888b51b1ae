"""What-if as people read it: error against budget, what each statement costs the others, what to change."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from dpsql.extensions.advice.suggestions import Suggestion, suggest
from dpsql.extensions.advice.what_if import Cost, amount_of, costs, curve, route_of, saved_amount
from dpsql.planning.figures import aligned, figure
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.release import Result

_COLUMNS = 5  # of the error table
_LINES = 20  # of the cost table


def what_if_text(plan: PlannedBatch, time_limit: float | None = 30.0) -> str:
    """The three parts as text. Cost: that of ``costs`` and ``suggest``, ``time_limit`` seconds each."""
    known = costs(plan, time_limit=time_limit)
    parts = [
        curve_text(plan, curve(plan, points=7)),
        costs_text(plan, known),
        suggestions_text(suggest(plan, time_limit, known)),
    ]
    return "\n\n".join(parts)


def curve_text(plan: PlannedBatch, points: Result) -> str:
    """Largest half-widths, a line a budget and a column for each of the first result columns."""
    route = route_of(plan)
    held: dict[float, dict[tuple[str, str], float]] = {}
    allowed: dict[float, bool] = {}
    for amount, fits, result, column, _, half in points:
        held.setdefault(amount, {})[result, column] = half
        allowed[amount] = fits
    if not held or not any(held.values()):
        return "Error against budget: the errors of averages, ratios and quantiles depend on the answer."
    names = list(next(iter(held.values())))
    shown = names[:_COLUMNS]
    own = (plan.charge.guarantee, min(held, key=lambda amount: abs(math.log(amount / amount_of(plan)))))
    rows = []
    for amount in sorted(held):
        remark = "this plan" if amount == own[1] else "" if allowed[amount] else "more than is allowed"
        rows.append([figure(amount), *[f"±{figure(held[amount][name])}" for name in shown], remark])
    at = "" if route.delta is None or route.noise == "laplace" else f" at delta {float(route.delta):g}"
    head = [route.measure, *[_name(name) for name in shown], ""]
    more = f" ({len(names) - _COLUMNS} more result columns: plan.curve())" if len(names) > _COLUMNS else ""
    level = f"{100 * (1 - plan.alpha):.6g}%"
    title = f"Error against {route.measure}{at}: each number within, at {level}{more}"
    return "\n".join([title, *_table(head, rows, left=len(head) - 1)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    return [f"  {line}" for line in aligned(head, rows, (left,))]


def _name(name: tuple[str, str]) -> str:
    text = ".".join(" ".join(part.split()) for part in name)
    return text if len(text) <= 24 else text[:21] + "..."


def costs_text(plan: PlannedBatch, costed: Sequence[Cost]) -> str:
    """Which statement makes the others worse, by how much, and what it costs at the errors that they have."""
    route = route_of(plan)
    if len(costed) == 1 and costed[0].times is None:
        return f"Cost of each statement: {costed[0].result} is the only one, {plan.charge.guarantee}."
    rows = []
    for cost in costed[:_LINES]:
        times = "" if cost.times is None else f"{cost.times:.2f}x"
        saved = f"{saved_amount(plan, cost):.3g}"
        rows.append([cost.result, f"{cost.numbers:,}", times, saved, f"{cost.amount / plan.charge.amount:.0%}"])
    head = ["result", "numbers", "others' error", f"{route.measure} saved", "of the charge"]
    total = len({answer.name for answer in plan.queries if answer.cores})
    left = total - min(len(costed), _LINES)
    lines = [
        "Cost of each statement: how much larger it makes the errors of the others, and what could be saved without it",
        *_table(head, rows, left=0),
    ]
    if left > 0:
        lines.append(f"... and {left} more statements; plan.marginal_costs(most={total}) works them all out")
    return "\n".join(lines)


def suggestions_text(suggestions: Sequence[Suggestion]) -> str:
    """A line for each suggestion."""
    if not suggestions:
        return "Suggestions: none; nothing that was tried would lower errors by 5 % or more."
    lines = [textwrap.fill(f"- {s.text}", 114, initial_indent="  ", subsequent_indent="    ") for s in suggestions]
    return "\n".join(["Suggestions, each planned again at the same cost", *lines])
