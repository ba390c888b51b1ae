"""Expressions of a generated statement, admitted node by node and written for Spark with their types.

CASE, comparisons, casts, row_number() and the functions of ``functions``; anything else raises NotSupportedError.

Sums. DuckDB adds up in 128 bits. Spark's BIGINT wraps around and its decimals are slow, so a sum is taken in two parts,
of the lower 24 bits and of the rest: u is below 2^42 (``dpsql.workload.expr.measures``), and fewer than 2^38 rows,
about
2.7e11, leave both parts within 63 bits. Addition of whole numbers has one result in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from dpsql.engines.spark import casts, values
from dpsql.engines.spark.functions import FUNCTIONS
from dpsql.engines.spark.layers import Layers
from dpsql.engines.spark.texts import listed
from dpsql.engines.spark.values import Expr, refusal

_WORD = 2**32
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.NullSafeEQ: "<=>",
}
_TYPES = {
    exp.DType.TINYINT: "TINYINT",
    exp.DType.SMALLINT: "SMALLINT",
    exp.DType.INT: "INTEGER",
    exp.DType.BIGINT: "BIGINT",
    exp.DType.INT128: "HUGEINT",
    exp.DType.FLOAT: "FLOAT",
    exp.DType.DOUBLE: "DOUBLE",
    exp.DType.TEXT: "VARCHAR",
    exp.DType.VARCHAR: "VARCHAR",
    exp.DType.BOOLEAN: "BOOLEAN",
    exp.DType.DATE: "DATE",
    exp.DType.TIMESTAMP: "TIMESTAMP",
    exp.DType.TIMESTAMPNTZ: "TIMESTAMP",
}
Columns = dict[str, Expr]
"""Columns by name in lower case, each as the text that reads it."""


@dataclass(frozen=True)
class Scope:
    """What a FROM makes known: columns by the alias of their source, "" for all of them."""

    sources: Mapping[str, Columns]

    def columns(self, alias: str) -> Columns:
        if alias:
            return self.sources.get(alias, {})
        return {name: column for columns in self.sources.values() for name, column in columns.items()}

    def column(self, node: exp.Column) -> Expr:
        found = self.columns(node.table).get(node.name.lower())
        if found is None:
            raise refusal(f"the column {node.name} has no type there", "leave it out of the batch")
        return found


class Writer:
    """Expressions over the columns of one SELECT, or of the ON of one join, with marks for values (``Layers``)."""

    def __init__(self, scope: Scope, of: exp.Expr) -> None:
        self.scope = scope
        self.layers = Layers()
        # What is made of several rows, with all that it stands in: no value of a subquery below.
        self.several: set[int] = set()
        for node in of.walk():
            above: exp.Expr | None = node
            if isinstance(node, exp.Window) or call(node)[0] in ("sum", "count_star", "row_number"):
                while above is not None and above is not of:
                    self.several.add(id(above))
                    above = above.parent

    def value(self, node: exp.Expr) -> Expr:
        """A node as Spark writes it. Raises NotSupportedError for what is not admitted."""
        work = _NODES.get(type(node))
        if work is None:
            raise refusal(f"{_named(node)} is not admitted", "write it with other functions")
        found = work(self, node)
        return found if id(node) in self.several else replace(found, text=self.layers.marked(found.text))

    def _literal(self, node: exp.Literal) -> Expr:
        return values.string(str(node.this)) if node.is_string else values.integer(int(node.this))

    def _neg(self, node: exp.Neg) -> Expr:
        found = self.value(node.this)
        if not isinstance(found.constant, int):
            raise refusal("a negative of no constant is not admitted", "plan again")
        return values.integer(-found.constant)

    def _boolean(self, node: exp.Boolean) -> Expr:
        return Expr("TRUE" if node.this else "FALSE", "BOOLEAN")

    def _paren(self, node: exp.Paren) -> Expr:
        return self.value(node.this)

    def _column(self, node: exp.Column) -> Expr:
        found = self.scope.column(node)
        return replace(found, text=self.layers.column(found.text))

    def _collate(self, node: exp.Collate) -> Expr:
        if node.expression.name != "binary":
            raise refusal(f"the collation {node.expression.name} is not admitted", "compare in binary order")
        # Columns of another collation are refused with the schema.
        return self.value(node.this)

    def _junction(self, node: exp.And | exp.Or) -> Expr:
        word = "AND" if isinstance(node, exp.And) else "OR"
        rank = int(word == "AND")
        sides = [self.value(side) for side in (node.left, node.right)]
        shown = [side.text if side.rank >= rank else side.inner for side in sides]
        return Expr(f" {word} ".join(shown), "BOOLEAN", rank=rank)

    def _not(self, node: exp.Not) -> Expr:
        return Expr(f"NOT {self.value(node.this).inner}", "BOOLEAN", rank=2)

    def _is(self, node: exp.Is) -> Expr:
        if not isinstance(node.expression, exp.Null):
            raise refusal(f"{_named(node)} is not admitted", "compare with = instead")
        return Expr(f"{self.value(node.this).inner} IS NULL", "BOOLEAN", rank=3)

    def _compared(self, node: exp.Binary) -> Expr:
        operator = _COMPARISONS[type(node)]
        if isinstance(node.expression, exp.Null):
            return Expr(f"{self.value(node.this).inner} {operator} NULL", "BOOLEAN", rank=3)
        minus = self._minus_zero(node)
        if minus is not None:
            return minus
        a, b = self.value(node.this), self.value(node.expression)
        if not (a.whole and b.whole) and a.type != b.type:
            raise refusal(
                f"{_named(node)} compares {a.type} with {b.type}, which Spark would cast", "store both in one type"
            )
        return Expr(f"{a.inner} {operator} {b.inner}", "BOOLEAN", rank=3)

    def _minus_zero(self, node: exp.Binary) -> Expr | None:
        """A comparison of a number's text with that of minus zero, the one text of a DOUBLE that is the same."""
        left, right = node.this, node.expression
        if not (isinstance(left, exp.Cast) and isinstance(right, exp.Literal) and right.this == "-0.0"):
            return None
        found = self.value(left.this)
        return FUNCTIONS["signbit"]([found]) if found.type == "DOUBLE" else None

    def _case(self, node: exp.Case) -> Expr:
        head = "" if node.this is None else f" {self.value(node.this).text}"
        tests = [self.value(branch.this).text for branch in node.args["ifs"]]
        results = [self.value(branch.args["true"]) for branch in node.args["ifs"]]
        default = node.args.get("default")
        results.append(Expr("NULL", "NULL") if default is None else self.value(default))
        branches = " ".join(f"WHEN {test} THEN {found.text}" for test, found in zip(tests, results[:-1], strict=True))
        text = f"CASE{head} {branches} ELSE {results[-1].text} END"
        return _common(text, results, _named(node))

    def _coalesce(self, node: exp.Coalesce) -> Expr:
        of = [self.value(part) for part in (node.this, *node.expressions)]
        return _common(f"coalesce({', '.join(e.text for e in of)})", of, _named(node))

    def _cast(self, node: exp.Cast) -> Expr:
        kind, tries = _type(node.to), isinstance(node, exp.TryCast)
        if kind.endswith("[]"):
            return listed(str(node.this.this).strip("[]"), kind.removesuffix("[]"))
        if isinstance(node.this, exp.Null):
            return values.column(f"CAST(NULL AS {values.spark_type(kind)})", kind)
        if isinstance(node.this, exp.Literal) and node.this.is_string:
            return casts.constant(str(node.this.this), kind)
        unscaled = self._unscaled(node.this, kind)
        if unscaled is not None:
            return unscaled
        word = self._word(node.this, kind)
        return word or casts.cast(self.value(node.this), kind, _named(node), tries=tries)

    def _unscaled(self, node: exp.Expr, kind: str) -> Expr | None:
        """A DECIMAL as a whole number of its last decimals, in the two ways in which DuckDB's text says so."""
        name, of = call(node)
        if name not in ("*", "replace") or not isinstance(of[0], exp.Cast):
            return None
        if of[0].to.this not in (exp.DType.DECIMAL, exp.DType.TEXT, exp.DType.VARCHAR):
            return None
        found = self.value(of[0].this)
        return casts.unscaled(found, kind) if found.type.startswith("DECIMAL(") else None

    def _word(self, node: exp.Expr, kind: str) -> Expr | None:
        """The low or high 32 bits of a sum of whole numbers; see the module."""
        name, of = call(node)
        if name not in ("&", ">>") or kind != "BIGINT":
            return None
        added = next((part for part in of[0].walk() if call(part)[0] == "sum"), None)
        if added is None:
            raise refusal("bits of something else than a sum are not admitted", "plan again")
        u = self.value(call(added)[1][0])
        if u.type != "BIGINT":
            raise refusal(f"a sum of {u.type} is not admitted", "plan again")
        low = f"coalesce(sum({u.inner} & 16777215L), 0L)"
        high = f"coalesce(sum(shiftright({u.text}, 24)), 0L)"
        both = f"{low} + shiftleft({high} & 255L, 24)"
        if name == "&":
            return Expr(f"({both}) & {_WORD - 1}L", "BIGINT", 0, _WORD - 1, rank=5)
        return Expr(f"shiftright({both}, 32) + shiftright({high}, 8)", "BIGINT", 0, 2**62, rank=5)

    def _array(self, node: exp.Array) -> Expr:
        numbers = [self.value(part).constant for part in node.expressions]
        if not all(isinstance(number, int) for number in numbers):
            raise refusal("a list is not one of whole numbers", "plan again")
        kind = values.widest([values.integer(int(number or 0)) for number in numbers])
        return listed(",".join(map(str, numbers)), kind)

    def _called(self, node: exp.Dot) -> Expr:
        name, of = call(node)
        if name == "count_star":
            return Expr("count(1)", "BIGINT", 0, 2**62)
        rule = FUNCTIONS.get(name)
        if rule is None:
            raise refusal(f"{_named(node)} is not admitted", "write it with other functions")
        try:
            return rule([self.value(part) for part in of])
        except ValueError:
            pass
        raise refusal(f"{_named(node)} has too many arguments", "write it with fewer")

    def _window(self, node: exp.Window) -> Expr:
        if call(node.this)[0] != "row_number" or node.args.get("spec") is not None:
            raise refusal("a window other than row_number() is not admitted", "plan again")
        units = ", ".join(self.value(part).text for part in node.args["partition_by"])
        order = []
        for part in node.args["order"].expressions:
            if part.args.get("desc") or part.args.get("nulls_first"):
                raise refusal("an order that falls is not admitted", "plan again")
            order.append(f"{self.value(part.this).text} ASC NULLS LAST")
        text = f"row_number() OVER (PARTITION BY {units} ORDER BY {', '.join(order)})"
        return Expr(text, "BIGINT", 1, 2**62)


