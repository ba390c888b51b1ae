"""Expressions of a scan, admitted node by node and written for Spark with their types.

CASE, comparisons, casts, places among rows and the functions of ``functions``; anything else raises NotSupportedError.

Sums. DuckDB adds up in 128 bits. Spark's BIGINT wraps around and its decimals are slow, so a sum is taken in two parts,
of the lower 24 bits and of the rest: u is below 2^42 (``dpsql.workloads.expr.measures``), and fewer than 2^38 rows,
about 2.7e11, leave both parts within 63 bits; u below 2^25 is added up as it is. Addition of whole numbers has one
result in any order.

Texts. The number of a text among constants is found by its hash: one comparison for a row, or a few, however many they
are. A list has as many places as a mask of the hash tells apart, and each constant stands at its own; where two have
one place, the second stands in a second list, and so on. A row is compared with what stands at the place of its text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.extensions.spark import casts, texts, values
from dpsql.extensions.spark.functions import FUNCTIONS
from dpsql.extensions.spark.layers import Layers
from dpsql.extensions.spark.values import OPERATOR, Expr, refusal
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.total import SAME, lowered

_WORD = 2**32
_FAR = 2**62
_SMALL = 2**25
_SAME = "<=>"
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

    def column(self, node: tree.Name) -> Expr:
        found = self.columns(node.source).get(node.name.lower())
        if found is None:
            raise refusal(f"the column {node.name} has no type there", "leave it out of the batch")
        return found


class Writer:
    """Expressions over the columns of one SELECT, or of the ON of one join, with marks for values (``Layers``)."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.layers = Layers()

    def value(self, node: tree.Node) -> Expr:
        """A node as Spark writes it. Raises NotSupportedError for what is not admitted."""
        return tree.folded(node, _lowered, self._marked)

    def _marked(self, node: tree.Node, of: Sequence[Expr]) -> Expr:
        """A node by its parts. What is made of several rows, with all that it stands in, is no value of a subquery."""
        found = self._column(node) if isinstance(node, tree.Name) else _WRITERS[type(node)](node, of)
        made = isinstance(node, tree.Window | tree.CountRows | tree.Word | tree.Gathered) or _is_row_test(node)
        if made or any(part.several for part in of):
            return replace(found, several=True)
        return replace(found, text=self.layers.marked(found.text))

    def _column(self, node: tree.Name) -> Expr:
        found = self.scope.column(node)
        return replace(found, text=self.layers.column(found.text))


def _lowered(node: tree.Node) -> tree.Node:
    """In smaller nodes; in Spark's own way a comparison with minus zero, a place among texts, and a rounded number."""
    match node:
        case tree.Compared(tree.Cast() as left, "=", tree.Constant("-0.0", "VARCHAR")):
            if left.this.type in ("DOUBLE", "FLOAT"):
                return tree.bare("signbit", left.this, type="BOOLEAN")
        case tree.Call("list_extract", (numbers, tree.Call("list_position", (constants, value)))):
            return number_of(numbers, constants, value)
        case tree.Cast(tree.Call("round", (value,)), "BIGINT", tries=True):
            return tree.bare("rounded", value)
    return lowered(node)


def _constant(node: tree.Constant, _: Sequence[Expr]) -> Expr:
    if node.type == "NULL":
        return Expr("NULL", "NULL")
    return casts.constant(node.value, "" if node.type == tree.WHOLE else values.kind_of(node.type))


def _junction(word: str, rank: int) -> Callable[[tree.Node, Sequence[Expr]], Expr]:
    def written(_: tree.Node, of: Sequence[Expr]) -> Expr:
        if len(of) == 1:
            return of[0]
        shown = [side.text if side.rank >= rank else side.inner for side in of]
        return Expr(f" {word} ".join(shown) or ("TRUE" if rank else "FALSE"), "BOOLEAN", rank=rank if of else 9)

    return written


def _is_null(node: tree.IsNull, of: Sequence[Expr]) -> Expr:
    return Expr(f"{of[0].inner} IS {'NOT ' if node.negated else ''}NULL", "BOOLEAN", rank=3)


def _compared(node: tree.Compared, of: Sequence[Expr]) -> Expr:
    a, b = of
    operator = _SAME if node.operator == SAME else node.operator
    if b.type != "NULL" and not (a.whole and b.whole) and a.type != b.type:
        raise refusal(
            f"{_Named(node)} compares {a.type} with {b.type}, which Spark would cast", "store both in one type"
        )
    return Expr(f"{a.inner} {operator} {b.inner}", "BOOLEAN", rank=3)


def _case(node: tree.CaseValue, of: Sequence[Expr]) -> Expr:
    count = 2 * len(node.branches)
    results = [*of[1:count:2], of[-1] if node.default is not None else casts.constant(None, values.kind_of(node.type))]
    branches = [f"WHEN {test.text} THEN {found.text}" for test, found in zip(of[:count:2], results, strict=False)]
    return _common(f"CASE {' '.join(branches)} ELSE {results[-1].text} END", results, _Named(node))


