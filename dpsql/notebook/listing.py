"""What ``%dpsql tables``, ``releases`` and ``connections`` list. All of it is public, and listing it is free."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dpsql.driver.connection import Connection
from dpsql.notebook.results import NotebookResult
from dpsql.notebook.tables import Look
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.values import shown
from dpsql.quoting import identifier
from dpsql.release import Result

_VALUES = 6  # of a column that are written out


def tables_of(con: Connection, look: Look) -> NotebookResult:
    """A line a column: the tables and views of the policy with what it declares, released views with their types."""
    rows: list[tuple[str, str, str, str]] = []
    for name, kind in con.cursor().execute("SHOW TABLES"):
        if kind == "released":
            held = con.sql(f"SELECT * FROM dp.{identifier(name)} LIMIT 0")  # noqa: S608 - a quoted name
            rows += [(name, kind, column, type_) for column, type_ in zip(held.columns, held.types, strict=True)]
        elif kind == "private view":
            rows.append((name, kind, "", " ".join(con.policy.views[name].split())))
        else:
            rows += [(name, kind, c.name, _domain(c)) for c in con.policy.tables[name].columns.values()]
    return _table(
        "tables", {"name": "VARCHAR", "kind": "VARCHAR", "column": "VARCHAR", "values": "VARCHAR"}, rows, look
    )


def _domain(column: ColumnPolicy) -> str:
    """What the policy says of a column's values."""
    said = ""
    if column.values is not None:
        listed = ", ".join(str(shown(value)).strip('"') for value in column.values[:_VALUES])
        more = len(column.values) - _VALUES
        said = listed + (f" and {more:,} more" if more > 0 else "")
    elif column.lower is not None and column.upper is not None:
        said = f"{shown(column.lower)} to {shown(column.upper)}"
        said += "" if column.step in (None, Fraction(1)) else f" by {shown(column.step or Fraction(1))}"
    said += " or other" if column.other else ""
    return f"{said} or NULL" if said and column.nulls else said


def releases_of(con: Connection, look: Look) -> NotebookResult:
    """A line a charge of the ledger, oldest first."""
    rows = [
        (
            *(entry.id, entry.time[:19].replace("T", " "), entry.charge.guarantee, ", ".join(entry.views)),
            *(entry.label, entry.released is not None),
        )
        for entry in con.releases()
    ]
    kinds = {"release": "BIGINT", "time_utc": "VARCHAR", "spent": "VARCHAR", "results": "VARCHAR", "label": "VARCHAR"}
    return _table("releases", {**kinds, "answered": "BOOLEAN"}, rows, look)


def connections_of(known: Mapping[str, Connection], current: str | None, look: Look) -> NotebookResult:
    """A line a connection, by name."""
    rows = [(name, con.policy.dataset, str(con.ledger_path), name == current) for name, con in sorted(known.items())]
    kinds = {"name": "VARCHAR", "dataset": "VARCHAR", "ledger": "VARCHAR", "current": "BOOLEAN"}
    return _table("connections", kinds, rows, look)


def _table(name: str, kinds: Mapping[str, str], rows: list[Any], look: Look) -> NotebookResult:
    # A list of what can be asked is shown whole where it is not huge.
    return NotebookResult.of(Result(list(kinds), list(kinds.values()), rows), name, look=Look(max(look.row_limit, 200)))
