"""Do the 95 % intervals of a local release cover the truth in 94 to 96 % of 10,000 releases?

    python benchmarks/survey_coverage.py [releases]

The release, the thirty questions and the epsilon are those of docs/local.md, whose code is run first. Then the same
20,190 rows of the health survey are randomised again and again by the library's own sampler, with the system's
entropy. (A ledger would refuse all but the first; this is what its table is for.) Each time all thirty questions are
estimated from the randomised rows by the library, averages and ratios included, and each interval is held against the
answer that DuckDB gives over the exact rows.

What is taken from one release to the next is what does not depend on its rows: the statements understood, the sums over
the domain, and which of the 60 combinations are alike for a question.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from report import Report

from dpsql.extensions.local.estimators import Estimator
from dpsql.extensions.local.functions import Sample, sampled
from dpsql.extensions.local.local_questions import Estimated, ask
from dpsql.extensions.local.local_release import LocalRelease
from dpsql.running.result_tables import tables_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "local.md"


def tutorial() -> dict[str, Any]:
    """What the page's second block leaves behind."""
    os.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(blocks[1], names)
    return names


def exact_codes(syn: LocalRelease) -> np.ndarray:
    """The combination of every row."""
    source = ROOT / "sql_examples" / "data" / "rand_hie.parquet"
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT {', '.join(syn.columns)} FROM '{source}'").fetchall()
    return syn.released.domain.encode(dict(zip(syn.columns, zip(*rows, strict=True), strict=True)))


def truths(questions: list[str]) -> np.ndarray:
    """DuckDB's answers over the exact rows."""
    source = ROOT / "sql_examples" / "data" / "rand_hie.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW survey AS FROM '{source}'")
        found = [connection.execute(f"SELECT {question}").fetchone() for question in questions]
    return np.array([float(row[0]) for row in found if row is not None])


def listings(syn: LocalRelease, asked: Estimated) -> list[tuple[Sample, np.ndarray]]:
    """For each question its points of the released rows, and which of the k combinations each counts: (points, k)."""
    held, k, found = syn._places.connection, syn.combinations, []
    rows = held.execute(f"SELECT {', '.join(syn.columns)} FROM released").fetchall()
    codes = syn.released.domain.encode(dict(zip(syn.columns, zip(*rows, strict=True), strict=True)))
    if sorted(codes.tolist()) != list(range(k)) or k > 62:
        raise SystemExit("not every combination is among the released rows; run again")
    # Combination c counts 2^c times, so that the sum over a point's rows says which they are.
    held.execute("CREATE TABLE kept AS FROM released")
    held.execute("CREATE TABLE powers (place BIGINT, power BIGINT)")
    held.executemany("INSERT INTO powers VALUES (?, ?)", [(at, 1 << code) for at, code in enumerate(codes.tolist())])
    held.execute(
        "CREATE OR REPLACE TABLE released AS SELECT kept.* REPLACE (power AS dpsql_count) "
        "FROM kept POSITIONAL JOIN powers"
    )
    for estimator in asked.estimators:
        shape = estimator.shape
        axes = {number: truths.axis for number, truths in shape.axes.items()}
        rows = syn._places.rows(shape.table, axes, shape.measures, [])
        sample = sampled(shape, rows.regions, rows.sums, rows.count, np.zeros(len(rows.count), dtype=np.int64))
        found.append((sample, (rows.count[:, None] >> np.arange(k)) & 1))
    held.execute("CREATE OR REPLACE TABLE released AS FROM kept")
    return found


def estimates(asked: Estimated, listed: list[tuple[Sample, np.ndarray]], counts: np.ndarray) -> np.ndarray:
    """(questions, 3): value, low, high from randomised rows of which ``counts`` (k,) have each combination."""
    estimators = tuple(
        Estimator(e.shape, replace(e.listed, rows=replace(sample, weight=(inside @ counts).astype(float))), e.response)
        for e, (sample, inside) in zip(asked.estimators, listed, strict=True)
    )
    now = replace(asked, estimators=estimators)
    tables = tables_of(now, now.values)
    return np.array([[float(column[2][0]) for column in (t.columns[0], *t.columns[2:4])] for t in tables])


def main(releases: int) -> None:
    """Print the coverage of each question and of all."""
    began, report = time.process_time(), Report()
    report.heading("Local release of the health survey: coverage of its 95 % intervals")
    names = tutorial()
    syn, questions = names["syn"], names["questions"]
    true, codes = truths(questions), exact_codes(syn)
    asked = ask(";\n".join(f"SELECT {q}" for q in questions), syn._places, syn._policy, syn._types)
    # Held together: the randomised rows of the page's own release, counted here, give the page's own answers.
    listed, response = listings(syn, asked), syn.released.response
    own = estimates(asked, listed, counts_of(syn))
    if not np.allclose(own, [answer[1:] for answer in names["answers"]], rtol=1e-9):
        raise SystemExit("the estimates here are not those of the page")
    covered, spread = np.zeros(len(true)), np.zeros((releases, len(true)))
    for number in range(releases):
        released = response.shifted(codes, response.sample(len(codes)))
        found = estimates(asked, listed, np.bincount(released, minlength=syn.combinations))
        covered += (found[:, 1] <= true) & (true <= found[:, 2])
        spread[number] = found[:, 0] - true
    share = covered / releases
    z = spread.mean(axis=0) / (spread.std(axis=0) / releases**0.5)
    report.table(
        "Question by question",
        ["question", "truth", "covered", "mean error in its standard errors"],
        [[q, t, f"{100 * c:.2f} %", f"{m:+.1f}"] for q, t, c, m in zip(questions, true, share, z, strict=True)],
    )
    print(
        f"\n{releases:,} releases of {len(codes):,} rows at epsilon {syn.epsilon:g}, {len(true)} questions: "
        f"{100 * share.mean():.2f} % of all intervals hold the truth, {100 * share.min():.2f} to "
        f"{100 * share.max():.2f} % question by question; {time.process_time() - began:.0f} s of processor time"
    )
    report.trend("coverage is 94 to 96 % for every question", bool(((share >= 0.94) & (share <= 0.96)).all()),
                 f"{100 * share.min():.2f} to {100 * share.max():.2f} %")  # fmt: skip
    report.summary()


def counts_of(syn: LocalRelease) -> np.ndarray:
    """How many of the released rows have each combination."""
    held = syn._places.connection.execute(f"SELECT {', '.join(syn.columns)}, dpsql_count FROM released").fetchall()
    *columns, count = zip(*held, strict=True)
    codes = syn.released.domain.encode(dict(zip(syn.columns, columns, strict=True)))
    return np.bincount(codes, weights=np.array(count, dtype=float), minlength=syn.combinations).astype(np.int64)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
