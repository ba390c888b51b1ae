"""Reports: one self-contained HTML file of a plan or of a release, for readers who will not run anything.

A report of a plan spends nothing; one of a release is made from the releases database alone, which is public. Needs
the extra ``dpsql[plot]`` for its pictures.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from dpsql.common.quoting import identifier
from dpsql.errors import InterfaceError
from dpsql.extensions.reports import plots
from dpsql.extensions.reports import report_html as h
from dpsql.extensions.reports.glossary import meanings
from dpsql.extensions.reports.promise import promise
from dpsql.extensions.reports.spending import SHARES, budget_picture
from dpsql.planning.figures import budget_name
from dpsql.planning.plan import Plan
from dpsql.planning.text import cost_text, plan_text
from dpsql.privacy.amounts import show, show_left
from dpsql.privacy.state import BudgetState
from dpsql.release import ReleaseStore, Result
from dpsql.release.pictures.results import MOST_PANELS
from dpsql.release.pictures.tables import read
from dpsql.surfaces.inputs import Record, release_record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PICTURES = 24
_LAWS = {"gaussian": "Gaussian", "laplace": "Laplace"}
_MOST = 20_000  # rows of a result that is read whole
_READING = (
    "Random noise was added to every number here on purpose: the noise is what protects people. Its typical size is "
    "known, so each number comes with an interval. About 95 of 100 intervals contain the number without noise, unless "
    "the plan asked for another share. An interval covers the noise alone. It does not cover what the policy leaves "
    "out: rows of a unit beyond its limit, and the part of a value beyond the column's bounds. People whose rows are "
    "left out are protected like all others. A small count may be negative or have decimals. Groups add up to the "
    "total if every row is in one of them; rows with values that the policy does not list may be in none. Two numbers "
    "whose intervals overlap may differ by noise alone."
)


def report_plan(plan: Plan, state: BudgetState | None = None) -> str:
    """A plan as an HTML page: guarantee, cost, the error of every number before anything is spent.

    ``state``: what is spent of the budget so far (``con.budget``), for a picture of it. Spends nothing and reads no
    row. Raises InterfaceError without matplotlib.
    """
    said, charge = plan_text(plan), plan.charge
    facts = [("Data set", f"{plan.dataset}, as the policy names it"), *said.facts[1:]]
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
        h.rows_table(
            said.head, said.rows, ["" if name in ("result", "column", "by") else "right" for name in said.head]
        ),
        *([h.paragraph(said.more, "note")] if said.more else []),
        h.facts(said.words),
        h.picture(plots.plot_plan(plan), _plan_caption(said.rows)),
        *_budget(state),
        h.heading("What is asked, and what is measured"),
        h.paragraph(
            "In the first picture each line across is one number of the results. Each column is one cell: all rows of "
            "the data that are in the same groups and meet the same conditions. The second picture shows the "
            "counts and sums to which noise is added; all results are computed from them."
        ),
        *_matrices(plan),
        h.heading("The batch"),
        h.code(plan.sql),
    ]
    return h.page(f"Plan for the data set {plan.dataset}", [*parts, *_words("".join(parts[:-2]))])


def report_release(
    store: ReleaseStore, release: int | None = None, cut: Sequence[str] = (), state: BudgetState | None = None
) -> str:
    """A release as an HTML page: guarantee, budget, every table with its intervals and a picture.

    ``release``: its number, the newest by default. ``cut``: what is to be said of rows and values that limits cut.
    ``state``: what is spent in all (``con.budget``), where it is known. Reads the releases database and spends nothing.
    Raises ProgrammingError where there is no such release, OperationalError where the file is missing, InterfaceError
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
        ("Numbers", f"{held['queries']:,}, with {_LAWS.get(held['noise'], held['noise'])} noise"),
    ]
    if held["gap"] is not None:
        less = f"{100 * max(held['gap'], 1e-4):.2f} %"
        facts.append(("Proof", f"no plan with such noise has squared errors more than {less} smaller"))
    names = list(held["names"])
    parts = [
        h.heading(f"Release {number}", 1),
        h.paragraph(
            "The numbers are safe to publish. Before you publish this page check two texts that are not protected: the "
            "name under 'Asked by' and the SQL at the end.",
            "soft",
        ),
        h.link("What the words on this page mean", "words"),
        h.box(f"Guarantee: differential privacy at {guarantee}", promise(*charge, unit)),
        h.facts(facts),
        *_account(held, known, state),
        h.heading("How to read the numbers"),
        h.paragraph(_READING),
        *(h.paragraph(f"{note[0].upper()}{note[1:].rstrip('.')}.") for note in cut),
        h.heading("Results" if names else "Results were dropped"),
        *(() if names else [h.paragraph("The views of this release were dropped; its cost stays spent.")]),
        *_results(store, number, names, _level(state, number)),
        h.heading("The batch"),
        h.code(held["sql"]),
    ]
    return h.page(f"Release {number}", [*parts, *_words("".join(parts[:-2]))])


