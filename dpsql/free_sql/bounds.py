"""Bounds of a query over releases: what it may call and read, and how much it can build, decided from DuckDB's parse.

DuckDB parses the text (``json_serialize_sql``), so that what is judged is what would run, however it is written. The
walk gives every expression an extent (``functions``) and every query its columns and the most rows that it can have.
Nothing is run: one call of a function, and one constant that the optimiser folds, can be neither interrupted nor held
to a limit of memory.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any, TypeAlias

import duckdb

from dpsql.errors import SQLError, nearest, printable
from dpsql.quoting import identifier

from .functions import (
    AGGREGATES,
    COUNTS,
    ELEMENTS,
    GATHERING,
    LAMBDAS,
    LISTED,
    LISTS,
    NUMBER,
    SCALARS,
    SERIES,
    STEPS,
    TEXT,
    TYPES,
    WORDS,
    Extent,
    Rule,
    either,
    series,
    text,
    times,
    whole,
)

LONGEST = 100_000
"""Characters of a query."""
MOST_BYTES = 1_000_000
"""Bytes of a value that an expression builds."""
MOST_AT_ONCE = 500_000_000
"""Bytes that the expressions of a SELECT build for the rows that DuckDB computes at once."""
MOST_STEPS = 500_000_000
"""Steps of functions whose work grows faster than their arguments, over all rows."""
MOST_ROWS = 10_000_000
"""Rows that a series, a join without an equality of columns or several grouping sets can make."""
_VECTOR = 2_048
_SIZES = {"AR": "strlen", "[]": "len"}  # by how the names of VARCHAR and of lists end
_FREE = 4_096
"""Bytes of a value that count as no step."""
_LISTED_ROWS = 100_000
"""Rows that a list of DuckDB's is taken to have."""
_NO_PLACE = 2**32
_DAYS = {"to_days": 1, "to_weeks": 7, "to_months": 28, "to_quarters": 90, "to_years": 365}
_DATE = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T].*)?", re.DOTALL)

Node: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Bounds:
    """What a query or a table gives: the extents of its columns, by name in lower case, and the most rows.

    ``listed``: whether these are all its columns. ``made``: whether the rows are not those of a table.
    """

    columns: Mapping[str, Extent] = field(default_factory=dict)
    rows: float = 1
    listed: bool = True
    made: bool = False


def _column(kind: str, longest: float) -> Extent:
    """The extent of a table's column of a DuckDB type; ``longest``: bytes of its texts, or elements of its lists."""
    word = kind.split("(")[0].lower()
    if kind.endswith("]"):
        return replace(series(longest, TEXT), plain=True)
    return Extent(plain=True) if word in TYPES - WORDS - {"struct"} else replace(text(longest), plain=True)


def table(columns: Sequence[tuple[str, str]], rows: float, longest: Mapping[str, float] | None = None) -> Bounds:
    """A table with (name, DuckDB type) of its columns; ``longest``: of texts and lists, where it is known, by name."""
    known = longest or {}
    return Bounds(
        {
            name.lower(): _column(kind, known.get(name, ELEMENTS if kind.endswith("]") else TEXT))
            for name, kind in columns
        },
        rows,
    )


Tables: TypeAlias = Callable[[tuple[str, ...]], "Bounds | None"]
"""What is read under a name, its parts in lower case; None for what may not be read."""


def parsed(sql: str, connection: duckdb.DuckDBPyConnection) -> list[Node]:
    """DuckDB's parse of each SELECT of a text. Raises SQLError for a text that is too long or no SELECT."""
    if len(sql) > LONGEST:
        raise SQLError(f"the query has {len(sql):,} characters, at most {LONGEST:,} are read", code="too-large")
    found: dict[str, Any] = {}
    try:
        row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
        found = json.loads(row[0]) if row is not None else {}
    except RecursionError:
        raise SQLError("the query nests too deeply; flatten it", code="too-large") from None
    except duckdb.InterruptException:
        raise
    except duckdb.Error:  # as of syntax, which whoever runs it says
        return []
    return [one["node"] for one in found.get("statements", ())] if not found.get("error") else []


