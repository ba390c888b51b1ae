"""Reports: one self-contained HTML file of a plan or of a release, for readers who will not run anything.

A report of a plan spends nothing; one of a release is made from the releases database alone, which is public. Needs
the extra ``dpsql[plot]`` for its pictures.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING

from dpsql.common.quoting import identifier
from dpsql.errors import InterfaceError
from dpsql.extensions.reports import plots
from dpsql.extensions.reports import report_html as h
from dpsql.extensions.reports.glossary import meanings
from dpsql.extensions.reports.promise import promise
from dpsql.extensions.reports.spending import SHARES, budget_picture
from dpsql.planning.plan import Plan
from dpsql.planning.text import cost_text, guess_text, plan_cells, plan_facts
from dpsql.privacy.amounts import show, show_left
from dpsql.privacy.state import BudgetState
from dpsql.release import ReleaseStore, Result
from dpsql.release.pictures.results import MOST_PANELS
from dpsql.release.pictures.tables import read
from dpsql.surfaces.inputs import Record, release_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PICTURES = 24
_MOST = 20_000  # rows of a result that is read whole
_READING = (
    "Every number here is noisy on purpose: the noise is what protects people. Its size is known exactly, so each "
    "number comes with an interval that holds the answer without noise as often as the plan's confidence says: of 100 "
    "intervals about 5 miss, unless it was planned otherwise. That answer counts of each unit as many rows as is said "
    "above, with values clamped to the declared bounds; what that leaves out no interval covers, and the rows left out "
    "are protected like all others. Counts may be negative or fractional where the truth is small. Groups add up to "
    "the whole where every row is in one of them; rows with undeclared values may be in none. Differences smaller than "
    "the intervals mean nothing."
)


def report_plan(plan: Plan, state: BudgetState | None = None) -> str:
    """A plan as an HTML page: guarantee, cost, the error of every number before anything is spent.

    ``state``: what is spent of the budget so far (``con.budget``), for a picture of it. Spends nothing and reads no
    row. Raises InterfaceError without matplotlib.
    """
    level, charge = f"{100 * (1 - plan.alpha):g} %", plan.charge
    facts = [("Data set", plan.dataset), *plan_facts(plan, plan.rows())[1:]]
    if plan.estimated:
        facts.append(("Errors", "estimates, by simulation on public stand-ins for the data"))
    parts = [
        h.heading("Plan of a release", 1),
        h.paragraph("Nothing was spent and no row was read for this page.", "soft"),
        h.link("What the words on this page mean", "words"),
        h.box(
            f"Guarantee: {plan.privacy}",
            promise(charge.guarantee, charge.noise, charge.account, charge.amount, plan.unit),
        ),
        h.facts(facts),
        h.heading("How precise the answers will be"),
        h.paragraph(
            f"The noise is known before it is drawn. 'Within' is how far a published number may be from the true one, "
            f"{level} of the time, each number by itself; clamping to declared bounds, and rows of a unit beyond those "
            "that count, come on top. 'One by one' is the standard error that the same budget would give if every "
            "result column were paid for apart."
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
    return h.page(f"Plan for {plan.dataset}", [*parts, *_words("".join(parts[:-2]))])


def report_release(store: ReleaseStore, release: int | None = None) -> str:
    """A release as an HTML page: guarantee, budget, every table with its intervals and a picture.

    ``release``: its number, the newest by default. Reads the releases database alone and spends nothing. Raises
    ProgrammingError where there is no such release, OperationalError where the file is missing, InterfaceError
    without matplotlib.
    """
    held, known = release_record(store, release)
    number = held["release_id"]
    guarantee, unit = held["guarantee"], held.get("unit") or ""
    charge = guarantee, held["noise"], held["purse"], held["cost"]
    facts: list[tuple[str, object]] = [
        ("Released", f"{held['released_at']:%Y-%m-%d %H:%M} UTC"),
        *([("Asked by", held["label"])] if held["label"] else []),
        *([("Protects", unit)] if unit else []),
        ("Cost", cost_text(*charge) if held["purse"] else "nothing"),
        ("Numbers", f"{held['queries']:,}, with {held['noise']} noise"),
    ]
    if held["gap"] is not None:
        of = "of the least of any plan with such noise"
        facts.append(("Certificate", f"squared error within {max(held['gap'], 1e-6):.2%} {of}"))
    names = list(held["names"])
    parts = [
        h.heading(f"Release {number}", 1),
        h.paragraph(
            "Every number on this page is public; read who asked, and the batch at its end, before you publish them.",
            "soft",
        ),
        h.link("What the words on this page mean", "words"),
        h.box(f"Guarantee: differential privacy at {guarantee}", promise(*charge, unit)),
        h.facts(facts),
        *_account(held, known),
        h.heading("How to read the numbers"),
        h.paragraph(_READING),
        h.heading("Results" if names else "Results were dropped"),
        *(() if names else [h.paragraph("The views of this release were dropped; its cost stays spent.")]),
        *_results(store, number, names),
        h.heading("The batch"),
        h.code(held["sql"]),
    ]
    return h.page(f"Release {number}", [*parts, *_words("".join(parts[:-2]))])


def _words(shown: str) -> Iterator[str]:
    """The meanings of the glossary's words that a page shows, at its end."""
    found = {
        name: said
        for name, said in meanings().items()
        if name != "core"  # on a page, one of a processor
        and re.search(rf"\b{re.escape(name)}s?\b", re.sub(r"<[^>]*>", " ", shown), re.IGNORECASE)
    }
    yield h.heading("Words on this page", anchor="words")
    yield h.facts(found.items())


