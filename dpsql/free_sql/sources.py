"""Sources: the tables, functions and joins of FROM, and how many rows they can make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from . import limits
from .constants import day
from .expressions import Expressions, shown_number
from .extents import NUMBER, Extent, either
from .functions import LISTED, LISTS, SCALARS, SERIES
from .parse import Node, children, query_in, word
from .scopes import Frame, Scope, is_plain, mentions_outer, tables_with
from .tables import Bounds, renamed

_LISTED_ROWS = 100_000
"""Rows that a list of DuckDB's is taken to have."""
_DAYS = {"to_days": 1, "to_weeks": 7, "to_months": 28, "to_quarters": 90, "to_years": 365}


class Sources(Expressions):
    """Bounds what FROM gives."""

    def _from(
        self, node: Node, frame: Frame, outer: Scope, known: Mapping[str, Bounds], equal: list[tuple[int, int]]
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
        frame.tables.append((str(alias).lower(), renamed(found, node.get("column_name_alias") or ())))

    def _source(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        """A table, query or function of FROM."""
        kind = node["type"]
        if kind == "BASE_TABLE":
            return self._named(node, known)
        if kind == "SUBQUERY":
            return self.query(query_in(node["subquery"]), scope, known)
        if kind == "TABLE_FUNCTION":
            return self._table_function(node["function"], scope, known)
        if kind == "EXPRESSION_LIST":
            rows = [[self.extent(one, scope, known) for one in row] for row in node["values"]]
            columns = {f"col{at}": either(values) for at, values in enumerate(zip(*rows, strict=False))}
            return Bounds(columns, len(rows), made=True)
        if kind == "PIVOT":
            return self._pivoted(node, scope, known)
        if kind == "SHOW_REF":
            return self._described_table(node, scope, known)
        raise self._refused(f"{word(kind)} is not answered in FROM", node)

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
            for part in children(call):
                self.extent(part, scope, known)
            return Bounds({}, _LISTED_ROWS, listed=False)
        if name not in SERIES:
            raise self._refused(
                f"the table function {name[:60]} is not offered; those offered are {', '.join(sorted(SERIES | LISTS))}",
                call,
            )
        arguments = [self.extent(part, scope, known) for part in children(call)]
        if name == "unnest":
            count = max((one.elements for one in arguments), default=1)
            each = max((one.each for one in arguments), default=NUMBER)
            extent = Extent(each, elements=each, each=each)
        else:
            made = SCALARS[name](arguments) if arguments else Extent()
            count = made.elements if made.elements < inf else self._dates(children(call))
            extent = Extent(NUMBER, made.least, made.most, plain=True)
        self._check_rows(count, call, name)
        return Bounds({name: extent}, count, listed=name != "unnest", made=True)

    def _check_rows(self, rows: float, node: Node, what: str) -> None:
        if rows > limits.MOST_ROWS:
            raise self._refused(
                f"{what} can make {shown_number(rows)} rows, at most {limits.MOST_ROWS:,} are made; give it smaller constants",
                node,
                "too-large",
            )

    def _dates(self, arguments: Sequence[Node]) -> float:
        """The rows of a series of days between two constants, by steps of a day or more."""
        if len(arguments) != 3 or arguments[2]["class"] != "FUNCTION":
            return inf
        days = _DAYS.get(str(arguments[2]["function_name"]).lower())
        step = self.extent(arguments[2], (), {})
        ends = [day(one) for one in arguments[:2]]
        if days is None or step.least < 1 or None in ends:
            return inf
        first, last = (end for end in ends if end is not None)
        return max(0, last - first) / (days * step.least) + 1

    def _pivoted(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
        frame = Frame()
        outer = scope[:-1]
        self._from(node["source"], frame, outer, known, [])
        rows = self.joined(frame, outer, [], node)
        frame.rows = rows
        self._expressions({key: value for key, value in node.items() if key != "source"}, (*outer, frame), known)
        if node.get("unpivot_names"):
            entries = sum(len(one.get("entries") or ()) for one in node.get("pivots") or ())
            rows *= max(entries, sum(len(source.columns) for _, source in frame.tables), 1)
        self._check_work(frame, node)
        return Bounds({}, rows, listed=False)

    def _described_table(self, node: Node, scope: Scope, known: Mapping[str, Bounds]) -> Bounds:
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
        frame: Frame,
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
            sides = [[at for at in side if is_plain(frame.tables[at][1].columns.get(word))] for side in (left, right)]
            equal += [(a, b) for a in sides[0] for b in sides[1]]
        if kind in ("ASOF", "POSITIONAL") and left and right:
            equal.append((middle - 1, middle))
        if node.get("condition"):
            self.extent(node["condition"], (*outer, frame), known)
            equal += self._equalities(node["condition"], frame, outer)

    def _equalities(self, node: Node, frame: Frame, outer: Scope) -> list[tuple[int, int]]:
        """Pairs of tables that a condition's equalities of plain columns join; -1 is what stands around the query."""
        if node["class"] == "CONJUNCTION" and node["type"] == "CONJUNCTION_AND":
            return [pair for part in node["children"] for pair in self._equalities(part, frame, outer)]
        if node["class"] != "COMPARISON" or node["type"] != "COMPARE_EQUAL":
            return []
        sides = [node["left"], node["right"]]
        if any(side["class"] != "COLUMN_REF" for side in sides):
            return []
        first, second = (tables_with(side["column_names"], frame, outer) for side in sides)
        return [(a, b) for a in first for b in second if a != b]

    def joined(self, frame: Frame, outer: Scope, equal: Sequence[tuple[int, int]], node: Node) -> float:
        """The most rows of a join: those of tables that equalities of columns join are added, others multiplied.

        An equality that holds of many rows on both sides makes more; that is left to the limits of time and memory,
        which reach a join.
        """
        sources = [source for _, source in frame.tables]
        sizes = {at: max(1.0, source.rows) for at, source in enumerate(sources)}
        if outer and mentions_outer(node, outer, frame):
            sizes[-1] = max(1.0, outer[-1].rows)
        group = {at: at for at in sizes}
        for a, b in equal:
            if a in group and b in group:
                old, new = group[a], group[b]
                group = {at: new if mine == old else mine for at, mine in group.items()}
        rows = prod(sum(sizes[at] for at in group if group[at] == one) for one in set(group.values()))
        together = sum(sizes.values())
        if rows > limits.MOST_ROWS and rows > together:
            raise self._refused(
                f"its tables can be joined to {shown_number(rows)} rows, at most {limits.MOST_ROWS:,} are made; join them by the "
                "equality of columns, or aggregate them first",
                node,
                "too-large",
            )
        own = [source.rows for source in sources]
        return rows if len(own) != 1 or -1 in sizes else own[0]
