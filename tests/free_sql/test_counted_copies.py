"""What DuckDB writes again: the list of functions that are macros, against the macros of the DuckDB that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import duckdb
import pytest

from dpsql.errors import SQLError
from dpsql.free_sql import limits
from dpsql.free_sql.bounds import check
from dpsql.free_sql.copies import DOUBLED, copied_by_parser
from dpsql.free_sql.functions import AGGREGATES, GATHERING, SCALARS

ANSWERED = SCALARS.keys() | AGGREGATES | GATHERING


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": "1"}) as made:
        yield made


@pytest.fixture(scope="module")
def macros(connection: duckdb.DuckDBPyConnection) -> Mapping[str, tuple[list[str], str]]:
    """Parameters and definition of each scalar macro that may be called."""
    held = connection.execute(
        "SELECT lower(function_name), parameters, macro_definition FROM duckdb_functions() "
        "WHERE internal AND function_type = 'macro'"
    ).fetchall()
    return {name: (parameters, written) for name, parameters, written in held if name in ANSWERED}


def copies(name: str, macros: Mapping[str, tuple[list[str], str]]) -> int:
    """How often an argument stands in what DuckDB writes for a call, through macros that call macros."""
    parameters, written = macros[name]
    own = max((len(re.findall(rf"\b{re.escape(one)}\b", written)) for one in parameters), default=0)
    called = [inner for inner in macros if inner != name and re.search(rf"\b{re.escape(inner)}\(", written)]
    return max([own, *(copies(inner, macros) for inner in called)])


def test_the_functions_that_copy_an_argument_are_those_listed(macros: Mapping[str, tuple[list[str], str]]) -> None:
    found = {name: copies(name, macros) for name in macros}
    assert len(found) > 20
    assert {name for name, times in found.items() if times > 1} == DOUBLED
    assert max(found.values()) == 2  # one copy is what is counted


@pytest.mark.parametrize("name", sorted(DOUBLED))
def test_copies_of_copies_are_counted(name: str, connection: duckdb.DuckDBPyConnection) -> None:
    rest = {"split_part": ", 'a', 1)", "array_pop_back": ")", "json_group_array": ")"}.get(name, ", g)")
    nested, sizes = "g", f"MOST_{'BYTES' if name == 'array_to_string' else 'COPIES'}"
    for _ in range(14):
        nested = f"{name}({nested}{rest}"
        if name in AGGREGATES | GATHERING:
            nested = f"(SELECT {nested} FROM (SELECT 1 AS g))"
    with pytest.raises(SQLError, match=f"{getattr(limits, sizes):,}") as error:
        check(f"SELECT {nested} FROM (SELECT 'a' AS g)", connection, lambda _: None)
    assert error.value.code == "too-large"


@pytest.mark.parametrize(
    ("sql", "copied"),
    [
        ("SELECT CASE n WHEN 1 THEN 'case' WHEN 2 THEN 'b' END FROM t", 0),
        ("SELECT CASE CASE n WHEN 1 THEN 2 WHEN 3 THEN 4 END WHEN 1 THEN 2 WHEN 3 THEN 4 WHEN 5 THEN 6 END FROM t", 20),
        ('SELECT a.case, b."case" FROM t AS case, u AS b', 0),
    ],
)
def test_operands_of_case_are_counted_before_the_parse(sql: str, copied: int) -> None:
    assert copied_by_parser(sql) >= copied
    assert copied or copied_by_parser(sql) < 10


def test_nested_operands_of_case_are_refused_before_duckdb_parses_them(connection: duckdb.DuckDBPyConnection) -> None:
    nested = "1"
    for _ in range(20):
        nested = f"CASE {nested} WHEN 1 THEN 2 WHEN 2 THEN 1 END"
    assert copied_by_parser(nested) > limits.MOST_COPIES
    with pytest.raises(SQLError, match="the operand of CASE to each WHEN"):
        check(f"SELECT {nested}", connection, lambda _: pytest.fail("a table was looked up"))
