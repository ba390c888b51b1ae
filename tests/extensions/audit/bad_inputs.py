"""Bad inputs from the grammar: admitted statements in which one place holds what may never be there.

A random statement is made from the language's own expressions (tests/shared/expression_language.py), so that it is
admitted; then one leaf of it gives way to a forbidden piece of the same type (threats Q1, Q4, Q6, Q7), or
the statement itself is bent. What is refused is then refused for the piece, wherever it hides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import expression_language as language

# By the kind of value that they stand for. None is total, row-local and typed, and none may ever be admitted.
LEAVES = {
    "whole": [
        "error('found')",  # fails on one row, and prints its value
        "CAST(error(txt) AS INTEGER)",
        "(SELECT max(i32) FROM t)",
        "(SELECT i32 FROM t)",
        "(SELECT count(*) FROM t)",
        "(SELECT a.i32 FROM t AS a WHERE a.i32 = t.i32)",
        "count(*) OVER ()",
        "row_number() OVER (ORDER BY i32)",
        "lag(i32) OVER (ORDER BY i64)",
        "max(i32)",
        "unnest([1, 2, 3])",
        "unnest(range(i32))",
        "rowid",
        "nextval('s')",
        "getvariable('secret')",
        "secret",  # a column that the policy does not declare
        "other.i32",
        "len(query('FROM t'))",
        "txid_current()",
    ],
    "text": [
        "error(txt)",
        "getenv('HOME')",
        "current_setting('threads')",
        "current_user",
        "version()",
        "read_text('/etc/passwd')",
        "(SELECT txt FROM t LIMIT 1)",
        "(SELECT content FROM read_text('/etc/passwd'))",
        "(SELECT string_agg(txt, ',') FROM t)",
        "first_value(txt) OVER (ORDER BY i32)",
        "string_agg(txt, ',')",
        "CAST(random() AS VARCHAR)",
        "uuid()",
        "secret_text",
        "unnest(['a', 'b'])",
    ],
    "real": [
        "random()",
        "error('found')",
        "(SELECT avg(f64) FROM t)",
        "avg(f64) OVER ()",
        "secret_real",
    ],
    "day": [
        "current_date",
        "today()",
        "(SELECT max(d) FROM t)",
        "max(d) OVER ()",
    ],
    "moment": [
        "now()",
        "current_timestamp",
        "strptime(txt, txt)",  # a format that a row decides may fail on it, and take any time
        "(SELECT max(ts) FROM t)",
        "get_current_timestamp()",
    ],
    "condition": [
        "regexp_matches(txt, txt)",
        "txt = 7",  # DuckDB would cast every text to a number
        "i32 = 'seven'",
        "txt > i32",
        "d = 5",
        "random() < 0.5",
        "EXISTS (SELECT 1 FROM t)",
        "NOT EXISTS (SELECT 1 FROM t AS a WHERE a.i32 > t.i32)",
        "i32 IN (SELECT i32 FROM t)",
        "i32 > ALL (SELECT i32 FROM t)",
        "f64 > (SELECT avg(f64) FROM t)",
        "CASE WHEN txt = 'eve' THEN error('found') ELSE true END",
        "rank() OVER (ORDER BY i32) = 1",
        "count(*) > 5",
        "list_sum(range(3000000 + i32)) > 0",
        "ts < now()",
        "secret > 5",
    ],
}
KINDS = {"i8": "whole", "i32": "whole", "i64": "whole", "i128": "whole", "u8": "whole", "u64": "whole",
         "txt": "text", "f64": "real", "d": "day", "d2": "day", "ts": "moment"}  # fmt: skip
_LEAF = re.compile(r"\b(" + "|".join(KINDS) + r")\b")

# Where a condition may stand, with a place for it.
STATEMENTS = [
    "SELECT count(*) FROM t WHERE {c}",
    "SELECT count(*) FILTER (WHERE {c}) FROM t",
    "SELECT count_if({c}) FROM t",
    "SELECT sum(CASE WHEN {c} THEN 1 ELSE 0 END) FROM t",
    "SELECT CASE WHEN {c} THEN 'x' ELSE 'y' END AS k, count(*) AS n FROM t GROUP BY k",
    "SELECT flag, count(*) AS n FROM t WHERE {c} GROUP BY flag",
    "WITH w AS (SELECT * FROM t WHERE {c}) SELECT count(*) FROM w",
    "SELECT count(*) FROM (SELECT i32, txt FROM t WHERE {c}) AS w",
    "SELECT count(*) FROM t; CREATE VIEW v AS SELECT count(*) AS n FROM t WHERE {c}",
]

# The statement itself bent; {c} is an admitted condition.
BENT = [
    "SELECT i32 FROM t WHERE {c}",
    "SELECT * FROM t WHERE {c}",
    "SELECT txt, count(*) FROM t WHERE {c} GROUP BY txt",
    "SELECT count(*) FROM t WHERE {c}; SELECT txt FROM t",
    "SELECT count(*) FROM t WHERE {c}; DROP TABLE t",
    "SELECT count(*) FROM t WHERE {c}; SET threads = 1",
    "SELECT count(*) FROM t WHERE {c}; COPY t TO 'o.csv'",
    "COPY (SELECT count(*) FROM t WHERE {c}) TO 'o.csv'",
    "CREATE TABLE x AS SELECT count(*) FROM t WHERE {c}",
    "INSERT INTO t SELECT * FROM t WHERE {c}",
    "DELETE FROM t WHERE {c}",
    "UPDATE t SET i32 = 1 WHERE {c}",
    "EXPLAIN ANALYZE SELECT count(*) FROM t WHERE {c}",
    "SUMMARIZE SELECT * FROM t WHERE {c}",
    "SELECT count(*) FROM query('FROM t') WHERE {c}",
    "SELECT count(*) FROM read_csv('/etc/passwd') WHERE {c}",
    "SELECT count(*) FROM '/etc/passwd' WHERE {c}",
    "SELECT count(*) FROM duckdb_tables() WHERE {c}",
    "SELECT count(*) FROM pragma_storage_info('t') WHERE {c}",
    "SELECT count(*) FROM information_schema.tables WHERE {c}",
    "SELECT count(*) FROM held_frame WHERE {c}",
    "SELECT count(*) FROM t USING SAMPLE 10",
    "SELECT count(*) FROM t TABLESAMPLE 10% WHERE {c}",
    "SELECT count(*) FROM t AS a CROSS JOIN t AS b WHERE {c}",
    "SELECT count(*) FROM t AS a JOIN t AS b ON a.i32 = b.i32",
    "SELECT count(*) FROM t AS a LEFT JOIN t AS b ON a.i32 < b.i32",
    "SELECT count(*) FROM t NATURAL JOIN t AS b WHERE {c}",
    "SELECT count(*) FROM t SEMI JOIN t AS b ON t.i32 = b.i32",
    "SELECT count(*) FROM t ASOF JOIN t AS b ON t.i32 >= b.i32",
    "SELECT count(*) FROM t, unnest([1, 2]) WHERE {c}",
    "SELECT unnest(range(i32)) FROM t WHERE {c}",
    "SELECT rank() OVER (ORDER BY i32) FROM t WHERE {c}",
    "SELECT list(txt) FROM t WHERE {c}",
    "SELECT string_agg(txt, ',') FROM t WHERE {c}",
    "SELECT first(txt) FROM t WHERE {c}",
    "SELECT any_value(txt) FROM t WHERE {c}",
    "SELECT arg_max(txt, i32) FROM t WHERE {c}",
    "SELECT approx_top_k(txt, 3) FROM t WHERE {c}",
    "SELECT histogram(i32) FROM t WHERE {c}",
    "SELECT sum(f64) FROM t WHERE {c}",  # no bounds are declared
    "SELECT sum(i64 * i64) FROM t WHERE {c}",
    "SELECT count(*) FROM t WHERE {c} UNION ALL SELECT i32 FROM t",
    "SELECT count(*) FROM t WHERE {c} HAVING max(txt) = 'eve'",
    "SELECT count(*) FROM t WHERE {c} GROUP BY i32 HAVING count(*) > 5",
    "WITH RECURSIVE w AS (SELECT i32 FROM t UNION ALL SELECT i32 + 1 FROM w) SELECT count(*) FROM w WHERE {c}",
    "CREATE MACRO f() AS 5; SELECT count(*) FROM t WHERE {c}",
    "CREATE TEMP VIEW t AS SELECT count(*) AS n FROM t WHERE {c}",
    "ATTACH 'x.db'; SELECT count(*) FROM t WHERE {c}",
    "INSTALL httpfs; SELECT count(*) FROM t WHERE {c}",
    "PIVOT t ON txt USING count(*)",
]  # fmt: skip


@dataclass(frozen=True)
class Bad:
    """A statement that must be refused, the admitted one that it was made of, and the forbidden piece."""

    sql: str
    admitted: str
    piece: str


def bent(rng: random.Random, admitted: Callable[[str], bool]) -> Iterator[Bad]:
    """Every bent statement once, around a random condition that is admitted."""
    for shape in BENT:
        while True:
            c = language.condition(rng, 2)
            if admitted(STATEMENTS[0].format(c=c)):
                break
        yield Bad(shape.format(c=c), STATEMENTS[0].format(c=c), shape)


def planted(rng: random.Random) -> Iterator[Bad]:
    """Endlessly: a random piece in a random place of a random statement."""
    while True:
        shape, c = rng.choice(STATEMENTS), language.condition(rng, rng.randint(1, 3))
        places = list(_LEAF.finditer(c))
        if places and rng.random() < 0.8:
            at = rng.choice(places)
            piece = rng.choice(LEAVES[KINDS[at.group()]])
            # A column inside a longer word, such as a cast's type or an interval, is none that the pattern finds.
            bad = f"{c[: at.start()]}({piece}){c[at.end() :]}"
        else:
            piece = rng.choice(LEAVES["condition"])
            bad = rng.choice([f"({c}) AND ({piece})", f"({piece}) OR ({c})", f"NOT ({piece})"])
            bad = rng.choice([bad, f"CASE WHEN {c} THEN {piece} ELSE false END"])
        yield Bad(shape.format(c=bad), shape.format(c=c), piece)
