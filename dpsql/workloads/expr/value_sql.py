"""DuckDB's SQL of values and scans: what the private scan runs, and an empty DuckDB for public domains.

Every function and operator is named in ``system.main``, where no macro or view of a user stands; comparisons, CASE,
CAST, TRY, COALESCE, OVER and COLLATE are no functions that a macro could replace.

One TRY around a whole value would not do: DuckDB computes what stands twice in a projection once, below it and so
outside of every TRY around a larger part. It takes the largest part first, and what stands right in a TRY stands
nowhere else, so that here the TRY is always computed with it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from dpsql.common.numerics import CYCLE, DAY, INFINITE_DAY, INFINITE_MOMENT
from dpsql.common.quoting import identifier, string
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import Line, line_of
from dpsql.workloads.expr.scan import Joined, Relation, Select, Table, Union, nodes
from dpsql.workloads.expr.total import clamped_moment, decimal_sizes, digits, lowered

References = Mapping[str, str]
"""How the engine writes each table that a scan reads, by the policy's name of it."""


def select_text(select: Select, references: References) -> str:
    """The statement of a scan."""
    listed = ", ".join(_named(name, render(value)) for name, value in select.columns)
    text = f"SELECT {listed or '*'} FROM {relation_text(select.source, references)}"  # noqa: S608
    if select.where is not None:
        text += f" WHERE {render(select.where)}"
    if select.group_by:
        text += f" GROUP BY {', '.join(str(place + 1) for place in range(select.group_by))}"
    return text


def constants(select: Select) -> dict[str, tuple[str, ...]]:
    """The constants of a scan's statement, each once, as texts by the type that they are cast to."""
    found: dict[str, dict[str, None]] = {}

    def noted(node: tree.Node, _: Sequence[None]) -> None:
        if isinstance(node, tree.Numbers):
            found.setdefault(f"{node.type or 'HUGEINT'}[]", {})[str(list(node.values))] = None
        elif isinstance(node, tree.Constant) and node.value is not None:
            text, kind = cast_text(node)
            found.setdefault(kind, {})[text] = None

    for node in nodes(select):
        tree.folded(node, lowered, noted)
    return {kind: tuple(texts) for kind, texts in found.items()}


def relation_text(relation: Relation, references: References) -> str:
    """What stands in FROM."""
    if isinstance(relation, Table):
        return f"{references[relation.name]} AS {identifier(relation.alias)}"
    if isinstance(relation, Joined):
        parts = [relation_text(relation.base, references)]
        for match in relation.joins:
            word = "ASOF LEFT JOIN" if match.nearest else "LEFT JOIN"
            parts.append(f"{word} {relation_text(match.rows, references)} ON {render(match.on)}")
        return " ".join(parts)
    if isinstance(relation, Union):
        return f"({' UNION ALL '.join(select_text(part, references) for part in relation.parts)})"
    alias = f" AS {identifier(relation.alias)}" if relation.alias else ""
    return f"({select_text(relation, references)}){alias}"


def _named(name: str, text: str) -> str:
    return text if text == identifier(name) else f"{text} AS {identifier(name)}"


def render(node: tree.Node) -> str:
    """The expression for a value, or a condition: TRUE where the test holds, FALSE or NULL elsewhere."""
    return tree.folded(node, lowered, _written)


def _written(node: tree.Node, of: Sequence[str]) -> str:
    return _PRINTERS[type(node)](node, of)


def _function(name: str, *arguments: str) -> str:
    """A call of DuckDB's own function, by its qualified name."""
    return f"system.main.{identifier(name)}({', '.join(arguments)})"


def _constant(node: tree.Constant, _: Sequence[str]) -> str:
    if node.value is None:
        return "NULL" if node.type == "NULL" else f"CAST(NULL AS {node.type})"
    return str(node.value) if node.type == tree.WHOLE else literal(_line(node.type), node.value)


_line = lru_cache(4_096)(line_of)


def _name(node: tree.Name, _: Sequence[str]) -> str:
    return f"{identifier(node.source)}.{identifier(node.name)}" if node.source else identifier(node.name)


