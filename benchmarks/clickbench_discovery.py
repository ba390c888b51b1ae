"""ClickBench's questions by columns whose values nobody listed: refused, then answered over what a survey found.

    python benchmarks/clickbench_discovery.py

Of the corpus (tests/sql/corpora/clickbench.sql) the policy keeps unit and types, and no domain of a text or a hash.
The page views are generated: 100,000 of 20,000 visitors, phrases, pages and models by Zipf's law. Printed is, of every
question that only the missing domains refuse, what it is answered with after one survey: the rows of its result, its
standard error at epsilon 1 and delta 1e-6, and the exact count of the largest group beside it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np

import dpsql
from dpsql.policy import BudgetPolicy, ColumnPolicy

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sql"))
from corpus import FOLDER, questions

VIEWS, VISITORS = 100_000, 20_000
LEFT_OUT = ("Title", "URL", "SearchPhrase", "Referer", "MobilePhoneModel", "URLHash", "WindowClientWidth")


def zipf(count: int, stem: str, empty: float, values: int, salt: int) -> str:
    """SQL of a text by Zipf's law: rank r with a chance of about 1/r; '' for a share of the rows."""
    u = f"(hash(i * 31 + {salt}) % 1000000) / 1e6"
    return (
        f"CASE WHEN (hash(i + {salt}) % 1000) < {int(1000 * empty)} THEN '' "
        f"ELSE '{stem} ' || floor({values} ** ({u}))::BIGINT END"
    )


def generated(place: Path) -> None:
    with duckdb.connect(str(place)) as con:
        con.execute((FOLDER / "clickbench.schema.sql").read_text())
        con.execute(
            "INSERT INTO hits BY NAME SELECT i AS WatchID, "
            f"(hash(i) % {VISITORS})::BIGINT AS UserID, TIMESTAMP '2013-07-01' + to_seconds(i % 2600000) AS EventTime, "
            "(DATE '2013-07-01' + (i % 31)::INTEGER) AS EventDate, (hash(i + 1) % 1000)::INTEGER AS CounterID, "
            "(1 + hash(i + 2) % 300)::INTEGER AS RegionID, 0 AS ClientIP, "
            f"{zipf(VIEWS, 'page', 0.0, 20000, 3)} AS URL, {zipf(VIEWS, 'title', 0.1, 5000, 4)} AS Title, "
            f"{zipf(VIEWS, 'phrase', 0.7, 50000, 5)} AS SearchPhrase, {zipf(VIEWS, 'site', 0.2, 3000, 6)} AS Referer, "
            f"{zipf(VIEWS, 'model', 0.8, 300, 7)} AS MobilePhoneModel, "
            "(hash(i + 8) % 2)::SMALLINT AS IsRefresh, (hash(i + 9) % 2)::SMALLINT AS IsLink, 0 AS IsDownload, "
            "0 AS DontCountHits, (hash(i + 10) % 4000)::SMALLINT AS ResolutionWidth, "
            "([1024, 1280, 1366, 1920])[(1 + hash(i + 11) % 4)::INTEGER] AS WindowClientWidth, "
            "768 AS WindowClientHeight, "
            "(hash(i + 12) % 200)::SMALLINT AS MobilePhone, (hash(i + 13) % 10)::SMALLINT AS TraficSourceID, "
            "([0, 2, 3, 5, 13])[(1 + hash(i + 14) % 5)::INTEGER] AS SearchEngineID, "
            "(hash(i + 15) % 60)::SMALLINT AS AdvEngineID, 1 AS RefererHash, "
            "floor(2000 ** ((hash(i * 7 + 16) % 1000000) / 1e6))::BIGINT AS URLHash "
            f"FROM range({VIEWS}) t(i)"
        )


def bare() -> dpsql.Policy:
    """The corpus's policy without the domains of texts and hashes, and a budget in epsilon and delta."""
    policy = dpsql.Policy.parse((FOLDER / "clickbench.toml").read_text())
    hits = policy.tables["hits"]
    columns = {
        name: ColumnPolicy(name, nulls=False) if name in LEFT_OUT else column for name, column in hits.columns.items()
    }
    budget = BudgetPolicy(epsilon=60, delta=Fraction(1, 100_000))
    return replace(policy, budget=budget, tables={"hits": replace(hits, columns=columns, max_rows_per_unit=20)})


def refusal(con: dpsql.Connection, sql: str) -> str:
    try:
        con.plan(sql, epsilon=1, delta=1e-6, time_limit=4)
    except dpsql.SQLError as error:
        return error.code
    return ""


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        generated(place / "hits.duckdb")
        con = dpsql.connect(place / "hits.duckdb", policy=bare(), ledger=place / "hits.ledger")
        # Without those that multiply all columns' groups (39, 40, 41), too many for a statement or for a quick look.
        asked = [one for one in questions("clickbench") if not one.refused and one.name not in ("39", "40", "41")]
        before = {question.name: refusal(con, question.sql) for question in asked}
        survey = con.survey(epsilon=2.0, delta=1e-6, max_groups=2)
        # Groups of hashes: values, not bounds.
        for column in ("WindowClientWidth", "URLHash"):
            con.discover(f"hits.{column}", epsilon=0.5, delta=1e-7, max_groups=2)
        print(f"survey: {survey.guarantee}")
        for domain in con.found_domains:
            held = domain.column
            said = f"{len(held.values):,} values" if held.values else f"{held.lower} to {held.upper}"
            print(f"  {held.name}: {said}")
        print("| question | refused as | rows | standard error of the count | largest group |")
        print("|---|---|---|---|---|")
        answered = 0
        for question in asked:
            if question.refused or not before[question.name]:
                answered += not before[question.name]
                continue
            after = refusal(con, question.sql)
            if after:
                print(f"| {question.name} | {before[question.name]} | still: {after} | | |")
                continue
            answered += 1
            print(f"| {question.name} | {before[question.name]} |" + shown(con, question.sql, place), flush=True)
        print(f"answered {answered} of {len(asked)} of them, before {sum(not code for code in before.values())}")


def shown(con: dpsql.Connection, sql: str, place: Path) -> str:
    """Rows, standard error of the first count, and what it is in the largest group, without noise."""
    release = con.run(sql, epsilon=1, delta=1e-6, time_limit=10)
    found = release.only.df()
    number = next(name for name in found.columns if f"{name}_stderr" in found.columns)
    if not len(found):
        return " 0: it skips more groups than there are | | |"
    error = float(np.nanmedian(found[f"{number}_stderr"]))
    with duckdb.connect(str(place / "hits.duckdb"), read_only=True) as db:
        exact = db.execute(re.sub(r"LIMIT \d+( OFFSET \d+)?", "", sql)).df()
    return f" {len(found)} | {error:.3g} | {int(exact[number].max()):,} |"


if __name__ == "__main__":
    main()
