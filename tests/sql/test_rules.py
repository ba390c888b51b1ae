"""The rules of SQL: the examples in their files, the list in the documents, and the places of what users write."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlglot
from corpus import NAMES, World, questions
from sqlglot import exp
from unit_rows import policy_of

from dpsql.errors import InternalError, SQLError
from dpsql.planning.explain import stages_of
from dpsql.planning.prepare import understood_for
from dpsql.sql import rules
from dpsql.sql.parse.trees import is_made, nodes
from dpsql.sql.rules import RULES
from dpsql.sql.rules import parse as parse_rule
from dpsql.sql.rules.parse import Trees
from dpsql.sql.rules.qualify import SelectInProgress
from dpsql.sql.rules.rule import Rule
from dpsql.sql.values.computed import Computed

DOCS = Path(__file__).parents[2] / "docs" / "architecture.md"
POLICY = policy_of(
    """
[tables.people]
unit = "person"
key = ["person"]
max_rows_per_unit = 1
[tables.people.columns]
age = { lower = 0, upper = 99 }
ward = { values = ["a", "b"] }
[tables.visits]
unit = "person"
references = { person = "people.person" }
max_rows_per_unit = 3
[tables.visits.columns]
cost = { lower = 0, upper = 9 }
"""
)
SCHEMAS = {
    "people": {"person": "INTEGER", "age": "INTEGER", "ward": "VARCHAR"},
    "visits": {"person": "INTEGER", "cost": "INTEGER"},
}


def stage(name: str, sql: str) -> None:
    """Print what a rule makes of a statement; a tree in one line."""
    made = dict(stages_of(sql, POLICY, SCHEMAS))[name]
    print(re.sub(r"(?<=\() | (?=\))", "", " ".join(made.split())) if made.startswith("SELECT") else made)


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_examples_hold(name: str) -> None:
    module = importlib.import_module(f"dpsql.sql.rules.{name}")
    result = doctest.testmod(module, globs={"stage": stage}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted
    assert not result.failed


def test_documents_list_the_rules() -> None:
    lines = [f"| {rule.name} | {rule.does} | {rule.requires} |" for rule in RULES]
    assert "\n".join(lines) in DOCS.read_text(encoding="utf-8")


def test_names_that_the_parser_gives_no_place_are_names_like_others() -> None:
    with pytest.raises(SQLError, match="no column true"):
        understood_for("SELECT COUNT(*) AS n FROM people AS t WHERE t.true > 1", POLICY, SCHEMAS)


# -- places ----------------------------------------------------------------------------------------


Apply = Callable[[object], object]
OF_TREES = ("parse", "spell", "qualify", "flatten")
_PLACE, _SEEN = ("line", "col", "start", "end"), "test_place"
_PLACED = (exp.Column, exp.Literal, exp.AggFunc, exp.Star)


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {corpus: World.of(corpus) for corpus in NAMES}


def patched(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Rule[object, object]], Apply]) -> None:
    """Put a rule with another ``apply`` in the place of the one of that name, wherever it is applied."""
    rule = next(rule for rule in RULES if rule.name == name)
    new = replace(rule, apply=change(rule))
    monkeypatch.setattr(rules, "RULES", tuple(new if each is rule else each for each in rules.RULES))
    if name in ("parse", "spell"):
        monkeypatch.setattr(parse_rule, name.upper(), new)


def trees_of(value: object) -> Iterator[exp.Expr]:
    """The trees that a rule is given or makes."""
    if isinstance(value, Trees):
        yield from (one.tree for one in value.statements if one.tree is not None)
    elif isinstance(value, SelectInProgress):
        yield value.tree
        for _, source in value.sources:
            yield from (node for _, node in source.columns or ())
            yield from [*source.joins, *([] if source.where is None else [source.where])]
    else:
        yield value if isinstance(value, exp.Expr) else getattr(value, "tree")  # noqa: B009


def place_of(node: exp.Expr) -> tuple[object, ...] | None:
    held = node.this if isinstance(node, exp.Column) else node
    return None if held.meta_get("start") is None else tuple(held.meta[key] for key in _PLACE)


def lost_by(rule: Rule[object, object], lost: list[str]) -> Apply:
    """The rule, with what it leaves without the place that it had, and what it makes without saying so, in ``lost``."""

    def apply(given: object) -> object:
        before = [node for tree in trees_of(given) for node in nodes(tree) if isinstance(node, _PLACED)]
        placeless = {node.sql() for node in before if place_of(node) is None}
        for node in before:
            node.meta[_SEEN] = place_of(node)
        made = rule.apply(given)
        tree = next(trees_of(made))
        lookups = {id(node) for join in tree.find_all(exp.Subquery) if "dpsql_" in join.alias for node in nodes(join)}
        for node in nodes(tree):
            if not isinstance(node, _PLACED) or id(node) in lookups:
                continue
            if node.meta_get(_SEEN) is not None:
                gone = place_of(node) != node.meta[_SEEN]
            else:
                made_here = is_made(node) or (node.parent is not None and is_made(node.parent))
                gone = place_of(node) is None and node.sql() not in placeless and not made_here
            if gone:
                lost.append(node.sql())
        return made

    return apply


@pytest.mark.parametrize("name", OF_TREES[1:])
@pytest.mark.parametrize("corpus", NAMES)
def test_every_rule_keeps_places(
    monkeypatch: pytest.MonkeyPatch, worlds: dict[str, World], corpus: str, name: str
) -> None:
    lost: list[str] = []
    patched(monkeypatch, name, lambda rule: lost_by(rule, lost))
    for question in questions(corpus):
        worlds[corpus].refusal(question.sql)
    assert not lost


def losing(rule: Rule[object, object], number: int, dropped: list[exp.Expr]) -> Apply:
    """The rule, which drops the place of one of the columns of its first tree."""

    def apply(given: object) -> object:
        made = rule.apply(given)
        columns = [node for node in nodes(next(trees_of(made))) if isinstance(node, exp.Column)]
        columns = [node for node in columns if place_of(node) is not None and not is_made(node)]
        if columns and not dropped:
            dropped.append(columns[number % len(columns)])
            dropped[0].this.meta.pop("start")
        return made

    return apply


@pytest.mark.parametrize("name", OF_TREES)
@pytest.mark.parametrize("corpus", NAMES)
def test_a_lost_place_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, worlds: dict[str, World], corpus: str, name: str
) -> None:
    caught = 0
    for question in questions(corpus):
        if question.refused or (name in OF_TREES[:2] and question.sql.upper().count("SELECT") > 1):
            continue  # of several SELECTs some read results, and pass no other rule
        dropped: list[exp.Expr] = []
        with monkeypatch.context() as patch:
            patched(patch, name, lambda rule: losing(rule, zlib.crc32(question.name.encode()), dropped))  # noqa: B023
            try:
                worlds[corpus].refusal(question.sql)
                message = ""
            except InternalError as error:
                message = str(error)
        assert ("place" in message) == bool(dropped), question.name
        caught += bool(dropped)
    assert caught >= 5


@pytest.mark.parametrize("kind", [exp.Literal, exp.Count, exp.Column])
def test_a_rule_that_writes_a_node_anew_is_found(monkeypatch: pytest.MonkeyPatch, kind: type[exp.Expr]) -> None:
    def anew(rule: Rule[object, object]) -> Apply:
        def apply(given: object) -> object:
            made = rule.apply(given)
            tree = next(trees_of(made)).copy()
            node = next(tree.find_all(kind))
            new = node.replace(sqlglot.parse_one(node.sql().replace("7", "8").replace("*", "1")))
            for part in nodes(new):
                part.meta.clear()
            return replace(made, tree=tree)  # type: ignore[type-var]

        return lost_by(replace(rule, apply=apply), lost)

    lost: list[str] = []
    patched(monkeypatch, "flatten", anew)
    with contextlib.suppress(InternalError):
        stages_of("SELECT COUNT(*) AS n FROM people WHERE age > 7", POLICY, SCHEMAS)
    assert lost


WRONG: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "qualify": ("SELECT SUM(COLUMNS('age')) AS a FROM people", lambda given, made: given),
    "flatten": ("SELECT COUNT(*) AS n FROM (SELECT age FROM people) AS w", lambda given, made: given),
    "join": (
        "SELECT COUNT(*) AS n FROM people",
        lambda given, made: replace(made, rows=replace(made.rows, table=replace(made.rows.table, name="nobody"))),
    ),
    "unit": (
        "SELECT COUNT(*) AS n FROM visits",
        lambda given, made: replace(made, computed=Computed(replace(made.rows.table, name="people"))),
    ),
    "aggregate": ("SELECT COUNT(*) AS n FROM visits", lambda given, made: replace(made, tables=())),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_result_breaks_the_next_precondition(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sql, spoiled = WRONG[name]
    after = [rule.name for rule in RULES][[rule.name for rule in RULES].index(name) + 1]
    patched(monkeypatch, name, lambda rule: lambda given: spoiled(given, rule.apply(given)))
    with pytest.raises(InternalError, match=f"rule {after} requires .* line 1, column"):
        understood_for(sql, POLICY, SCHEMAS)