def _call(node: tree.Call, of: Sequence[str]) -> str:
    text = _function(node.function, *of)
    return text if node.bare else _net(text)


def _net(text: str) -> str:
    """A function or cast, NULL where it fails."""
    return f"TRY({text})"


def _cast(node: tree.Cast, of: Sequence[str]) -> str:
    cast = f"CAST({of[0]} AS {node.type})"
    return f"TRY_{cast}" if node.tries else cast if node.bare else _net(cast)


def _case(node: tree.CaseValue, of: Sequence[str]) -> str:
    tests, found = of[: 2 * len(node.branches) : 2], of[1 : 2 * len(node.branches) : 2]
    branches = " ".join(f"WHEN {test} THEN {value}" for test, value in zip(tests, found, strict=True))
    default = f"CAST(NULL AS {node.type})" if node.default is None else of[-1]
    return f"CASE {branches} ELSE {default} END"


def _junction(word: str, empty: str) -> Callable[[tree.Node, Sequence[str]], str]:
    return lambda _, of: f"({f' {word} '.join(of)})" if of else empty


def _like(node: tree.Like, of: Sequence[str]) -> str:
    """``value LIKE pattern`` in bounded time.

    DuckDB's own LIKE steps back over ``_`` between several ``%``, so that one long text could take years. There, RE2
    matches, which reads a text once, at worst with a step for each sign of the pattern. ``total.lowered`` has it NULL
    where the steps could be too many.
    """
    if "_" in node.pattern and "%" in node.pattern:
        return _net(_function("regexp_full_match", of[0], string(plain_expression(node.pattern))))
    return _net(_function("~~", of[0], string(node.pattern)))


def expression_of(signs: Iterable[tuple[str, bool]]) -> str:
    """A LIKE pattern, as characters with whether each is a special % or _, as a regular expression of RE2."""
    written = {"%": ".*", "_": "."}
    return "(?s)" + "".join(
        written[c] if special else c if c.isalnum() or c == " " else f"\\x{{{ord(c):x}}}" for c, special in signs
    )


def plain_expression(pattern: str) -> str:
    """A LIKE pattern without ESCAPE as a regular expression of RE2."""
    return expression_of((character, character in "%_") for character in pattern)


def _numbers(node: tree.Numbers, _: Sequence[str]) -> str:
    """A list; as text that is cast where its type is known, which takes DuckDB a tenth of the time."""
    listed = f"[{', '.join(map(str, node.values))}]"
    return f"CAST('{listed}' AS {node.type}[])" if node.type else listed


def _window(node: tree.Window, of: Sequence[str]) -> str:
    given, apart = len(node.arguments), len(node.arguments) + len(node.apart)
    text = f"PARTITION BY {', '.join(of[given:apart])}"
    if node.order:
        text += f" ORDER BY {node.ordered(of[apart:])}"
    return f"{_function(node.function, *of[:given])} OVER ({text})"


def _word(node: tree.Word, of: Sequence[str]) -> str:
    """HUGEINT would come back as float64: a sum comes in two words."""
    total = _function("sum", of[0])
    total = f"CAST(CASE WHEN {total} IS NULL THEN 0 ELSE {total} END AS HUGEINT)"
    by = f"CAST({32 if node.high else 2**32 - 1} AS HUGEINT)"
    return f"CAST({_function('>>' if node.high else '&', total, by)} AS BIGINT)"


def _unscaled(node: tree.Unscaled, of: Sequence[str]) -> str:
    sizes = decimal_sizes(node.this.type)
    assert sizes is not None  # noqa: S101 - the front end makes it of DECIMAL columns alone
    width, scale = sizes
    if not scale:
        return _net(f"CAST({of[0]} AS {node.type})")
    if width + scale <= 38:
        wide = _net(f"CAST({of[0]} AS DECIMAL(38,{scale}))")
        scaled = _net(_function("*", wide, f"CAST({10**scale} AS DECIMAL({scale + 1},0))"))
        return _net(f"CAST({scaled} AS {node.type})")
    # The product would leave 38 digits; the text of a decimal always has all its decimals.
    plain = _net(_function("replace", _net(f"CAST({of[0]} AS VARCHAR)"), string("."), string("")))
    return _net(f"CAST({plain} AS {node.type})")


