"""A generated statement of DuckDB as one of Spark: parsed by sqlglot, admitted node by node, written again with types.

What stands here is all that ``measure/`` writes: one SELECT, over a table, a subquery, or LEFT JOINs of both, with
GROUP BY of its first columns, and the values of ``expressions``. Anything else raises NotSupportedError. Which rules
were used follows from the statement and the column types alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp

from dpsql.engines.spark import values
from dpsql.engines.spark.expressions import Columns, Scope, Writer, call
from dpsql.engines.spark.values import Expr, quote, refusal

_MOST_KEYS = 2**62


@dataclass(frozen=True)
class Source:
    """A table of Spark: how a statement writes it, and its columns' DuckDB types."""

    reference: str
    types: Mapping[str, str]


def translated(statement: str, tables: Mapping[str, Source]) -> tuple[str, list[str]]:
    """The statement for Spark, whose columns are BIGINT, and their names.

    ``statement`` is a generated SELECT in DuckDB's SQL, ``tables`` the tables that it names. Raises NotSupportedError.
    """
    try:
        parsed = read(statement)
        if not any(call(node)[0] == "count_star" for item in parsed.expressions for node in item.walk()):
            raise refusal("rows are not brought back, only counts and sums", "take a local release on one machine")
        text, columns = _select(_as(parsed, exp.Select), tables, "BIGINT")
    except RecursionError:
        raise refusal("an expression nests too deeply", "store a part of it as a column") from None
    return text, list(columns)


def read(statement: str) -> exp.Expr:
    """The tree of a generated statement.

    TRY is left out, in which every function of DuckDB stands: it has nothing to do where none fails (``values``).
    """
    parsed = sqlglot.parse_one(statement, dialect="duckdb")
    for tried in list(parsed.find_all(exp.Try)):
        tried.replace(tried.this)
    return parsed


def _as(node: object, kind: type[exp.Select]) -> exp.Select:
    if not isinstance(node, kind):
        raise refusal("the statement has a part that is not admitted", "plan again")
    return node


def _select(select: exp.Select, tables: Mapping[str, Source], cast: str = "") -> tuple[str, Columns]:
    """The text of a SELECT and its columns; ``cast``: the type that all of them get."""
    known = {"expressions", "from_", "joins", "where", "group", "kind"}
    if any(value for name, value in select.args.items() if name not in known):
        raise refusal("a clause of the statement is not admitted", "plan again")
    source, scope = _from(select, tables)
    writer = Writer(scope, select)
    found: dict[str, Expr] = {}
    for item in select.expressions:
        if isinstance(item, exp.Star):
            for name, column in scope.columns("").items():
                found[name] = replace(column, text=writer.layers.column(column.text))
            continue
        value = writer.value(item.this if isinstance(item, exp.Alias) else item)
        if cast and not value.whole:
            raise refusal(
                f"a column of {value.type} cannot be brought back",
                "only counts and sums come from Spark; use a local release on one machine",
            )
        found[item.alias_or_name or "1"] = value
    keys = _keys(select)
    one = packed(list(found.values())[:keys]) if cast else None
    shown = {name: f"CAST({value.text} AS {cast})" if cast else value.text for name, value in found.items()}
    if one is not None:
        shown = {"dpsql_key": one[0], **dict(list(shown.items())[keys:])}
    where = [writer.value(select.args["where"].this).text] if select.args.get("where") else []
    (text, *where), source = writer.layers.written([_listed(shown), *where], source)
    text = f"SELECT {text} FROM {source}"  # noqa: S608
    if where:
        text += f" WHERE {where[0]}"
    if keys:
        text += f" GROUP BY {', '.join(str(at + 1) for at in range(1 if one else keys))}"
    if one is not None:
        again = dict(zip(found, [*one[1], *map(quote, list(found)[keys:])], strict=True))
        text = f"SELECT {_listed(again)} FROM ({text}) AS dpsql_groups"  # noqa: S608
    if cast:
        return text, {name: values.column(quote(name), cast) for name in found}
    return text, {name: Expr(quote(name), value.type, value.low, value.high) for name, value in found.items()}


def _listed(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{text} AS {quote(name)}" for name, text in texts.items())


def _keys(select: exp.Select) -> int:
    """How many of the first columns a SELECT groups by."""
    group = select.args.get("group")
    if not group:
        return 0
    places = [int(part.this) if isinstance(part, exp.Literal) else 0 for part in group.expressions]
    if (
        len([value for value in group.args.values() if value]) > 1
        or not places
        or (places != list(range(1, len(places) + 1)))
    ):
        raise refusal("the statement groups by something else than its first columns", "plan again")
    return len(places)


def packed(keys: Sequence[Expr]) -> tuple[str, list[str]] | None:
    """One BIGINT for several whole numbers of known ranges, and each number again from a column ``dpsql_key``.

    Spark hashes, compares and shuffles one BIGINT where it would several. A mixed-radix number: key i with w values,
    NULL beside them, is a digit below w + 1, 0 for NULL. None where there is no second key, or where 62 bits do not
    hold all.
    """
    if len(keys) < 2:
        return None
    digits, numbers, factor = [], [], 1
    for key in keys:
        if not key.whole or key.type == "HUGEINT" or key.high < key.low:
            return None
        radix = key.high - key.low + 2
        digits.append(f"coalesce(CAST({key.text} AS BIGINT) - {_long(key.low - 1)}, 0L) * {factor}L")
        numbers.append(f"nullif(dpsql_key div {factor}L % {radix}L, 0L) + {_long(key.low - 1)}")
        factor *= radix
        if factor > _MOST_KEYS:
            return None
    return " + ".join(digits), numbers


def _long(number: int) -> str:
    return f"{number}L" if number >= 0 else f"({number}L)"


def _from(select: exp.Select, tables: Mapping[str, Source]) -> tuple[str, Scope]:
    item = select.args.get("from_")
    if item is None:
        raise refusal("a statement without a table is not admitted", "plan again")
    first, alias, columns = _item(item.this, tables)
    sources, text = {alias: columns}, first
    for join in select.args.get("joins") or []:
        if join.side != "LEFT" or join.args.get("on") is None:
            raise refusal("a join that is no LEFT JOIN is not admitted", "plan again")
        second, name, columns = _item(join.this, tables)
        sources[name] = columns
        on = Writer(Scope(sources), join)
        text += f" LEFT JOIN {second} ON {on.layers.inlined(on.value(join.args['on']).text)}"
    return text, Scope(sources)


def _item(node: exp.Expr, tables: Mapping[str, Source]) -> tuple[str, str, Columns]:
    """A table or subquery of FROM, its alias, and its columns."""
    alias = node.alias or "dpsql_rows"
    if isinstance(node, exp.Table) and node.name in tables and not node.db:
        source = tables[node.name]
        text, inner = source.reference, {name: values.column("", kind) for name, kind in source.types.items()}
    elif isinstance(node, exp.Subquery):
        text, inner = _select(_as(node.this, exp.Select), tables)
        text = f"({text})"
    else:
        raise refusal("a part of FROM is not admitted", "plan again")
    columns = {name.lower(): replace(kind, text=f"{quote(alias)}.{quote(name)}") for name, kind in inner.items()}
    return f"{text} AS {quote(alias)}", alias, columns
