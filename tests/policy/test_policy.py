"""The policy: every refusal by its key and remedy, exactness, domains, schema, skeleton."""

from __future__ import annotations

import dataclasses
import os
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import duckdb
import pytest

from dpsql.errors import OperationalError, PolicyError
from dpsql.extensions.advice.first_policy import skeleton
from dpsql.extensions.advice.proposals import propose
from dpsql.measure import Declared
from dpsql.policy import BudgetPolicy, ColumnPolicy, Policy, TablePolicy, check_schema, csv_schema
from dpsql.policy.types import column_type

EXAMPLES = Path(__file__).parents[2] / "sql_examples"

FULL = """
dataset = "visits-2"
[budget]
epsilon = 4.0
delta = 1e-9
pure_epsilon = 1.0
local_epsilon = 2.0
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 5
expected_rows = 20000
rows_public = true
[tables.visits.columns]
state = { values = ["NY", "NJ", "CA"], other = true }
age = { lower = 0, upper = 120, nulls = false }
cost = { lower = 0.0, upper = 5000.0, step = 0.01 }
day = { lower = 2024-01-30, upper = 2024-02-02 }
seen = { lower = 2024-01-01T00:00:00Z, upper = 2024-12-31T12:00:00+02:00 }
free = { values = [true, false] }
rate = { values = [0.5, 1.25] }
note = {}
[tables."main.regions"]
public = true
[tables.stats]
counts = "patients"
source = "data/stats.csv"
[tables.stats.columns]
patients = { type = "int" }
"quoted key" = { type = "VARCHAR", values = ["a \\"b\\"", "tab\\t", "\\u0001"] }
"""


def with_table(body: str) -> str:
    return f'dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\nunit = "row"\n{body}\n'


def with_column(body: str) -> str:
    return with_table(f"[tables.t.columns]\nc = {body}")


def with_budget(body: str) -> str:
    return f'dataset = "d"\n[budget]\n{body}\n[tables.t]\nunit = "row"\n'


def column(body: str) -> ColumnPolicy:
    return Policy.parse(with_column(body)).table("t").column("c")


def test_full_policy_is_read_exactly() -> None:
    policy = Policy.parse(FULL)
    assert policy.dataset == "visits-2"
    assert policy.budget == BudgetPolicy(Fraction(4), Fraction(1, 10**9), None, Fraction(1), local_epsilon=Fraction(2))
    visits = policy.table("visits")
    assert (visits.unit, visits.max_rows_per_unit, visits.expected_rows) == ("patient_id", 5, 20000)
    assert visits.rows_public
    assert not visits.public
    assert visits.column("cost").step == Fraction(1, 100)
    assert visits.column("seen").upper == datetime(2024, 12, 31, 10, tzinfo=UTC)
    assert visits.column("rate").values == (Decimal("0.5"), Decimal("1.25"))
    assert visits.column("state").other
    assert visits.column("state").nulls
    assert not visits.column("age").nulls
    assert policy.table("main.regions").public
    assert policy.table("stats").column("PATIENTS").type == "INTEGER"


@pytest.mark.parametrize(
    "text", [FULL, (EXAMPLES / "rand_hie.toml").read_text(), (EXAMPLES / "students.toml").read_text()]
)
def test_round_trip(text: str) -> None:
    policy = Policy.parse(text)
    again = policy.to_toml()
    assert Policy.parse(again) == policy
    assert Policy.parse(again).to_toml() == again


