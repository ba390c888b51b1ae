"""A plan as people read it: the guarantee, the cost, the strategy, and an error bar on every number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from dpsql.plan import Plan

SHOWN = 60


def plan_rows(plan: Plan) -> list[dict[str, Any]]:
    """One record a result column: result, column, numbers, stderr (least and largest), half_width, naive."""
    rows = []
    naive = plan.naive_stderr
    for span in plan.compiled.spans:
        query = plan.queries[span.query]
        columns = list(query.outputs)
        at = columns.index(span.output)
        several = len(columns) > 1
        errors, widths = plan.errors[span.start : span.stop], plan.widths[span.start : span.stop]
        apart = naive[query.name][:, at] if several else naive[query.name]
        rows.append(
            {
                "result": query.name,
                "column": span.output.name,
                "groups": ", ".join(key.column for key in query.keys),
                "numbers": int(span.stop - span.start),
                "stderr": float(np.sqrt(np.mean(errors**2))),
                "stderr_max": float(errors.max()),
                "half_width": float(widths.max()),
                "naive_stderr": float(np.sqrt(np.mean(apart**2))),
            }
        )
    return rows


def plan_text(plan: Plan) -> str:
    """The whole plan as text, its first line the guarantee."""
    level = f"{100 * (1 - plan.alpha):g}%"
    rows = plan_rows(plan)
    lines = [f"Guarantee  {plan.privacy}", _cost(plan), _batch(plan), _strategy(plan)]
    lines.extend(_alternatives(plan))
    lines.append("")
    header = ("result", "column", "numbers", "std error", f"{level} within", "one by one", "gain")
    body = [
        (
            row["result"],
            _shortened(row["column"]) + (f" by {row['groups']}" if row["groups"] else ""),
            f"{row['numbers']}",
            figure(row["stderr"]),
            "±" + figure(row["half_width"]),
            figure(row["naive_stderr"]),
            f"{row['naive_stderr'] / row['stderr']:.1f}x" if row["stderr"] else "",
        )
        for row in rows
    ]
    shown = body if len(body) <= SHOWN else body[: SHOWN - 10]
    widths = [max(len(line[i]) for line in [header, *shown]) for i in range(len(header))]
    for line in [header, *shown]:
        cells = [
            text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if len(shown) < len(body):
        lines.append(f"... and {len(body) - len(shown)} more result columns; plan.rows() has them all")
    lines.append("")
    lines.append(
        f"Errors are known before anything is spent. '{level} within' holds for each number by itself; it leaves out "
        "what clamping to declared bounds changes."
    )
    lines.append(
        "'one by one' is the standard error if each result column were measured apart, with the same noise and total "
        "budget."
    )
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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


def _cost(plan: Plan) -> str:
    charge = plan.charge
    measure = "mu squared" if charge.purse == "gaussian" else "epsilon"
    short = "" if plan.affordable else " (more than is left of it)"
    return f"Cost       {measure} {charge.amount:.6g} of the {charge.purse} purse, once for the whole batch{short}"


def _batch(plan: Plan) -> str:
    compiled = plan.compiled
    tables = ", ".join(f"one scan of {layout.table}" for layout in compiled.layouts)
    combinations = sum(layout.cells.combinations for layout in compiled.layouts)
    merged = f" (of {combinations:,} combinations)" if combinations != plan.cells else ""
    return (
        f"Batch      {_count(len(plan.queries), 'statement')}, {_count(len(compiled.scale), 'number')} over "
        f"{_count(plan.cells, 'cell')}"
        f"{merged}, {tables}"
    )


def _strategy(plan: Plan) -> str:
    strategy = plan.strategy
    if plan.gap is None:
        proof = "the best by computed error of " + ", ".join(dict.fromkeys(name for name, _ in strategy.considered))
    else:
        proof = (
            f"total squared error certified within {max(plan.gap, 1e-6):.2%} of the least of any Gaussian matrix "
            "mechanism"
        )
    kind = {"gaussian": "Gaussian", "laplace": "Laplace"}[strategy.noise]
    return f"Strategy   {strategy.method}, {strategy.shape[0]:,} measurements with integer {kind} noise; {proof}"


def _alternatives(plan: Plan) -> list[str]:
    chosen = plan.charge.unit_variance * plan.strategy.expected
    return [
        f"Instead    {other.charge.guarantee} from the {other.charge.purse} purse ({other.method}): "
        f"{(other.error / chosen) ** 0.5:.2f} times the root mean squared error"
        + ("" if other.affordable else ", but more than is left of that purse")
        for other in plan.alternatives
    ]
