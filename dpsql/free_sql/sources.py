"""Sources: the tables, functions and joins of FROM, and how many rows they can make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod

from . import limits
from .constants import type_of
from .expressions import Expressions, shown_number
from .extents import NUMBER, Extent, either, times
from .functions import LISTED, LISTS, SCALARS, SERIES
from .joins import AROUND, CONSTANT, Case, Equality, join, most_rows
from .parse import Node, children, query_in, word
from .scopes import (
    Frame,
    Scope,
    column_extent,
    columns_equated,
    is_flat,
    is_injective_cast,
    outer_columns,
    rows_around,
)
from .tables import Bounds, renamed

_VECTOR = 2_048  # rows that DuckDB computes at once


class Sources(Expressions):
    """Bounds what FROM gives."""

    def _from(self, node: Node, frame: Frame, outer: Scope, ctes: Mapping[str, Bounds]) -> list[Case]:
        """Add the tables of FROM to the frame; gives the cases of their join."""
        kind = node["type"]
        if kind == "EMPTY":
            return [Case()]
        if kind == "JOIN":
            first = len(frame.tables)
            left = self._from(node["left"], frame, outer, ctes)
            middle = len(frame.tables)
            right = self._from(node["right"], frame, outer, ctes)
            return self._join(node, frame, (first, middle), outer, ctes, (left, right))
        bounds = self._source(node, (*outer, frame), ctes)
        self.join(frame, bounds.joined, node)
        alias = node.get("alias") or node.get("table_name") or ""
        if kind == "TABLE_FUNCTION":
            alias = alias or node["function"]["function_name"]
        frame.tables.append((str(alias).lower(), renamed(bounds, node.get("column_name_alias") or ())))
        return [Case((len(frame.tables) - 1,))]

    def _source(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        """A table, query or function of FROM."""
        kind = node["type"]
        if kind == "BASE_TABLE":
            return self._named(node, ctes)
        if kind == "SUBQUERY":
            return self.query(query_in(node["subquery"]), scope, ctes)
        if kind == "TABLE_FUNCTION":
            return self._table_function(node["function"], scope, ctes)
        if kind == "EXPRESSION_LIST":
            rows = [[self.extent(one, scope, ctes) for one in row] for row in node["values"]]
            columns = {f"col{at}": either(values) for at, values in enumerate(zip(*rows, strict=False))}
            return Bounds(columns, len(rows))
        if kind == "PIVOT":
            return self._pivoted(node, scope, ctes)
        if kind == "SHOW_REF":
            return self._described_table(node, scope, ctes)
        raise self._refused(f"{word(kind)} is not answered in FROM", node)

    def _named(self, node: Node, ctes: Mapping[str, Bounds]) -> Bounds:
        parts = [node.get(part) or "" for part in ("catalog_name", "schema_name", "table_name")]
        path = tuple(str(part).lower() for part in parts if part)
        if len(path) == 1 and path[0] in ctes:
            bounds = ctes[path[0]]
            self.copy(bounds.copied, node)
            again = id(bounds) in self.read and not bounds.copied
            self.read.add(id(bounds))
            return replace(bounds, joined=1) if again else bounds
        if path[-1] in LISTED and len(path) == 1:
            return self.lists(path[-1])
        listed = self.tables(path)
        if listed is None:
            raise self._refused(
                f"{'.'.join(path)[:80]} is not among what may be read; SHOW TABLES lists that", node, "unknown-table"
            )
        return listed

    def _table_function(self, call: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        name = str(call["function_name"]).lower()
        if name in LISTS:
            for part in children(call):
                self.extent(part, scope, ctes)
            return self.lists(name) if name in LISTED else Bounds({}, self.lists("duckdb_columns").rows, listed=False)
        if name not in SERIES:
            raise self._refused(
                f"the table function {name[:60]} is not offered; those offered are {', '.join(sorted(SERIES | LISTS))}",
                call,
            )
        arguments = [self.extent(part, scope, ctes) for part in children(call)]
        if name == "unnest":
            count = max((one.elements for one in arguments), default=1)
            each = max((one.each for one in arguments), default=NUMBER)
            extent = Extent(each, elements=each, each=each)
        else:
            made = SCALARS[name](arguments) if arguments else Extent()
            count = made.elements
            numbers = len(arguments) < 3 or (children(call)[2]["class"] == "CONSTANT" and not arguments[2].constant)
            short = made.least >= -(2**31) and made.most < 2**31
            kind = "" if not numbers else "INTEGER" if short else "BIGINT"
            extent = Extent(NUMBER, made.least, made.most, type=kind)
        self._check_rows(count, call, name)
        keys = ((name, inf),) if name != "unnest" else Bounds().keys
        return Bounds({name: extent}, count, name != "unnest", keys)

    def _check_rows(self, rows: float, node: Node, what: str) -> None:
        if rows > limits.MOST_ROWS:
            raise self._refused(
                f"{what} can make {shown_number(rows)} rows, at most {limits.MOST_ROWS:,} are made; "
                "give it smaller constants",
                node,
                "too-large",
            )

    def _check_work(self, frame: Frame, node: Node) -> None:
        built = times(frame.built, min(frame.rows, _VECTOR))
        if built > limits.MOST_AT_ONCE:
            raise self._refused(
                f"its expressions can build {shown_number(built)} bytes for the rows that are computed at once, "
                f"at most {limits.MOST_AT_ONCE:,} fit; join and repeat less text",
                node,
                "too-large",
            )
        steps = times(frame.steps, frame.rows)
        if steps > self.most_steps and frame.fewer is not None:
            frame.rows = min(frame.rows, frame.fewer())
            steps = times(frame.steps, frame.rows)
        if steps > self.most_steps:
            raise self._refused(
                f"its functions of text and lists can take {shown_number(steps)} steps over all rows, at most "
                f"{self.most_steps:,} are taken; give them shorter texts or fewer rows",
                node,
                "too-large",
            )

    def _pivoted(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        frame = Frame()
        outer = scope[:-1]
        self.joined(frame, outer, self._from(node["source"], frame, outer, ctes), node)
        rows = frame.each
        values = prod(max(1, len(one.get("entries") or ())) for one in node.get("pivots") or ())
        wide = sum(source.width for _, source in frame.tables) + values * len(node.get("aggregates") or ())
        self.copy(wide, node)
        self._expressions({key: value for key, value in node.items() if key != "source"}, (*outer, frame), ctes)
        if node.get("unpivot_names"):
            entries = sum(len(one.get("entries") or ()) for one in node.get("pivots") or ())
            rows *= max(entries, wide, 1)
        self._check_work(frame, node)
        return Bounds({}, rows, listed=False, wide=wide, joined=frame.joined)

    def _described_table(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        if node.get("query"):
            described = self.query(node["query"], scope, ctes)
        else:
            name = str(node.get("table_name") or "").strip('"').lower()
            if name not in ("", "tables", "__show_tables_expanded") and node.get("show_type") == "SHOW_SPECIAL":
                raise self._refused(f"SHOW {name[:60]} is not answered; SHOW TABLES says what there is", node)
            if name not in ("", "tables", "__show_tables_expanded"):
                described = self._named({**node, "type": "BASE_TABLE", "table_name": name}, ctes)
            else:
                return Bounds({}, self.lists("duckdb_tables").rows + self.lists("duckdb_views").rows, listed=False)
        return Bounds({}, max(1, described.width), listed=False)

    def _join(
        self,
        node: Node,
        frame: Frame,
        begins: tuple[int, int],
        outer: Scope,
        ctes: Mapping[str, Bounds],
        sides: tuple[list[Case], list[Case]],
    ) -> list[Case]:
        """The cases of a join; ``begins``: the numbers of the first tables on its left and on its right."""
        kind, how = node.get("ref_type", ""), node.get("join_type", "INNER").replace("OUTER", "FULL")
        left, right = range(*begins), range(begins[1], len(frame.tables))
        names = [str(name).lower() for name in node.get("using_columns") or ()]
        if kind == "NATURAL":
            of_sides = [{name for at in side for name in frame.tables[at][1].columns} for side in (left, right)]
            names = sorted(of_sides[0] & of_sides[1])
        equalities = [
            self._equality(columns_equated([name], frame, left, ()), columns_equated([name], frame, right, ()))
            for name in names
        ]
        condition = node.get("condition")
        if condition:
            self.extent(condition, (*outer, frame), ctes)
            equalities += self._equalities(condition, frame, range(begins[0], len(frame.tables)), outer)
        if kind in ("ASOF", "POSITIONAL"):
            how = "FULL ONCE" if kind == "POSITIONAL" or how == "FULL" else "RIGHT ONCE" if how == "RIGHT" else "ONCE"
        elif how in ("SEMI", "ANTI"):
            how = "ONCE" if not condition or len(equalities) == len(_conjuncts(condition)) else "LEFT"
        cases = join(*sides, how.split()[-1], equalities)
        if cases is None:
            raise self._refused("it joins too many tables by FULL JOIN; join fewer in one SELECT", node, "too-large")
        return cases + (sides[1] if "ONCE" in how and how != "ONCE" else [])

    def _equalities(self, node: Node, frame: Frame, among: range, outer: Scope) -> list[Equality]:
        """The equalities of columns that a condition demands; ``among``: the tables that it can name."""
        equalities = []
        for part in _conjuncts(node):
            sides: list[Node] = [side for side in (part.get("left"), part.get("right")) if side]
            if part["type"] == "COMPARE_EQUAL" and all(side["class"] == "COLUMN_REF" for side in sides):
                names = [[str(name).lower() for name in side["column_names"]] for side in sides]
                equalities.append(self._equality(*(columns_equated(one, frame, among, outer) for one in names)))
            elif part["type"] == "COMPARE_EQUAL" and {side["class"] for side in sides} == {"COLUMN_REF", "CONSTANT"}:
                column, constant = sorted(sides, key=lambda side: side["class"] == "CONSTANT")
                named = columns_equated([str(name).lower() for name in column["column_names"]], frame, among, ())
                kind = type_of(constant)
                equalities.append(self._equality([one for one in named if one[0] >= 0], [(CONSTANT, "", kind)]))
        return [one for one in equalities if one]

    def _equality(self, left: Sequence[tuple[int, str, str]], right: Sequence[tuple[int, str, str]]) -> Equality:
        return tuple(
            ((a, x if is_injective_cast(of, to) else ""), (b, y if is_injective_cast(to, of) else ""))
            for a, x, of in left
            for b, y, to in right
            if a != b
        )

    def joined(self, frame: Frame, outer: Scope, cases: Sequence[Case], node: Node) -> None:
        """Count the most rows of FROM, for one row of the queries around it and for all of them.

        Raises SQLError if there can be too many.
        """
        sources = [source for _, source in frame.tables]
        sizes = {at: max(1.0, source.rows) for at, source in enumerate(sources)}
        named = outer_columns(node, outer, frame) if outer else {}
        around = rows_around(named, outer)
        # DuckDB computes a correlated query once for distinct values of the outer columns, unless one is nested or the
        # query is LATERAL.
        once = bool(named) and all(one.complete for one in named.values()) and all(one.around == 1 for one in outer)
        distinct = all(is_flat(column_extent(name.split("."), outer)) for name in named)

        def joined_to(rows_around: float, measured: bool) -> float:
            def multiplicity(at: int, columns: frozenset[str]) -> float:
                if at == CONSTANT:
                    return 1
                if at == AROUND:
                    return 1 if distinct and columns >= named.keys() else rows_around
                return sources[at].multiplicity(columns, measured=measured)

            beside = {CONSTANT: 1.0} | ({AROUND: rows_around} if named else {})
            return most_rows(cases, sizes | beside, multiplicity)

        def count(measured: bool) -> tuple[float, float]:
            each = sources[0].rows if len(sources) == 1 and not named else joined_to(1, measured)
            together = each * around
            return each, min(together, joined_to(around, measured)) if once else together

        frame.each, frame.rows = count(False)
        most = max(limits.MOST_ROWS, sum(sizes.values()) + around)
        if frame.rows > most:
            frame.each, frame.rows = count(True)
        if frame.rows > most:
            raise self._refused(
                f"its tables can be joined to {shown_number(frame.rows)} rows, at most {limits.MOST_ROWS:,} are "
                "made; join them by the equality of columns that hold few rows each, or aggregate them first",
                node,
                "too-large",
            )
        frame.fewer = lambda: count(True)[1]
        frame.complete = True


def _conjuncts(node: Node) -> list[Node]:
    """The conditions that AND joins."""
    if node["class"] == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
        return [one for part in node["children"] for one in _conjuncts(part)]
    return [node]