def test_values_are_frozen() -> None:
    policy = Policy.parse(FULL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.budget.epsilon = Fraction(9)  # type: ignore[misc]
    with pytest.raises(TypeError):
        policy.tables["x"] = policy.table("stats")  # type: ignore[index]


def test_names_match_as_in_duckdb() -> None:
    policy = Policy.parse(FULL)
    assert policy.table("VISITS").column("State").name == "state"
    with pytest.raises(PolicyError, match=r"tables\.visit is not declared.*did you mean visits\?"):
        policy.table("visit")
    with pytest.raises(PolicyError, match=r"tables\.visits\.columns\.Sttae is not declared.*state"):
        policy.table("visits").column("Sttae")
    # DuckDB folds ASCII letters only: the Kelvin sign is no k and the capital A umlaut no small one.
    policy = Policy.parse(with_table('[tables.t.columns]\n"\u00e4k" = {}\n"\u00c4k" = {}\n"\u00e4\u212a" = {}'))
    assert len({policy.table("t").column(name).name for name in ("\u00e4K", "\u00c4K", "\u00e4\u212a")}) == 3


BUDGETS = {
    "": "budget.epsilon is missing",
    "delta = 1e-9": "budget.epsilon is missing",
    "epsilon = 0": "budget.epsilon is 0; write a positive number",
    "epsilon = -1.5": "budget.epsilon is -1.5; write a positive number",
    "epsilon = nan": "budget.epsilon is NaN; write a finite number",
    "epsilon = inf": "budget.epsilon is Infinity; write a finite number",
    "epsilon = true": "budget.epsilon is a boolean; write a number",
    'epsilon = "1"': "budget.epsilon is in quotes, which make it a string; write 1 without them",
    "epsilon = 1e-999999999": "budget.epsilon has a magnitude out of reach",
    "epsilon = 1e40": "budget.epsilon has a magnitude out of reach",
    "epsilon = 1\ndelta = 0": "budget.delta is 0; write a positive number",
    "epsilon = 1\ndelta = 1": "budget.delta is 1; write a number below 1",
    "epsilon = 1\ndelta = 1.5": "budget.delta is 1.5; write a number below 1",
    "epsilon = 1\nrho = 0.1": "budget.rho excludes budget.epsilon",
    "rho = 0.1\ndelta = 1e-9": "budget.rho excludes budget.delta",
    "rho = 0.1\npure_epsilon = 0": "budget.rho excludes budget.pure_epsilon",
    "rho = 0": "budget.rho is 0; write a positive number",
    "epsilon = 1\ndelta = 1e-9\npure_epsilon = 2": "budget.pure_epsilon is 2, above budget.epsilon 1",
    "epsilon = 1\npure_epsilon = 0.5": "without budget.delta the rest cannot be spent",
    "epsilon = 1\nlocal_epsilon = -1": "budget.local_epsilon is -1; write 0 or more",
    "epsilon = 1\nepsilom = 2": "budget.epsilom is not a setting; did you mean epsilon",
}


@pytest.mark.parametrize("body", BUDGETS)
def test_budget_refusals(body: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(BUDGETS[body])):
        Policy.parse(with_budget(body))


def test_budget_defaults() -> None:
    pure = Policy.parse(with_budget("epsilon = 0.1")).budget
    assert pure.pure_epsilon == pure.epsilon == Fraction(1, 10)
    assert Policy.parse(with_budget("epsilon = 1\ndelta = 1e-9")).budget.pure_epsilon == 0
    rho = Policy.parse(with_budget("rho = 0.1")).budget
    assert rho == BudgetPolicy(rho=Fraction(1, 10))
    assert rho.pure_epsilon is None


TABLES = {
    "source = 'a.txt'": 'tables.t.source is "a.txt"; name a .parquet or .csv file',
    "source = 'a*.txt'": "name a .parquet or .csv file, a pattern such as",
    "source = 's3://a/b.parquet'": "name local files, without a protocol",
    "source = 'delta:x'": "other tables are copied into a DuckDB database with CREATE TABLE ... AS",
    "source = ''": "tables.t.source is empty",
    "source = 3": "tables.t.source is an integer; write a string",
    "source = 'a.csv'": "tables.t.columns is missing; declare the columns of a CSV file",
    "source = 'a.CSV'\n[tables.t.columns]\nc = {}": "tables.t.columns.c.type is missing; write type =",
    "rows_public = 1": "tables.t.rows_public is an integer; write true or false",
    "expected_rows = 0": "tables.t.expected_rows is out of range",
    "expected_rows = 1.5": "tables.t.expected_rows is a decimal number; write a whole number",
    "expected_rows = true": "tables.t.expected_rows is a boolean; write a whole number",
    "max_rows_per_unit = 5": 'tables.t.max_rows_per_unit needs a unit column; a unit of "row" has one row',
    "public = true": "tables.t.unit is for private tables and tables.t.public is true",
    "expected_row = 5": "tables.t.expected_row is not a setting; did you mean expected_rows",
    "[tables.t.colums]\nc = {}": "tables.t.colums is not a setting; did you mean columns",
    "columns = 3": "tables.t.columns is an integer; write a table",
    "[tables.u]": 'tables.u.unit is missing; write unit = "row", or the column',
    "[tables.u]\nunit = 'id'": "tables.u.max_rows_per_unit is missing; say how many rows of one id",
    "[tables.u]\nunit = ''": "tables.u.unit is empty",
    "[tables.u]\nunit = 'id'\nmax_rows_per_unit = 1\ncounts = 'n'": "tables.u.unit names a column, but",
    "[tables.u]\npublic = true\ncounts = 'n'": "tables.u.counts is for private tables",
    "[tables.u]\npublic = true\nrows_public = true": "tables.u.rows_public is for private tables",
    "[tables.T]\nunit = 'row'": "tables declares t and T, one name in DuckDB",
    "[tables.t.columns]\nc = {}\nC = {}": "tables.t.columns declares c and C, one name in DuckDB",
    "[tables.main.visits]\nunit = 'row'": 'quote a name that has a dot, as in [tables."main.visits"]',
    "[tables.u]\nsource='a.csv'\nunit='id'\nmax_rows_per_unit=1\n[tables.u.columns]\nc={type='INT'}": (
        "tables.u.columns.id.type is missing"
    ),
}


@pytest.mark.parametrize("body", TABLES)
def test_table_refusals(body: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(TABLES[body])):
        Policy.parse(with_table(body))


COLUMNS = {
    "3": "tables.t.columns.c is an integer; write {",
    "{ lowr = 1 }": "tables.t.columns.c.lowr is not a setting; did you mean lower",
    "{ lower = 1 }": "tables.t.columns.c.upper is missing beside lower",
    "{ upper = 1 }": "tables.t.columns.c.lower is missing beside upper",
    "{ lower = 2, upper = 1 }": "tables.t.columns.c.lower is 2, above upper 1",
    "{ lower = '1', upper = 2 }": "tables.t.columns.c.lower is in quotes, which make it a string; write 1 without them",
    "{ lower = false, upper = 2 }": "tables.t.columns.c.lower is a boolean",
    "{ lower = nan, upper = 2 }": "tables.t.columns.c.lower is NaN; write a finite number",
    "{ lower = -inf, upper = 2 }": "tables.t.columns.c.lower is -Infinity; write a finite number",
    "{ lower = 0, upper = 1e31 }": "tables.t.columns.c.upper has a magnitude out of reach",
    f"{{ lower = 0, upper = 1{'0' * 4000} }}": "tables.t.columns.c.upper has a magnitude out of reach",
    "{ lower = 0, upper = 2024-01-01 }": "lower is a number and upper is a date; write both",
    "{ lower = 2024-01-01, upper = 2024-01-01T00:00:00 }": "lower is a date and upper is a timestamp",
    "{ lower = 2024-01-02, upper = 2024-01-01 }": "lower is 2024-01-02, above upper 2024-01-01",
    "{ lower = 0001-01-01T00:00:00+10:00, upper = 2024-01-01T00:00:00Z }": "leaves the years 1 to 9999",
    "{ lower = 12:00:00, upper = 13:00:00 }": "tables.t.columns.c.lower is a time; write a number",
    "{ step = 1 }": "tables.t.columns.c.step needs bounds",
    "{ lower = 0, upper = 1, step = 0 }": "tables.t.columns.c.step is 0; write a positive number",
    "{ lower = 0, upper = 1, step = -0.5 }": "tables.t.columns.c.step is -0.5; write a positive number",
    "{ lower = 0, upper = 1, step = 0.3 }": "step 0.3 does not divide upper - lower = 1",
    "{ lower = 2024-01-01, upper = 2024-01-02, step = 1 }": "tables.t.columns.c.step is for numbers",
    "{ values = [] }": "tables.t.columns.c.values is empty",
    "{ values = 'a' }": "tables.t.columns.c.values is a string; write a list",
    "{ values = ['a', 'b', 'a'] }": 'tables.t.columns.c.values lists "a" twice',
    "{ values = [0.5, 0.50] }": "tables.t.columns.c.values lists 0.50 twice",
    "{ values = ['a', 1] }": "values[1] is an integer and tables.t.columns.c.values[0] is a string",
    "{ values = [1, true] }": "values[1] is a boolean and tables.t.columns.c.values[0] is an integer",
    "{ values = [1, 1.5] }": "values[1] is a decimal number",
    "{ values = [1.5, nan] }": "tables.t.columns.c.values[1] is NaN; write a finite number",
    "{ values = [[1]] }": "tables.t.columns.c.values[0] is a list; values are strings",
    "{ values = [12:00:00] }": "tables.t.columns.c.values[0] is a time",
    "{ values = [2024-01-01T00:00:00, 2024-01-01T00:00:00Z] }": "is a timestamp with time zone",
    "{ values = [1, 9], lower = 0, upper = 5 }": "c.values[1] 9 is not between lower 0 and upper 5",
    "{ values = ['a'], lower = 0, upper = 5 }": "is not between lower 0 and upper 5",
    "{ other = true }": "tables.t.columns.c.other needs a domain",
    '{ values = ["a"], other = "a" }': 'tables.t.columns.c.other is "a", one of the values or empty',
    '{ values = [1], other = "x" }': "tables.t.columns.c.other names a group among numbers or dates",
    '{ lower = 0, upper = 3, other = "x" }': "tables.t.columns.c.other names a group among numbers or dates",
    "{ values = [1], other = 1 }": "tables.t.columns.c.other is an integer; write true or false",
    "{ nulls = 'no' }": "tables.t.columns.c.nulls is a string; write true or false",
    "{ type = 'INTGER' }": "c.type 'INTGER' is not a type that dpsql works with; did you mean INTEGER",
    "{ type = 'BLOB' }": "is not a type that dpsql works with",
    "{ type = \"ENUM('a')\" }": "is not a type that dpsql works with",
    "{ type = 3 }": "tables.t.columns.c.type is an integer; write a string",
}


@pytest.mark.parametrize("body", COLUMNS, ids=range(len(COLUMNS)))
def test_column_refusals(body: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(COLUMNS[body])) as caught:
        Policy.parse(with_column(body))
    assert "\n" not in str(caught.value)


DOCUMENTS = {
    "x = ": "the policy is not TOML",
    "x = 1" + "0" * 5000: "the policy is not TOML",
    "x = " + "[" * 100_000: "the policy is not TOML",
    "": "dataset is missing",
    "dataset = 'd'": "budget is missing",
    "dataset = 'd'\nbudget = 3\ntables = {}": "budget is an integer; write a table, such as [budget]",
    "dataset = 'd'\n[budget]\nepsilon = 1": "tables is missing",
    "dataset = 'd'\ntables = {}\n[budget]\nepsilon = 1": "tables is missing; declare at least one",
    "dataset = 'd'\n[budget]\nepsilon = 1\n[tables]\nt = 1": "tables.t is an integer; write a table",
    "dataset = 3\n[budget]\nepsilon = 1\n[tables.t]\nunit='row'": "dataset is an integer; write a string",
    "dataset = ''\n[budget]\nepsilon = 1\n[tables.t]\nunit='row'": "dataset is empty",
    "dataset = 'd'\n[bugdet]\nepsilon = 1": "bugdet is not a setting; did you mean budget",
}


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_document_refusals(text: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(DOCUMENTS[text])) as caught:
        Policy.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_load(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    with pytest.raises(OperationalError, match=r"p\.toml: No such file or directory; check the path"):
        Policy.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + FULL.replace("\n", "\r\n").encode())
    policy = Policy.load(str(path))
    assert policy == Policy.parse(FULL)
    assert policy.path == path
    assert policy.source_path("STATS") == tmp_path / "data" / "stats.csv"
    assert policy.source_path("visits") is None
    assert Policy.parse(FULL).source_path("stats") == Path(os.getcwd()) / "data" / "stats.csv"
    path.write_bytes(b"dataset = '\xff'")
    with pytest.raises(PolicyError, match="byte 11 is not UTF-8"):
        Policy.load(path)


def test_constructors_check_too() -> None:
    with pytest.raises(PolicyError, match=r"columns\.c\.lower is a binary float"):
        ColumnPolicy("c", lower=0.1, upper=Fraction(1))  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match=r"tables\.t\.max_rows_per_unit is missing"):
        TablePolicy("t", unit="id")
    assert ColumnPolicy("c", lower=0, upper=4).domain() == (0, 1, 2, 3, 4)  # type: ignore[arg-type]


