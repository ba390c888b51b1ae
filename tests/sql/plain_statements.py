"""Random statements over a small clinic whose rows keep every promise of its policy.

So DuckDB's answer to the very same text is the right one, and nothing here is shared with what compiles statements.
What docs/sql.md has of its own is said in ``Asked``: which rows are there although DuckDB has none, what a sum of
nothing is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

POLICY = """
[tables.visits]
unit = "row"
expected_rows = 400
[tables.visits.columns]
g = { values = ["a", "b", "c"] }
k = { lower = 1, upper = 4, nulls = false }
b = {}
i = { lower = -3, upper = 8 }
q = { lower = 0, upper = 3, nulls = false }
d = { lower = 0, upper = 50, step = 0.01 }
f = { lower = -1, upper = 1, step = 0.25 }
day = { lower = 2024-01-26, upper = 2024-02-06 }
ts = { lower = 2024-01-26T00:00:00, upper = 2024-02-06T23:59:59 }
s = {}
[tables.kinds]
public = true
key = ["k"]
[tables.kinds.columns]
k = { values = [1, 2, 3, 4], nulls = false }
kind = { values = ["x", "y"], nulls = false }
w = { lower = 0, upper = 5, nulls = false }
"""

ROWS = """
CREATE TABLE visits AS SELECT
    CASE WHEN hash(n, 1) % 11 > 0 THEN ['a', 'b', 'c'][1 + (hash(n, 2) % 3)::INT] END AS g,
    (1 + hash(n, 3) % 4)::INTEGER AS k,
    CASE WHEN hash(n, 4) % 9 > 0 THEN hash(n, 5) % 2 = 0 END AS b,
    CASE WHEN hash(n, 6) % 13 > 0 THEN (hash(n, 7) % 12)::INTEGER - 3 END AS i,
    (hash(n, 8) % 4)::SMALLINT AS q,
    CASE WHEN hash(n, 9) % 17 > 0 THEN ((hash(n, 10) % 5001) / 100)::DECIMAL(8, 2) END AS d,
    CASE WHEN hash(n, 11) % 19 > 0 THEN (hash(n, 12) % 9) * 0.25::DOUBLE - 1 END AS f,
    CASE WHEN hash(n, 13) % 23 > 0 THEN DATE '2024-01-26' + (hash(n, 14) % 12)::INTEGER END AS day,
    CASE WHEN hash(n, 15) % 29 > 0 THEN TIMESTAMP '2024-01-26' + INTERVAL (hash(n, 16) % 17280) MINUTE END AS ts,
    CASE WHEN hash(n, 17) % 7 > 0 THEN ['flu', 'cold', 'Flu A', '', 'o''k'][1 + (hash(n, 18) % 5)::INT] END AS s
