"""A Spark session as the engine: one plan, one charge, one scan; what a session may be, and what a failure may say."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import counts_of, policy_of

import dpsql
from dpsql.extensions.spark import engine as engine_module
from dpsql.extensions.spark.engine import SparkEngine
from dpsql.extensions.spark.session import inside, silence
from dpsql.measure import TableSource
from dpsql.privacy.noise import Noise

# PySpark warns of versions of pandas, which only a test uses.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::FutureWarning")]

POLICY = """
[tables.visits]
unit = "row"
source = "spark:spark_catalog.default.visits"
[tables.visits.columns]
state = { values = ["NY", "NJ", "CA"], other = true }
age = { lower = 0, upper = 120 }
cost = { lower = 0.0, upper = 500.0, step = 0.01 }
day = { lower = 2024-01-01, upper = 2024-12-31 }
"""
BATCH = """
CREATE VIEW by_state AS SELECT state, COUNT(*) AS n, SUM(cost) AS cost FROM visits GROUP BY state;
SELECT COUNT_IF(age >= 65), AVG(age) FROM visits;
SELECT month(day) AS m, COUNT(*) AS n FROM visits GROUP BY m
"""
ROWS = """
SELECT CAST(id AS INT) AS id, element_at(array('NY', 'NJ', 'CA', 'TX'), CAST(id % 4 AS INT) + 1) AS state,
    CAST(id % 90 AS INT) AS age, CAST(id % 700 AS DOUBLE) AS cost,
    date_add(DATE'2024-01-01', CAST(id % 366 AS INT)) AS day, id AS hidden FROM range(5000)