DOMAINS = [
    ("{}", None, None),
    ("{ values = ['b', 'a'] }", None, ("b", "a")),
    ("{ values = [3, 1], lower = 0, upper = 9 }", "INTEGER", (3, 1)),
    ("{ lower = -1, upper = 2 }", None, (-1, 0, 1, 2)),
    ("{ lower = 1, upper = 1 }", "UTINYINT", (1,)),
    ("{ lower = 0, upper = 6, step = 2 }", "BIGINT", (0, 2, 4, 6)),
    ("{ lower = 0, upper = 2 }", "DOUBLE", None),
    ("{ lower = 0, upper = 2, step = 1 }", "DOUBLE", None),
    ("{ lower = 0, upper = 1, step = 0.5 }", "DECIMAL(9,2)", (Decimal(0), Decimal("0.5"), Decimal(1))),
    ("{ lower = -0.1, upper = 0.1, step = 0.1 }", None, (Decimal("-0.1"), Decimal(0), Decimal("0.1"))),
    ("{ lower = 0, upper = 2, type = 'double' }", None, None),
    ("{ lower = 2024-02-29, upper = 2024-03-01 }", None, (date(2024, 2, 29), date(2024, 3, 1))),
    ("{ lower = 2024-02-28T00:00:00, upper = 2024-03-01T00:00:00 }", None, None),
    ("{ values = [2024-02-28T00:00:00] }", None, (datetime(2024, 2, 28),)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "duckdb_type", "keys"), DOMAINS, ids=range(len(DOMAINS)))
