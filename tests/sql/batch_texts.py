"""Random batches: several statements that read tables, WITH queries and one another."""

from __future__ import annotations

import random
from collections.abc import Callable

from batches import BOUNDS, CLAMPED, JOINS, Statement
from statement_texts import core

Maker = Callable[[random.Random, list[str], str, list[Statement]], Statement | None]


def batch(rng: random.Random, tables: list[str]) -> list[Statement]:
    """One to three statements; the later ones may read the earlier."""
    found: list[Statement] = []
    # Joins have so many columns that two statements over them soon make too many cells.
    count = rng.choice([1, 1, 1, 2, 2, 3]) if tables[0] not in JOINS else 1
    for number in range(count):
        name = f"v{number}" if rng.random() < 0.5 else f"q{sum(1 for s in found if s.name[0] == 'q') + 1}"
        made = None
        while made is None:
            maker = rng.choice([_one, _one, _one, _one, _over, _joined, _union, _with, _nested, _ranges,
                                _of_units, _of_units, _quantiles])  # fmt: skip
            made = maker(rng, tables, name, found)
        found.append(made)
    return found


def _one(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement:
    return core(rng, rng.choice(tables), name)


def _over(rng: random.Random, _: list[str], name: str, earlier: list[Statement]) -> Statement | None:
    """SELECT over an earlier result."""
    if not earlier:
        return None
    read = rng.choice(earlier)
    numbers = [column for column in read.columns if column.startswith("n")]
    column = rng.choice(numbers)
    form = rng.choice([
        "SELECT * FROM {0}", "SELECT {1} AS n0, {1} * 2 AS n1 FROM {0} WHERE {1} > 0",
        "SELECT count(*) AS n0, sum({1}) AS n1, min({1}) AS n2 FROM {0}",
        "SELECT {1} > 0 AS f0, count(*) AS n0 FROM {0} GROUP BY 1 HAVING count(*) > 0",
        "SELECT r.* FROM {0} AS r WHERE r.{1} >= (SELECT avg({1}) FROM {0})",
        "SELECT {1} AS n0 FROM {0} WHERE EXISTS (SELECT 1 FROM {0} WHERE {1} > 1)",
        "WITH w AS (SELECT {1} AS n0 FROM {0} WHERE {1} IS NOT NULL) SELECT max(n0) - min(n0) AS n0 FROM w",
        "SELECT DISTINCT {1} AS n0 FROM {0} ORDER BY n0 LIMIT 3",
    ])  # fmt: skip
    text = form.format(read.name, column)
    columns = read.columns if "*" in form.split("FROM")[0].replace("count(*)", "").replace(" * 2", "") else tuple(
        part for part in ("f0", "n0", "n1", "n2") if f" AS {part}" in form)  # fmt: skip
    # A value that repeats decides DISTINCT ... LIMIT by its last digit.
    if "LIMIT" in form and column not in _sure(read):
        return None
    return Statement(name, text, text, "LIMIT" in form, columns)


def _sure(read: Statement) -> list[str]:
    return [column for column in read.columns if column.startswith("n")] if read.exact else []


def _plain(rng: random.Random, tables: list[str], name: str, most: int = 2) -> Statement:
    return core(rng, rng.choice(tables), name, most=most, plain=True)


def _joined(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement:
    """WITH two aggregated queries, joined on all keys that they share by position, or crossed."""
    a, b = _plain(rng, tables, name, 1), _plain(rng, tables, name, 1)
    side = rng.choice(["JOIN", "LEFT JOIN", "FULL JOIN"])
    on = f"a.{a.keys[0]}::VARCHAR IS NOT DISTINCT FROM b.{b.keys[0]}::VARCHAR"
    tail = rng.choice(["", " WHERE a.n0 > 0", " WHERE b.n0 IS NULL OR a.n0 >= b.n0"])
    text = (
        "WITH a AS ({0}), b AS ({1}) SELECT a.n0 AS n0, b.n0 AS n1, coalesce(a.n0, 0) - coalesce(b.n0, 0) AS n2 "
        f"FROM a {side} b ON {on}{tail}"
    )
    user, oracle = text.format(a.user, b.user), text.format(a.oracle, b.oracle)
    return Statement(name, user, oracle, False, ("n0", "n1", "n2"), exact=True)


def _union(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement:
    """Two or three queries of one key and one number, under UNION ALL or its like."""
    parts = [_plain(rng, tables, name, 1) for _ in range(rng.choice([2, 2, 3]))]
    word = rng.choice(["UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT"])
    user, oracle = (
        f" {word} ".join(
            f"SELECT * FROM (SELECT {part.keys[0]}::VARCHAR AS g0, n0 FROM ({text})) AS u" for part, text in zip(
                parts, texts, strict=True)
        )
        for texts in ([part.user for part in parts], [part.oracle for part in parts])
    )  # fmt: skip
    order = rng.choice(["", " ORDER BY n0, g0", " ORDER BY 2 DESC, 1 LIMIT 4", " ORDER BY 1, 2 LIMIT 3 OFFSET 1"])
    return Statement(name, user + order, oracle + order, bool(order), ("g0", "n0"), exact=True)


def _with(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement:
    """An aggregated WITH query or derived table, and SELECT over it."""
    part = _plain(rng, tables, name)
    column = rng.choice([column for column in part.columns if column.startswith("n")])
    form = rng.choice([
        "WITH w AS ({0}) SELECT * FROM w WHERE {1} > 1",
        "SELECT sum({1}) AS n0, count(*) AS n1 FROM ({0}) AS w",
        "SELECT {2}, {1} / sum({1}) OVER () AS n0 FROM ({0}) AS w",
        "WITH w AS ({0}), x AS (SELECT {2}, {1} AS n0 FROM w ORDER BY n0 DESC) SELECT {2}, n0 FROM x WHERE n0 <> 0",
        "WITH w AS ({0}) SELECT p.{2}, p.{1} AS n0, q.{1} AS n1 FROM w AS p JOIN w AS q ON p.{1} <= q.{1}",
        "WITH w AS ({0}) SELECT {2}, sum({1}) AS n0 FROM w GROUP BY {2} ORDER BY n0, {2}",
        "WITH w AS ({0}) SELECT {2}, n0 FROM w QUALIFY rank() OVER (ORDER BY {1} DESC) <= 2",
    ])  # fmt: skip
    key = part.keys[0]
    user, oracle = form.format(part.user, column, key), form.format(part.oracle, column, key)
    columns = (
        part.columns if "SELECT *" in form else tuple(c for c in (key, "n0", "n1") if c == key or f"AS {c}" in form)
    )
    if "sum({1}) AS n0, count" in form:
        columns = ("n0", "n1")
    if "QUALIFY" in form:
        columns = (key, "n0")
    return Statement(name, user, oracle, form.endswith("{2}"), columns, exact="/" not in form)


def _nested(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement:
    """HAVING that compares with a query over rows."""
    part = _plain(rng, tables, name, 1)
    form = rng.choice(["(SELECT min(n0) FROM ({0}) AS z_)", "(SELECT max(n0) - 5 FROM ({0}) AS z_)",
                       "coalesce((SELECT n0 FROM ({0}) AS z_ WHERE n0 > 0 ORDER BY n0 LIMIT 1), 1)"])  # fmt: skip
    return core(rng, rng.choice(tables), name, nested=(form.format(part.user), form.format(part.oracle)))


def _ranges(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement | None:
    """dp_ranges and dp_prefixes: the oracle joins rows with the ranges."""
    table = rng.choice(tables)
    if table in JOINS:
        return None
    column, values, kind = rng.choice([
        ("kids", [str(v) for v in range(3)], "TINYINT"),
        ("day", [f"DATE '{v}'" for v in ("2020-01-30", "2020-01-31", "2020-02-01", "2020-02-02")], "DATE"),
    ])  # fmt: skip
    prefixes = rng.random() < 0.5
    function = "dp_prefixes" if prefixes else "dp_ranges"
    firsts = values[:1] if prefixes else values
    pairs = ", ".join(f"({low}::{kind}, {high}::{kind})" for low in firsts for high in values[values.index(low) :])
    user = f"SELECT {function}({column}), count(*) AS n0, count_if(flag) AS n1, sum(age) AS n2 FROM {table} GROUP BY 1"
    shown = f"high AS {column}_to" if prefixes else f"low AS {column}_from, high AS {column}_to"
    oracle = (
        f"SELECT {shown}, count({column}) AS n0, count_if(flag AND {column} IS NOT NULL) AS n1, "
        f"coalesce(sum(age__c), 0) AS n2 FROM (VALUES {pairs}) AS r(low, high) LEFT JOIN p_{table} "
        f"ON {column} BETWEEN low AND high GROUP BY low, high"
    )
    columns = (f"{column}_to",) if prefixes else (f"{column}_from", f"{column}_to")
    return Statement(name, user, oracle, False, (*columns, "n0", "n1", "n2"), columns, exact=True)


_VISITS = [
    "kids > 0", "state = 'NY'", "big BETWEEN 0 AND 2000", "seen < TIMESTAMP '2020-02-01'", "cost >= 7.25",
    "state IS NULL OR kids = 1", "NOT (mass > 1)",
]  # fmt: skip


def _of_units(rng: random.Random, _: list[str], name: str, __: list[Statement]) -> Statement:
    """Units that an aggregate of each chooses, sets of units, and rows that others of their unit choose."""
    form = rng.choice([_by_aggregate, _by_aggregate, _by_set, _by_others, _by_nearest, _by_place])
    user, oracle = form(rng)
    return Statement(name, user, oracle, False, ("n0",), exact=True)


def _by_aggregate(rng: random.Random) -> tuple[str, str]:
    column = rng.choice(["big", "cost"])
    low, high = BOUNDS[column]
    function = rng.choice(["sum", "avg", "median", "var_pop", "var_samp", "stddev_pop", "stddev"])
    most = {"sum": 3 * (high - low), "v": (high - low) ** 2 / 2}.get(
        function[:3] if function == "sum" else function[0], high
    )
    held = f"FILTER (WHERE {rng.choice(_VISITS)})" if rng.random() < 0.3 else ""
    where = f"WHERE {rng.choice(_VISITS)}" if rng.random() < 0.4 else ""
    having = rng.choice(["", "", " HAVING count(*) > 2", " HAVING count(cost) = 1"])
    asked = f"a {rng.choice(['>', '<='])} {rng.uniform(low, most):.3f}"
    asked = rng.choice([asked, asked, "a IS NULL"])
    cleaned = f"(SELECT *, {CLAMPED[column]} AS x FROM (SELECT * REPLACE (nullif(cost, 'nan') AS cost, "
    cleaned += "nullif(mass, 'nan') AS mass) FROM visits))"
    inner = f"(SELECT pid, {function}({{0}}) {held} AS a FROM {{1}} AS v {where} GROUP BY pid{having})"
    user = f"SELECT count_if({asked}) AS n0 FROM {inner} AS u".format(column, "visits")
    return user, f"SELECT coalesce(count_if({asked}), 0) AS n0 FROM {inner} AS u".format("x", cleaned)


def _by_set(rng: random.Random) -> tuple[str, str]:
    parts = [f"SELECT pid FROM visits WHERE pid IS NOT NULL AND ({part})" for part in rng.sample(_PLAIN, 3)]
    first, second = (rng.choice(["UNION", "INTERSECT", "EXCEPT"]) for _ in range(2))
    last = f" {second if second != 'UNION' else 'EXCEPT'} {parts[2]}" if rng.random() < 0.4 else ""
    text = f"SELECT count(*) AS n0 FROM (({parts[0]} {first} {parts[1]}){last}) AS u"
    return text, text


# Without NaN, which the oracle reads as a number.
_PLAIN = _VISITS[:4] + _VISITS[5:6]


def _by_others(rng: random.Random) -> tuple[str, str]:
    column, sign = rng.choice(["big", "seen", "kids"]), rng.choice(["<", "<=", ">", ">="])
    sides = rng.choice([f"w.{column} {sign} v.{column}", f"v.{column} {sign} w.{column}"])
    more = f" AND w.{rng.choice(['kids > 0', 'big > -5', 'kids = 1'])}"
    inner = f"SELECT 1 FROM visits w WHERE w.pid = v.pid AND {sides}{rng.choice(['', more])}"
    text = f"SELECT count(*) AS n0 FROM visits v WHERE {rng.choice(['', 'NOT '])}EXISTS ({inner})"
    return text, text


_NEAREST = [
    "w.big BETWEEN v.kids AND v.big",
    "w.seen > v.seen AND w.seen < v.seen + INTERVAL 1 YEAR",
    "w.kids <= v.kids AND w.big >= v.big",
    "w.seen BETWEEN v.seen - INTERVAL 3 MONTH AND v.seen",
    "v.big < w.big AND v.kids > w.kids",
    "w.kids = v.big",
    "v.seen = w.seen",
]


def _by_nearest(rng: random.Random) -> tuple[str, str]:
    tie, more = rng.choice(_NEAREST), f" AND w.{rng.choice(['kids > 0', 'big > -5', 'kids = 1'])}"
    inner = f"FROM visits w WHERE {{}}{tie}{rng.choice(['', more])}"
    exists = f"EXISTS (SELECT 1 {inner.format('w.pid = v.pid AND ')})"
    asked = rng.choice([exists, f"NOT {exists}", f"v.pid IN (SELECT w.pid {inner.format('')})"])
    text = f"SELECT count(*) AS n0 FROM visits v WHERE {asked}"
    return text, text


# Windows whose values no order of rows that tie decides, and what is asked of them.
_PLACES = [
    ("lag(kids) OVER (PARTITION BY pid ORDER BY kids)", "a < kids"),
    ("row_number() OVER (PARTITION BY pid ORDER BY seen)", "a < 3"),
    ("rank() OVER (PARTITION BY pid ORDER BY big DESC)", "a > 1"),
    ("dense_rank() OVER (PARTITION BY pid ORDER BY kids)", "a = 2"),
    ("lead(big, 2) OVER (PARTITION BY pid ORDER BY big)", "a > 0"),
    ("first_value(seen) OVER (PARTITION BY pid ORDER BY seen)", "a < TIMESTAMP '2020-02-01'"),
]


def _by_place(rng: random.Random) -> tuple[str, str]:
    window, asked = rng.choice(_PLACES)
    where = f" WHERE {rng.choice(_PLAIN)}" if rng.random() < 0.4 else ""
    inner = f"SELECT {window} AS a, kids FROM visits{where}"
    first = f"SELECT kids FROM visits{where} QUALIFY {asked.replace('a ', window + ' ', 1)}"
    if rng.random() < 0.5:
        text = f"WITH u AS ({first}) SELECT count(*) AS n0 FROM u"
        return text, text
    text = f"SELECT {{}} AS n0 FROM ({inner}) AS u"
    return text.format(f"count_if({asked})"), text.format(f"coalesce(count_if({asked}), 0)")


def _quantiles(rng: random.Random, tables: list[str], name: str, _: list[Statement]) -> Statement | None:
    """A list of quantiles, a column for each."""
    table, column = rng.choice(tables), rng.choice(["age", "kids"])
    if table in JOINS:
        return None
    shares = rng.choice([(0.25, 0.75), (0.1, 0.5, 0.9)])
    kind = rng.choice(["cont", "disc"])
    user = f"SELECT quantile_{kind}({column}, [{', '.join(map(str, shares))}]) AS n0, count(*) AS n1 FROM {table}"
    each = (f"quantile_{kind}({column}__c, {share})::DOUBLE AS n0_{at}" for at, share in enumerate(shares, 1))
    columns = (*(f"n0_{at}" for at, _ in enumerate(shares, 1)), "n1")
    return Statement(name, user, f"SELECT {', '.join(each)}, count(*) AS n1 FROM p_{table}", False, columns)
