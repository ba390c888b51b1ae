"""What analysts have: psql, psycopg, SQLAlchemy with pandas, and ADBC, against a server in this process."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import os
import shutil
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from server_world import server
from wire_client import Running, served

from dpsql.free_sql import limits

pytestmark = pytest.mark.surfaces


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(lambda: server(tmp_path_factory.mktemp("clients"))) as running:
        made = psycopg_of(running)
        made.execute("SET dpsql.epsilon = 2")
        made.execute("CREATE VIEW by_state AS SELECT state, COUNT(*) AS n FROM visits GROUP BY state")
        made.close()
        yield running


def uri(running: Running) -> str:
    return f"postgresql://ann:secret@127.0.0.1:{running.port}/health"


def psycopg_of(running: Running, **options: Any) -> Any:
    psycopg = pytest.importorskip("psycopg")
    return psycopg.connect(uri(running), autocommit=True, **options)


def spent(running: Running) -> float:
    account = running.server.service.con.budget.account("pure")
    assert account is not None
    return account.spent


# -- psycopg -------------------------------------------------------------------------------------------


def test_psycopg_asks_with_parameters(running: Running) -> None:
    with psycopg_of(running) as con:
        con.execute("SET dpsql.epsilon = 3")
        text = "SELECT COUNT(*) AS n FROM visits WHERE age >= %s AND state = %s AND day >= %s AND cost < %s"
        ((n,),) = con.execute(text, (0, "BE", dt.date(2020, 1, 1), Decimal("500.5"))).fetchall()
        assert 90 < n < 110
        before = spent(running)
        assert con.execute(text, (0, "BE", dt.date(2020, 1, 1), Decimal("500.5"))).fetchone() == (n,)
        assert spent(running) == before


def test_psycopg_reads_values_of_all_types_as_text_and_binary(running: Running) -> None:
    text = (
        "SELECT 1::SMALLINT, 2, 3::BIGINT, 12.50::DECIMAL(9,2), -0.0001::DECIMAL(9,4), "
        "1000000000000000000000000000000::DECIMAL(38,0), 1.5::DOUBLE, "
        "0.1::FLOAT, 'x', true, NULL, DATE '1970-02-03', TIMESTAMP '2020-01-01 10:00:00.5', TIME '10:11:12', "
        "INTERVAL '1 day 2 hours', 5::HUGEINT, [1, NULL], ['a,b', 'c\"'], 'ab'::BLOB, "
        "'6f8a5a0e-3f0b-4d8b-9a52-d3b2b26be2a3'::UUID, 'nan'::DOUBLE > 1"
    )
    wanted = (
        *(1, 2, 3, Decimal("12.50"), Decimal("-0.0001"), Decimal(10) ** 30, 1.5, 0.1, "x", True, None),
        *(dt.date(1970, 2, 3), dt.datetime(2020, 1, 1, 10, 0, 0, 500000), dt.time(10, 11, 12)),
        *(dt.timedelta(days=1, hours=2), Decimal(5), [1, None], ["a,b", 'c"'], b"ab"),
    )
    with psycopg_of(running) as con:
        for binary in (False, True):
            row = con.cursor(binary=binary).execute(text).fetchone()
            assert row[7] == pytest.approx(0.1)
            assert (*row[:7], *row[8:19]) == (*wanted[:7], *wanted[8:])
            assert str(row[19]) == "6f8a5a0e-3f0b-4d8b-9a52-d3b2b26be2a3"


def test_psycopg_errors_carry_their_place(running: Running) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg_of(running) as con, pytest.raises(psycopg.errors.UndefinedColumn) as caught:
        con.execute("SELECT COUNT(*) FROM visits WHERE nope = 1")
    assert caught.value.diag.statement_position == "35"


def test_psycopg_batches_cursors_copies_and_pipelines(running: Running) -> None:
    with psycopg_of(running) as con:
        found = con.execute("SELECT 1; SELECT 2")
        assert [result.fetchall() for result in found.results()] == [[(1,)], [(2,)]]
        with con.transaction(), con.cursor(name="some") as cursor:
            cursor.execute("SELECT state FROM by_state ORDER BY state")
            assert cursor.fetchmany(2) == [("BE",), ("FR",)]
            assert cursor.fetchmany(2) == [("ZH",)]
        with con.cursor().copy("COPY (SELECT state FROM by_state ORDER BY state) TO STDOUT") as copy:
            assert list(copy.rows()) == [("BE",), ("FR",), ("ZH",)]
        with con.pipeline():
            first, second = con.execute("SELECT 1"), con.execute("SELECT 2")
            assert (first.fetchone(), second.fetchone()) == ((1,), (2,))
        con.prepare_threshold = 0
        assert [con.execute("SELECT %s::int", (i,)).fetchone() for i in range(4)] == [(0,), (1,), (2,), (3,)]


def test_psycopg_asks_asynchronously(running: Running) -> None:
    psycopg = pytest.importorskip("psycopg")

    async def asked() -> list[Any]:
        async with await psycopg.AsyncConnection.connect(uri(running)) as con:
            return list(await (await con.execute("SELECT COUNT(*) FROM by_state")).fetchall())

    assert asyncio.run(asked()) == [(3,)]


def test_psycopg_cancels(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_ROWS", math.inf)
    psycopg = pytest.importorskip("psycopg")

    async def cancelled() -> None:
        async with await psycopg.AsyncConnection.connect(uri(running), autocommit=True) as con:
            work = asyncio.ensure_future(con.execute("SELECT COUNT(*) FROM range(3000000) a, range(3000000) b"))
            while not (await asyncio.wait([work], timeout=0.2))[0]:  # before the statement runs nothing is cancelled
                await con.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                await work

    asyncio.run(cancelled())


# -- SQLAlchemy and pandas -----------------------------------------------------------------------------


def engine_of(running: Running) -> Any:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    return sqlalchemy.create_engine(
        uri(running).replace("postgresql:", "postgresql+psycopg:"),
        connect_args={"options": "-c dpsql.epsilon=2"},
        poolclass=sqlalchemy.pool.NullPool,
    )


def test_sqlalchemy_reflects_what_there_is(running: Running) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = engine_of(running)
    inspector = sqlalchemy.inspect(engine)
    assert inspector.get_schema_names() == ["dp", "information_schema", "main"]
    assert inspector.get_table_names() == ["visits"]
    assert "by_state" in inspector.get_view_names("dp")
    columns = {column["name"]: column for column in inspector.get_columns("visits")}
    assert isinstance(columns["cost"]["type"], sqlalchemy.Numeric)
    assert (columns["age"]["nullable"], columns["age"]["comment"]) == (False, "0 to 99")
    assert inspector.get_table_comment("visits") == {"text": "private; protects each row"}
    assert inspector.get_pk_constraint("visits")["constrained_columns"] == []
    assert inspector.get_foreign_keys("visits") == inspector.get_indexes("visits") == []
    assert inspector.has_table("visits")
    assert not inspector.has_table("elsewhere")
    meta = sqlalchemy.MetaData()
    meta.reflect(engine)
    visits = meta.tables["visits"]
    asked = sqlalchemy.select(visits.c.state, sqlalchemy.func.count().label("n")).where(visits.c.age > 17)
    with engine.connect() as con:
        rows = con.execute(asked.group_by(visits.c.state)).fetchall()
    assert [row.state for row in rows] == ["BE", "FR", "ZH"]


def test_pandas_reads_sql(running: Running) -> None:
    pandas = pytest.importorskip("pandas")
    engine = engine_of(running)
    frame = pandas.read_sql("SELECT state, AVG(cost) AS mean FROM visits GROUP BY state", engine)
    assert list(frame.columns) == ["state", "mean"]
    assert len(frame) == 3
    frame = pandas.read_sql_table("by_state", engine, schema="dp")
    assert list(frame.columns) == ["state", "n", "n_stderr", "n_low", "n_high"]


# -- ADBC ----------------------------------------------------------------------------------------------


def test_adbc_fetches_arrow_and_lists_what_there_is(running: Running) -> None:
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with adbc.connect(uri(running)) as con, con.cursor() as cursor:
        cursor.execute("SET dpsql.epsilon = 2")
        cursor.execute("SELECT state, COUNT(*) AS n FROM visits GROUP BY state")
        table = cursor.fetch_arrow_table()
        assert table.column("state").to_pylist() == ["BE", "FR", "ZH"]
        assert str(table.schema.field("n").type) == "double"
        cursor.execute("SELECT COUNT(*) AS n FROM visits WHERE age > $1", (17,))
        assert len(cursor.fetchall()) == 1
        names = con.adbc_get_table_schema("visits", db_schema_filter="main").names
        assert names == ["id", "age", "state", "cost", "day"]
        (held,) = con.adbc_get_objects(depth="columns").read_all().to_pylist()
        tables = {
            (schema["db_schema_name"], table["table_name"])
            for schema in held["catalog_db_schemas"]
            for table in schema["db_schema_tables"]
        }
        assert {("main", "visits"), ("dp", "by_state")} <= tables


def test_adbc_reads_whole_results_over_flight_sql(running: Running) -> None:
    client = pytest.importorskip("adbc_driver_flightsql.dbapi")
    from dpsql.extensions.server.flight import Flights

    flights = Flights(running.server, {"a token": "ann"}.get, 0)
    running.do(flights.start())
    options = {"adbc.flight.sql.authorization_header": "Bearer a token"}
    options["adbc.flight.sql.rpc.call_header.dpsql-epsilon"] = "0.5"
    with client.connect(f"grpc://127.0.0.1:{flights.port}", db_kwargs=options, autocommit=True) as con:
        with con.cursor() as cursor:
            cursor.execute("SELECT state, SUM(age) AS years FROM visits GROUP BY state")
            assert cursor.fetch_arrow_table().column("state").to_pylist() == ["BE", "FR", "ZH"]
        with con.cursor() as cursor, pytest.raises(client.Error, match="no column nope"):
            cursor.execute("SELECT nope FROM visits")
    running.do(flights.stop(5.0))


# -- JDBC ----------------------------------------------------------------------------------------------

JARS = (Path("/usr/share/java/postgresql.jar"), Path("/usr/share/java/scram-client.jar"))


def test_java_asks_by_jdbc(running: Running) -> None:
    jars = os.environ.get("DPSQL_JDBC") or (f"{JARS[0].parent}/*" if all(jar.exists() for jar in JARS) else "")
    if not jars or shutil.which("java") is None:
        pytest.skip("JDBC's driver is not installed (libpostgresql-jdbc-java, libscram-java), nor named by DPSQL_JDBC")
    address = f"jdbc:postgresql://127.0.0.1:{running.port}/health"
    program = Path(__file__).parent / "Ask.java"
    done = subprocess.run(["java", "-cp", jars, program, address], capture_output=True, text=True, timeout=300)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert said["product"] == "PostgreSQL 16"
    assert said["tables"] == "visits"
    assert said["columns"].startswith("id|int4|no domain declared; for conditions only, age|int4|0 to 99")
    assert (said["keys"], said["imported"], said["indexes"]) == ("", "", "")
    assert (said["asked"], said["shape"]) == ("BE, FR, ZH", "n float8")
    assert said["few"] == "0, 1, 2, 3, 4, 5, 6"
    assert said["refused"] == "42703"


# -- psql ----------------------------------------------------------------------------------------------


def psql(running: Running, *commands: str, folder: Path | None = None) -> str:
    if shutil.which("psql") is None:
        pytest.skip("psql is not installed")
    words = [word for command in commands for word in ("-c", command)]
    done = subprocess.run(
        ["psql", "-X", uri(running), "-P", "pager=off", *words], capture_output=True, text=True, timeout=60, cwd=folder
    )
    return done.stdout + done.stderr


def test_psql_describes(running: Running) -> None:
    assert "| visits   | table | dpsql" in psql(running, "\\d")
    assert "by_state" not in psql(running, "\\dt")
    said = psql(running, "\\d visits", "\\d+ visits", "\\d dp.by_state")
    assert "cost   | numeric(9,2)" in said
    assert "0 to 500; in steps of 0.5" in said
    assert "n_stderr | double precision" in said
    assert "ERROR" not in psql(
        running, "\\l", "\\dn+", "\\dv", "\\du", "\\df", "\\dT", "\\di", "\\ds", "\\dx", "\\dp", "\\conninfo"
    )


def test_psql_explains_asks_and_points(running: Running) -> None:
    said = psql(
        running,
        "SET dpsql.epsilon = 2",
        "EXPLAIN SELECT age, COUNT(*) AS n FROM visits GROUP BY age",
        "SELECT SUM(cost) AS cost FROM visits WHERE age = 77",
        "SELECT nope FROM visits",
        "SHOW dpsql.budget",
    )
    assert "Guarantee  differential privacy at epsilon 2 (pure)" in said
    assert "NOTICE:  charged epsilon 2 (pure)" in said
    assert "LINE 1: SELECT nope FROM visits\n               ^" in said
    assert "gaussian" in said


def test_psql_copies_and_watches(running: Running, tmp_path: Path) -> None:
    said = psql(running, "\\copy (SELECT state FROM by_state ORDER BY 1) TO 'out.csv' CSV HEADER", folder=tmp_path)
    assert "COPY 3" in said
    assert (tmp_path / "out.csv").read_text() == "state\nBE\nFR\nZH\n"
    words = ["psql", "-X", uri(running)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("SELECT COUNT(*) FROM by_state \\watch 0.2\n")
        process.stdin.flush()
        found = [process.stdout.readline() for _ in range(18)]
        process.terminate()
    assert sum("every 0.2s" in line for line in found) >= 2
