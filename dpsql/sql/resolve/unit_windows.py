"""Windows within a unit: ``LAG(day) OVER (PARTITION BY patient_id ORDER BY day)`` as a column of the table's rows.

Such a window follows from the rows of one unit, so that it is one more column of a table whose rows belong to units as
before. Guarantee and proof: ``dpsql.workloads.expr.rows``. Rows that tie in ORDER BY come in the order of their other
columns, where DuckDB's order would be anyone's.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sqlglot import exp

from dpsql.policy import ColumnPolicy
from dpsql.policy.settings import fix
from dpsql.policy.types import column_type
from dpsql.policy.values import fold
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import made_column, standing_for
from dpsql.sql.resolve.flatten import Base, Rows
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.relations import whole
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.expressions import lowered, row_value
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import Column, Table
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.lines import Line, line_of
from dpsql.workloads.expr.rows import OfPlace, RowSource, Windows
from dpsql.workloads.expr.values import Stored, Test, Value

_PLACES: dict[type[exp.Expr], str] = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
_VALUES: dict[type[exp.Expr], str] = {exp.Lag: "lag", exp.Lead: "lead", exp.FirstValue: "first_value"}
_MOST_STEPS = 100
_MOST = 2**62
_LONGEST = 60
# A SELECT with one of these has no rows to which a window could add a column.
_NO_ROWS = ("group", "having", "distinct", "limit", "offset", "windows", "sample", "pivots", "laterals")


def windows_in(select: exp.Select) -> list[exp.Window]:
    """The windows in the items and QUALIFY of a SELECT over rows; none where it aggregates."""
    if any(select.args.get(clause) for clause in _NO_ROWS):
        return []
    windows: list[exp.Window] = []
    for clause in (*select.expressions, *([select.args["qualify"]] if select.args.get("qualify") else [])):
        for node in clause.walk():
            if isinstance(node, exp.Window):
                windows.append(node)
            elif isinstance(node, exp.AggFunc | exp.WithinGroup) and not node.find_ancestor(exp.Window):
                return []
    return windows


def within_units(select: exp.Select, rows: RowScope, computed: Computed) -> tuple[Table, exp.Select, Rows] | None:
    """``rows`` with the windows of ``select`` as columns, the SELECT over them without windows, and what it reads.

    ``select`` reads one table, and its stars are written out. None where a window is over rows of several units.
    QUALIFY becomes part of WHERE. ``computed`` keeps what is computed for each row. Raises SQLError for functions,
    frames and orders that are not answered, and for windows over windows.
    """
    source, out = rows.table.source, select.copy()
    if source is None or source.unit is None or source.of is not None:
        return None
    windows = windows_in(out)
    if source.windows is not None:
        raise refuse(
            "a window over what a window computed is not answered; write all windows in one SELECT",
            windows[0],
            code="row-window",
        )
    draft = _Draft(rows, source, computed)
    if not all(map(draft.is_of_unit, windows)):
        return None
    alias = str(out.args["from_"].this.alias_or_name)
    for window in windows:
        column = made_column(exp.to_identifier(draft.named(window), quoted=True), exp.to_identifier(alias))
        window.replace(standing_for(column, window.copy()))
    qualify = out.args.pop("qualify", None)
    if qualify is not None:
        where = out.args.get("where")
        parts = [qualify.this, *([where.this] if where is not None else [])]
        out.set("where", exp.Where(this=whole(exp.Paren(this=part) for part in parts)))
    table = draft.table()
    node = exp.Table(this=exp.to_identifier(table.name, quoted=True))
    node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    out.set("from_", exp.From(this=node))
    return table, out, Rows((Base(alias, node, tuple(table.schema)),))


@dataclass
class _Draft:
    """The columns that windows add while a SELECT is read."""

    rows: RowScope
    source: RowSource
    computed: Computed
    _columns: dict[str, tuple[OfPlace, Column]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scope = Scope(self.rows.find, self.computed, truth)
        self.where: Test | None = None
        if self.rows.where is not None:
            self.where = lowered(truth(self.rows.where, self.scope).true, self.scope)

    def is_of_unit(self, window: exp.Window) -> bool:
        """Whether the rows of a window have one owner: PARTITION BY has the unit, or the key that leads to it."""
        parts = [part.unnest() for part in window.args.get("partition_by") or []]
        return set(self.source.owners) <= {self.rows.stored(part) for part in parts if isinstance(part, exp.Column)}

    def named(self, window: exp.Window) -> str:
        """The name of a window's column, one for equal windows."""
        text = window.sql("duckdb", comments=False)
        if text not in self._columns:
            name = self._fresh("".join(c if c.isprintable() else " " for c in text)[:_LONGEST])
            self._columns[text] = self._made(window, name)
        return self._columns[text][0].name

    def _made(self, window: exp.Window, name: str) -> tuple[OfPlace, Column]:
        function, order = window.this, window.args.get("order")
        spec = window.args.get("spec")
        if spec is not None or type(function) not in {**_PLACES, **_VALUES}:
            raise refuse(
                f"{shown(window)} over the rows of a unit is not answered; write LAG, LEAD, FIRST_VALUE, ROW_NUMBER, "
                "RANK or DENSE_RANK, without a frame, or an aggregate in a subquery that groups by the unit",
                window,
                code="per-unit",
            )
        if order is None:
            raise refuse(
                f"{shown(window)} depends on the order of rows; add ORDER BY to OVER (...)", window, code="per-unit"
            )
        by = tuple((*row_value(part.this, self.scope)[:2], bool(part.args.get("desc"))) for part in order.expressions)
        if any(_nulls_first(part) for part in order.expressions):
            raise refuse("NULLS FIRST within a window is not answered; leave it out", order, code="per-unit")
        partition = tuple(self._partition(part.unnest(), window) for part in window.args["partition_by"])
        if type(function) in _PLACES:
            line = Line("integer", "BIGINT", 0, _MOST)
            policy = ColumnPolicy(name, lower=Fraction(1), upper=Fraction(self.source.limit), nulls=False)
            made = OfPlace(name, _PLACES[type(function)], None, 0, line, partition, by, self.where)
            return made, Column(name, "BIGINT", line, policy)
        value, line, column = row_value(function.this, self.scope)
        steps = self._steps(function, window)
        policy = copy.copy(column.policy)
        fix(policy, "name", name)
        fix(policy, "nulls", True)
        fix(policy, "public", False)
        kind = {"text": "VARCHAR", "real": "DOUBLE"}.get(line.kind, column.type)
        made = OfPlace(name, _VALUES[type(function)], (value, line), steps, line, partition, by, self.where)
        return made, Column(name, kind, line, policy)

    def _partition(self, node: exp.Expression, window: exp.Window) -> tuple[Value, Line]:
        """A part of PARTITION BY; the columns that say whose a row is need no declaration."""
        column = self.rows.stored(node) if isinstance(node, exp.Column) else None
        if column is not None and column in self.source.owners:
            return column, line_of(column.type)
        return row_value(node, self.scope)[:2]

    def _steps(self, function: exp.Expr, window: exp.Window) -> int:
        """How many rows LAG and LEAD look away; 0 of FIRST_VALUE."""
        if isinstance(function, exp.FirstValue):
            return 0
        offset = function.args.get("offset")
        number = 1 if offset is None else int(offset.this) if isinstance(offset, exp.Literal) and offset.is_int else 0
        if function.args.get("default") is not None or not 1 <= number <= _MOST_STEPS:
            raise refuse(
                f"{shown(window)} looks from 1 to {_MOST_STEPS} rows away, and finds NULL where there is none; write "
                "COALESCE(..., default) around it",
                window,
                code="per-unit",
            )
        return number

    def _fresh(self, text: str) -> str:
        taken = {fold(name) for name in (*self.rows.table.schema, *(made.name for made, _ in self._columns.values()))}
        name, copies = text, 1
        while fold(name) in taken:
            copies += 1
            name = f"{text} #{copies}"
        return name

    def table(self) -> Table:
        """The table with a column for each window."""
        base = self.rows.table
        windows = Windows(tuple(made for made, _ in self._columns.values()), tuple(self._stored()))
        name = f"{base.name} #{hashlib.sha256(repr((self.source, windows)).encode()).hexdigest()[:16]}"
        columns = {**base.columns, **{fold(column.name): column for _, column in self._columns.values()}}
        schema = {column.name: column.type for column in windows.stored}
        schema |= {column.name: column.type for _, column in self._columns.values()}
        caps = (*self.source.caps, *filter(None, map(self._cap, windows.columns)))
        source = replace(self.source, windows=windows, caps=caps)
        return replace(base, name=name, columns=columns, schema=schema, source=source)

    def _cap(self, made: OfPlace) -> Cap | None:
        """One row of a unit has each number; rows that WHERE leaves out have none.

        By a key on the way to the unit rows are numbered for each key, of which a unit may have several.
        """
        numbered = made.function == "row_number" and {value for value, _ in made.apart} == set(self.source.owners)
        if not numbered or self.source.path or not 1 < self.source.limit <= _MOST_STEPS:
            return None
        points = (made.line.point(number) for number in range(1, self.source.limit + 1))
        parts = tuple(LineAtom(made.name, (point,)) for point in points if point is not None)
        return Cap(made.name, made.line, None, parts, 1, None, "1 with each number of its own")

    def _stored(self) -> Iterator[Stored]:
        """What a scan may read of the base: declared columns, the unit, keys of joins; each breaks ties, too."""
        base = self.rows.table
        declared = {fold(column.name) for column in base.columns.values() if column.value is None}
        keys = {fold(name.strip()) for key in base.policy.references for name in key.split(",")}
        read = {fold(left.name) for join in self.source.joins for left, _ in join.pairs if not left.source}
        read |= {fold(owner.name) for owner in self.source.owners}
        for name, kind in base.schema.items():
            if fold(name) in declared | keys | read and column_type(kind).kind != "other":
                yield Stored(name, kind)


def _nulls_first(part: exp.Ordered) -> bool:
    return bool(part.args.get("nulls_first")) and "NULLS FIRST" in part.sql("duckdb").upper()