def _guarded(_: tree.Guarded, of: Sequence[Expr]) -> Expr:
    return replace(of[1], text=f"CASE WHEN {of[0].text} THEN {of[1].text} END", constant=None, rank=9)


def _truth(_: tree.Truth, of: Sequence[Expr]) -> Expr:
    return Expr(f"CASE {of[0].text} WHEN TRUE THEN 0 WHEN FALSE THEN 1 ELSE 2 END", "INTEGER", 0, 2)


def _coalesce(node: tree.Coalesce, of: Sequence[Expr]) -> Expr:
    return _common(f"coalesce({', '.join(e.text for e in of)})", of, _Named(node))


def _cast(node: tree.Cast, of: Sequence[Expr]) -> Expr:
    return casts.cast(of[0], values.kind_of(node.type), _Named(node), tries=node.tries)


def _unscaled(node: tree.Unscaled, of: Sequence[Expr]) -> Expr:
    if not of[0].type.startswith("DECIMAL("):
        raise refusal(f"{_Named(node)} is not one of a decimal", "plan again")
    if casts.sizes(of[0].type)[1]:
        return casts.unscaled(of[0], values.kind_of(node.type))
    return casts.cast(of[0], values.kind_of(node.type), _Named(node), tries=False)


def _word(node: tree.Word, of: Sequence[Expr]) -> Expr:
    """The low or high 32 bits of a sum of whole numbers; see the module."""
    (u,) = of
    if u.type != "BIGINT":
        raise refusal(f"a sum of {u.type} is not admitted", "plan again")
    if node.most < _SMALL:
        both, above = f"coalesce(sum({u.text}), 0L)", ""
    else:
        low = f"coalesce(sum({u.inner} & 16777215L), 0L)"
        high = f"coalesce(sum(shiftright({u.text}, 24)), 0L)"
        both, above = f"{low} + shiftleft({high} & 255L, 24)", f" + shiftright({high}, 8)"
    if node.high:
        return Expr(f"shiftright({both}, 32){above}", "BIGINT", 0, _FAR, rank=OPERATOR)
    return Expr(f"({both}) & {_WORD - 1}L", "BIGINT", 0, _WORD - 1, rank=OPERATOR)


def _numbers(node: tree.Numbers, _: Sequence[Expr]) -> Expr:
    ends = [values.integer(end) for end in (min(node.values), max(node.values))]
    return texts.listed(node.values, node.type or values.widest(ends))


def _is_row_test(node: tree.Node) -> bool:
    """Whether a node says of a unit that some row of it holds to the conditions of its rows."""
    return isinstance(node, tree.Call) and node.function == "min" and isinstance(node.arguments[0], tree.Truth)


def _call(node: tree.Call, of: Sequence[Expr]) -> Expr:
    rule = FUNCTIONS.get(node.function)
    if _is_row_test(node):
        return replace(of[0], text=f"min({of[0].text})", constant=None, rank=9)
    if node.function == "regexp_full_match":
        raise refusal("a regular expression is not answered by Spark as by DuckDB", "write LIKE")
    if node.function in {"count", "sum", "min", "max"}:
        raise refusal("aggregates of each unit are not answered on Spark", "keep a table of them, one row a unit")
    if rule is None:
        raise refusal(f"{_Named(node)} is not admitted", "write it with other functions")
    try:
        return rule(of)
    except ValueError:
        pass
    raise refusal(f"{_Named(node)} has too many arguments", "write it with fewer")


def _window(node: tree.Window, of: Sequence[Expr]) -> Expr:
    given, apart = len(node.arguments), len(node.arguments) + len(node.apart)
    if node.function not in ("row_number", "dense_rank", "min", "rank", "lag", "lead", "first_value", "sum"):
        raise refusal(f"the window {node.function} is not admitted", "plan again")
    text = f"PARTITION BY {', '.join(part.text for part in of[given:apart])}"
    if node.order:
        text += f" ORDER BY {node.ordered([part.text for part in of[apart:]])}"
    text = f"{node.function}({', '.join(part.text for part in of[:given])}) OVER ({text})"
    if node.function == "sum":
        return Expr(_checked(text, "window sum", of[0]), "BIGINT", 0, _FAR)
    return replace(of[0], text=text, constant=None, rank=9) if given else Expr(text, "BIGINT", 1, _FAR)


def _gathered(node: tree.Gathered, of: Sequence[Expr]) -> Expr:
    text = f"coalesce({node.function}({of[0].text}), 0L)"
    return Expr(_checked(text, node.function, of[0]), "BIGINT", 0, _FAR)


def _checked(text: str, name: str, u: Expr) -> str:
    """``text``, an aggregate of u, which is a count or a word of bits; a sum over a column of the data may wrap."""
    if u.type != "BIGINT" or u.low < 0 or u.high > _FAR:
        raise refusal(f"the {name} of {u.type} from {u.low} to {u.high} is not admitted", "plan again")
    return text


def _distinct(node: tree.Distinct, _: Sequence[Expr]) -> Expr:
    raise refusal(f"{_Named(node)} of the rows of a unit is not answered there", "leave it out of the batch")


