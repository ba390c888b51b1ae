"""``{{x}}``: values become literals. Nothing that a variable holds can become SQL."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsql.errors import DataError, Error, InterfaceError, ProgrammingError, SQLError
from dpsql.extensions.notebook.line import fill


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("a > {{x}}", 3, "a > 3"),
        ("a > {{ x }}", -3, "a > (-3)"),
        ("a > {{x}}", 0.5, "a > 0.5e0"),
        ("a = {{x}}", "it's", "a = 'it''s'"),
        ("a = {{x}}", "'; DROP TABLE t; --", "a = '''; DROP TABLE t; --'"),
        ("a = {{x}}", None, "a = NULL"),
        ("a = {{x}}", True, "a = TRUE"),
        ("a = {{x}}", Decimal("1.50"), "a = 1.50"),
        ("a = {{x}}", dt.date(2020, 1, 2), "a = DATE '2020-01-02'"),
        ("a = {{x}}", np.int64(7), "a = 7"),
        ("a IN ({{x}})", ["x", "y"], "a IN ( 'x', 'y' )"),
        ("a IN ({{x}})", (1, 2), "a IN ( 1, 2 )"),
        ("a IN ({{x}})", {2, 1}, "a IN ( 1, 2 )"),
        ("a IN ({{x}})", range(3), "a IN ( 0, 1, 2 )"),
        ("a IN ({{x}})", np.array([1, 2]), "a IN ( 1, 2 )"),
        ("a IN ({{x}})", pd.Series(["p", "q"]), "a IN ( 'p', 'q' )"),
        ("a-{{x}}-b", 1, "a- 1 -b"),
    ],
)
def test_values_become_literals(text, value, written):
    assert " ".join(fill(text, {"x": value}).split()) == written


@pytest.mark.parametrize(
    "text", ["SELECT 1 -- {{x}}", "SELECT /* {{x}} */ 1", "SELECT {'a': {'b': 1}}", "SELECT 'a}}'"]
)
def test_comments_and_structs_stay(text):
    assert fill(text, {}) == text


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("a = '{{x}}'", SQLError, "stands in quotes"),
        ('SELECT "{{x}}" FROM t', SQLError, "cannot name a table or column"),
        ("a = {{x + 1}}", SQLError, "name of one variable"),
        ("a = {{x.y}}", SQLError, "name of one variable"),
        ("a = {{}}", SQLError, "name of one variable"),
        ("a = {{x", SQLError, "name of one variable"),
        ("{% for x in y %}", SQLError, "only {{x}} is filled in"),
        ("a = {{xs}}", ProgrammingError, "in parentheses of its own"),
        ("f(1, {{xs}})", ProgrammingError, "in parentheses of its own"),
        ("a IN ({{none}})", DataError, "empty list"),
        ("a IN ({{many}})", DataError, "10,001 items"),
        ("a = {{raw}}", ProgrammingError, "has no literal"),
        ("a = {{frame}}", ProgrammingError, "has no literal"),
        ("a = {{nan}}", DataError, "nan"),
        ("a = {{xss}}", InterfaceError, "did you mean xs"),
    ],
)
def test_what_is_no_value_is_refused(text, kind, said):
    variables = {
        **{"x": 1, "xs": [1, 2], "none": [], "many": list(range(10_001)), "raw": b"x", "nan": float("nan")},
        "frame": pd.DataFrame({"a": [1]}),
    }
    with pytest.raises(kind) as caught:
        fill(text, variables)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_refusal_has_its_place():
    with pytest.raises(SQLError) as caught:
        fill("SELECT 1\nWHERE a = '{{x}}'", {"x": 1})
    assert (caught.value.line, caught.value.column) == (2, 11)


# A whole alphabet of Unicode takes seconds to be made: what SQL and Unicode treat apart is enough.
TEXT = st.text(
    "ab 0'\"\\`$%?:;,()[]{}-/*\n\r\t\0\x01\x1b\x7f\x85\xa0\u0301\u200b\u2028\u202e\ufeff\uffff\U0001f600\ud800"
)


@settings(max_examples=60, deadline=None)
@given(st.one_of(TEXT, st.integers(), st.floats(), st.lists(TEXT, max_size=3)))
@pytest.mark.long
def test_whatever_a_variable_holds_stays_one_literal(value):
    """The statement has the same shape with any value in it: an IN list of literals, and nothing after it."""
    try:
        text = fill("SELECT a FROM t WHERE b IN ({{x}}) AND c", {"x": value})
    except Error:
        return  # no text, no number: refused
    (tree,) = sqlglot.parse(text, dialect="duckdb")
    condition = tree.args["where"].this
    assert isinstance(condition, sqlglot.exp.And)
    assert condition.expression.sql() == "c"
    inside = condition.this
    assert isinstance(inside, sqlglot.exp.In)
    for item in inside.expressions:
        plain = item.unnest()
        plain = plain.this if isinstance(plain, sqlglot.exp.Neg) else plain
        assert isinstance(plain, sqlglot.exp.Literal)
    held = value if isinstance(value, list) else [value]
    assert len(inside.expressions) == len(held)
    strings = [item.this for item in inside.expressions if item.is_string]
    assert strings == [item for item in held if isinstance(item, str)]
