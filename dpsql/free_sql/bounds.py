"""Bounds of a query over releases: what it may call and read, and how much it can build, decided from DuckDB's parse.

DuckDB parses the text (``json_serialize_sql``), so that what is judged is what would run, however it is written. The
walk gives every expression an extent (``functions``) and every query its columns and the most rows that it can have.
Nothing is run: one call of a function, and one constant that the optimiser folds, can be neither interrupted nor held
to a limit of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from types import MappingProxyType

import duckdb

from dpsql.errors import SQLError

from . import limits
from .constants import constant
from .expressions import shown_number
from .extents import Extent, either, times
from .functions import AGGREGATES, GATHERING
from .joins import where
from .parse import Macros, Node, descend, name_of, parsed, query_in, without_places, word
from .scopes import Frame, Scope, outer_columns, rows_around
from .sources import Sources
from .tables import Bounds, Keys, Measure, Tables, renamed, table_in


def check(
    sql: str,
    connection: duckdb.DuckDBPyConnection,
    tables: Tables,
    macros: Macros = MappingProxyType({}),
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    runs: int = 1,
) -> Bounds | None:
    """The bounds of what a query gives; None for a text that DuckDB does not parse as a SELECT, which is not run.

    ``connection``: what will run the query, or one like it; it parses the text and counts the rows of DuckDB's lists.
    ``macros``: those that it may call. ``runs``: how often it is run, which divides the steps that it may take. Raises
    SQLError for a function, a table or a type that is not on the lists, and for what can grow beyond the limits.
    """
    nodes = parsed(sql, connection)
    if len(nodes) != 1:
        return None
    failure = ""
    try:
        lists = partial(_list_in, connection)
        return _Query(sql, tables, lists, macros, parameters, runs).query(nodes[0], (), {})
    except RecursionError:
        failure = "the query nests too deeply; flatten it"
    raise SQLError(failure, code="too-large")


_NEVER = "CTE_MATERIALIZE_NEVER"


class _Query(Sources):
    """One query; see ``check``."""

    def query(self, node: Node, outer: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        """The columns and rows of a query; ``ctes``: what WITH gives."""
        ctes = {**ctes}
        self.selects += 1
        if self.selects > limits.MOST_SELECTS:
            raise self._refused(
                f"it has more than {limits.MOST_SELECTS:,} SELECTs; ask for less at once", node, "too-large"
            )
        for one in (node.get("cte_map") or {}).get("map", ()):
            before = self.written
            bounds = self.query(query_in(one["value"]), outer, ctes)
            again = self.written - before if one["value"].get("materialized") == _NEVER else 0
            named = renamed(bounds, one["value"].get("aliases") or ())
            ctes[str(one["key"]).lower()] = replace(named, copied=again)
            outer = _with(one["value"], outer)
        kind = node["type"]
        if kind == "SELECT_NODE":
            return self._select(node, outer, ctes)
        if kind == "SET_OPERATION_NODE":
            sides = [side for side in (node.get("children") or [node.get("left"), node.get("right")]) if side]
            bounds = self._united([self.query(side, outer, ctes) for side in sides])
            if bounds.listed and not node.get("setop_all"):
                bounds = replace(bounds, keys=tuple((name, inf) for name in bounds.columns))
            around = rows_around(outer_columns(node, outer, Frame([("", bounds)])), outer) if outer else 1
            frame = Frame([("", bounds)], each=bounds.rows, rows=bounds.rows * around, complete=True)
            rows = self._modified(node, frame, (*outer, frame), ctes, bounds.rows)
            return replace(bounds, rows=rows)
        if kind == "CTE_NODE":  # of DuckDB 1, which keeps WITH in the tree
            bounds = self.query(query_in(node["query"]), outer, ctes)
            ctes[str(node["cte_name"]).lower()] = renamed(bounds, node.get("aliases") or ())
            return self.query(query_in(node["child"]), _with(node["query"], outer), ctes)
        if kind == "RECURSIVE_CTE_NODE":
            raise self._refused(
                "WITH RECURSIVE is not answered; write the steps as queries of their own", node, "recursive"
            )
        raise self._refused(f"{word(kind)} is not answered; write SELECT", node)

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
            wide=max(side.width for side in sides),
        )

    def _select(self, node: Node, outer: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        frame = Frame()
        scope = (*outer, frame)
        cases = self._from(node.get("from_table") or {"type": "EMPTY"}, frame, outer, ctes)
        if node.get("where_clause"):
            cases = where(cases, self._equalities(node["where_clause"], frame, range(len(frame.tables)), outer))
        self.joined(frame, outer, cases, node)
        columns: dict[str, Extent] = {}
        listed = True
        wide = 0.0
        for item in node["select_list"]:
            before = self.written
            if item["class"] == "STAR":
                self.extent(item, scope, ctes)
                whole = item.get("relation_name", "").lower()
                for alias, source in frame.tables:
                    if whole in ("", alias):
                        listed = listed and source.listed
                        wide += source.width
                        columns.update((name, extent) for name, extent in source.columns.items())
                for one in item.get("replace_list") or ():
                    columns[str(one["key"]).lower()] = self.extent(one["value"], scope, ctes)
                listed = listed and not item.get("rename_list")
                continue
            extent = self.extent(item, scope, ctes)
            name = (item.get("alias") or name_of(item)).lower()
            columns[name if name and name not in columns else f"\0{len(columns)}"] = extent
            frame.items[name] = either([frame.items[name], extent]) if name in frame.items else extent
            stars = sum(source.width for _, source in frame.tables) if next(descend(item, "STAR"), None) else 1
            self.copy((self.written - before) * max(0, stars - 1), item)
            frame.copied[name] = max(frame.copied.get(name, 0), self.written - before - 1)
            wide += max(1, stars)
        parts = [node.get(part) for part in ("where_clause", "qualify", "having", "group_expressions")]
        self._expressions(parts, scope, ctes)
        grouped, sets = node.get("group_expressions") or (), len(node.get("group_sets") or ())
        all_rows = grouped or node.get("aggregate_handling") == "FORCE_AGGREGATES" or not frame.aggregated
        rows = times(frame.each if all_rows else 1, max(sets, 1) * frame.unnested)
        if sets > limits.MOST_SETS:
            raise self._refused(
                f"{sets:,} grouping sets are computed one by one, at most {limits.MOST_SETS:,}; name fewer",
                *(node, "too-large"),
            )
        if sets > 1 and times(frame.rows, sets) > limits.MOST_ROWS:
            raise self._refused(
                f"{sets:,} grouping sets can make {shown_number(times(frame.rows, sets))} rows, at most "
                f"{limits.MOST_ROWS:,} are made; name fewer",
                node,
                "too-large",
            )
        if frame.unnested > 1:
            self._check_rows(times(frame.rows, max(sets, 1) * frame.unnested), node, "unnest")
        rows = self._modified(node, frame, scope, ctes, rows)
        self._check_work(frame, node)
        return Bounds(columns, rows, listed, *self._keys(node, frame, columns), wide=wide, joined=max(1, frame.joined))

    def _keys(self, node: Node, frame: Frame, columns: Mapping[str, Extent]) -> tuple[Keys, Measure | None]:
        """The columns that determine a row of a SELECT, and what counts the rows that agree in columns."""
        unknown = Bounds().keys, None
        items, sets, groups = node["select_list"], node.get("group_sets") or (), node.get("group_expressions") or ()
        star = any(item["class"] == "STAR" for item in items)
        source = frame.tables[0][1] if len(frame.tables) == 1 else None
        if star and (source is None or not source.listed or len(items) > 1):
            return unknown
        distinct = [one for one in node.get("modifiers") or () if one["type"] == "DISTINCT_MODIFIER"]
        if any(not one.get("distinct_on_targets") for one in distinct):
            return tuple((name, inf) for name in columns), None
        of_column = {} if star else dict(zip(columns, items, strict=True))
        if frame.unnested > 1 or len(sets) > 1:
            return unknown
        if groups:
            return tuple((_item_of(group, of_column), inf) for group in groups), None
        if node.get("aggregate_handling") == "FORCE_AGGREGATES":  # GROUP BY ALL
            return tuple((name, inf) for name, item in of_column.items() if not _has_aggregate(item)), None
        if source is None or frame.aggregated:
            return unknown
        copied = {name: name_of(item).lower() for name, item in of_column.items() if item["class"] == "COLUMN_REF"}
        if star and not items[0].get("replace_list") and not items[0].get("rename_list"):
            copied = {name: name for name in columns}
        return source.selected({name: of for name, of in copied.items() if of in source.columns and columns[name].type})

    def _modified(self, node: Node, frame: Frame, scope: Scope, ctes: Mapping[str, Bounds], rows: float) -> float:
        """The rows once ORDER BY, LIMIT and DISTINCT are done."""
        for one in node.get("modifiers") or ():
            self._expressions(one, scope, ctes)
            limit = one.get("limit")
            if one["type"] == "LIMIT_MODIFIER" and limit and one.get("limit_type", "ROW_COUNT") == "ROW_COUNT":
                rows = min(rows, max(0, self.extent(limit, scope, ctes).most))
        self._check_work(frame, node)
        return rows


def _list_in(connection: duckdb.DuckDBPyConnection, name: str) -> Bounds:
    """A list of DuckDB's, such as that of all columns."""
    bounds = table_in(connection, f"{name}()")
    if bounds is None:
        raise SQLError(f"{name} is not listed here; SHOW TABLES lists what may be read")
    return bounds


def _with(query: Node, outer: Scope) -> Scope:
    """The scope of what reads a query of WITH, which is computed anew where that names columns of queries around."""
    named = outer_columns(query, outer, Frame())
    return (*outer, Frame(around=rows_around(named, outer))) if named else outer


def _item_of(group: Node, items: Mapping[str, Node]) -> str:
    """The column that shows a group key; a name that no column has if none does."""
    if group["class"] == "CONSTANT":
        place = constant(group).most
        return list(items)[int(place) - 1] if 1 <= place <= len(items) else "\0"
    written = _unplaced(group)
    for name, item in items.items():
        by_alias = group["class"] == "COLUMN_REF" and group["column_names"] == [item.get("alias")]
        if by_alias or _unplaced(item) == written:
            return name
    return "\0"


def _unplaced(node: Node) -> object:
    """An expression without its alias and its places in the text."""
    return {key: value for key, value in without_places(node).items() if key != "alias"}


def _has_aggregate(item: Node) -> bool:
    names = (str(call["function_name"]).lower() for call in descend(item, "FUNCTION"))
    return any(name in AGGREGATES or name in GATHERING for name in names)