def check(
    sql: str,
    connection: duckdb.DuckDBPyConnection,
    tables: Tables,
    more: Mapping[str, Rule] | None = None,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    runs: int = 1,
) -> Bounds | None:
    """The bounds of what a query gives; None for a text that DuckDB does not parse as a SELECT, which is not run.

    ``connection``: any of DuckDB's, which parses and runs nothing. ``more``: rules of macros. ``runs``: how often it is
    run, which divides the steps that it may take. Raises SQLError for a
    function, a table or a type that is not on the lists, and for what can grow beyond the limits.
    """
    nodes = parsed(sql, connection)
    if len(nodes) != 1:
        return None
    failure = ""
    try:
        return _Walk(sql, tables, SCALARS if not more else {**SCALARS, **more}, parameters, MOST_STEPS // runs).query(
            nodes[0], (), {}
        )
    except RecursionError:
        failure = "the query nests too deeply; flatten it"
    raise SQLError(failure, code="too-large")


Scope: TypeAlias = "tuple[_Frame, ...]"


@dataclass
class _Frame:
    """What names mean within one SELECT: its tables by alias, and its own items."""

    tables: list[tuple[str, Bounds]] = field(default_factory=list)
    items: dict[str, Extent] = field(default_factory=dict)
    rows: float = 1
    built: float = 0
    steps: float = 0
    unnested: float = 1
    aggregated: bool = False