def _errors(plan: Plan, level: str) -> str:
    held = plan.rows()
    rows = [plan_cells(row, "depends on the answer") for row in held]
    shown = rows[: h.MOST_ROWS]
    more = (
        h.paragraph(f"The first {len(shown)} of {len(rows):,} result columns.", "note")
        if len(shown) < len(rows)
        else ""
    )
    guessed = guess_text(plan, held)
    estimated = h.paragraph(guessed, "note") if guessed else ""
    head = ("result", "column", "numbers", "standard error", f"within, {level}", "one by one")
    return h.rows_table(head, shown, (False, False, True, True, True, True)) + more + estimated


def _budget(state: BudgetState | None) -> Iterator[str]:
    if state is None:
        return
    yield h.heading("The budget so far")
    yield h.paragraph(str(state).splitlines()[0].capitalize() + ".")
    yield h.picture(plots.plot_budget(state), "What was spent of each budget account over time, by label")


def _matrices(plan: Plan) -> Iterator[str]:
    for draw, caption in (
        (plots.plot_workload, "What is asked"),
        (plots.plot_strategy, "What is measured"),
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


def _numbers(result: Result) -> list[str]:
    """Names of what can be drawn."""
    with contextlib.suppress(InterfaceError):
        return [number.name for number in read(result).numbers]
    return []


def _account(held: Record, known: list[Record]) -> Iterator[str]:
    """What the account held when this release was made, and how it came to that."""
    if held["purse_total"] is None or held["purse_spent"] is None:
        return
    total, spent = held["purse_total"], held["purse_spent"]
    name = f"{held['purse']} budget account"
    if held["purse"] == "gaussian":  # counts mu squared, in which releases add up: shares say more to most readers
        measure, whole, end = SHARES, Fraction(total) / 100, "%"
        holds = f"The {name} counts shares, since what it pays for does not add up in epsilon."
    else:
        measure, whole, end = "epsilon", Fraction(1), ""
        holds = f"The {name} holds epsilon {total:.6g} for ever."
    digits = 3 if end else 6
    gone = show(Fraction(spent) / whole, digits) + end
    left = show_left(Fraction(max(total - spent, 0.0)) / whole, digits) + end
    yield h.heading("The budget")
    yield h.paragraph(
        f"{holds} After this release {gone} was spent and {left} left. Charges add up and are never given back."
    )
    yield h.share(spent, total)
    charges = [
        (row["released_at"].isoformat(), row["label"] or "", row["cost"] / float(whole))
        for row in known
        if row["purse"] == held["purse"] and row["release_id"] <= held["release_id"]
    ]
    made = budget_picture([(held["purse"], measure, total / float(whole), charges)])
    yield h.picture(made, f"What the releases up to this one spent of the {held['purse']} account, by label")


def _results(store: ReleaseStore, release: int, names: list[str]) -> Iterator[str]:
    for at, name in enumerate(names):
        # Results of all ranges of a long line have more rows than anybody lists.
        result = store.sql(f"SELECT * FROM r{release}.{identifier(name)} LIMIT {_MOST + 1}")  # noqa: S608
        whole = len(result) <= _MOST
        yield h.heading(name, 3)
        if whole and at < MOST_PICTURES and len(result) > 1:  # a picture of one row tells no more than the table
            # A picture for each number, below each other: a phone is as wide as one.
            for number in _numbers(result)[:MOST_PANELS]:
                yield h.picture(plots.plot_result(result, value=number), f"{name}, with intervals")
        yield h.result_table(result, "" if whole else f"The first {h.MOST_ROWS} of more than {_MOST:,} rows.")
