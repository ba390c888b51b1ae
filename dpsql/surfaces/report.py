"""Reports: one self-contained HTML file of a plan or of a release, for readers who will not run anything.

A report of a plan spends nothing; one of a release is made from the releases database alone, which is public. Needs
the extra ``dpsql[plot]`` for its pictures.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from dpsql.errors import InterfaceError
from dpsql.planning.plan import Plan
from dpsql.planning.text import plan_cells, plan_facts
from dpsql.privacy.amounts import show, show_left
from dpsql.privacy.state import BudgetState
from dpsql.quoting import identifier
from dpsql.release import ReleaseStore
from dpsql.surfaces import plots
from dpsql.surfaces import report_html as h
from dpsql.surfaces.inputs import Record, release_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PICTURES = 24
_MOST = 20_000  # rows of a result that is read whole
_EPSILON = (
    "What this means: consider any one {unit}. With or without it in the data, every possible outcome of this "
    "publication is about equally likely: its probability changes by a factor of at most {factor}{slack}. So nobody "
    "who reads these numbers, whatever else they know, can say with confidence whether it was there or what it held."
)
_RHO = (
    "What this means: zero-concentrated differential privacy. With or without any one {unit} in the data, the "
    "distributions of everything published here are close to each other, by a bound that adds up over publications."
)
_FREE = (
    "What this means: these answers were worked out of numbers that had been published before, so they tell nothing "
    "further about anybody and cost nothing."
)
_READING = (
    "Every number here is noisy on purpose: the noise is what protects people. Its size is known exactly, so each "
    "number comes with an interval that holds the true one as often as the plan's confidence says, 95 % of the time "
    "unless it was planned otherwise. Counts may be negative or fractional where the truth is small. Numbers agree "
    "with each other: parts add up to wholes. Differences smaller than the intervals mean nothing."
)


def report_plan(plan: Plan, state: BudgetState | None = None) -> str:
    """A plan as an HTML page: guarantee, cost, the error of every number before anything is spent.

    ``state``: what is spent of the budget so far (``con.budget``), for a picture of it. Spends nothing and reads no
    row. Raises InterfaceError without matplotlib.
    """
    level = f"{100 * (1 - plan.alpha):g} %"
    facts = [("Data set", plan.dataset), *plan_facts(plan)[1:]]
    if plan.estimated:
        facts.append(("Errors", "estimates, by simulation on public stand-ins for the data"))
    parts = [
        h.heading("Plan of a release", 1),
        h.paragraph("Nothing was spent and no row was read for this page.", "soft"),
        h.box(f"Guarantee: {plan.privacy}", _meaning(plan.charge.guarantee, _unit_of(plan.privacy))),
        h.facts(facts),
        h.heading("How precise the answers will be"),
        h.paragraph(
            f"The noise is known before it is drawn. 'Within' is how far a published number may be from the true one, "
            f"{level} of the time, each number by itself; clamping to declared bounds comes on top. 'One by one' is "
            "the standard error that the same budget would give if every result column were paid for apart."
        ),
        _errors(plan, level),
        h.picture(plots.plot_plan(plan), "Standard error of each result column: this plan beside one by one"),
        *_budget(state),
        h.heading("What is asked, and what is measured"),
        h.paragraph(
            "Each line of the first picture is a published number, each column a group of rows that no question tells "
            "apart. The second shows what is measured instead: fewer or better spread sums, from which all answers "
            "follow."
        ),
        *_matrices(plan),
        h.heading("The batch"),
        h.code(plan.sql),
    ]
    return h.page(f"Plan for {plan.dataset}", parts)


def report_release(store: ReleaseStore, release: int | None = None) -> str:
    """A release as an HTML page: guarantee, budget, every table with its intervals and a picture.

    ``release``: its number, the newest by default. Reads the releases database alone and spends nothing. Raises
    ProgrammingError where there is no such release, OperationalError where the file is missing, InterfaceError
    without matplotlib.
    """
    held, known = release_record(store, release)
    number = held["release_id"]
    measure = "mu squared" if held["purse"] == "gaussian" else "epsilon"
    facts: list[tuple[str, object]] = [
        ("Released", f"{held['released_at']:%Y-%m-%d %H:%M} UTC"),
        *([("Asked by", held["label"])] if held["label"] else []),
        ("Cost", f"{measure} {held['cost']:.6g} of the {held['purse']} account"),
        ("Numbers", f"{held['queries']:,}, with {held['noise']} noise, strategy {held['strategy']}"),
    ]
    if held["gap"] is not None:
        facts.append(("Certificate", f"total squared error within {max(held['gap'], 1e-6):.2%} of the least possible"))
    names = list(held["names"])
    parts = [
        h.heading(f"Release {number}", 1),
        h.paragraph("Every number on this page is public.", "soft"),
        h.box(f"Guarantee: differential privacy at {held['guarantee']}", _meaning(held["guarantee"], "privacy unit")),
        h.facts(facts),
        *_purse(held, measure, known),
        h.heading("How to read the numbers"),
        h.paragraph(_READING),
        h.heading("Results" if names else "Results were dropped"),
        *(() if names else [h.paragraph("The views of this release were dropped; its cost stays spent.")]),
        *_results(store, number, names),
        h.heading("The batch"),
        h.code(held["sql"]),
    ]
    return h.page(f"Release {number}", parts)


def _unit_of(privacy: str) -> str:
    """What one neighbour adds or removes, in the words of the guarantee."""
    return privacy.rpartition("adding or removing ")[2].removeprefix("one ") or "privacy unit"


def _meaning(guarantee: str, unit: str) -> str:
    """The guarantee in plain words."""
    words = guarantee.replace(",", " ").replace("(", " ").split()
    held: dict[str, float] = {}
    for name, value in itertools.pairwise(words):
        if name in ("epsilon", "delta", "rho") and re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", value):
            held.setdefault(name, float(value))
    if "rho" in held:
        return _RHO.format(unit=unit)
    if "epsilon" not in held:
        return _FREE
    factor = math.exp(held["epsilon"]) if held["epsilon"] < 20 else math.inf
    shown = f"{factor:.3g}" if math.isfinite(factor) else f"e to the power {held['epsilon']:g}"
    slack = f", but for a chance of at most {held['delta']:g}" if held.get("delta") else ""
    return _EPSILON.format(unit=unit, factor=shown, slack=slack)


def _errors(plan: Plan, level: str) -> str:
    rows = [plan_cells(row, "depends on the answer") for row in plan.rows()]
    shown = rows[: h.MOST_ROWS]
    more = (
        h.paragraph(f"The first {len(shown)} of {len(rows):,} result columns.", "note")
        if len(shown) < len(rows)
        else ""
    )
    head = ("result", "column", "numbers", "standard error", f"within, {level}", "one by one")
    return h.rows_table(head, shown, (False, False, True, True, True, True)) + more


def _budget(state: BudgetState | None) -> Iterator[str]:
    if state is None:
        return
    yield h.heading("The budget so far")
    yield h.paragraph(str(state).splitlines()[0].capitalize() + ".")
    yield h.picture(plots.plot_budget(state), "What was spent of each account over time, by label")


def _matrices(plan: Plan) -> Iterator[str]:
    for draw, caption in (
        (plots.plot_workload, "The workload: what is asked"),
        (plots.plot_strategy, "The strategy: what is measured"),
    ):
        made = _drawn(functools.partial(draw, plan))
        # A matrix too wide to draw is left out: the numbers above do not need it.
        yield h.picture(made, caption) if made is not None else h.paragraph(f"{caption}: too large to draw.", "note")


def _drawn(draw: Callable[[], Figure]) -> Figure | None:
    """The picture, None where there is nothing to draw. Raises InterfaceError without matplotlib."""
    try:
        return draw()
    except InterfaceError as error:
        if "matplotlib" in str(error):
            raise
    return None


def _purse(held: Record, measure: str, known: list[Record]) -> Iterator[str]:
    """What the account held when this release was made, and how it came to that."""
    if held["purse_total"] is None or held["purse_spent"] is None:
        return
    total, spent = held["purse_total"], held["purse_spent"]
    gone, left = show(Fraction(spent), 6), show_left(Fraction(max(total - spent, 0.0)), 6)
    yield h.heading("The budget")
    yield h.paragraph(
        f"The {held['purse']} account holds {measure} {total:.6g} for ever. After this release {gone} was spent and "
        f"{left} left. Charges add up and are never given back."
    )
    yield h.share(spent, total)
    charges = [
        (row["released_at"].isoformat(), row["label"] or "", row["cost"])
        for row in known
        if row["purse"] == held["purse"] and row["release_id"] <= held["release_id"]
    ]
    made = plots.budget_picture([(held["purse"], measure, total, charges)])
    yield h.picture(made, f"What the releases up to this one spent of the {held['purse']} account, by label")


def _results(store: ReleaseStore, release: int, names: list[str]) -> Iterator[str]:
    for at, name in enumerate(names):
        # Results of all ranges of a long line have more rows than anybody lists.
        result = store.sql(f"SELECT * FROM r{release}.{identifier(name)} LIMIT {_MOST + 1}")  # noqa: S608
        whole = len(result) <= _MOST
        yield h.heading(name, 3)
        if whole and at < MOST_PICTURES and len(result) > 1:  # a picture of one row tells no more than the table
            made = _drawn(functools.partial(plots.plot_result, result))
            if made is not None:
                yield h.picture(made, f"{name}, with intervals")
        yield h.result_table(result, "" if whole else f"The first {h.MOST_ROWS} of more than {_MOST:,} rows.")
