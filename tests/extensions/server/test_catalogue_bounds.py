"""A large catalogue: what clients ask is answered, and what could hold it up is refused before any of it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import SQLError
from dpsql.extensions.server.catalogue import catalogue as listing
from dpsql.extensions.server.catalogue.catalogue import Catalogue
from dpsql.extensions.server.catalogue.relations import Column, Relation, numbered

TABLES, WIDTH = 600, 25
KINDS = ("INTEGER", "VARCHAR", "DATE", "DECIMAL(9,2)")


def relations() -> list[Relation]:
    columns = tuple(Column(f"c{number}", KINDS[number % 4], "0 to 99") for number in range(WIDTH))
    return [
        Relation(
            schema="main" if number % 2 else "dp",
            name=f"t{number}",
            kind="r" if number % 2 else "v",
            comment="a table",
            columns=columns,
            key=("c0",),
            references=(("c1", "t1", "c0"),) if number % 2 and number > 1 else (),
        )
        for number in range(TABLES)
    ]


class Recorded:
    """A connection of DuckDB that writes down what is executed."""

    def __init__(self, connection: Any, executed: list[str]) -> None:
        self.connection = connection
        self.executed = executed

    def cursor(self) -> Recorded:
        return Recorded(self.connection.cursor(), self.executed)

    def execute(self, statement: Any, *parameters: Any) -> Any:
        self.executed.append(getattr(statement, "query", statement))
        return self.connection.execute(statement, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


@pytest.fixture(scope="module")
def executed() -> list[str]:
    return []


@pytest.fixture(scope="module")
def catalogue(executed: list[str]) -> Iterator[Catalogue]:
    listed = relations()
    found = Catalogue(lambda: listed, lambda: 0)
    real = found._instance()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "_instance", lambda: Recorded(real, executed))
        yield found


def client_statements() -> dict[str, str]:
    """The statements of clients by their names."""
    paragraphs = (Path(__file__).parent / "client_statements.sql").read_text().strip().split("\n\n")[1:]
    split = [paragraph.split("\n", 1) for paragraph in paragraphs]
    return {name.removeprefix("-- "): sql.strip().removesuffix(";") for name, sql in split}


@pytest.mark.parametrize("client", client_statements())
@pytest.mark.few(every=4)
def test_clients_are_answered(client: str, catalogue: Catalogue) -> None:
    (number,) = [oid for oid, one in numbered(relations()).items() if one.name == "t5"]
    sql = client_statements()[client].replace("{table}", "t5").replace("{oid}", str(number))
    found = catalogue.sql(sql, "ann", "health", 30)
    least = {"psql \\d": TABLES, "JDBC getColumns": TABLES * WIDTH, "psql \\d table: its columns": WIDTH}
    assert len(found.rows) >= least.get(client, 0)


def grown(names: int, link: str) -> str:
    """WITH queries of which each reads the one before twice."""
    steps = [f"a{i} AS (SELECT a.oid FROM a{i - 1} a JOIN a{i - 1} b {link})" for i in range(1, names)]
    return f"WITH a0 AS (SELECT oid FROM pg_class), {', '.join(steps)} SELECT count(*) FROM a{names - 1}"


HOSTILE = [
    "SELECT count(*) FROM " + ", ".join(f"pg_class AS c{i}" for i in range(8)),
    "SELECT count(*) FROM " + " CROSS JOIN ".join(f"pg_attribute AS c{i}" for i in range(8)),
    "SELECT count(*) FROM pg_attribute a, pg_attribute b",
    "SELECT count(*) FROM pg_attribute a JOIN pg_attribute b ON a.attnum < b.attnum",
    "SELECT count(*) FROM pg_attribute a JOIN pg_attribute b USING (attnum) JOIN pg_attribute c USING (attnum)",
    "SELECT (SELECT count(*) FROM pg_attribute b WHERE b.attname < a.attname) FROM pg_attribute a",
    "SELECT count(*) FROM information_schema.columns a, information_schema.columns b",
    grown(6, "ON true"),
    "SELECT count(format_type(a.atttypid, 1)) FROM pg_attribute a, pg_attribute b",
    "SELECT count(to_regtype(attname)) FROM pg_attribute, range(100)",
    "SELECT length(repeat(relname, 2000000)) FROM pg_class",
    "SELECT repeat(relname, oid) FROM pg_class",
    "SELECT repeat('a', 900000) FROM pg_class",
    "SELECT lpad(relname, 100000000, 'x') FROM pg_class",
    "SELECT string_agg(attname, '') OVER (ORDER BY attrelid) FROM pg_attribute",
    "SELECT * FROM range(100000000)",
    "SELECT * FROM pg_class, range(100000)",
    "SELECT unnest(range(9999)) FROM pg_attribute",
    "SELECT list_sort(range(9999)) FROM pg_attribute",
    "SELECT max(sha256(a.i::text)) FROM range(4000000) a(i)",
    "SELECT max(md5(md5(i::text))) FROM range(4900000) a(i)",
    "SELECT max(i::DECIMAL(38,10)::VARCHAR::DECIMAL(38,9)::VARCHAR) FROM range(4900000) a(i)",
    "SELECT max(printf('%d %.3f', i, 1.5)) || max(format('{:,}', i)) FROM range(4900000) a(i)",
    "SELECT max(regexp_replace(i::text, '[0-9]', 'x', 'g')) FROM range(4000000) a(i)",
    "SELECT histogram(i) FROM range(1000000) a(i)",
    "SELECT mode(i) OVER (ORDER BY i) FROM range(1000000) a(i)",
    "SELECT median(DISTINCT i) OVER (ORDER BY i ROWS 5 PRECEDING) FROM range(100000) a(i)",
    "SELECT quantile_disc(i % 2 = 0, 0.5) OVER (ORDER BY i ROWS 20000 PRECEDING) FROM range(20000) a(i)",
    "SELECT median([i]) OVER (ORDER BY i) FROM range(20000) a(i)",
    "SELECT approx_quantile(i, 0.5) OVER (ORDER BY i ROWS 9 PRECEDING) FROM range(50000) a(i)",
    "SELECT histogram(attname) OVER () FROM pg_attribute",
    " UNION ALL ".join(["SELECT 1"] * 1_001),
    "SELECT 1 FROM " + ", ".join(f"(SELECT 1) AS s{i}" for i in range(65)),
    "SELECT " + " + ".join(["(SELECT 1)"] * 65),
    "SELECT 1 FROM pg_class WHERE " + " OR ".join(["oid IN (SELECT 1)"] * 65),
    "SELECT " + "nullif(" * 14 + "relname" + ", 'a')" * 14 + " FROM pg_class",
    "SELECT " + "CASE " * 14 + "1" + " WHEN 1 THEN 2 WHEN 2 THEN 1 END" * 14 + " FROM pg_class",
    "SELECT count(*) FROM pg_attribute GROUP BY CUBE(attrelid, attname, attnum, atttypid, attlen, attnotnull, 1, 2)",
    "SELECT current_schemas(" + "current_schemas(" * 9 + "true" + ")" * 10 + " FROM pg_class",
    "SELECT " + "array_upper(" * 13 + "[1]" + ", 1)" * 13,
]


@pytest.mark.parametrize("sql", HOSTILE, ids=range(len(HOSTILE)))
def test_what_would_hold_it_up_is_refused_before_it_runs(
    sql: str, catalogue: Catalogue, executed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "fetched", lambda *_: pytest.fail("rows were fetched"))
    executed.clear()
    with pytest.raises(SQLError) as error:
        catalogue.sql(sql, "ann", "health", 30)
    assert error.value.code == "too-large"
    # The catalogue's own tables are counted, the text is parsed, and nothing else happens.
    allowed = ("SET VARIABLE", "SELECT json_serialize_sql(?)", "SELECT * FROM ", "SELECT count(*)", "SELECT max(n)")
    assert all(text.startswith(allowed) for text in executed)
    assert not any(part in text for text in executed for part in ("range(", "repeat(", "OVER", " AS c0", " a,"))


@pytest.mark.long
def test_random_joins_of_the_catalogue_are_refused_or_small(catalogue: Catalogue) -> None:
    """Whatever is answered has fewer rows than the limit of joins, by DuckDB's own count."""
    draw, answered, refused = random.Random(1), 0, 0
    tables = {"pg_class": "oid", "pg_attribute": "attrelid", "pg_namespace": "oid", "pg_type": "oid"}
    for _ in range(60):
        names = [draw.choice(list(tables)) for _ in range(draw.randint(2, 4))]
        joined = f"{names[0]} AS t0"
        for at, name in enumerate(names[1:], 1):
            other = draw.randrange(at)
            joined += draw.choice(
                [
                    f", {name} AS t{at}",
                    f" JOIN {name} AS t{at} ON t{at}.{tables[name]} = t{other}.{tables[names[other]]}",
                ]
            )
        try:
            found = catalogue.sql(f"SELECT count(*) FROM {joined}", "ann", "health", 30).rows
        except SQLError as error:
            refused += error.code == "too-large"
            continue
        answered += 1
        assert int(found[0][0]) <= 5_000_000
    assert answered > 10
    assert refused > 10
