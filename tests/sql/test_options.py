"""OPTIONS of GoogleSQL's differential privacy clause: what is read, what is blanked out, what is refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from dpsql.errors import DataError, SQLError
from dpsql.planning.needed_budget import request_of
from dpsql.policy import TablePolicy
from dpsql.sql import parse
from dpsql.sql.parse.options import Options, budget_of, check_table, read_options

BATCH = """SELECT
  WITH DIFFERENTIAL_PRIVACY -- the budget
    OPTIONS(epsilon=10, delta=.01, max_groups_contributed=2, privacy_unit_column=visits.Id)
    item, COUNT(*) AS n
FROM visits GROUP BY item"""


def clause(inside: str) -> str:
    return f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({inside}) COUNT(*) FROM t"


def test_a_clause_is_read_and_leaves_spaces() -> None:
    clean, (options,) = read_options(BATCH)
    assert options == Options(Decimal(10), Decimal("0.01"), "Id", 2)
    assert (options.line, options.column) == (2, 3)
    assert len(clean) == len(BATCH)
    assert [len(line) for line in clean.splitlines()] == [len(line) for line in BATCH.splitlines()]
    assert " ".join(clean.split()) == "SELECT -- the budget item, COUNT(*) AS n FROM visits GROUP BY item"
    (statement,) = parse(clean)
    assert statement.text == "SELECT item, COUNT(*) AS n FROM visits GROUP BY item"


def test_places_after_the_clause_are_those_of_the_text() -> None:
    text = clause("epsilon=1") + " WHERE <=> 1"
    with pytest.raises(SQLError) as caught:
        parse(read_options(text)[0])
    assert (caught.value.line, caught.value.column) == (1, text.index("<=>") + 1)


@pytest.mark.parametrize(
    ("inside", "options"),
    [
        ("epsilon=1", Options(Decimal(1))),
        ("EPSILON = 1e-3, Delta = 1E-9", Options(Decimal("0.001"), Decimal("1e-9"))),
        ("epsilon = +1_000.5", Options(Decimal("1000.5"))),
        ("epsilon=1., max_groups_contributed=NULL", Options(Decimal(1))),
        ('privacy_unit_column="a b", epsilon=/* small */1', Options(Decimal(1), None, "a b")),
        ('privacy_unit_column=main."t".date, epsilon=1', Options(Decimal(1), None, "date")),
    ],
)
def test_values(inside: str, options: Options) -> None:
    assert read_options(clause(inside))[1] == (options,)


def test_only_real_tokens_count() -> None:
    for text in (
        "SELECT 'SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1)' FROM t",
        "SELECT COUNT(*) /* SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1) */ FROM t",
        "SELECT COUNT(*) -- SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1)\n FROM t",
        'SELECT "ANON_COUNT"(1), "WITH DIFFERENTIAL_PRIVACY" FROM t',
        "SELECT differential_privacy, anon_count, contribution_bounds_per_group = 1 FROM t",
        "SELECT $$ SELECT WITH ANONYMIZATION $$ FROM t",
        "SELECT 1",
        "SELECT 'DIFFERENTIAL_PRIVACY",  # no tokens: left for the parser to refuse
    ):
        assert read_options(text) == (text, ())


def test_hints_and_comments_stay() -> None:
    clean, _ = read_options(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1 /*+ WEIGHT(4) */) COUNT(*) FROM t -- end"
    )
    assert "/*+ WEIGHT(4) */" in clean
    assert clean.endswith("COUNT(*) FROM t -- end")


def test_one_entry_a_statement() -> None:
    batch = f"; SELECT 1;; CREATE VIEW v AS {clause('epsilon=1')};\n SELECT ';' FROM (({clause('epsilon=1.0')})); "
    clean, found = read_options(batch)
    assert found == (None, Options(Decimal(1)), Options(Decimal(1)))
    assert len(clean) == len(batch)
    assert len(parse(clean)) == 3
    assert budget_of(found) is found[1]
    assert budget_of((None,)) is None
    nested = f"WITH a AS ({clause('epsilon=1')}) {clause('epsilon=1')}"
    assert read_options(nested)[1] == (Options(Decimal(1)),)


@pytest.mark.parametrize(
    ("inside", "message", "column"),
    [
        ("", "lacks epsilon", 8),
        ("delta=1e-9", "lacks epsilon", 8),
        ("epsilon=1, epsilon=1", "epsilon stands twice", 53),
        ("epsilom=1", "did you mean epsilon", 42),
        ("'epsilon'=1", "not known", 42),
        ("epsilon=1,", "empty item", 8),
        ("epsilon", "has no value", 42),
        ("epsilon=", "has no value", 42),
        ("epsilon>1", "has no value", 42),
        ("epsilon=nan", "epsilon is nan, not a number", 50),
        ("epsilon=inf", "epsilon is inf, not a number", 50),
        ("epsilon='1'", "not a number", 50),
        ("epsilon=CAST('inf' AS DOUBLE)", "not a number", 50),
        ("epsilon=1+1", "not a number", 50),
        ("epsilon=a", "not a number", 50),
        ("epsilon=NULL", "not a number", 50),
        ("epsilon=?", "not a number", 50),
        ("epsilon=0x10", "not a number", 50),
        ("epsilon=-1", "not positive", 50),
        ("epsilon=0", "not positive", 50),
        ("epsilon=1, delta=0", "leave delta out", 59),
        ("epsilon=1, delta=1", "below 1", 59),
        ("epsilon=1, delta=-.5", "not positive", 59),
        ("epsilon=1, max_groups_contributed=0", "whole number", 76),
        ("epsilon=1, max_groups_contributed=-1", "whole number", 76),
        ("epsilon=1, max_groups_contributed=1.5", "whole number", 76),
        ("epsilon=1, privacy_unit_column='id'", "not a column", 73),
        ("epsilon=1, privacy_unit_column=a+b", "not a column", 74),
        ("epsilon=1, privacy_unit_column=a.", "not a column", 73),
        ("epsilon=1, privacy_unit_column=7", "not a column", 73),
        ("epsilon=1, max_rows_contributed=5", "max_rows_per_unit", 53),
        ("epsilon=1, min_privacy_units_per_group=5", "all of them are shown", 53),
        ("epsilon=1, group_selection_strategy=PUBLIC_GROUPS", "declared in the policy", 53),
        ("epsilon=1, kappa=5", "max_groups_contributed", 53),
    ],
)
def test_refusals_with_their_place(inside: str, message: str, column: int) -> None:
    with pytest.raises(SQLError, match=message) as caught:
        read_options(clause(inside))
    assert (caught.value.line, caught.value.column) == (1, column)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT WITH DIFFERENTIAL_PRIVACY COUNT(*) FROM t", "needs OPTIONS"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1 COUNT(*) FROM t", "not a number|not closed"),
        ("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1", "not closed"),
        ("SELECT WITH ANONYMIZATION OPTIONS(epsilon=1) COUNT(*) FROM t", "newer name"),
        ("SELECT WITH AGGREGATION_THRESHOLD OPTIONS(threshold=3) COUNT(*) FROM t", "threshold"),
        ("SELECT ANON_COUNT(*) FROM t", "ANON_COUNT is not answered.*write COUNT"),
        ("SELECT anon_sum(x CLAMPED BETWEEN 0 AND 1) FROM t", "ANON_SUM is not answered.*write SUM"),
        ("SELECT SUM(x, contribution_bounds_per_group => (0, 100)) FROM t", "lower and upper"),
        (f"{clause('epsilon=1')}; {clause('epsilon=2')}", "disagree about epsilon: 1 in line 1, 2 here"),
        (f"{clause('epsilon=1')}; {clause('epsilon=1, delta=1e-9')}", "disagree about delta: none in line 1"),
        (f"WITH a AS ({clause('epsilon=1, privacy_unit_column=b')}) {clause('epsilon=1')}", "clauses of one statement"),
    ],
)
def test_refusals(sql: str, message: str) -> None:
    with pytest.raises(SQLError, match=message):
        read_options(sql)


def test_long_values_are_cut() -> None:
    with pytest.raises(SQLError) as caught:
        read_options(clause("epsilon=" + "a" * 10_000))
    assert len(str(caught.value)) < 200


def test_the_clause_is_held_against_the_policy() -> None:
    people = TablePolicy("visits", unit="patient_id", max_rows_per_unit=3)
    rows = TablePolicy("visits")
    check_table(Options(Decimal(1), None, "PATIENT_ID", 3), people)
    check_table(Options(Decimal(1)), people)
    check_table(Options(Decimal(1), None, None, 1), rows)
    for options, table, message in (
        (Options(Decimal(1), None, "doctor_id"), people, "unit of visits is patient_id"),
        (Options(Decimal(1), None, None, 2), people, "up to 3 rows"),
        (Options(Decimal(1), None, "patient_id", line=4, column=9), rows, r"single rows.*line 4, column 9"),
    ):
        with pytest.raises(SQLError, match=message):
            check_table(options, table)


def test_the_budget_of_call_and_text_must_agree() -> None:
    sql = clause("epsilon=0.1, delta=1e-9")
    for arguments in ((), (0.1,), ("0.1", 1e-9), (None, "1e-9"), (Fraction(1, 10), Decimal("1e-9"))):
        found = request_of(sql, *arguments)
        assert (found.epsilon, found.delta, found.rho) == (Fraction(1, 10), Fraction(1, 10**9), None)
    found = request_of(clause("epsilon=1"), delta="1e-9")
    assert (found.epsilon, found.delta) == (1, Fraction(1, 10**9))
    assert request_of("SELECT 1", 2).epsilon == 2
    for arguments, message in (
        ({"epsilon": 0.2}, r"epsilon is 0\.2 in the call and 0\.1 in the batch"),
        ({"delta": 1e-8}, "delta is"),
        ({"rho": 1}, "rho"),
        ({"epsilon": float("nan")}, "finite"),
    ):
        with pytest.raises(DataError, match=message):
            request_of(sql, **arguments)
    with pytest.raises(DataError, match="million"):
        request_of(clause("epsilon=1e20"))
    with pytest.raises(DataError, match="budget is needed"):
        request_of("SELECT 1")