def test_domain(body: str, duckdb_type: str | None, keys: tuple[object, ...] | None) -> None:
    found = column(body).domain(duckdb_type)
    assert found == keys
    assert [type(k) for k in found or ()] == [type(k) for k in keys or ()]


def test_domain_cap() -> None:
    assert len(column("{ lower = 1, upper = 1000000 }").domain() or ()) == 1_000_000
    with pytest.raises(PolicyError, match=r"tables\.t\.columns\.c has 1000001 group keys.*a larger step"):
        column("{ lower = 0, upper = 1000000 }").domain()
    with pytest.raises(PolicyError, match="years or months as values"):
        column("{ lower = 0001-01-01, upper = 9999-12-31 }").domain()


TYPES = {
    "c": "INTEGER", "tiny": "TINYINT", "dbl": "DOUBLE", "dec": "DECIMAL(5,2)", "txt": "VARCHAR",
    "flag": "BOOLEAN", "day": "DATE", "ts": "TIMESTAMP", "tz": "TIMESTAMP WITH TIME ZONE",
    "mood": "ENUM('secret1', 'secret2')", "list": "ENUM('secret1')[]", "blob": "BLOB",
    "struct": "STRUCT(secret1 INTEGER)",
}  # fmt: skip

SCHEMA_REFUSALS = {
    "ct = {}": "tables.t.columns.ct: there is no such column; did you mean c",
    "txt = { lower = 0, upper = 1 }": "txt.lower is a number and the column is VARCHAR; write values",
    "mood = { lower = 0, upper = 1 }": "mood.lower is a number and the column is ENUM; write values",
    "flag = { lower = 0, upper = 1 }": "tables.t.columns.flag.lower is a number and the column is BOOLEAN",
    "flag = { values = [0, 1] }": "tables.t.columns.flag.values[0] 0 is an integer and the column is BOOLEAN",
    "c = { values = ['1'] }": 'tables.t.columns.c.values[0] "1" is a string and the column is INTEGER',
    "c = { values = [true] }": "values[0] true is a boolean and the column is INTEGER; write whole numbers",
    "c = { values = [1.5] }": "values[0] 1.5 is a decimal number and the column is INTEGER",
    "c = { lower = 0, upper = 1.5 }": "c.upper is 1.5 and the column is INTEGER; write a whole number",
    "c = { lower = 0, upper = 1, step = 0.5 }": "tables.t.columns.c.step is 0.5 and the column is INTEGER",
    "c = { lower = 2024-01-01, upper = 2024-01-02 }": "c.lower is a date and the column is INTEGER",
    "tiny = { values = [1, 128] }": "tables.t.columns.tiny.values[1] 128 does not fit TINYINT",
    "dec = { values = [1.125] }": "tables.t.columns.dec.values[0] 1.125 does not fit DECIMAL(5,2)",
    "dec = { values = [1000] }": "tables.t.columns.dec.values[0] 1000 does not fit DECIMAL(5,2)",
    "txt = { values = [1] }": "values[0] 1 is an integer and the column is VARCHAR",
    "day = { lower = 2024-01-01T00:00:00, upper = 2024-01-02T00:00:00 }": "the column is DATE; write dates",
    "ts = { lower = 2024-01-01, upper = 2024-01-02 }": "and the column is TIMESTAMP; write timestamps",
    "ts = { values = [2024-01-01T00:00:00Z] }": "is a timestamp with time zone and the column is TIMESTAMP",
    "tz = { values = [2024-01-01T00:00:00] }": "and the column is TIMESTAMP WITH TIME ZONE",
    "c = { type = 'BIGINT' }": "tables.t.columns.c.type is BIGINT and the column is INTEGER; write INTEGER",
    "blob = {}": "tables.t.columns.blob: dpsql does not work with type BLOB; leave the column out",
    "list = {}": "does not work with type",
    "struct = {}": "does not work with type",
}


