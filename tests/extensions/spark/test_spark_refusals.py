"""What is refused without any Spark: names of tables, connections, statements outside the closed list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from helpers import compiled_of, job_of, policy_of, tables_of

import dpsql
from dpsql.errors import NotSupportedError, PolicyError
from dpsql.extensions.spark.engine import Source, written
from dpsql.extensions.spark.opening import is_session
from dpsql.extensions.spark.session import check_session
from dpsql.measure import ConnectionEngine
from dpsql.measure.reading import scan_of
from dpsql.measure.sources import Holdings
from dpsql.policy import Policy
from dpsql.workloads.expr.scan import Joined, Match, Select, Table
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import (
    CaseValue,
    Cast,
    Compared,
    Constant,
    CountRows,
    Gathered,
    Like,
    Name,
    Test,
    Value,
    Window,
    Word,
    bare,
    whole,
)

TABLE = '[tables.visits]\nunit = "row"\nsource = {}\n[tables.visits.columns]\nage = {{ lower = 0, upper = 9 }}\n'
SPARK = TABLE.format('"spark:lake.clinic.visits"')


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("spark:lake.clinic.visits", ("lake", "clinic", "visits")),
        ("SPARK:spark_catalog.default.t", ("spark_catalog", "default", "t")),
        ("spark:lake.`a.b`.`x``y`", ("lake", "a.b", "x`y")),
        ("spark:lake.data.csv", ("lake", "data", "csv")),
        ("spark:lake.data.`a*b`", ("lake", "data", "a*b")),
    ],
)
def test_a_source_names_catalog_schema_and_table(source: str, parts: tuple[str, ...]) -> None:
    policy = policy_of(TABLE.format(f"'{source}'"))
    assert policy.spark_table("visits") == parts
    assert policy.source_path("visits") is None
    table = policy.table("visits")
    assert (table.is_spark, table.is_csv, table.is_pattern) == (True, False, False)
    assert Policy.parse(policy.to_toml()) == policy


@pytest.mark.parametrize(
    "source",
    [
        "spark:",
        "spark:visits",
        "spark:clinic.visits",
        "spark:a.b.c.d",
        "spark:a.b.",
        "spark:a..c",
        "spark:a.b.c d",
        "spark:a.b.`c",
    ],
)
def test_any_other_name_is_refused(source: str) -> None:
    with pytest.raises(PolicyError, match=r"tables.visits.source is .*write catalog, schema and table"):
        policy_of(TABLE.format(f"'{source}'"))


def test_a_temporary_view_of_all_sessions_is_refused() -> None:
    with pytest.raises(PolicyError, match="temporary view"):
        policy_of(TABLE.format("'spark:spark_catalog.global_temp.visits'"))


def test_a_file_and_a_spark_table_for_one_name_are_refused() -> None:
    with pytest.raises(PolicyError, match="one name is one table"):
        policy_of(TABLE.format('["visits.parquet", "spark:lake.clinic.visits"]'))


class SparkSession:
    """A session as far as its class tells."""

    __module__ = "pyspark.sql.session"
    _sc = None


@pytest.mark.parametrize("database", [None, "some.duckdb", "connection"])
def test_a_spark_table_needs_a_session(database: str | None, tmp_path: Path) -> None:
    held: Any = duckdb.connect() if database == "connection" else database
    with pytest.raises(PolicyError, match=r"tables.visits.source is a table of Spark; pass the session"):
        dpsql.connect(held, policy=policy_of(SPARK), ledger=tmp_path / "x.ledger")


def test_files_are_refused_beside_a_session(tmp_path: Path) -> None:
    policy = policy_of(TABLE.format('"visits.parquet"'))
    with pytest.raises(PolicyError, match="names files and the connection is a Spark session"):
        dpsql.connect(SparkSession(), policy=policy, ledger=tmp_path / "x.ledger")


def test_the_memory_of_a_scan_is_sparks(tmp_path: Path) -> None:
    with pytest.raises(dpsql.InterfaceError, match="give Spark's executors"):
        dpsql.connect(SparkSession(), policy=policy_of(SPARK), ledger=tmp_path / "x.ledger", memory_limit="1GB")


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(dpsql.InterfaceError, match=r"Java 17; install pyspark with: .* 'pyspark[<>]"):
        check_session(SparkSession())


class _Library:
    def __init__(self, version: str) -> None:
        self.__version__ = version


@pytest.mark.parametrize("version", ["3.5.1", "5.0.0"])
def test_another_version_of_pyspark_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", _Library(version))  # type: ignore[arg-type]
    with pytest.raises(dpsql.InterfaceError, match=f"PySpark {version} is not supported"):
        check_session(SparkSession())


def test_a_stopped_session_and_spark_connect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", _Library("4.1.0"))  # type: ignore[arg-type]
    with pytest.raises(dpsql.InterfaceError, match="the Spark session is stopped"):
        check_session(SparkSession())
    monkeypatch.setattr(SparkSession, "__module__", "pyspark.sql.connect.session")
    with pytest.raises(dpsql.InterfaceError, match="Spark Connect"):
        check_session(SparkSession())


def test_sessions_are_known_by_where_they_come_from() -> None:
    assert is_session(SparkSession())
    assert not is_session(duckdb.connect())
    assert not is_session("spark")


def test_the_command_line_says_how_spark_is_reached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dpsql.surfaces.cli import main

    policy, batch = tmp_path / "p.toml", tmp_path / "b.sql"
    policy.write_text('dataset = "d-1"\n[budget]\nepsilon = 1.0\n' + SPARK)
    batch.write_text("SELECT COUNT(*) FROM visits")
    for command in ("plan", "run"):
        assert main([command, str(batch), "--policy", str(policy), "--epsilon", "1"]) == 1
        assert "dpsql.connect(spark, policy=..., ledger=...)" in " ".join(capsys.readouterr().err.split())


KNOWN = {
    "t": Source("`c`.`s`.`t`", {"i": "INTEGER", "d": "DOUBLE", "s": "VARCHAR", "day": "DATE", "dec": "DECIMAL(10,2)"})
}
N = ("n", CountRows())
INT, DBL, TXT = Name("i", BASE), Name("d", BASE), Name("s", BASE)
ONE = whole(1)


def _refused(value: Value, said: str) -> None:
    with pytest.raises(NotSupportedError, match=said) as refusal:
        written(Select((("a", value), N), Table("t")), KNOWN)
    assert str(refusal.value).startswith("Spark: ")
    assert str(refusal.value).endswith("(nothing was charged)")


def _where(test: Test) -> CaseValue:
    return CaseValue(((test, ONE),), whole(0), "INTEGER")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bare("md5", TXT), "md5 of s is not admitted"),
        (bare("~~", TXT, TXT), "~~ of s is not admitted"),
        (bare("strlen", TXT, TXT), "too many arguments"),
        (bare("row_number"), "row_number is not admitted"),
        (Window("avg", (INT,), (INT,)), "the window avg is not admitted"),
        (Window("sum", (INT,), (INT,)), "the window sum of INTEGER from .* is not admitted"),
        (
            Window("sum", (Cast(INT, "BIGINT"),), (INT,)),
            "the window sum of BIGINT from -2147483648 to",
        ),
        (Gathered("sum", Cast(INT, "BIGINT")), "the sum of BIGINT from -2147483648 to .* is not admitted"),
        (Gathered("bit_or", INT), "the bit_or of INTEGER from .* is not admitted"),
        (Cast(TXT, "INTEGER"), "CAST of s casts VARCHAR to INTEGER"),
        (Cast(TXT, "DOUBLE", tries=True), "TRY_CAST of s casts VARCHAR to DOUBLE"),
        (_where(Compared(Cast(DBL, "VARCHAR"), "=", Constant("0.1", "VARCHAR"))), "casts DOUBLE to VARCHAR"),
        (_where(Compared(INT, "<", TXT)), "< of i, s compares INTEGER with VARCHAR, which Spark would cast"),
        (_where(Compared(DBL, "<", ONE)), "compares DOUBLE with INTEGER"),
        (bare("+", INT, DBL), r"\+ of INTEGER and DOUBLE"),
        (Cast(INT, "UBIGINT"), "has no counterpart"),
        (Constant(0, "TIMESTAMP WITH TIME ZONE"), "has no counterpart"),
        (CaseValue(((Compared(INT, "=", ONE), INT),), DBL, "DOUBLE"), "values of several types"),
        (Name("unknown"), "the column unknown has no type there"),
        (Name("i", "other"), "the column i has no type there"),
        (TXT, "a column of VARCHAR cannot be brought back"),
        (Word(TXT, high=True, most=2), "a sum of VARCHAR is not admitted"),
        (bare("sum", INT), "aggregates of each unit are not answered on Spark"),
        (Like(INT, "a"), "LIKE of INTEGER is not admitted"),
        (Like(TXT, "a_" * 201), "a LIKE pattern has more than 200 characters"),
        (Constant(10**38, "HUGEINT"), "does not fit"),
    ],
)
def test_what_is_outside_the_closed_list_is_refused_by_name(value: Value, said: str) -> None:
    _refused(value, said)


def test_rows_are_never_brought_back() -> None:
    with pytest.raises(NotSupportedError, match="rows are not brought back"):
        written(Select((("a", INT),), Table("t")), KNOWN)


def test_a_join_to_the_nearest_row_is_refused() -> None:
    nearest = Match(Select((("i", INT),), Table("t"), alias="j"), Compared(INT, "<", Name("i", "j")), nearest=True)
    with pytest.raises(NotSupportedError, match="two inequalities"):
        written(Select((N,), Joined(Table("t"), (nearest,))), KNOWN)


def test_a_wide_product_is_refused_where_38_digits_do_not_hold_it() -> None:
    wide = bare("*", Cast(INT, "HUGEINT", bare=True), Constant(10**30, "HUGEINT"))
    _refused(_where(Compared(bare("*", wide, Constant(5, "HUGEINT")), ">", whole(0))), "38 digits")


def test_text_constants_are_hexadecimal_and_names_are_quoted() -> None:
    tables = {"t": Source("`c`.`s`.`t`", {"a`b": "VARCHAR"})}
    same = Compared(Name("a`b", BASE), "=", Constant("${x}'; DROP", "VARCHAR"))
    text, names = written(Select((("a0", _where(same)), N), Table("t"), group_by=1), tables)
    assert "DROP" not in text
    assert "$" not in text
    assert "`dpsql_base`.`a``b`" in text
    assert names == {"a0": None, "n": None}


@pytest.mark.long
def test_no_scan_nests_too_deeply() -> None:
    value: Value = INT
    for _ in range(3000):
        value = CaseValue(((Compared(value, ">", ONE), value),), bare("+", INT, ONE), "BIGINT")
    assert len(written(Select((("a", value), N), Table("t")), KNOWN)[0]) < 1_500_000


def test_a_policys_tables_go_to_spark_by_their_names() -> None:
    holdings = Holdings(ConnectionEngine(duckdb.connect()), policy_of(SPARK))
    assert holdings.sources["visits"].remote == ("lake", "clinic", "visits")


def test_the_statement_of_a_batch_is_one_of_spark() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE visits (age INTEGER, cost DOUBLE)")
    policy = policy_of('[tables.visits]\nunit = "row"\n[tables.visits.columns]\nage = { lower = 0, upper = 9 }\n')
    compiled = compiled_of(
        "SELECT age, COUNT(*) FROM visits GROUP BY age", policy, tables_of(policy, ConnectionEngine(con))
    )
    asked = scan_of(compiled.layouts[0], job_of(compiled, policy).sources)
    text, names = written(asked.select, {"visits": Source("`c`.`s`.`visits`", {"age": "INTEGER", "cost": "DOUBLE"})})
    assert asked.name == "visits"
    assert names == {"a0": None, "n": None}
    assert "`dpsql_base`.`age`" in text
    assert text.endswith("GROUP BY 1")
    assert "FROM `c`.`s`.`visits` AS `dpsql_base`" in text
