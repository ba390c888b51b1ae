"""Expressions: the extent of each one, from its parts, before DuckDB computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import inf

from dpsql.errors import SQLError, nearest, printable

from . import limits
from .constants import MOMENTS, constant, interval, moment, number_in, parameter
from .copies import DOUBLED, FEW_CONSTANTS
from .extents import NUMBER, TEXT, Extent, either, series, text, times, whole
from .functions import AGGREGATES, COUNTS, GATHERING, LAMBDAS, REDUCTIONS, SCALARS, STEPS, TYPES, WORDS, recounted
from .parse import Macro, Macros, Node, array_elements, children, column_references, descend, query_in, type_names, word
from .scopes import Frame, Scope, column_extent, outer_columns, rows_around, widest, widest_in
from .tables import Bounds, Tables

_FREE = 4_096
"""Bytes of a value that count as no step."""
_NO_PLACE = 2**32
_IN = ("COMPARE_IN", "COMPARE_NOT_IN")


class Expressions(ABC):
    """Computes the extents of a query's expressions."""

    def __init__(
        self,
        sql: str,
        tables: Tables,
        lists: Callable[[str], Bounds],
        macros: Macros,
        parameters: Sequence[object] | Mapping[str, object] | None,
        runs: int,
    ) -> None:
        self.sql = sql
        self.tables = cache(tables)  # which may count rows
        self.most_steps = limits.MOST_STEPS // runs
        self.call = limits.CALL if runs == 1 else 0
        self.selects = 0
        self.lists = lists
        self.macros = macros
        self.written = 0.0
        """Expressions that DuckDB makes of the query so far, copies among them."""
        self.copied = 0.0
        self.read: set[int] = set()
        """Queries of WITH that are read already; DuckDB keeps the rows of one that is read again."""
        values = parameters if isinstance(parameters, Mapping) else dict(enumerate(parameters or (), 1))
        self.parameters = {str(name): value for name, value in values.items()}

    @abstractmethod
    def query(self, node: Node, outer: Scope, ctes: Mapping[str, Bounds]) -> Bounds:
        """The columns and rows of a query; ``ctes``: what WITH gives."""

    def _expressions(self, node: object, scope: Scope, ctes: Mapping[str, Bounds]) -> None:
        """Judge every expression below a node that is none itself, or a star."""
        for part in children(node):
            self.extent(part, scope, ctes)

    def extent(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Extent:
        """How large the value of an expression can be."""
        kind = node["class"]
        self.written += 1
        if kind == "CONSTANT":
            return constant(node)
        if kind == "COLUMN_REF":
            names = [str(name).lower() for name in node["column_names"]]
            self.copy(next((one.copied[names[0]] for one in reversed(scope) if names[0] in one.copied), 0), node)
            return column_extent(names, scope)
        if kind == "FUNCTION":
            return self._call(node, scope, ctes)
        if kind == "WINDOW":
            return self._window(node, scope, ctes)
        if kind == "CAST":
            return self._cast(node, scope, ctes)
        if kind == "CASE":
            for one in node["case_checks"]:
                self.extent(one["when_expr"], scope, ctes)
            results = [one["then_expr"] for one in node["case_checks"]] + [node["else_expr"]]
            return replace(either([self.extent(one, scope, ctes) for one in results if one]), type="")
        if kind == "SUBQUERY":
            bounds = self.query(query_in(node["subquery"]), scope, ctes)
            if scope:
                self.join(scope[-1], bounds.joined, node)
            self._expressions({"child": node.get("child")}, scope, ctes)
            return replace(widest(bounds), type="") if node["subquery_type"] == "SCALAR" else _array(node, bounds)
        if kind == "PARAMETER":
            return parameter(self.parameters.get(str(node.get("identifier", ""))))
        if kind == "STAR":
            self._expressions(node, scope, ctes)
            self.copy(sum(source.width for _, source in (scope[-1].tables if scope else ())), node)
            return widest_in(scope)
        if kind == "POSITIONAL_REFERENCE":
            return replace(either(widest(source) for _, source in (scope[-1].tables if scope else ())), type="")
        if kind in ("OPERATOR", "COMPARISON", "CONJUNCTION", "BETWEEN", "COLLATE"):
            operands, parts, sizes = children(node), [], []
            for operand in operands:
                before = self.written
                parts.append(self.extent(operand, scope, ctes))
                sizes.append(self.written - before)
            if node["type"] in _IN and (len(sizes) <= FEW_CONSTANTS + 1 or not _are_constants(operands[1:])):
                self.copy((sizes[0] - 1) * max(0, len(sizes) - 2), node)  # it is compared with each value
            return self._operator(node, parts, scope)
        raise self._refused(f"{word(kind)} is not answered in an expression", node)

    def copy(self, expressions: float, node: Node) -> None:
        """Count expressions that DuckDB writes again. Raises SQLError past the limit."""
        self.written += expressions
        self.copied += expressions
        if self.copied > limits.MOST_COPIES:
            raise self._refused(
                f"DuckDB would write more than {limits.MOST_COPIES:,} expressions again for what the query reads by "
                "aliases, stars, IN, WITH and functions such as nullif; nest fewer of them",
                node,
                "too-large",
            )

    def join(self, frame: Frame, tables: int, node: Node) -> None:
        """Count tables that a SELECT joins. Raises SQLError past the limit."""
        frame.joined += tables
        if frame.joined > limits.MOST_TABLES:
            raise self._refused(
                f"it joins more than {limits.MOST_TABLES} tables, with those of its subqueries; join fewer in a SELECT",
                *(node, "too-large"),
            )

    def _operator(self, node: Node, parts: Sequence[Extent], scope: Scope) -> Extent:
        kind = node["type"]
        if kind in ("OPERATOR_COALESCE", "OPERATOR_TRY", "OPERATOR_NULLIF", "COLLATE"):
            return replace(either(parts), type="")
        if kind in ("ARRAY_EXTRACT", "STRUCT_EXTRACT", "ARRAY_SLICE"):
            return replace(SCALARS["list_slice" if kind == "ARRAY_SLICE" else "list_extract"](parts), type="")
        if kind == "ARRAY_CONSTRUCTOR":
            return self._built(SCALARS["list_value"](parts), parts, node, scope)
        return Extent()

    def _call(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Extent:
        name, before = str(node["function_name"]).lower(), self.written
        frame = scope[-1] if scope else Frame()
        if name in AGGREGATES or name in GATHERING:
            parts = [self.extent(part, scope, ctes) for part in children(node)]
            self.copy(self.written - before if name in DOUBLED else 0, node)
            frame.steps += STEPS[name](parts) if name in STEPS else 0
            innermost = _is_of_innermost(node, scope)
            frame.aggregated = frame.aggregated or innermost
            return self._gathered(name, parts, frame.each if innermost else max(one.rows for one in scope))
        arguments = children(node)
        macro = self.macros.get(name, {}).get(len(arguments))
        if macro is not None:
            return self._written_out(macro, node, scope, ctes)
        rule = SCALARS.get(name)
        if rule is None:
            raise self._unlisted(name, node)
        parts = [Extent() if part["class"] == "LAMBDA" else self.extent(part, scope, ctes) for part in arguments]
        if name in DOUBLED:
            self.copy(self.written - before, node)
        if name in REDUCTIONS:
            return self._reduced(node, arguments, parts, scope, ctes)
        if name in LAMBDAS:
            parts = self._with_lambda(node, arguments, parts, scope, ctes)
        elif any(part["class"] == "LAMBDA" for part in arguments):
            raise self._refused(f"{name[:60]} takes no lambda here", node)
        try:
            extent = rule(parts)
            steps = self.call + (STEPS[name](parts) if name in STEPS else 0)
        except IndexError:  # DuckDB has no such function of fewer arguments
            return Extent()
        frame.steps += steps
        if name in ("unnest", "generate_subscripts", "regexp_split_to_table"):
            frame.unnested *= max((one.elements for one in parts), default=1)
        return self._built(replace(extent, type=""), parts, node, scope)

    def _written_out(self, macro: Macro, call: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Extent:
        """The extent of what stands for the call of a macro, in which each parameter is its argument."""
        values: dict[str, Extent] = {}
        copied: dict[str, float] = {}
        for name, argument in zip(macro.parameters, children(call), strict=True):
            before = self.written
            values[name] = self.extent(argument, scope, ctes)
            copied[name] = self.written - before
        around = rows_around(outer_columns(call, scope, Frame()), scope)
        inner = Frame([("", Bounds(values))], copied=copied, rows=around, complete=True)
        before = self.written
        extent = self.extent(macro.body, (*scope, inner), ctes)
        self.copy(self.written - before, call)
        if scope:
            scope[-1].built += inner.built
            scope[-1].steps += inner.steps
            scope[-1].unnested *= inner.unnested
            self.join(scope[-1], inner.joined, call)
        return replace(extent, type="")

    def _built(self, extent: Extent, parts: Sequence[Extent], node: Node, scope: Scope) -> Extent:
        """The extent of a built value, whose size is counted. Raises SQLError past the limit."""
        longest = max((part.size for part in parts), default=0)
        if extent.size > limits.MOST_BYTES and extent.size > longest:
            name = str(node.get("function_name") or node["type"]).lower()
            raise self._refused(
                f"{name[:60]} can build {shown_number(extent.size)} bytes here, at most {limits.MOST_BYTES:,} are "
                "built; bound it with smaller constants, such as least(n, 100) "
                f"(a text of a column counts as {TEXT:,} bytes)",
                node,
                "too-large",
            )
        once = node.get("function_name") == "list_value" and _are_constants(children(node))
        if scope and not once:  # DuckDB makes a list of constants once
            frame = scope[-1]
            frame.built += extent.size if extent.size > NUMBER else 0
            frame.steps += extent.size if extent.size > _FREE else 0
        return extent

    def _with_lambda(
        self, node: Node, arguments: Sequence[Node], parts: Sequence[Extent], scope: Scope, ctes: Mapping[str, Bounds]
    ) -> list[Extent]:
        """The extents of a list and of what its lambda gives, whose work is done for each element."""
        if len(arguments) != 2 or arguments[1]["class"] != "LAMBDA":
            raise self._refused("a lambda is written as lambda x: x + 1", node)
        listed, body = parts[0], arguments[1]
        each = Extent(max(listed.each, NUMBER), listed.least, listed.most, listed.each, listed.each)
        names = [str(one["column_names"][-1]).lower() for one in descend(body["lhs"], "COLUMN_REF")]
        values = dict(zip(names, (each, Extent(NUMBER, 0, listed.elements)), strict=False))
        return [listed, self._for_each(body, values, listed.elements, scope, ctes)]

    def _for_each(
        self, body: Node, values: Mapping[str, Extent], elements: float, scope: Scope, ctes: Mapping[str, Bounds]
    ) -> Extent:
        """The extent of what a lambda gives; ``values``: its parameters."""
        inner = Frame([("", Bounds(values))], rows=scope[-1].rows if scope else 1, complete=True)
        result = self.extent(body["expr"], (*scope, inner), ctes)
        if scope:
            scope[-1].built += times(inner.built, elements)
            scope[-1].steps += times(inner.steps, elements)
        return result

    def _reduced(
        self, node: Node, arguments: Sequence[Node], parts: Sequence[Extent], scope: Scope, ctes: Mapping[str, Bounds]
    ) -> Extent:
        """What list_reduce gives: no more than its longest element, as the lambda may not make its value longer."""
        if len(arguments) not in (2, 3) or arguments[1]["class"] != "LAMBDA":
            raise self._refused("list_reduce takes a list and a lambda, such as lambda x, y: x + y", node)
        listed, body = parts[0], arguments[1]
        value = text(max(NUMBER, listed.each, *(one.size for one in parts[2:])))
        names = [str(one["column_names"][-1]).lower() for one in descend(body["lhs"], "COLUMN_REF")]
        values = dict(zip(names, (value, value, Extent(NUMBER, 0, listed.elements)), strict=False))
        result = self._for_each(body, values, listed.elements, scope, ctes)
        if result.size > value.size or result.elements > value.elements or result.each > value.each:
            raise self._refused(
                "the value of list_reduce can become longer with each element; use list_sum, or array_to_string for "
                "texts",
                node,
                "too-large",
            )
        return value

    def _gathered(self, name: str, parts: Sequence[Extent], rows: float) -> Extent:
        """What an aggregate of so many rows gives."""
        if name in COUNTS:
            return Extent(NUMBER, 0, rows)
        size = sum(part.size for part in parts)
        if name in GATHERING:
            return replace(series(max(rows, 1), size + 8), each=max(NUMBER, size))
        return replace(either(parts), least=-inf, most=inf, constant=None, type="") if parts else Extent()

    def _window(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Extent:
        below, (argument, *_) = children(node), [*children(node.get("children")), None]
        parts = [self.extent(part, scope, ctes) for part in below]
        name = str(node.get("function_name") or node["type"].removeprefix("WINDOW_")).lower()
        if name not in AGGREGATES and name not in GATHERING:
            raise self._unlisted(name, node)
        extent = self._gathered(name, parts, scope[-1].each)
        moves = bool(node.get("orders")) or node.get("start") != "UNBOUNDED_PRECEDING"
        kind = next((part.type for one, part in zip(below, parts, strict=True) if one is argument), "")
        scope[-1].steps += recounted(name, kind, distinct=bool(node.get("distinct")), moves=moves) * scope[-1].each
        return self._built(extent, parts, node, scope) if name in GATHERING else extent

    def _cast(self, node: Node, scope: Scope, ctes: Mapping[str, Bounds]) -> Extent:
        child = self.extent(node["child"], scope, ctes)
        target = node.get("type_expr") or node.get("cast_type") or {}
        names = list(type_names(target))
        if scope:
            of_text = child.constant is None and child.elements == child.size + 1
            scope[-1].steps += self.call * (12 if of_text or not WORDS.isdisjoint(names) else 1)
        for name in names:
            if name not in TYPES:
                raise self._refused(f"a cast to {name[:60].upper()} is not among those that run over releases", node)
        if len(names) > 1:
            # An array of NULL has its elements, too, and so has each array within a list.
            fixed = array_elements(target)
            in_array = {*names[:-1]} == {"array"}
            size = 16 * (child.size + fixed if in_array else child.size * fixed)
            return self._built(Extent(size, elements=max(child.size, fixed), each=size), [child], node, scope)
        if names and names[0] in WORDS:
            # A number is short; lists and bytes are written out longer than they are.
            return (
                self._built(replace(text(child.size), constant=child.constant), [child], node, scope)
                if (child.elements <= child.size + 1 and child.each <= child.size)
                else self._built(text(16 * child.size), [child], node, scope)
            )
        if names and names[0] in MOMENTS:
            return whole(child) if child.constant is None else moment(child.constant)
        if names and names[0] == "interval":
            return child if child.constant is None else interval(child.constant)
        if child.constant is not None:
            value = number_in(child.constant)
            return Extent() if value is None else Extent(NUMBER, value, value)
        return whole(child)

    def _unlisted(self, name: str, node: Node) -> SQLError:
        offered = [one for one in (*SCALARS, *self.macros, *AGGREGATES, *GATHERING) if one.isidentifier()]
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


def _is_of_innermost(call: Node, scope: Scope) -> bool:
    """Whether an aggregate is certainly of the innermost query: one of outer columns alone is of the query around."""
    if not any(frame.tables for frame in scope[:-1]) or next(column_references(call), None) is None:
        return True
    return any(
        source.listed and names[-1] in source.columns and names[-2:-1] in ([], [alias])
        for names in ([str(name).lower() for name in one["column_names"]] for one in descend(call, "COLUMN_REF"))
        for alias, source in scope[-1].tables
    )


def _are_constants(nodes: Sequence[Node]) -> bool:
    return all(node["class"] == "CONSTANT" for node in nodes)


def at_column(before: str) -> int:
    """The column, from 1, of what follows a text."""
    return len(before) - (before.rfind("\n") + 1) + 1


def shown_number(number: float) -> str:
    return f"{number:,.0f}" if number < 1e15 else "without limit" if number == inf else f"{number:.1e}"


def _array(node: Node, bounds: Bounds) -> Extent:
    """What EXISTS and IN say, or an array of a query's rows."""
    return Extent() if node["subquery_type"] != "ARRAY" else series(bounds.rows, widest(bounds).size)