# What DuckDB writes of each kind of node and of the texts of its parts; ``total.lowered`` leaves no other.
_PRINTERS: Mapping[type, Callable[..., str]] = {
    tree.Constant: _constant,
    tree.Name: _name,
    tree.Call: _call,
    tree.Cast: _cast,
    tree.CaseValue: _case,
    tree.Coalesce: lambda _, of: f"COALESCE({', '.join(of)})",
    tree.Binary: lambda _, of: f'({of[0]} COLLATE "binary")',
    tree.Guarded: lambda _, of: f"CASE WHEN {of[0]} THEN {of[1]} END",
    tree.Truth: lambda _, of: f"CASE {of[0]} WHEN TRUE THEN 0 WHEN FALSE THEN 1 ELSE 2 END",
    tree.Numbers: _numbers,
    tree.Unscaled: _unscaled,
    tree.Window: _window,
    tree.Word: _word,
    tree.Gathered: lambda node, of: f"CAST(COALESCE({_function(node.function, of[0])}, 0) AS BIGINT)",
    tree.Distinct: lambda _, of: f"DISTINCT {of[0]}",
    tree.CountRows: lambda *_: f"CAST({_function('count_star')} AS BIGINT)",
    tree.Compared: lambda node, of: f"({of[0]} {node.operator} {of[1]})",
    tree.Every: _junction("AND", "TRUE"),
    tree.Some: _junction("OR", "FALSE"),
    tree.IsNull: lambda node, of: f"{of[0]} IS {'NOT ' if node.negated else ''}NULL",
    tree.IsNumber: lambda _, of: f"NOT {_function('isnan', of[0])}",
    tree.Like: _like,
}


def literal(line: Line, value: object) -> str:
    """A constant of a line, of exactly the column's type, so that the column itself is never cast."""
    if line.kind == "boolean":
        return "TRUE" if value else "FALSE"
    text, kind = spelled(line, value)
    if line.kind == "text":
        return string(text)
    return f"CAST({text if line.kind == 'integer' else string(text)} AS {kind})"


def cast_text(node: tree.Constant) -> tuple[str, str]:
    """The text that is a constant, not NULL, where it is cast to the type beside it."""
    return spelled(_line("HUGEINT" if node.type == tree.WHOLE else node.type), node.value)


def spelled(line: Line, value: object) -> tuple[str, str]:
    """The text that is the constant of a line where it is cast to the type beside it."""
    kind = line.kind
    if kind == "integer":
        return str(value), line.type
    if kind == "boolean":
        return "true" if value else "false", "BOOLEAN"
    if kind == "decimal":
        return digits(int(value), line.scale), line.type  # type: ignore[call-overload]
    if kind == "real":
        return repr(float(value)), "DOUBLE"  # type: ignore[arg-type]
    if kind == "text":
        return str(value), "VARCHAR"
    if kind == "date":
        return _day(int(value)), "DATE"  # type: ignore[call-overload]
    moment = clamped_moment(int(value))  # type: ignore[call-overload]
    zone = "TIMESTAMPTZ" if kind == "timestamptz" else "TIMESTAMP"
    if abs(moment) == INFINITE_MOMENT:
        return f"{'-' if moment < 0 else ''}infinity", zone
    days, micros = divmod(moment, DAY)
    clock = dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=micros)
    return f"{_day(days)} {clock:%H:%M:%S.%f}{'+00' if kind == 'timestamptz' else ''}", zone


def _day(days: int) -> str:
    """The date of a day number as DuckDB writes it, in any year; the calendar of Python ends in 9999."""
    if abs(days) >= INFINITE_DAY:
        return "-infinity" if days < 0 else "infinity"
    cycles, rest = divmod(days, CYCLE)
    found = dt.date(1970, 1, 1) + dt.timedelta(days=rest)
    year = found.year + 400 * cycles
    shown = f"{year if year > 0 else 1 - year:04d}-{found:%m-%d}"
    return shown if year > 0 else f"{shown} (BC)"