"""


@pytest.fixture(scope="module")
def visits(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> duckdb.DuckDBPyConnection:
    """The table in Spark, and the same one in DuckDB."""
    spark.sql("DROP TABLE IF EXISTS visits")
    spark.sql(f"CREATE TABLE visits USING parquet AS {ROWS}")
    folder = tmp_path_factory.mktemp("visits")
    spark.table("visits").write.parquet(str(folder / "rows"))
    con = duckdb.connect()
    con.execute(f"CREATE TABLE visits AS FROM '{folder}/rows/*.parquet'")
    return con


@pytest.fixture
def con(spark: Any, visits: object, tmp_path: Path) -> Iterator[dpsql.Connection]:
    with dpsql.connect(spark, policy=policy_of(POLICY), ledger=tmp_path / "s.ledger") as opened:
        yield opened


def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "sample", lambda _, count: [(7 * k) % 11 - 5 for k in range(count)])


def test_the_same_noise_gives_the_same_release(
    spark: Any,
    visits: duckdb.DuckDBPyConnection,
    con: dpsql.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _same_noise(monkeypatch)
    policy = policy_of(POLICY.replace('source = "spark:spark_catalog.default.visits"\n', ""))
    with dpsql.connect(visits, policy=policy, ledger=tmp_path / "d.ledger") as other:
        plans = con.plan(BATCH, 1), other.plan(BATCH, 1)
        assert str(plans[0].stderr) == str(plans[1].stderr)
        releases = con.run(plans[0]), other.run(plans[1])
        for name in releases[0].views:
            assert releases[0][name].fetchall() == releases[1][name].fetchall()
    assert con.sql("SELECT COUNT(*) FROM dp.by_state").fetchall() == [(5,)]
    assert con.budget.spent == 1


@pytest.mark.parametrize("unit", ['"row"', '"hidden"\nmax_rows_per_unit = 2'], ids=("rows", "units"))
def test_what_is_planned_before_the_charge_is_run_after_it(
    unit: str, spark: Any, visits: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    real = engine_module.written
    monkeypatch.setattr(engine_module, "written", lambda *given: written.append(real(*given)) or written[-1])
    policy = policy_of(POLICY.replace('"row"', unit))
    with dpsql.connect(spark, policy=policy, ledger=tmp_path / "u.ledger") as con:
        con.run("SELECT COUNT(*) AS n FROM visits", 1)
        assert isinstance(con._holdings.engine, SparkEngine)
        assert not con._holdings.engine._plans.by_key
    assert len(written) == 1


def test_a_cursor_answers_from_a_release_for_free(con: dpsql.Connection) -> None:
    con.run("SELECT COUNT(*) AS n FROM visits", 1)
    cursor = con.cursor()
    cursor.execute("SELECT COUNT(*) AS n FROM visits")
    # Noise of scale 1: farther once in 10^43.
    assert abs(cursor.fetchall()[0][0] - 5000) < 100
    assert con.budget.spent == 1


def test_what_the_session_says_otherwise_changes_nothing(
    spark: Any, visits: duckdb.DuckDBPyConnection, con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _same_noise(monkeypatch)
    again = BATCH.replace("CREATE VIEW", "CREATE OR REPLACE VIEW")
    wanted = con.run(con.plan(again, 1))["by_state"].fetchall()
    mine = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Asia/Tokyo",
            "spark.sql.caseSensitive": "true", "spark.sql.groupByOrdinal": "false",
            "spark.sql.parser.escapedStringLiterals": "true"}  # fmt: skip
    before = {key: spark.conf.get(key) for key in mine}
    spark.range(3).createOrReplaceTempView("visits")
    spark.udf.register("greatest", lambda *_: 0)
    try:
        for key, value in mine.items():
            spark.conf.set(key, value)
        assert con.run(con.plan(again, 1), fresh=True)["by_state"].fetchall() == wanted
        assert {key: spark.conf.get(key) for key in mine} == mine
        assert spark.table("visits").count() == 3
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
        spark.catalog.dropTempView("visits")
        spark.sql("DROP TEMPORARY FUNCTION IF EXISTS greatest")


def test_a_table_is_read_as_it_is_now(spark: Any, tmp_path: Path) -> None:
    spark.sql("CREATE OR REPLACE TEMP VIEW later AS SELECT 1 AS k")
    spark.sql("DROP TABLE IF EXISTS default.grows")
    spark.sql("CREATE TABLE default.grows USING parquet AS SELECT CAST(1 AS INT) AS k")
    engine, source = SparkEngine(spark), TableSource("grows")
    assert engine.scan(counts_of(source))["n"].tolist() == [1]
    spark.sql("INSERT INTO default.grows VALUES (2)")
    assert engine.scan(counts_of(source))["n"].tolist() == [2]
    assert engine.scan(counts_of(source))["n"].dtype == np.int64


def test_types_without_a_portable_meaning_cannot_be_declared(spark: Any) -> None:
    spark.sql("DROP TABLE IF EXISTS kinds")
    spark.sql(
        "CREATE TABLE kinds (a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(10,2), h STRING, "
        "i BOOLEAN, j DATE, k TIMESTAMP_NTZ, l VARCHAR(5), m TIMESTAMP, n CHAR(3), o STRING COLLATE UNICODE_CI, "
        "p BINARY, q ARRAY<INT>, r MAP<STRING, INT>, s STRUCT<x: INT>, t INTERVAL DAY TO SECOND) USING parquet"
    )
    found = SparkEngine(spark).schemas([TableSource("kinds")])["kinds"]
    assert list(found.values()) == [
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "VARCHAR", "BOOLEAN", "DATE"),
        *("TIMESTAMP", "VARCHAR", "SPARK TIMESTAMP", "SPARK CHAR", "SPARK STRING", "SPARK BINARY", "SPARK ARRAY"),
        *("SPARK MAP", "SPARK STRUCT", "SPARK INTERVAL"),
    ]
    policy = policy_of('[tables.kinds]\nunit = "row"\n[tables.kinds.columns]\nm = {}\n')
    with (
        tempfile.TemporaryDirectory() as folder,
        pytest.raises(dpsql.Error, match="SPARK TIMESTAMP; leave the column out"),
    ):
        dpsql.connect(spark, policy=policy, ledger=f"{folder}/k.ledger").plan("SELECT COUNT(m) FROM kinds", 1)


def test_a_view_a_missing_table_and_a_text_format_are_refused(spark: Any) -> None:
    spark.sql("CREATE OR REPLACE VIEW default.seen AS SELECT 1 AS k")
    spark.sql("DROP TABLE IF EXISTS default.lines")
    spark.sql("CREATE TABLE default.lines (k INT) USING csv")
    spark.sql("CREATE OR REPLACE TEMP VIEW passing AS SELECT 1 AS k")
    engine = SparkEngine(spark)
    for name, said in (
        ("seen", "is a view"),
        ("lines", "one row can make a scan fail"),
        ("none", "no table"),
        ("passing", "no table"),
    ):
        with pytest.raises(dpsql.PolicyError, match=said):
            engine.schemas([TableSource(name)])


def test_a_plan_says_of_a_table_what_describe_says(spark: Any, visits: object, tmp_path: Path) -> None:
    spark.sql("CREATE OR REPLACE VIEW default.seen AS SELECT 1 AS k")
    spark.sql("DROP TABLE IF EXISTS default.beside")
    spark.sql(f"CREATE TABLE default.beside (k INT) USING orc LOCATION '{tmp_path}/a b%20c'")
    for name in ("visits", "beside"):
        table = spark.table(f"spark_catalog.default.{name}")
        described = engine_module._description(spark, ("spark_catalog", "default", name))
        assert engine_module._resolved(table) == {key: described[key] for key in ("type", "provider", "location")}
    assert engine_module._resolved(spark.table("spark_catalog.default.seen")) == {}


def test_two_names_of_one_table_are_refused(spark: Any, visits: object) -> None:
    sources = [
        TableSource(name, remote=("spark_catalog", "default", table))
        for name, table in (("a", "visits"), ("b", "VISITS"))
    ]
    with pytest.raises(dpsql.PolicyError, match="a and b are one table of Spark"):
        SparkEngine(spark).schemas(sources)


def test_columns_that_differ_in_case_alone_are_refused(spark: Any) -> None:
    spark.sql("DROP TABLE IF EXISTS twice")
    before = spark.conf.get("spark.sql.caseSensitive")
    spark.conf.set("spark.sql.caseSensitive", "true")
    spark.sql("CREATE TABLE twice USING parquet AS SELECT 1 AS k, 2 AS K")
    spark.conf.set("spark.sql.caseSensitive", before)
    # Spark itself cannot read such a table where case does not count.
    with pytest.raises(dpsql.Error, match=r"differ in case alone|cannot read the schema.*nothing was charged"):
        SparkEngine(spark).schemas([TableSource("twice")])


def test_what_spark_cannot_say_is_refused_before_the_charge(con: dpsql.Connection) -> None:
    plan = con.plan("SELECT COUNT(*) FROM visits WHERE CAST(day AS VARCHAR) LIKE '2024%'", 1)
    with pytest.raises(dpsql.NotSupportedError, match=r"CAST of day casts DATE to VARCHAR.*nothing was charged"):
        con.run(plan)
    assert con.budget.spent == 0


def test_a_local_release_is_refused_before_the_charge(spark: Any, visits: object, tmp_path: Path) -> None:
    policy = policy_of("local_epsilon = 2.0\n" + POLICY.replace('unit = "row"', 'unit = "row"\nrows_public = true'))
    with dpsql.connect(spark, policy=policy, ledger=tmp_path / "l.ledger") as con:
        with pytest.raises(dpsql.NotSupportedError, match="rows are not brought back"):
            con.synthesize("visits", ["state"], 1)
        assert con.budget.spent == 0


FAILING = "raise_error(concat('secret ', state))"


def _failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans of a statement that fails on every row and names its values."""
    real = engine_module.written

    def statement(*given: Any) -> tuple[str, list[str]]:
        text, names = real(*given)
        column = "`dpsql_base`.`state`"
        assert column in text
        return text.replace(column, f"CAST({FAILING.replace('state', column)} AS STRING)"), names

    monkeypatch.setattr(engine_module, "written", statement)


