"""``dpsql demo``: one batch of questions to a health-care trial, from the policy to free queries."""

from __future__ import annotations

import argparse
import shlex
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import dpsql
from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import IntegrityError, OperationalError
from dpsql.planning.figures import figure
from dpsql.planning.plan import Plan
from dpsql.planning.text import plan_text
from dpsql.release import Result
from dpsql.release.release import Release
from dpsql.surfaces import output

EPSILON, DELTA = 1, "1e-9"
NAME = "rand_hie"
# Of the many rows of the plan, the ones that the demo comes back to.
PLANNED = (
    "person_years",
    "by_coinsurance",
    "by_coinsurance_and_health",
    "visits_by_coinsurance",
    "no_visit_by_coinsurance",
    "free_against_95_never_went",
    "unmet_need",
)
QUOTED = ("visits_by_coinsurance", "unmet_need")
OWN = "SELECT health, SUM(visits) AS visits, COUNT(*) AS n FROM rand_hie GROUP BY health"
SHOWN = ("by_coinsurance", "visits_by_coinsurance", "unmet_need", "free_against_95_never_went")

STAYED_AWAY = """\
SELECT coinsurance, 100 * never / n AS percent FROM no_visit_by_coinsurance ORDER BY percent DESC"""

PARTS = """\
SELECT 'person-years by coinsurance' AS parts, sum(n) AS parts_sum, any_value(whole) AS whole,
       sum(n) - any_value(whole) AS difference
FROM by_coinsurance, (SELECT n AS whole FROM person_years)
UNION ALL
SELECT 'person-years by health', sum(n), any_value(whole), sum(n) - any_value(whole)
FROM by_health, (SELECT n AS whole FROM person_years)
UNION ALL
SELECT 'up to 4, 5 to 9 visits', five.n + four.n, nine.n, five.n + four.n - nine.n
FROM five_to_nine_visits five, up_to_four_visits four, up_to_nine_visits nine
UNION ALL
SELECT 'visits by health', sum(v.visits), any_value(whole), sum(v.visits) - any_value(whole)
FROM visits_by_health v, (SELECT visits AS whole FROM visits_of_the_limited)"""


def demo(options: argparse.Namespace) -> None:
    """Plan and run the example's batch, query its releases, show the budget and the files."""
    package = Path(dpsql.__file__).parent
    installed, checkout = package / "examples", package.parent / "sql_examples"
    # In a checkout the policy's ledger is that of all who use the example, also of a dpsql that is installed elsewhere.
    examples, home = (installed, Path("sql_examples")) if installed.is_dir() else (checkout, checkout)
    policy, batch = examples / f"{NAME}.toml", examples / f"{NAME}.sql"
    if not (policy.is_file() and batch.is_file()):
        raise OperationalError(f"this installation has no examples in {examples}; install dpsql from its wheel")
    directory = Path(options.directory or (home if (home / f"{NAME}.toml").is_file() else "demo"))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        sql = batch.read_text(encoding="utf-8")
    except OSError as error:
        said = error.strerror or "not usable"
        raise OperationalError(f"{directory}: {said}; name another directory with --directory") from None
    with connect(
        policy=policy, ledger=directory / f"{NAME}.ledger", releases=directory / f"{NAME}.releases.duckdb"
    ) as con:
        _tell(con, policy, batch, sql, options)


def _tell(con: Connection, policy: Path, batch: Path, sql: str, options: argparse.Namespace) -> None:
    say = _Say(options.quiet, options.json)
    known = con.ledger_path.exists()
    table = con.policy.table(NAME)
    say(
        f"The data is the RAND Health Insurance Experiment: about {table.expected_rows:,} person-years of a trial that "
        "gave families health insurance by lot, from free care to paying 95 % of each bill. Its custodian wants to "
        "publish tables, and nobody's record shall show in them."
    )
    say("1. What the custodian declares", title=True)
    say(
        "A policy names the tables, which values their columns may take, and the whole privacy budget. It is the only "
        "thing that dpsql takes for public."
    )
    ledger = f"\nLedger     {con.ledger_path} is there already; what it says is spent stays spent"
    say(f"Policy     {policy}\nBudget     {str(con.budget).splitlines()[0]}" + (ledger if known else ""))

    say("2. The plan: every error bar before anything is spent", title=True)
    start = time.perf_counter()
    with output.Progress(quiet=options.quiet) as progress:
        plan = con.plan(sql, EPSILON, DELTA, progress=output.plainly(progress))
    planning = time.perf_counter() - start
    _show_plan(say, plan, batch, planning)

    say("3. The run: one measurement for the whole batch", title=True)
    start = time.perf_counter()
    release = _run(con, plan, known)
    running = time.perf_counter() - start
    _show_release(say, release, plan, running)

    say("4. More questions, free", title=True)
    shares, parts = con.sql(STAYED_AWAY, errors=True), con.sql(PARTS)
    _show_queries(say, shares, parts)

    say("5. What is left", title=True)
    state = con.budget
    say(str(state))
    spent = "That was paid once." if release.cost else "This time nothing was spent."
    say(
        f"{spent} Run the demo again: the answers are in the ledger, so the same batch is free. Gaussian releases "
        "do not add up in epsilon: several batches together cost less than the sum of theirs, which is why "
        "their account counts shares."
    )

    say("6. Where it is", title=True)
    _show_files(say, con, policy, batch)
    if options.json:
        output.print_json(
            {
                "plan": output.plan_json(plan),
                "run": output.release_json(release, state),
                "stayed_away": output.table_json(shares),
                "consistency": output.table_json(parts),
                "seconds": {"plan": planning, "run": running},
                "files": {"policy": policy, "batch": batch, "ledger": con.ledger_path, "releases": con.releases_path},
            }
        )