class _Walk:
    """One query; see ``check``."""

    def __init__(
        self,
        sql: str,
        tables: Tables,
        scalars: Mapping[str, Rule],
        parameters: Sequence[object] | Mapping[str, object] | None,
        most_steps: int,
    ) -> None:
        self.sql = sql
        self.tables = tables
        self.most_steps = most_steps
        self.scalars = scalars
        held = parameters if isinstance(parameters, Mapping) else dict(enumerate(parameters or (), 1))
        self.parameters = {str(name): value for name, value in held.items()}

    # -- queries -------------------------------------------------------------------------------

    def query(self, node: Node, outer: Scope, known: Mapping[str, Bounds]) -> Bounds:
        """The columns and rows of a query; ``known``: what WITH gives."""
        known = {**known}
        for one in (node.get("cte_map") or {}).get("map", ()):
            found = self.query(_query_in(one["value"]), outer, known)
            known[str(one["key"]).lower()] = _renamed(found, one["value"].get("aliases") or ())
        kind = node["type"]
        if kind == "SELECT_NODE":
            return self._select(node, outer, known)
        if kind == "SET_OPERATION_NODE":
            sides = [side for side in (node.get("children") or [node.get("left"), node.get("right")]) if side]
            found = self._united([self.query(side, outer, known) for side in sides])
            frame = _Frame([("", found)], rows=found.rows)
            rows = self._modified(node, frame, (*outer, frame), known, found.rows)
            return replace(found, rows=rows)
        if kind == "CTE_NODE":  # of DuckDB 1, which keeps WITH in the tree
            found = self.query(_query_in(node["query"]), outer, known)
            known[str(node["cte_name"]).lower()] = _renamed(found, node.get("aliases") or ())
            return self.query(_query_in(node["child"]), outer, known)
        if kind == "RECURSIVE_CTE_NODE":
            raise self._refused(
                "WITH RECURSIVE is not answered; write the steps as queries of their own", node, "recursive"
            )
        raise self._refused(f"{_word(kind)} is not answered; write SELECT", node)

    def _united(self, sides: Sequence[Bounds]) -> Bounds:
        wide = max((list(side.columns) for side in sides), key=len)
        columns = dict(sides[0].columns)
        for side in sides[1:]:
            for name, extent in side.columns.items():
                columns[name] = either([columns[name], extent]) if name in columns else extent
            for first, second in zip(sides[0].columns, side.columns, strict=False):
                columns[first] = either([columns[first], side.columns[second]])
        return Bounds(
            columns if wide else {},
            sum(side.rows for side in sides),
            all(side.listed for side in sides),
            any(side.made for side in sides),
        )

    def _select(self, node: Node, outer: Scope, known: Mapping[str, Bounds]) -> Bounds:
        frame = _Frame()
        scope = (*outer, frame)
        equal: list[tuple[int, int]] = []
        self._from(node.get("from_table") or {"type": "EMPTY"}, frame, outer, known, equal)
        conditions = [part for part in (node.get("where_clause"), node.get("qualify")) if part]
        for part in conditions:
            equal += self._equalities(part, frame, outer)
        frame.rows = self._joined(frame, outer, equal, node)
        columns: dict[str, Extent] = {}
        listed = True
        for item in node["select_list"]:
            if item["class"] == "STAR":
                self._expressions(item, scope, known)
                whole = item.get("relation_name", "").lower()
                for alias, source in frame.tables:
                    if whole in ("", alias):
                        listed = listed and source.listed
                        columns.update((name, extent) for name, extent in source.columns.items())
                for one in item.get("replace_list") or ():
                    columns[str(one["key"]).lower()] = self.extent(one["value"], scope, known)
                listed = listed and not item.get("rename_list")
                continue
            extent = self.extent(item, scope, known)
            name = (item.get("alias") or _name_of(item)).lower()
            columns[name if name and name not in columns else f"\0{len(columns)}"] = extent
            frame.items[name] = either([frame.items[name], extent]) if name in frame.items else extent
        for part in (*conditions, node.get("having"), *(node.get("group_expressions") or ())):
            if part:
                self.extent(part, scope, known)
        grouped, sets = node.get("group_expressions") or (), len(node.get("group_sets") or ())
        rows = frame.rows if grouped or not frame.aggregated else 1
        if sets > 1:
            rows = times(rows, sets)
            if rows > MOST_ROWS:
                raise self._refused(
                    f"{sets:,} grouping sets can make {_shown(rows)} rows, at most {MOST_ROWS:,} are made; name fewer",
                    node,
                    "too-large",
                )
        if frame.unnested > 1:
            rows = times(rows, frame.unnested)
            self._check_rows(rows, node, "unnest")
        rows = self._modified(node, frame, scope, known, rows)
        self._check_work(frame, node)
        made = frame.unnested > 1 or len(frame.tables) != 1 or any(source.made for _, source in frame.tables)
        return Bounds(columns, rows, listed, made)

    def _modified(self, node: Node, frame: _Frame, scope: Scope, known: Mapping[str, Bounds], rows: float) -> float:
        """The rows once ORDER BY, LIMIT and DISTINCT are done."""
        for one in node.get("modifiers") or ():
            self._expressions(one, scope, known)
            limit = one.get("limit")
            if one["type"] == "LIMIT_MODIFIER" and limit and one.get("limit_type", "ROW_COUNT") == "ROW_COUNT":
                rows = min(rows, max(0, self.extent(limit, scope, known).most))
        self._check_work(frame, node)
        return rows

    def _check_work(self, frame: _Frame, node: Node) -> None:
        built = times(frame.built, min(frame.rows, _VECTOR))
        if built > MOST_AT_ONCE:
            raise self._refused(
                f"its expressions can build {_shown(built)} bytes for the rows that are computed at once, at most "
                f"{MOST_AT_ONCE:,} fit; join and repeat less text",
                node,
                "too-large",
            )
        steps = times(frame.steps, frame.rows)
        if steps > self.most_steps:
            raise self._refused(
                f"its functions of text and lists can take {_shown(steps)} steps over all rows, at most "
                f"{self.most_steps:,} are taken; give them shorter texts or fewer rows",
                node,
                "too-large",
            )

    # -- FROM ----------------------------------------------------------------------------------

    def _from(
        self, node: Node, frame: _Frame, outer: Scope, known: Mapping[str, Bounds], equal: list[tuple[int, int]]
    ) -> None:
        """Add what FROM names to the frame; ``equal``: pairs of tables that an equality of columns joins."""
        kind = node["type"]
        if kind == "EMPTY":
            return
        if kind == "JOIN":
            self._from(node["left"], frame, outer, known, equal)
            middle = len(frame.tables)
            self._from(node["right"], frame, outer, known, equal)
            self._join(node, frame, middle, outer, known, equal)
            return
        found = self._source(node, (*outer, frame), known)
        alias = node.get("alias") or node.get("table_name") or ""
        if kind == "TABLE_FUNCTION":
            alias = alias or node["function"]["function_name"]
        frame.tables.append((str(alias).lower(), _renamed(found, node.get("column_name_alias") or ())))

    def _source(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        """A table, query or function of FROM."""
        kind = node["type"]
        if kind == "BASE_TABLE":
            return self._named(node, known)
        if kind == "SUBQUERY":
            return self.query(_query_in(node["subquery"]), scope, known)
        if kind == "TABLE_FUNCTION":
            return self._table_function(node["function"], scope, known)
        if kind == "EXPRESSION_LIST":
            rows = [[self.extent(one, scope, known) for one in row] for row in node["values"]]
            columns = {f"col{at}": either(values) for at, values in enumerate(zip(*rows, strict=False))}
            return Bounds(columns, len(rows), made=True)
        if kind == "PIVOT":
            return self._pivoted(node, scope, known)
        if kind == "SHOW_REF":
            return self._shown_table(node, scope, known)
        raise self._refused(f"{_word(kind)} is not answered in FROM", node)

    def _named(self, node: Node, known: Mapping[str, Bounds]) -> Bounds:
        parts = [node.get(part) or "" for part in ("catalog_name", "schema_name", "table_name")]
        path = tuple(str(part).lower() for part in parts if part)
        if len(path) == 1 and path[0] in known:
            return known[path[0]]
        if path[-1] in LISTED and len(path) == 1:
            return Bounds({}, _LISTED_ROWS, listed=False)
        found = self.tables(path)
        if found is None:
            raise self._refused(
                f"{'.'.join(path)[:80]} is not among what may be read; SHOW TABLES lists that", node, "unknown-table"
            )
        return found

    def _table_function(self, call: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        name = str(call["function_name"]).lower()
        if name in LISTS:
            for part in _children(call):
                self.extent(part, scope, known)
            return Bounds({}, _LISTED_ROWS, listed=False)
        if name not in SERIES:
            raise self._refused(
                f"the table function {name[:60]} is not offered; those offered are {', '.join(sorted(SERIES | LISTS))}",
                call,
            )
        arguments = [self.extent(part, scope, known) for part in _children(call)]
        if name == "unnest":
            count = max((one.elements for one in arguments), default=1)
            each = max((one.each for one in arguments), default=NUMBER)
            extent = Extent(each, elements=each, each=each)
        else:
            made = SCALARS[name](arguments) if arguments else Extent()
            count = made.elements if made.elements < inf else self._dates(_children(call))
            extent = Extent(NUMBER, made.least, made.most, plain=True)
        self._check_rows(count, call, name)
        return Bounds({name: extent}, count, listed=name != "unnest", made=True)

    def _check_rows(self, rows: float, node: Node, what: str) -> None:
        if rows > MOST_ROWS:
            raise self._refused(
                f"{what} can make {_shown(rows)} rows, at most {MOST_ROWS:,} are made; give it smaller constants",
                node,
                "too-large",
            )

    def _dates(self, arguments: Sequence[Node]) -> float:
        """The rows of a series of days between two constants, by steps of a day or more."""
        if len(arguments) != 3 or arguments[2]["class"] != "FUNCTION":
            return inf
        days = _DAYS.get(str(arguments[2]["function_name"]).lower())
        step = self.extent(arguments[2], (), {})
        ends = [_day(one) for one in arguments[:2]]
        if days is None or step.least < 1 or None in ends:
            return inf
        first, last = (end for end in ends if end is not None)
        return max(0, last - first) / (days * step.least) + 1

    def _pivoted(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        frame = _Frame()
        outer = scope[:-1]
        self._from(node["source"], frame, outer, known, [])
        rows = self._joined(frame, outer, [], node)
        frame.rows = rows
        self._expressions({key: value for key, value in node.items() if key != "source"}, (*outer, frame), known)
        if node.get("unpivot_names"):
            entries = sum(len(one.get("entries") or ()) for one in node.get("pivots") or ())
            rows *= max(entries, sum(len(source.columns) for _, source in frame.tables), 1)
        self._check_work(frame, node)
        return Bounds({}, rows, listed=False)

    def _shown_table(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        if node.get("query"):
            self.query(node["query"], scope, known)
        else:
            name = str(node.get("table_name") or "").strip('"').lower()
            if name not in ("", "tables", "__show_tables_expanded") and node.get("show_type") == "SHOW_SPECIAL":
                raise self._refused(f"SHOW {name[:60]} is not answered; SHOW TABLES says what there is", node)
            if name not in ("", "tables", "__show_tables_expanded"):
                self._named({**node, "type": "BASE_TABLE", "table_name": name}, known)
        return Bounds({}, _LISTED_ROWS, listed=False)

    def _join(
        self,
        node: Node,
        frame: _Frame,
        middle: int,
        outer: Scope,
        known: Mapping[str, Bounds],
        equal: list[tuple[int, int]],
    ) -> None:
        """Note what a join says of two of its tables."""
        left, right = range(middle), range(middle, len(frame.tables))
        words = [str(word).lower() for word in node.get("using_columns") or ()]
        kind = node.get("ref_type", "")
        if kind == "NATURAL":
            names = [{name for at in side for name in frame.tables[at][1].columns} for side in (left, right)]
            words = sorted(names[0] & names[1])
        for word in words:
            sides = [[at for at in side if _is_plain(frame.tables[at][1].columns.get(word))] for side in (left, right)]
            equal += [(a, b) for a in sides[0] for b in sides[1]]
        if kind in ("ASOF", "POSITIONAL") and left and right:
            equal.append((middle - 1, middle))
        if node.get("condition"):
            self.extent(node["condition"], (*outer, frame), known)
            equal += self._equalities(node["condition"], frame, outer)

    def _equalities(self, node: Node, frame: _Frame, outer: Scope) -> list[tuple[int, int]]:
        """Pairs of tables that a condition's equalities of plain columns join; -1 is what stands around the query."""
        if node["class"] == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
            return [pair for part in node["children"] for pair in self._equalities(part, frame, outer)]
        if node["class"] != "COMPARISON" or node["type"] != "COMPARE_EQUAL":
            return []
        sides = [node["left"], node["right"]]
        if any(side["class"] != "COLUMN_REF" for side in sides):
            return []
        first, second = (_tables_of(side["column_names"], frame, outer) for side in sides)
        return [(a, b) for a in first for b in second if a != b]

    def _joined(self, frame: _Frame, outer: Scope, equal: Sequence[tuple[int, int]], node: Node) -> float:
        """The most rows of a join: those of tables that equalities of columns join are added, others multiplied.

        An equality that holds of many rows on both sides makes more; that is left to the limits of time and memory,
        which reach a join.
        """
        sources = [source for _, source in frame.tables]
        sizes = {at: max(1.0, source.rows) for at, source in enumerate(sources)}
        if outer and _mentions(node, outer, frame):
            sizes[-1] = max(1.0, outer[-1].rows)
        group = {at: at for at in sizes}
        for a, b in equal:
            if a in group and b in group:
                old, new = group[a], group[b]
                group = {at: new if mine == old else mine for at, mine in group.items()}
        rows = prod(sum(sizes[at] for at in group if group[at] == one) for one in set(group.values()))
        together = sum(sizes.values())
        if rows > MOST_ROWS and rows > together:
            raise self._refused(
                f"its tables can be joined to {_shown(rows)} rows, at most {MOST_ROWS:,} are made; join them by the "
                "equality of columns, or aggregate them first",
                node,
                "too-large",
            )
        own = [source.rows for source in sources]
        return rows if len(own) != 1 or -1 in sizes else own[0]

    # -- expressions ---------------------------------------------------------------------------

    def _expressions(self, node: object, scope: Scope, known: Mapping[str, Bounds]) -> None:
        """Judge every expression below a node that is none itself, or a star."""
        for part in _children(node):
            self.extent(part, scope, known)

    def extent(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Extent:
        """How large the value of an expression can be."""
        kind = node["class"]
        if kind == "CONSTANT":
            return _constant(node)
        if kind == "COLUMN_REF":
            return _looked_up([str(name).lower() for name in node["column_names"]], scope)
        if kind == "FUNCTION":
            return self._call(node, scope, known)
        if kind == "WINDOW":
            return self._window(node, scope, known)
        if kind == "CAST":
            return self._cast(node, scope, known)
        if kind == "CASE":
            for one in node["case_checks"]:
                self.extent(one["when_expr"], scope, known)
            results = [one["then_expr"] for one in node["case_checks"]] + [node["else_expr"]]
            return replace(either([self.extent(one, scope, known) for one in results if one]), plain=False)
        if kind == "SUBQUERY":
            found = self.query(_query_in(node["subquery"]), scope, known)
            self._expressions({"child": node.get("child")}, scope, known)
            return replace(_widest(found), plain=False) if node["subquery_type"] == "SCALAR" else _array(node, found)
        if kind == "PARAMETER":
            return _parameter(self.parameters.get(str(node.get("identifier", ""))))
        if kind == "STAR":
            self._expressions(node, scope, known)
            return _widest_of(scope)
        if kind == "POSITIONAL_REFERENCE":
            return _widest_of(scope)
        if kind in ("OPERATOR", "COMPARISON", "CONJUNCTION", "BETWEEN", "COLLATE"):
            parts = [self.extent(part, scope, known) for part in _children(node)]
            return self._operator(node, parts, scope)
        raise self._refused(f"{_word(kind)} is not answered in an expression", node)

    def _operator(self, node: Node, parts: Sequence[Extent], scope: Scope) -> Extent:
        kind = node["type"]
        if kind in ("OPERATOR_COALESCE", "OPERATOR_TRY", "OPERATOR_NULLIF", "COLLATE"):
            return replace(either(parts), plain=False)
        if kind in ("ARRAY_EXTRACT", "STRUCT_EXTRACT", "ARRAY_SLICE"):
            return replace(self.scalars["list_slice" if kind == "ARRAY_SLICE" else "list_extract"](parts), plain=False)
        if kind == "ARRAY_CONSTRUCTOR":
            return self._kept(self.scalars["list_value"](parts), parts, node, scope)
        return Extent()

    def _call(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Extent:
        name = str(node["function_name"]).lower()
        frame = scope[-1] if scope else _Frame()
        if name in AGGREGATES or name in GATHERING:
            parts = [self.extent(part, scope, known) for part in _children(node)]
            frame.aggregated = True
            return self._gathered(name, parts, frame)
        rule = self.scalars.get(name)
        if rule is None:
            raise self._unlisted(name, node)
        arguments = _children(node)
        parts = [Extent() if part["class"] == "LAMBDA" else self.extent(part, scope, known) for part in arguments]
        if name in LAMBDAS:
            parts = self._with_lambda(node, arguments, parts, scope, known)
        elif any(part["class"] == "LAMBDA" for part in arguments):
            raise self._refused(f"{name[:60]} takes no lambda here", node)
        try:
            found = rule(parts)
            steps = STEPS[name](parts) if name in STEPS else 0
        except IndexError:  # DuckDB has no such function of fewer arguments
            return Extent()
        frame.steps += steps
        if name in ("unnest", "regexp_split_to_table"):
            frame.unnested *= max((one.elements for one in parts), default=1)
        return self._kept(replace(found, plain=False), parts, node, scope)

    def _kept(self, found: Extent, parts: Sequence[Extent], node: Node, scope: Scope) -> Extent:
        """The extent of what is built, once it is found to fit."""
        longest = max((part.size for part in parts), default=0)
        if found.size > MOST_BYTES and found.size > longest:
            name = str(node.get("function_name") or node["type"]).lower()
            raise self._refused(
                f"{name[:60]} can build {_shown(found.size)} bytes here, at most {MOST_BYTES:,} are built; bound it "
                f"with smaller constants, such as least(n, 100) (a text of a column counts as {TEXT:,} bytes)",
                node,
                "too-large",
            )
        if scope:
            frame = scope[-1]
            frame.built += found.size if found.size > NUMBER else 0
            frame.steps += found.size if found.size > _FREE else 0
        return found

    def _with_lambda(
        self, node: Node, arguments: Sequence[Node], parts: Sequence[Extent], scope: Scope, known: Mapping[str, Bounds]
    ) -> list[Extent]:
        """The extents of a list and of what its lambda gives, whose work is done for each element."""
        if len(arguments) != 2 or arguments[1]["class"] != "LAMBDA":
            raise self._refused("a lambda is written as lambda x: x + 1", node)
        listed, body = parts[0], arguments[1]
        each = Extent(max(listed.each, NUMBER), listed.least, listed.most, listed.each, listed.each)
        names = [str(one["column_names"][-1]).lower() for one in _descend(body["lhs"], "COLUMN_REF")]
        inner = _Frame([("", Bounds(dict.fromkeys(names, each)))], rows=scope[-1].rows if scope else 1)
        if names[1:]:
            inner.tables = [
                ("", Bounds({names[0]: each, **dict.fromkeys(names[1:], Extent(NUMBER, 0, listed.elements))}))
            ]
        result = self.extent(body["expr"], (*scope, inner), known)
        if scope:
            scope[-1].built += times(inner.built, listed.elements)
            scope[-1].steps += times(inner.steps, listed.elements)
        return [listed, result]

    def _gathered(self, name: str, parts: Sequence[Extent], frame: _Frame) -> Extent:
        """What an aggregate gives."""
        if name in COUNTS:
            return Extent(NUMBER, 0, frame.rows)
        size = sum(part.size for part in parts)
        if name in GATHERING:
            return series(max(frame.rows, 1), size + 8)
        return replace(either(parts), least=-inf, most=inf, constant=None, plain=False) if parts else Extent()

    def _window(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Extent:
        parts = [self.extent(part, scope, known) for part in _children(node)]
        name = str(node.get("function_name") or node["type"].removeprefix("WINDOW_")).lower()
        if name not in AGGREGATES and name not in GATHERING:
            raise self._unlisted(name, node)
        found = self._gathered(name, parts, scope[-1])
        return self._kept(found, parts, node, scope) if name in GATHERING else found

    def _cast(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Extent:
        child = self.extent(node["child"], scope, known)
        names = list(_type_names(node.get("type_expr") or node.get("cast_type") or {}))
        for name in names:
            if name not in TYPES:
                raise self._refused(f"a cast to {name[:60].upper()} is not among those that run over releases", node)
        if len(names) > 1:
            return self._kept(Extent(16 * child.size, elements=child.size, each=16 * child.size), [child], node, scope)
        if names and names[0] in WORDS:
            # A number is short; lists and bytes are written out longer than they are.
            return (
                self._kept(replace(text(child.size), constant=child.constant), [child], node, scope)
                if (child.elements <= child.size + 1 and child.each <= child.size)
                else self._kept(text(16 * child.size), [child], node, scope)
            )
        if child.constant is not None:
            value = _number_in(child.constant)
            return Extent() if value is None else Extent(NUMBER, value, value)
        return whole(child)

    def _unlisted(self, name: str, node: Node) -> SQLError:
        offered = [one for one in (*self.scalars, *AGGREGATES, *GATHERING) if one.isidentifier()]
        return self._refused(
            f"the function {name[:60]} is not among those that run over releases; {nearest(name[:60], offered)}", node
        )

    def _refused(self, message: str, node: Node, code: str = "not-answered") -> SQLError:
        at = node.get("query_location")
        shown = printable(message)
        if not isinstance(at, int) or not 0 <= at < min(len(self.sql.encode()), _NO_PLACE):
            return SQLError(shown, code=code)
        before = self.sql.encode()[:at].decode("utf-8", "replace")
        return SQLError(shown, before.count("\n") + 1, at_column(before), code=code)


def at_column(before: str) -> int:
    """The column, from 1, of what follows a text."""
    return len(before) - (before.rfind("\n") + 1) + 1


def _children(node: object) -> list[Node]:
    """The expressions right below a node, through whatever lists and fields lie between; queries are not entered."""
    found: list[Node] = []
    held = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for one in held:
        if isinstance(one, dict) and isinstance(one.get("class"), str):
            if one["class"] != "TYPE":
                found.append(one)
        elif not (isinstance(one, dict) and str(one.get("type", "")).endswith("_NODE")):
            found += _children(one)
    return found


def _descend(node: Node, kind: str) -> Iterator[Node]:
    """The node and all expressions below it that are of a class."""
    if node.get("class") == kind:
        yield node
    for part in _children(node):
        yield from _descend(part, kind)


def _query_in(node: Node) -> Node:
    """The query that a node holds."""
    while not str(node.get("type", "")).endswith("_NODE"):
        held = [one for one in (node.get(key) for key in ("node", "query_node", "query", "subquery")) if one]
        node = held[0]
    return node


def _renamed(found: Bounds, names: Sequence[str]) -> Bounds:
    """Rows whose first columns have other names."""
    if not names:
        return found
    if not found.listed:
        return replace(found, columns={})
    old = list(found.columns)
    new = [str(name).lower() for name in names] + old[len(names) :]
    return replace(found, columns=dict(zip(new, found.columns.values(), strict=False)))


def _name_of(node: Node) -> str:
    if node["class"] == "COLUMN_REF":
        return str(node["column_names"][-1])
    return str(node.get("function_name") or "")


def _looked_up(names: Sequence[str], scope: Scope) -> Extent:
    """The extent of a column, the largest of all that the name may mean."""
    for frame in reversed(scope):
        found = _within(names, frame)
        if found:
            return either(found)
    return _widest_of(scope)


def _within(names: Sequence[str], frame: _Frame) -> list[Extent]:
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    found = []
    for alias, source in frame.tables:
        if (not of or of == alias) and last in source.columns:
            found.append(source.columns[last])
        elif (not of or of == alias) and not source.listed:
            found.append(_widest(source))
        elif names[0] in source.columns and len(names) > 1:  # a field
            found.append(replace(source.columns[names[0]], plain=False))
        elif len(names) == 1 and last == alias:  # a row as a whole
            found.append(Extent(sum(one.size for one in source.columns.values())))
    if not of and last in frame.items:
        found.append(frame.items[last])
    return found


def _widest(source: Bounds) -> Extent:
    held = list(source.columns.values())
    return either(held if source.listed and held else [*held, replace(series(ELEMENTS, TEXT), plain=False)])


def _widest_of(scope: Scope) -> Extent:
    held = [_widest(source) for frame in scope for _, source in frame.tables]
    held += [extent for frame in scope for extent in frame.items.values()]
    return replace(either([*held, text(TEXT)]), plain=False)


def _tables_of(names: Sequence[str], frame: _Frame, outer: Scope) -> list[int]:
    """The numbers of the tables that a plain column may be of; -1 for those around the query."""
    names = [str(name).lower() for name in names]
    last, of = names[-1], names[-2] if len(names) > 1 else ""
    found = [
        at
        for at, (alias, source) in enumerate(frame.tables)
        if (not of or of == alias) and (_is_plain(source.columns.get(last)) or not source.listed)
    ]
    around = any(_is_plain(extent) for inner in outer for extent in _within(names, inner))
    return found or ([-1] if around else [])


def _is_plain(extent: Extent | None) -> bool:
    return extent is not None and extent.plain


def _mentions(node: Node, outer: Scope, frame: _Frame) -> bool:
    """Whether a query names a column of what stands around it."""
    own = {alias for alias, _ in frame.tables}
    todo: list[object] = [node]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, dict):
            if one.get("class") == "COLUMN_REF":
                names = [str(name).lower() for name in one["column_names"]]
                mine = (len(names) > 1 and names[-2] in own) or bool(_within(names, frame))
                if not mine and any(_within(names, inner) for inner in outer):
                    return True
            todo += list(one.values())
    return False


def _array(node: Node, found: Bounds) -> Extent:
    """What EXISTS and IN say, or an array of a query's rows."""
    return Extent() if node["subquery_type"] != "ARRAY" else series(found.rows, _widest(found).size)


def _constant(node: Node) -> Extent:
    literal = node.get("literal")
    if literal is not None:
        kind, written = literal["kind"], str(literal.get("text", ""))
        if kind == "STRING":
            return replace(text(len(written.encode())), constant=written)
        value = _number_in(written)
        return Extent() if value is None else Extent(NUMBER, value, value)
    held = node.get("value") or {}  # of DuckDB 1
    value = held.get("value")
    if isinstance(value, str):
        return replace(text(len(value.encode())), constant=value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Extent(max(NUMBER, len(json.dumps(held)))) if value is not None else Extent()
    scale = ((held.get("type") or {}).get("type_info") or {}).get("scale", 0)
    number = float(value) / 10**scale
    return Extent(NUMBER, number, number)


def _parameter(value: object) -> Extent:
    if isinstance(value, str | bytes):
        held = value.encode("utf-8", "replace") if isinstance(value, str) else value
        return replace(text(len(held)), constant=value if isinstance(value, str) else None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Extent(NUMBER, float(value), float(value)) if abs(value) < 1e300 else Extent()
    if isinstance(value, list | tuple | dict):
        return series(len(value), max((len(str(one)) for one in value), default=NUMBER))
    return Extent(max(NUMBER, len(str(value)))) if value is not None else Extent()


def _number_in(written: str) -> float | None:
    try:
        value = float(written.replace("_", ""))
    except ValueError:
        return None
    return value if abs(value) < inf else None


def _day(node: Node) -> int | None:
    """The day of a constant DATE or TIMESTAMP, counted from the year 1."""
    if node["class"] != "CAST":
        return None
    held = _constant(node["child"]).constant if node["child"]["class"] == "CONSTANT" else None
    found = _DATE.fullmatch(held or "")
    try:
        return None if found is None else dt.date(int(found[1]), int(found[2]), int(found[3])).toordinal()
    except ValueError:
        return None


def _type_names(node: Node) -> Iterator[str]:
    """The names of a type and of the types in it."""
    name = node.get("type_name") or node.get("id")
    if name:
        yield str(name).lower()
    for one in node.get("children") or ():
        if one.get("class") == "TYPE":
            yield from _type_names(one)
    info = node.get("type_info") or {}
    inner: list[Any] = [info.get("child_type"), *[one.get("second", one) for one in info.get("child_types") or ()]]
    for one in inner:
        if isinstance(one, dict):
            yield from _type_names(one)


def _word(kind: str) -> str:
    return kind.removesuffix("_NODE").replace("_", " ")


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number < 1e15 else "without limit" if number == inf else f"{number:.1e}"


def table_in(connection: duckdb.DuckDBPyConnection, name: str) -> Bounds | None:
    """A table or view by its quoted name, with how many rows it has and how long its texts and lists are.

    None where there is none.
    """
    try:
        described = connection.execute(f"SELECT * FROM {name} LIMIT 0").description or ()  # noqa: S608
        columns = [(str(column[0]), str(column[1])) for column in described]
        sized = {column: _SIZES[kind[-2:]] for column, kind in columns if kind[-2:] in _SIZES}
        listed = "".join(f", max({size}({identifier(column)}))" for column, size in sized.items())
        count, *found = connection.execute(f"SELECT count(*){listed} FROM {name}").fetchone() or (0,)  # noqa: S608
    except duckdb.InterruptException:
        raise
    except duckdb.Error:
        return None
    return table(columns, count, {column: size or 0 for column, size in zip(sized, found, strict=False)})