def _plan_caption(rows: Sequence[Sequence[str]]) -> str:
    """What the picture of a plan's errors shows."""
    left_out = any(cell.startswith("~±") for row in rows for cell in row)
    return (
        "Standard error of each result column. Circles: this plan. Diamonds: the columns one by one, each asked "
        "separately, at the same total cost." + " Estimated errors (~) are not drawn." * left_out
    )


def _words(shown: str) -> Iterator[str]:
    """The meanings of the glossary's words that a page shows, at its end."""
    text, known = re.sub(r"<[^>]*>", " ", shown), meanings()

    def words_in(text: str) -> set[str]:
        patterns = {name: "|".join(map(re.escape, name.split(", "))) for name in known}
        return {name for name, either in patterns.items() if re.search(rf"\b({either})s?\b", text, re.IGNORECASE)}

    names = words_in(text)
    names |= words_in(" ".join(known[name] for name in names))  # the words of their meanings, too
    words = {name: text for name, text in known.items() if name in names and name != "core"}  # one of a processor
    yield h.heading("Words on this page", anchor="words")
    yield h.facts(words.items())


def _budget(state: BudgetState | None) -> Iterator[str]:
    if state is None:
        return
    yield h.heading("The budget so far")
    accounts = ((account.name, *state.figures(account)) for account in state.accounts)
    left = "; ".join(f"{name}: {left} of {total} left" for name, total, _, left, _ in accounts)
    yield h.paragraph(f"All accounts together: {str(state).splitlines()[0]}. By account: {left}.")
    colours = "Each colour is one label, a name that batches were submitted with"
    yield h.picture(plots.plot_budget(state), f"What was spent of each budget account over time. {colours}")


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


def _account(record: Record, records: list[Record], state: BudgetState | None) -> Iterator[str]:
    """The budget of the account when this release was made, and what was charged to it by then."""
    if record["purse_total"] is None or record["purse_spent"] is None:
        return
    total, spent = record["purse_total"], record["purse_spent"]
    name = budget_name(record["purse"])
    if record["purse"] == "gaussian":  # counts mu squared, in which releases add up: shares say more to most readers
        measure, whole, end = SHARES, Fraction(total) / 100, "%"
        holds = f"The {name} is counted in shares, because the epsilons of what it pays for do not add up."
    else:
        measure, whole, end = "epsilon", Fraction(1), ""
        holds = f"The {name} is epsilon {total:.6g} for all releases together."
    digits = 3 if end else 6
    gone = show(Fraction(spent) / whole, digits) + end
    left = show_left(Fraction(max(total - spent, 0.0)) / whole, digits) + end
    yield h.heading("The budget")
    if state is not None:
        yield h.paragraph(f"All releases so far: {str(state).splitlines()[0]}.")
    yield h.paragraph(
        f"{holds} After this release {gone} was spent and {left} left. What is spent is never given back."
    )
    yield h.share(spent, total)
    charges = [
        (row["released_at"].isoformat(), row["label"] or "", row["cost"] / float(whole))
        for row in records
        if row["purse"] == record["purse"] and row["release_id"] <= record["release_id"]
    ]
    made = budget_picture([(record["purse"], measure, total / float(whole), charges)])
    spenders = "Each colour is one label: who asked"
    yield h.picture(made, f"What this release and those before it spent of the {name}. {spenders}")


def _level(state: BudgetState | None, release: int) -> str:
    """The confidence level of a release's intervals, as the ledger says it; empty where it is not known."""
    charges = () if state is None else state.charges
    alpha = next((entry.description.get("alpha") for entry in charges if entry.id == release), None)
    return "" if alpha is None else f"{100 * (1 - float(alpha)):g} %"


def _results(store: ReleaseStore, release: int, names: list[str], level: str) -> Iterator[str]:
    for at, name in enumerate(names):
        # Results of all ranges of a long line have more rows than anybody lists.
        result = store.sql(f"SELECT * FROM r{release}.{identifier(name)} LIMIT {_MOST + 1}")  # noqa: S608
        whole = len(result) <= _MOST
        yield h.heading(name, 3)
        if whole and at < MOST_PICTURES and len(result) > 1:  # a picture of one row tells no more than the table
            # A picture for each number, below each other: a phone is as wide as one.
            for number in _numbers(result)[:MOST_PANELS]:
                yield h.picture(plots.plot_result(result, value=number), f"Column {number} of {name}")
        yield h.result_table(result, "" if whole else f"The first {h.MOST_ROWS} of more than {_MOST:,} rows.", level)