_NODES: dict[type[exp.Expr], Callable[[Writer, Any], Expr]] = {
    exp.Literal: Writer._literal,
    exp.Neg: Writer._neg,
    exp.Boolean: Writer._boolean,
    exp.Paren: Writer._paren,
    exp.Column: Writer._column,
    exp.Collate: Writer._collate,
    exp.And: Writer._junction,
    exp.Or: Writer._junction,
    exp.Not: Writer._not,
    exp.Is: Writer._is,
    exp.Case: Writer._case,
    exp.Coalesce: Writer._coalesce,
    exp.Cast: Writer._cast,
    exp.TryCast: Writer._cast,
    exp.Array: Writer._array,
    exp.Dot: Writer._called,
    exp.Window: Writer._window,
    **dict.fromkeys(_COMPARISONS, Writer._compared),
}


def call(node: exp.Expr) -> tuple[str, Sequence[exp.Expr]]:
    """The name and arguments of ``system.main.f(...)``; an empty name for any other node."""
    if not isinstance(node, exp.Dot) or not isinstance(node.expression, exp.Anonymous):
        return "", ()
    if node.this.sql("duckdb") != "system.main":
        return "", ()
    called = node.expression.this
    return str(called.name if isinstance(called, exp.Identifier) else called).lower(), node.expression.expressions


def _named(node: exp.Expr) -> str:
    """A node for a message: its function and the columns in it."""
    name = call(node)[0] or type(node).__name__.upper().replace("TRYCAST", "TRY_CAST")
    columns = dict.fromkeys(column.name for column in node.find_all(exp.Column))
    return f"{name} of {', '.join(columns)}" if columns else name


def _type(node: exp.DataType) -> str:
    if node.this == exp.DType.ARRAY:
        return f"{_type(node.expressions[0])}[]"
    if node.this == exp.DType.DECIMAL:
        width, scale = (int(part.name) for part in node.expressions)
        return f"DECIMAL({width},{scale})"
    found = _TYPES.get(node.this)
    if found is None:
        raise refusal(f"the type {node.sql('duckdb')} has no counterpart", "cast to another type")
    return found


def _common(text: str, of: Sequence[Expr], what: str) -> Expr:
    """What is one of several values."""
    held = [e for e in of if e.type != "NULL"]
    if all(e.whole for e in held):
        return Expr(text, values.widest(held), min(e.low for e in held), max(e.high for e in held))
    if len({e.type for e in held}) > 1:
        raise refusal(f"{what} has values of several types", "cast them to one")
    return Expr(text, held[0].type)