@pytest.mark.parametrize("body", SCHEMA_REFUSALS)
def test_schema_refusals(body: str) -> None:
    policy = Policy.parse(with_table(f"[tables.t.columns]\n{body}"))
    with pytest.raises(PolicyError, match=re.escape(SCHEMA_REFUSALS[body])) as caught:
        check_schema(policy, {"T": TYPES})
    assert "secret" not in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_schema_accepts() -> None:
    body = """[tables.t.columns]
    C = { values = [1, 2], lower = 0, upper = 5, step = 5, type = "int4" }
    tiny = { lower = -1000, upper = 1000 }
    dbl = { lower = 0, upper = 1, step = 0.25 }
    dec = { values = [1, 2], type = "numeric(5, 2)" }
    txt = { values = ["x"] }
    mood = { values = ["not a member"], other = true }
    flag = { values = [true, false] }
    day = { values = [2024-01-01] }
    ts = { lower = 2024-01-01T00:00:00, upper = 2024-01-01T00:00:01 }
    tz = { lower = 2024-01-01T00:00:00Z, upper = 2024-01-01T00:00:01Z }
    """
    check_schema(Policy.parse(with_table(body)), {"T": TYPES, "undeclared": {}})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("[tables.u]\nunit='id'\nmax_rows_per_unit=2", "tables.u: there is no such table; choose from t"),
        (
            "[tables.u]\nunit='idd'\nmax_rows_per_unit=2",
            "tables.u.unit: there is no column idd; did you mean id",
        ),
        ("[tables.u]\ncounts='m'", "tables.u.counts: there is no column m"),
        ("[tables.u]\ncounts='w'", "tables.u.counts: w is DOUBLE; name a column of whole numbers"),
    ],
)
def test_schema_refuses_tables(body: str, message: str) -> None:
    schemas = {"t": {"c": "INTEGER"}}
    if "no such table" not in message:
        schemas["u"] = {"id": "INTEGER", "w": "DOUBLE"}
    with pytest.raises(PolicyError, match=re.escape(message)):
        check_schema(Policy.parse(with_table(body)), schemas)