# What Spark writes of each kind of node and of the texts of its parts; ``total.lowered`` leaves no other.
_WRITERS: Mapping[type, Callable[..., Expr]] = {
    tree.Constant: _constant,
    tree.Call: _call,
    tree.Cast: _cast,
    tree.CaseValue: _case,
    tree.Coalesce: _coalesce,
    # Columns of another collation are refused with the schema.
    tree.Binary: lambda _, of: of[0],
    tree.Guarded: _guarded,
    tree.Truth: _truth,
    tree.Like: lambda node, of: texts.like(of[0], node.pattern),
    tree.Numbers: _numbers,
    tree.Unscaled: _unscaled,
    tree.Window: _window,
    tree.Word: _word,
    tree.Gathered: _gathered,
    tree.Distinct: _distinct,
    tree.CountRows: lambda *_: Expr("count(1)", "BIGINT", 0, _FAR),
    tree.Compared: _compared,
    tree.Every: _junction("AND", 1),
    tree.Some: _junction("OR", 0),
    tree.IsNull: _is_null,
    tree.IsNumber: lambda _, of: Expr(f"NOT {FUNCTIONS['isnan'](of).inner}", "BOOLEAN", rank=2),
}


@dataclass(frozen=True)
class _Named:
    """A node for a message: its function and the columns in it."""

    node: tree.Node

    def __str__(self) -> str:
        node = self.node
        name = type(node).__name__.upper()
        if isinstance(node, tree.Call):
            name = node.function
        elif isinstance(node, tree.Compared):
            name = node.operator
        elif isinstance(node, tree.Cast):
            name = "TRY_CAST" if node.tries else "CAST"
        columns = dict.fromkeys(
            part.name for part in [*tree.walk(node)][::-1] if isinstance(part, tree.Name | tree.Stored)
        )
        return f"{name} of {', '.join(columns)}" if columns else name


def _common(text: str, of: Sequence[Expr], what: object) -> Expr:
    """What is one of several values."""
    held = [e for e in of if e.type != "NULL"]
    if all(e.whole for e in held):
        return Expr(text, values.widest(held), min(e.low for e in held), max(e.high for e in held))
    if len({e.type for e in held}) > 1:
        raise refusal(f"{what} has values of several types", "cast them to one")
    return Expr(text, held[0].type)


_ROOM = 8  # times as many places as constants, at most


def number_of(numbers: tree.Value, constants: tree.Value, value: tree.Value) -> tree.Value:
    """The one of ``numbers`` at the place of ``value`` among ``constants``, different texts; NULL where it is none."""
    if not isinstance(numbers, tree.Numbers) or not isinstance(constants, tree.Call):
        raise refusal("a place is looked up that is not one among constants", "plan again")
    texts = tuple(str(text.value) for text in constants.arguments if isinstance(text, tree.Constant))
    lists = _lists(texts)
    place = tree.bare("text_place", value, tree.whole(len(lists[0])))
    branches: list[tuple[tree.Test, tree.Value]] = []
    for places in lists:
        # A constant at a place that is not its own is equal to no text that is looked up there, or was before.
        held = tree.bare("list_value", *(tree.Constant(texts[at or 0], "VARCHAR") for at in places), type="VARCHAR[]")
        found = tree.Numbers(tuple(numbers.values[at or 0] for at in places), numbers.type)
        same = tree.Compared(tree.bare("list_extract", held, place, type="VARCHAR"), "=", value)
        branches.append((same, tree.bare("list_extract", found, place, type=numbers.type)))
    return tree.CaseValue(tuple(branches), None, numbers.type)


@functools.lru_cache(maxsize=64)
def _lists(texts: tuple[str, ...]) -> tuple[tuple[int | None, ...], ...]:
    """The constants at the places of each list, by their numbers: of few lists, and then of short ones."""
    hashes = [murmur(text.encode()) for text in texts]
    size = 1
    best: list[list[int]] = []
    while size <= _ROOM * len(texts):
        filled: list[list[int]] = [[] for _ in range(size)]
        for number, found in enumerate(hashes):
            filled[found & (size - 1)].append(number)
        lists = max(map(len, filled))
        if not best or lists < max(map(len, best)):
            best = filled
        size *= 2
    return tuple(
        tuple(held[depth] if depth < len(held) else None for held in best) for depth in range(max(map(len, best)))
    )


def murmur(data: bytes, seed: int = 42) -> int:
    """Spark's ``hash`` of a text, from 0 to 2^32 - 1: 32-bit Murmur3, whose last bytes are words of their own."""
    whole = len(data) - len(data) % 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    words += [int.from_bytes(data[at : at + 1], "little", signed=True) for at in range(whole, len(data))]
    found = seed
    for word in words:
        found = _rotated(found ^ _rotated(word * 0xCC9E2D51, 15) * 0x1B873593, 13) * 5 + 0xE6546B64
    found = (found ^ len(data)) % 2**32
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        found = (found ^ found >> shift) * factor % 2**32
    return found ^ found >> 16


def _rotated(word: int, bits: int) -> int:
    word %= 2**32
    return (word << bits | word >> (32 - bits)) % 2**32
