"""Bounds of a query over releases: what it may call and read, and how much it can build, decided from DuckDB's parse.

DuckDB parses the text (``json_serialize_sql``), so that what is judged is what would run, however it is written. The
walk gives every expression an extent (``functions``) and every query its columns and the most rows that it can have.
Nothing is run: one call of a function, and one constant that the optimiser folds, can be neither interrupted nor held
to a limit of memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import duckdb

from dpsql.errors import SQLError

from . import limits
from .expressions import shown_number
from .extents import Extent, Rule, either, times
from .functions import SCALARS
from .parse import Node, name_of, parsed, query_in, word
from .scopes import Frame, Scope
from .sources import Sources
from .tables import Bounds, Tables, renamed

_VECTOR = 2_048
"""Rows that DuckDB computes at once."""


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
        return _Query(
            sql, tables, SCALARS if not more else {**SCALARS, **more}, parameters, limits.MOST_STEPS // runs
        ).query(nodes[0], (), {})
    except RecursionError:
        failure = "the query nests too deeply; flatten it"
    raise SQLError(failure, code="too-large")


class _Query(Sources):
    """One query; see ``check``."""

    def query(self, node: Node, outer: Scope, known: Mapping[str, Bounds]) -> Bounds:
        """The columns and rows of a query; ``known``: what WITH gives."""
        known = {**known}
        for one in (node.get("cte_map") or {}).get("map", ()):
            found = self.query(query_in(one["value"]), outer, known)
            known[str(one["key"]).lower()] = renamed(found, one["value"].get("aliases") or ())
        kind = node["type"]
        if kind == "SELECT_NODE":
            return self._select(node, outer, known)
        if kind == "SET_OPERATION_NODE":
            sides = [side for side in (node.get("children") or [node.get("left"), node.get("right")]) if side]
            found = self._united([self.query(side, outer, known) for side in sides])
            frame = Frame([("", found)], rows=found.rows)
            rows = self._modified(node, frame, (*outer, frame), known, found.rows)
            return replace(found, rows=rows)
        if kind == "CTE_NODE":  # of DuckDB 1, which keeps WITH in the tree
            found = self.query(query_in(node["query"]), outer, known)
            known[str(node["cte_name"]).lower()] = renamed(found, node.get("aliases") or ())
            return self.query(query_in(node["child"]), outer, known)
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
            any(side.made for side in sides),
        )

    def _select(self, node: Node, outer: Scope, known: Mapping[str, Bounds]) -> Bounds:
        frame = Frame()
        scope = (*outer, frame)
        equal: list[tuple[int, int]] = []
        self._from(node.get("from_table") or {"type": "EMPTY"}, frame, outer, known, equal)
        conditions = [part for part in (node.get("where_clause"), node.get("qualify")) if part]
        for part in conditions:
            equal += self._equalities(part, frame, outer)
        frame.rows = self.joined(frame, outer, equal, node)
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
            name = (item.get("alias") or name_of(item)).lower()
            columns[name if name and name not in columns else f"\0{len(columns)}"] = extent
            frame.items[name] = either([frame.items[name], extent]) if name in frame.items else extent
        for part in (*conditions, node.get("having"), *(node.get("group_expressions") or ())):
            if part:
                self.extent(part, scope, known)
        grouped, sets = node.get("group_expressions") or (), len(node.get("group_sets") or ())
        rows = frame.rows if grouped or not frame.aggregated else 1
        if sets > 1:
            rows = times(rows, sets)
            if rows > limits.MOST_ROWS:
                raise self._refused(
                    f"{sets:,} grouping sets can make {shown_number(rows)} rows, at most {limits.MOST_ROWS:,} are made; name fewer",
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

    def _modified(self, node: Node, frame: Frame, scope: Scope, known: Mapping[str, Bounds], rows: float) -> float:
        """The rows once ORDER BY, LIMIT and DISTINCT are done."""
        for one in node.get("modifiers") or ():
            self._expressions(one, scope, known)
            limit = one.get("limit")
            if one["type"] == "LIMIT_MODIFIER" and limit and one.get("limit_type", "ROW_COUNT") == "ROW_COUNT":
                rows = min(rows, max(0, self.extent(limit, scope, known).most))
        self._check_work(frame, node)
        return rows

    def _check_work(self, frame: Frame, node: Node) -> None:
        built = times(frame.built, min(frame.rows, _VECTOR))
        if built > limits.MOST_AT_ONCE:
            raise self._refused(
                f"its expressions can build {shown_number(built)} bytes for the rows that are computed at once, at most "
                f"{limits.MOST_AT_ONCE:,} fit; join and repeat less text",
                node,
                "too-large",
            )
        steps = times(frame.steps, frame.rows)
        if steps > self.most_steps:
            raise self._refused(
                f"its functions of text and lists can take {shown_number(steps)} steps over all rows, at most "
                f"{self.most_steps:,} are taken; give them shorter texts or fewer rows",
                node,
                "too-large",
            )