def test_types_of_duckdb() -> None:
    # Every type is judged by the text that DuckDB itself shows for it.
    kinds = {
        "TINYINT": "integer", "UHUGEINT": "integer", "FLOAT": "float", "DECIMAL(38,10)": "decimal",
        "VARCHAR": "text", "ENUM('a (x)', 'b[]')": "text", "BOOLEAN": "boolean", "DATE": "date",
        "TIMESTAMP": "timestamp", "TIMESTAMP_NS": "timestamp", "TIMESTAMPTZ": "timestamptz", "TIME": "other",
        "UUID": "other", "BLOB": "other", "INTERVAL": "other", "INTEGER[]": "other", "INTEGER[3]": "other",
        "DECIMAL(9,2)[]": "other", "STRUCT(a INTEGER)": "other", "MAP(INTEGER, VARCHAR)": "other",
        "ENUM('a')[]": "other",
    }  # fmt: skip
    with duckdb.connect() as con:
        for text, kind in kinds.items():
            con.execute(f"CREATE OR REPLACE TABLE t (c {text})")
            [(_, shown, *_)] = con.execute("DESCRIBE t").fetchall()
            assert column_type(shown).kind == kind, shown


def test_skeleton_needs_confirmation_then_parses() -> None:
    schemas = {
        "visits": {
            "age": "INTEGER", "state": "ENUM('NY', 'N\"J')", "odd name": "VARCHAR", "cost": "DECIMAL(9,2)",
            "since": "DATE", "photo": "BLOB",
        },
        "main.codes": {"code": "VARCHAR", "kind": "INTEGER"},
    }  # fmt: skip
    bounds, members = {"age": (0, 120), "cost": (Decimal("0.5"), Decimal(10))}, {"state": ("NY", 'N"J')}
    visits = Declared(schemas["visits"], bounds=bounds, members=members)
    tables = {"visits": visits, "main.codes": Declared(schemas["main.codes"])}
    text = skeleton(tables, 'my "data"', propose(schemas, {}, {}), sources={"main.codes": "codes.csv"})
    # What nobody has confirmed is not declared: no budget, no unit, no bounds, no values.
    with pytest.raises(PolicyError, match=r"budget\.epsilon is missing"):
        Policy.parse(text)
    policy = Policy.parse(text.replace("# confirm: ", ""))
    assert policy.dataset == 'my "data"'
    visits = policy.table("visits")
    assert set(visits.columns) == {"age", "state", "odd name", "cost", "since"}
    assert visits.column("age").domain() == tuple(range(121))
    assert visits.column("cost").lower == Fraction(1, 2)
    assert visits.column("state").values == ("NY", 'N"J')
    assert policy.table("main.codes").column("kind").type == "INTEGER"
    check_schema(policy, schemas)
    confirmed_budget = re.sub(r"# confirm: (epsilon|unit)", r"\1", text.partition('[tables."main.codes"]')[0])
    assert not Policy.parse(confirmed_budget).table("visits").columns


