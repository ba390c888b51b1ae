"""A scan as a statement of Spark: admitted part by part, and written with the types of its columns.

What has no equal meaning on Spark raises NotSupportedError. Which rules were used follows from the scan and the column
types alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dpsql.engines.spark import values
from dpsql.engines.spark.expressions import Columns, Scope, Writer
from dpsql.engines.spark.values import Expr, quote, refusal
from dpsql.workload.expr.scan import Joined, Relation, Select, Table
from dpsql.workload.expr.values import CountRows

_MOST_KEYS = 2**62


@dataclass(frozen=True)
class Source:
    """A table of Spark: how a statement writes it, and its columns' DuckDB types."""

    reference: str
    types: Mapping[str, str]


def written(select: Select, tables: Mapping[str, Source]) -> tuple[str, list[str]]:
    """The statement of a scan for Spark, whose columns are BIGINT, and their names.

    ``tables`` are the tables that it names. Raises NotSupportedError.
    """
    if not any(isinstance(value, CountRows) for _, value in select.columns):
        raise refusal("rows are not brought back, only counts and sums", "take a local release on one machine")
    text, columns = _select(select, tables, "BIGINT")
    return text, list(columns)


def _select(select: Select, tables: Mapping[str, Source], cast: str = "") -> tuple[str, Columns]:
    """The text of a SELECT and its columns; ``cast``: the type that all of them get."""
    source, scope = _from(select.source, tables)
    writer = Writer(scope)
    found = {name: writer.value(value) for name, value in select.columns}
    if not select.columns:
        columns = scope.columns("").items()
        found = {name: replace(column, text=writer.layers.column(column.text)) for name, column in columns}
    for value in found.values():
        if cast and not value.whole:
            raise refusal(
                f"a column of {value.type} cannot be brought back",
                "only counts and sums come from Spark; use a local release on one machine",
            )
    keys = select.group_by
    one = packed(list(found.values())[:keys]) if cast else None
    shown = {name: f"CAST({value.text} AS {cast})" if cast else value.text for name, value in found.items()}
    if one is not None:
        shown = {"dpsql_key": one[0], **dict(list(shown.items())[keys:])}
    where = [] if select.where is None else [writer.value(select.where).text]
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


def _from(relation: Relation, tables: Mapping[str, Source]) -> tuple[str, Scope]:
    base, joins = (relation.base, relation.joins) if isinstance(relation, Joined) else (relation, ())
    text, alias, columns = _item(base, tables)
    sources = {alias: columns}
    for join, on in joins:
        second, name, columns = _item(join, tables)
        sources[name] = columns
        writer = Writer(Scope(sources))
        text += f" LEFT JOIN {second} ON {writer.layers.inlined(writer.value(on).text)}"
    return text, Scope(sources)


def _item(relation: Table | Select, tables: Mapping[str, Source]) -> tuple[str, str, Columns]:
    """A table or subquery of FROM, its alias, and its columns."""
    alias = relation.alias or "dpsql_rows"
    if isinstance(relation, Table):
        source = tables[relation.name]
        text, inner = source.reference, {name: values.column("", kind) for name, kind in source.types.items()}
    else:
        text, inner = _select(relation, tables)
        text = f"({text})"
    columns = {name.lower(): replace(kind, text=f"{quote(alias)}.{quote(name)}") for name, kind in inner.items()}
    return f"{text} AS {quote(alias)}", alias, columns