FROM range(400) r(n);
CREATE TABLE kinds AS SELECT * FROM (VALUES (1, 'x', 0), (2, 'y', 3), (3, 'x', 5), (4, 'y', 1)) v(k, kind, w);
"""


@dataclass(frozen=True)
class Asked:
    """A statement: its text, how many columns are keys, and what its other columns are.

    Of these a ``sum`` is 0 where DuckDB has NULL. ``any``, and ``rank`` of quantiles, may be anything within bounds
    there, for whether there is a row is private; ``null`` is NULL, too. ``count`` says which column is 0 where DuckDB
    has no row.
    """

    text: str
    keys: int
    kinds: tuple[str, ...]
    count: int | None = None
    ordered: bool = False


# Keys by their text; "{0}" is the alias of the table.
_KEYS = (
    *("{0}g", "{0}k", "{0}b", "{0}q", "{0}i // 3", "{0}q % 3", "month({0}day)", "{0}day < DATE '2024-01-30'"),
    *("upper({0}g)", "coalesce({0}g, 'none')", "CASE WHEN {0}i < 0 THEN 'low' WHEN {0}i < 5 THEN 'mid' END"),
    *("date_trunc('month', {0}day)", "dayname({0}day)", "strftime({0}ts, '%Y-%m')", "{0}g IS NULL", "quarter({0}ts)"),
    *("{0}k * 10 + {0}q % 2", "{0}b AND {0}q > 1", "{0}s = 'flu'", "width({0})", "floor({0}f)"),
)
_WIDTH = "CASE WHEN {0}d < 10 THEN 0 WHEN {0}d < 40 THEN 1 ELSE 2 END"
# Numbers with bounds, and what MIN, MAX and quantiles are asked of.
_NUMBERS = (
    *("{0}i", "{0}q", "{0}d", "{0}f", "{0}k", "{0}i + {0}q", "{0}i * {0}q", "2 * {0}d - {0}i", "abs({0}i)", "-{0}f"),
    *("greatest({0}i, {0}q)", "CASE WHEN {0}b THEN {0}d ELSE 1 END", "{0}i % 3", "{0}q // 2", "coalesce({0}i, 0)"),
    *("date_diff('day', {0}day, DATE '2024-02-01')", "round({0}d)", "CASE {0}g WHEN 'a' THEN {0}q END", "day({0}ts)"),
    *("least({0}d, 9.5)", "{0}b::INT", "nullif({0}q, 0)", "{0}f / 4"),
)
_RANKED = ("{0}i", "{0}q", "{0}f", "{0}day", "{0}k", "{0}q * 2 + 1", "abs({0}i)")
_TESTS = (
    *("{0}i > 3", "{0}i BETWEEN 2 AND 6", "{0}q IN (1, 3, 7)", "{0}g = 'a'", "{0}g <> 'b'", "{0}b", "NOT {0}b"),
    *("{0}s LIKE '%u'", "{0}s = 'o''k'", "{0}day >= DATE '2024-02-02'", "{0}ts < TIMESTAMP '2024-02-02 12:30:00'"),
    *(
        "{0}d > 20.5",
        "{0}f <= 0.5",
        "{0}i IS NULL",
        "{0}g IS NOT NULL",
        "{0}i + {0}q < 5",
        "{0}i > {0}q",
        "{0}d > {0}f",
    ),
    *("month({0}day) IN (1, 12)", "lower({0}s) = 'flu a'", "{0}g IN ('a', NULL)", "{0}g NOT IN ('b', 'c')"),
    *(
        "coalesce({0}i, 50) > 6",
        "{0}q % 2 = 0",
        "extract(hour FROM {0}ts) < 9",
        "length({0}s) > 3",
        "{0}i * {0}i > 20",
    ),
    *(
        "{0}i IS DISTINCT FROM 7",
        "{0}g ILIKE 'A'",
        "{0}day::TIMESTAMP > {0}ts",
        "{0}s ~~ 'F%'",
        "dayofweek({0}day) = 0",
    ),
    *("CASE WHEN {0}b THEN {0}q > 1 ELSE {0}i > 4 END", "{0}d = 12.5 OR {0}d IS NULL", "{0}s IN ('flu', 'cold')"),
)


def _test(rng: random.Random, alias: str, depth: int = 2) -> str:
    """A condition of a row."""
    form = rng.random()
    if depth == 0 or form < 0.5:
        return rng.choice(_TESTS).format(alias)
    if form < 0.6:
        return f"NOT ({_test(rng, alias, depth - 1)})"
    word = rng.choice(("AND", "AND", "OR"))
    return f"({_test(rng, alias, depth - 1)} {word} {_test(rng, alias, depth - 1)})"


def _aggregate(rng: random.Random, alias: str) -> tuple[str, str]:
    """An aggregate, and what it is over nothing: count, sum or any."""
    number, ranked = rng.choice(_NUMBERS).format(alias), rng.choice(_RANKED).format(alias)
    where = f" FILTER (WHERE {_test(rng, alias, 1)})" if rng.random() < 0.25 else ""
    share = rng.choice((0, 0.1, 0.25, 0.5, 0.75, 0.9, 1))
    return rng.choice((
        ("COUNT(*)" + where, "count"),
        (f"COUNT({rng.choice(('g', 'b', 'i', 'd', 'day', 's')).join((alias, ''))})" + where, "count"),
        (f"COUNT_IF({_test(rng, alias, 1)})", "sum"),
        (f"COUNT(DISTINCT {alias}{rng.choice(('g', 'k', 'b', 'i', 'q', 's', 'day'))})" + where, "count"),
        (f"SUM({number})" + where, "sum"),
        (f"SUM({number})" + where, "sum"),
        (f"SUM(CASE WHEN {_test(rng, alias, 1)} THEN {number} END)", "sum"),
        (f"AVG({number})" + where, "any"),
        (f"AVG({number})" + where, "any"),
        (f"SUM({number}) / COUNT({number})", "any"),
        (f"COUNT_IF({_test(rng, alias, 1)}) / COUNT(*)", "any"),
        (f"MIN({ranked})" + where, "rank"),
        (f"MAX({ranked})" + where, "rank"),
        (f"MEDIAN({ranked})" + where, "rank"),
        (f"QUANTILE_DISC({ranked}, {share})" + where, "rank"),
        (f"QUANTILE_CONT({ranked}, {share})" + where, "rank"),
        ("2 * COUNT(*) - 3 * " + f"SUM({alias}q)", "sum"),
        (f"SEM({number})" + where, "any"),
        (f"{rng.choice(('SKEWNESS', 'KURTOSIS', 'KURTOSIS_POP'))}({number})" + where, "any"),
        (f"REGR_COUNT({number}, {alias}i)" + where, "count"),
        (f"REGR_{rng.choice(('AVGX', 'AVGY'))}({number}, {alias}d)" + where, "any"),
        (f"REGR_{rng.choice(('SXX', 'SYY'))}({number}, {alias}d) / 10000", "any"),
        (f"COUNT(DISTINCT ({alias}{rng.choice('gbis')}, {alias}q))" + where, "count"),
        (f"COUNT({alias or 'visits.'}*)" + where, "count"),
    ))  # fmt: skip


def _source(rng: random.Random) -> tuple[str, str, list[str]]:
    """FROM, the alias of the visits with its dot, and a condition that the source has: a table, a join or a query."""
    form = rng.random()
    if form < 0.5:
        return "visits", "", []
    if form < 0.65:
        return "visits AS v", "v.", []
    if form < 0.8:
        return rng.choice((
            "visits v JOIN kinds ON v.k = kinds.k", "kinds JOIN visits v ON kinds.k = v.k",
            "visits v LEFT JOIN kinds ON kinds.k = v.k",
        )), "v.", ["kinds.kind = 'x'", "kinds.w > v.q", "kinds.w * v.q > 8"]  # fmt: skip
    inner = _test(rng, "", 1)
    return f"(SELECT * FROM visits WHERE {inner}) AS v", "v.", []


def asked(rng: random.Random, *, small: bool = False) -> Asked:
    """A statement with one to three numbers by up to two keys; ``small``: with one or two, by one key at most."""
    source, alias, more = _source(rng)
    count = rng.choice((0, 0, 1, 1, 1 if small else 2))
    keys = [key.replace("width({0})", _WIDTH).format(alias) for key in rng.sample(_KEYS, count)]
    if more and rng.random() < 0.3:
        keys = ["kinds.kind", *([] if small else keys[:1])]
    found = [_aggregate(rng, alias) for _ in range(rng.choice((1, 1, 2) if small else (1, 1, 2, 3)))]
    tests = [_test(rng, alias, 0 if small else 2)] if rng.random() < 0.5 else []
    if more and rng.random() < 0.5:
        tests.append(rng.choice(more))
    where = f" WHERE {' AND '.join(tests)}" if tests else ""
    names = [f"x{number}" for number in range(len(keys))]
    items = [f"{key} AS {name}" for key, name in zip(keys, names, strict=True)]
    items += ["COUNT(*) AS n"] if keys else []
    items += [f"{text} AS y{number}" for number, (text, _) in enumerate(found)]
    group = f" GROUP BY {rng.choice((', '.join(names), ', '.join(keys), 'ALL'))}" if keys else ""
    text = f"SELECT {', '.join(items)} FROM {source}{where}{group}"
    kinds = (*(["count"] if keys else []), *(kind for _, kind in found))
    if keys and rng.random() < 0.2:  # what is left for after the noise
        return _over(rng, text, len(keys))
    return Asked(text, len(keys), kinds, 0 if keys else None)


def _over(rng: random.Random, text: str, keys: int) -> Asked:
    """A query over the counts of the groups that have rows."""
    shown = ", ".join(f"x{number}" for number in range(keys))
    rows = f"{text} HAVING n > 0.5"
    return rng.choice((
        Asked(f"{rows} ORDER BY {shown}", keys, ("count", *["rank"] * 3), ordered=True),
        Asked(f"SELECT SUM(n) AS y0, MAX(n) AS y1, COUNT(*) AS y2 FROM ({rows})", 0, ("any", "any", "count")),
        Asked(f"WITH r AS ({rows}) SELECT {shown}, n / SUM(n) OVER () AS y0 FROM r", keys, ("any",)),
        Asked(f"WITH r AS ({rows}) SELECT x0, SUM(n) AS y0 FROM r GROUP BY x0", 1, ("sum",)),
    ))  # fmt: skip