def _run(con: Connection, plan: Plan, again: bool) -> Release:
    """The run, or its answers from the ledger; ``again``: the ledger was there before, of another version perhaps."""
    try:
        return con.run(plan, label="dpsql demo")
    except IntegrityError:
        if not again:
            raise
    raise OperationalError(
        f"{con.ledger_path.parent} has answers of this batch from another plan (another version of dpsql or of its "
        "libraries); name another directory with --directory, or query the answers with dpsql sql"
    )


@dataclass(frozen=True)
class _Say:
    """Paragraphs on stdout; with --quiet tables of results alone, with --json nothing before the last document."""

    quiet: bool
    silent: bool

    def __call__(
        self, text: str, *, title: bool = False, table: bool = False, result: bool = False, indent: int = 0
    ) -> None:
        """A paragraph, wrapped unless it is a ``table`` or the table of a ``result``, and an empty line after it."""
        if self.silent or (self.quiet and not result):
            return
        if title:
            text = f"\n{text}\n{'-' * len(text)}"
        elif not (table or result):
            text = output.prose(text)
        output.show(textwrap.indent(text, " " * indent) + ("" if title else "\n"))
        sys.stdout.flush()


def _show_plan(say: _Say, plan: Plan, batch: Path, seconds: float) -> None:
    say(f"{len(plan.queries)} statements, in {batch}, among them:")
    say("\n".join(query.text for query in plan.queries if query.name in QUOTED), indent=4, table=True)
    say(f"Planned in {seconds:.1f} s, without a look at any row:")
    say(str(plan_text(plan, PLANNED)), table=True)
    rows = plan.rows()
    known = {(row["result"], row["column"]): row for row in rows}
    arms = known["by_coinsurance", "n"]
    say(
        f"In words: each of the {arms['numbers']} person-year "
        f"counts by coinsurance will be within {figure(arms['half_width'])} of the truth, {1 - plan.alpha:.0%} sure. "
        f"The same budget spent on one result column at a time would give a standard error of "
        f"{figure(arms['naive_stderr'])} instead of {figure(arms['stderr'])}."
    )


def _show_release(say: _Say, release: Release, plan: Plan, seconds: float) -> None:
    if release.cost:
        say(
            f"Charged to the ledger first, then one scan by DuckDB counted the groups, then noise, then all "
            f"{plan.compiled.numbers} answers: {seconds:.2f} s."
        )
    else:
        say(
            f"Free: the ledger has the answers to this very batch, so nothing was measured and nothing spent "
            f"({seconds:.2f} s). These are the numbers of the first run; asking again never gives new noise to average."
        )
    for name in SHOWN:
        say(f"{name}\n{output.table_text(release[name])}", result=True)


def _show_queries(say: _Say, shares: Result, parts: Result) -> None:
    say("Released tables are public: any SQL over them costs nothing. Who stayed away from the doctor all year?")
    say(STAYED_AWAY, indent=4, table=True)
    say(output.table_text(shares), result=True)
    say(
        "Where care was free fewer people stayed away than where they paid 95 % of the bill. The intervals are "
        "those of con.sql(..., errors=True), which knows how the noise of both counts goes together. "
        "(Individual-deductible plans stand at 0 or 100.)"
    )
    say(
        "All numbers agree with each other, although each one is noisy: groups that leave out no row add up to the "
        "whole."
    )
    rows = [(name, f"{total:.3f}", f"{whole:.3f}", f"{gap:.0e}" if gap else "0") for name, total, whole, gap in parts]
    say(output.grid(parts.columns, parts.types, rows), result=True)


def _show_files(say: _Say, con: Connection, policy: Path, batch: Path) -> None:
    releases = shlex.quote(str(con.releases_path))
    say(
        f"Batch      {batch}\n"
        f"Ledger     {con.ledger_path} (SQLite: every charge and noisy measurement; keep it: one data set has one)\n"
        f"Releases   {con.releases_path} (DuckDB: public, can be made anew of the ledger at any time)"
    )
    say("Open the releases with DuckDB itself, with dpsql or from Python:")
    commands = [
        f'duckdb -readonly {releases} -c "FROM dp.unmet_need"',
        f'dpsql sql --releases {releases} "FROM unmet_need"',
        f"duckdb.connect({str(con.releases_path)!r}, read_only=True).sql('FROM dp.releases')",
    ]
    say("\n".join(commands), indent=4, table=True)
    say("Plan a batch of your own, over the same ledger, where what is released helps:")
    own = con.ledger_path == policy.with_suffix(".ledger")
    ledger = "" if own else f" --ledger {shlex.quote(str(con.ledger_path))}"
    say(
        f'dpsql plan --policy {shlex.quote(str(policy))}{ledger} --epsilon 1 \\\n    --sql "{OWN}"',
        indent=4,
        table=True,
    )