@pytest.mark.parametrize("name", ["rand_hie", "students"])
def test_examples_run_in_plain_duckdb(name: str) -> None:
    policy = Policy.load(EXAMPLES / f"{name}.toml")
    table = policy.table(name)
    path = str(policy.source_path(name))
    sql = (EXAMPLES / f"{name}.sql").read_text()
    with duckdb.connect() as con:
        if table.is_csv:
            types = csv_schema(table)
            con.execute(f"CREATE TABLE {name} AS FROM read_csv($path, columns = {types})", {"path": path})
        else:
            con.execute(f"CREATE TABLE {name} AS FROM read_parquet($path)", {"path": path})
        schema = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
        assert set(schema) == set(table.columns)
        check_schema(policy, {name: schema})
        statements = con.extract_statements(sql)
        assert len(statements) == {"rand_hie": 36, "students": 5}[name]
        for statement in statements:
            con.execute(statement)
        for (view,) in con.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            assert con.execute(f"SELECT count(*) > 0 FROM {view}").fetchall() == [(True,)]
        # The public claims of the policy hold: nulls where they say, no key outside the domain.
        for declared in table.columns.values():
            if not declared.nulls:
                assert con.execute(f'SELECT count(*) FROM {name} WHERE "{declared.name}" IS NULL').fetchall() == [(0,)]
            if declared.values is not None:
                found = con.execute(f'SELECT DISTINCT "{declared.name}" FROM {name}').fetchall()
                assert {value for (value,) in found} - {None} <= set(declared.values)


@pytest.mark.parametrize(("one", "two"), [("t", "main.t"), ("main.T", "t"), ("MAIN.t", "main.T")])
def test_one_table_under_two_names_is_refused(one: str, two: str) -> None:
    """A name without a schema is one of main; each declaration alone would be charged for half of what a row moves."""
    text = f'''dataset = "d-1"
[budget]
epsilon = 1
[tables."{one}"]
unit = "row"
[tables."{two}"]
unit = "row"
'''
    with pytest.raises(PolicyError, match=r"tables.* and tables.*(name one table)|one name in DuckDB"):
        Policy.parse(text)
    with pytest.raises(PolicyError, match="has the name of a table"):
        Policy.parse(text.split(f'[tables."{two}"]')[0] + f'[views.{one.rpartition(".")[2]}]\nsql = "SELECT * FROM x"')
    assert len(Policy.parse(text.replace(f'"{two}"', '"other.t"')).tables) == 2