def test_a_failed_job_leaves_the_charge_and_says_nothing(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = con.plan("SELECT state, COUNT(*) FROM visits GROUP BY state", 1)
    _failing(monkeypatch)
    with pytest.raises(dpsql.OperationalError, match=r"failed inside Spark.*stays charged") as failure:
        con.run(plan)
    error: BaseException | None = failure.value
    assert error is not None
    assert error.__cause__ is None
    assert error.__context__ is None
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert not any("secret" in repr(value) for frame in frames[1:] for value in frame.f_locals.values())
    assert con.budget.spent == 1
    assert [entry.released for entry in con.releases()] == [None]


def test_pythons_own_loggers_are_silent_during_a_scan(
    con: dpsql.Connection, spark: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "secret" in record.getMessage()]

    plan = con.plan("SELECT state, COUNT(*) FROM visits GROUP BY state", 1)
    _failing(monkeypatch)
    py4j = logging.getLogger("py4j")
    before = py4j.level
    py4j.setLevel(logging.DEBUG)
    caplog.set_level(logging.DEBUG)
    try:
        with pytest.raises(dpsql.OperationalError, match="failed inside Spark"):
            con.run(plan)
        assert said() == []
        assert py4j.level == logging.DEBUG
        # What is silenced would have been printed.
        with contextlib.suppress(Exception):
            spark.sql(f"SELECT {FAILING} FROM spark_catalog.default.visits").collect()
        assert said() != []
    finally:
        py4j.setLevel(before)


def test_an_interrupt_before_the_work_began_stops_it(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: threading.Thread) -> None:
        raise KeyboardInterrupt

    began: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        assert inside(spark, lambda: began.append(1), None) == (None, "interrupted")
    assert began == []
    real = threading.Thread.start

    def late(self: threading.Thread) -> None:
        real(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", late)
        assert inside(spark, lambda: None, None) == (None, "interrupted")


def test_the_log_is_as_before_when_the_last_of_several_scans_has_ended(spark: Any, visits: object) -> None:
    configuration = spark._jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration()
    engine = SparkEngine(spark)
    scans = [threading.Thread(target=engine.scan, args=(counts_of(TableSource("visits")),)) for _ in range(3)]
    for scan in scans:
        scan.start()
    for scan in scans:
        scan.join()
    assert configuration.getFilter() is None


def test_no_level_and_no_filter_of_the_user_turns_a_logger_on_during_a_scan(spark: Any) -> None:
    log4j = spark._jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    logger, configuration = context.getLogger("dpsql.later"), context.getConfiguration()
    accepts = getattr(spark._jvm, "org.apache.logging.log4j.core.Filter$Result").ACCEPT
    theirs = [log4j.core.filter.LevelMatchFilter.newBuilder().setOnMatch(accepts).build() for _ in range(2)]  # of ERROR
    for filters in ([], theirs[:1], theirs):
        for one in filters:
            configuration.addFilter(one)
        before = configuration.getFilter()
        with silence(spark.sparkContext):
            log4j.core.config.Configurator.setLevel("dpsql.later", log4j.Level.ALL)
            assert not logger.isErrorEnabled()
        assert logger.isErrorEnabled()
        after = configuration.getFilter()
        assert (after is None) == (before is None)
        assert after is None or after.toString() == before.toString()
        for one in filters:
            configuration.removeFilter(one)
    assert configuration.getFilter() is None


def test_a_scan_that_takes_too_long_is_stopped(
    spark: Any, visits: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = engine_module.written

    def slow(*given: Any) -> tuple[str, list[str]]:
        text, names = real(*given)
        return text.replace(" FROM ", " FROM range(0, 100000000000, 1, 2) AS x CROSS JOIN "), names

    with dpsql.connect(spark, policy=policy_of(POLICY), ledger=tmp_path / "t.ledger", scan_timeout=2) as con:
        plan = con.plan("SELECT COUNT(*) FROM visits", 1)
        monkeypatch.setattr(engine_module, "written", slow)
        with pytest.raises(dpsql.OperationalError, match="took longer than scan_timeout, 2 s"):
            con.run(plan)
        assert con.budget.spent == 1
    assert not list(spark.sparkContext.statusTracker().getActiveJobsIds())


def test_a_task_that_fails_once_changes_no_count(
    spark: Any,
    con: dpsql.Connection,
    visits: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first attempt of every task fails after it has counted its rows; the second is what counts."""
    mark = tmp_path / "attempts"
    mark.mkdir()

    def once(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        (mark / f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}").touch()
        held = list(batches)
        if not context.attemptNumber():
            raise RuntimeError("lost")
        yield from held

    spark.table("visits").repartition(3).mapInArrow(once, spark.table("visits").schema).createOrReplaceGlobalTempView(
        "flaky"
    )
    engine = SparkEngine(spark)
    real = engine_module.written

    def flaky(*given: Any) -> tuple[str, list[str]]:
        text, names = real(*given)
        return text.replace("`spark_catalog`.`default`.`visits`", "global_temp.flaky"), names

    asked = counts_of(TableSource("visits"), "age")
    wanted = engine.scan(asked)
    monkeypatch.setattr(engine_module, "written", flaky)
    found = engine.scan(asked)
    assert sorted(zip(*found.values(), strict=True)) == sorted(zip(*wanted.values(), strict=True))
    assert int(found["n"].sum()) == 5000
    attempts = [int(path.name.rpartition("-")[2]) for path in mark.iterdir()]
    assert attempts.count(0) == attempts.count(1) >= 3


ENDED = """
import contextlib, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from helpers import counts_of, policy_of
from spark_tables import new_session
import dpsql
from dpsql.extensions.spark import engine as engine_module, session as spark_session
from dpsql.extensions.spark.session import inside
from dpsql.extensions.spark.engine import SparkEngine
from dpsql.measure import TableSource
spark = new_session(Path({folder!r}))
spark.sql("CREATE TABLE default.visits USING parquet AS SELECT CAST(1 AS INT) AS age, 'secret' AS name")
policy = policy_of('[tables.visits]\\nunit = "row"\\n[tables.visits.columns]\\nage = {{ lower = 0, upper = 9 }}\\n')
con = dpsql.connect(spark, policy=policy, ledger={folder!r} + "/x.ledger")
plan = con.plan("SELECT COUNT(*) FROM visits", 1)

def failing():
    real = engine_module.written
    def statement(*rest):
        text, names = real(*rest)
        return text.replace("count(1)", "count(raise_error(concat('value ', name)))"), names
    engine_module.written = statement
    with contextlib.suppress(dpsql.OperationalError):
        SparkEngine(spark).scan(counts_of(TableSource("visits")))
    engine_module.written = real

{end}
for work in (lambda: con.run(plan), lambda: dpsql.connect(spark, policy=policy, ledger={folder!r} + "/y.ledger")):
    try:
        work()
    except dpsql.Error as error:
        print(type(error).__name__, error)
print(con.budget.spent == 0)
"""
LOGGED = """
failing()
print("== loud", file=sys.stderr, flush=True)
spark_session.silence = lambda _: contextlib.nullcontext()
failing()
spark.stop()
"""
KILLED = "java = spark.sparkContext._gateway.proc; java.kill(); java.wait()"


def _ended(end: str, folder: Path) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1] / "shared")])}
    code = ENDED.format(folder=str(folder), end=end)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=900)


def test_values_are_kept_out_of_the_log_and_a_stopped_session_is_refused(spark: object, tmp_path: Path) -> None:
    done = _ended(LOGGED, tmp_path)
    lines = done.stdout.splitlines()
    assert [line.startswith("InterfaceError the Spark session is stopped") for line in lines[:2]] == [True, True], done
    assert lines[2] == "True"
    quiet, _, loud = done.stderr.partition("== loud")
    # What is silenced would have been printed.
    assert "value secret" not in quiet
    assert "value secret" in loud


def test_a_session_without_its_java_is_refused_before_the_charge(spark: object, tmp_path: Path) -> None:
    done = _ended(KILLED, tmp_path)
    lines = done.stdout.splitlines()
    said = "InterfaceError the Java process of the Spark session cannot be reached"
    assert [line.startswith(said) for line in lines[:2]] == [True, True], done
    assert lines[2] == "True"
