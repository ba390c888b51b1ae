"""What ties a subquery of IN or EXISTS to the row outside: equalities of columns, and inequalities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.flatten import Rows
from dpsql.sql.resolve.relations import conjuncts
from dpsql.sql.resolve.selects import sources_of

Sources = Sequence[tuple[str, Rows]]
IsDate = Callable[[Sources, exp.Column], bool]
Whose = Callable[[exp.Expr], set[bool]]


@dataclass(frozen=True)
class Ordered:
    """``part``: a row's own number is less or greater than ``theirs``, of the row outside.

    Some row's is greater where the greatest of them is. Of two the first says from where on rows count, which is at the
    nearest of them, and the second is asked of the least or greatest from there on.
    """

    part: exp.Binary
    theirs: exp.Expression

    @property
    def _greater(self) -> bool:
        return isinstance(self.part, exp.GT | exp.GTE)

    @property
    def extreme(self) -> exp.Expression:
        """The greatest, or least, of the rows' own numbers."""
        return (exp.Max if self._greater else exp.Min)(this=self.part.this.copy())

    @property
    def along(self) -> exp.Expression:
        """The row's own number, for each of which there is to be a row; no SQL says so."""
        return exp.Alias(
            this=exp.Ordered(this=self.part.this.copy(), desc=not self._greater), alias=exp.to_identifier("along")
        )

    def holds(self, mine: exp.Expression) -> exp.Binary:
        """The inequality of another number in place of the row's own."""
        return type(self.part)(this=mine, expression=self.theirs.copy())


_TURNED: dict[type[exp.Expr], type[exp.Binary]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}


@dataclass(frozen=True)
class Tied:
    """WHERE of a subquery: conditions on its ``inner`` rows, on the row ``outside``, and what ties them together."""

    inner: list[exp.Expression]
    outside: list[exp.Expression]
    pairs: list[tuple[exp.Expression, exp.Expression]]
    ordered: list[Ordered]


def tied(query: exp.Select, sources: Sources, is_date: IsDate) -> Tied:
    """What WHERE of a subquery over ``sources`` asks; SQLError for what ties it to the row in another way."""
    aliases = {fold(alias) for alias, _ in sources}
    names = {fold(name) for _, rows in sources for name in rows.names}

    def is_inner(column: exp.Column) -> bool:
        return fold(column.table) in aliases if column.table else fold(column.name) in names

    def whose(node: exp.Expr) -> set[bool]:
        nested = {fold(source.alias_or_name) for query in node.find_all(exp.Select) for source in sources_of(query)}
        # Names of a subquery's own are nobody's here.
        columns = [c for c in node.find_all(exp.Column) if fold(c.table) not in nested or fold(c.table) in aliases]
        return {is_inner(column) for column in columns if is_inner(column) or column.table or not nested}

    def is_day(node: exp.Expr) -> bool:
        return isinstance(node, exp.Column) and is_inner(node) and is_date(sources, node)

    parts = Tied([], [], [], [])
    where = query.args.get("where")
    for part in () if where is None else (one for each in conjuncts(where.this) for one in _without_between(each)):
        part = _of_days(part, is_day, whose)
        if False not in whose(part):
            parts.inner.append(part)  # type: ignore[arg-type]
        elif True not in whose(part):
            parts.outside.append(part)  # type: ignore[arg-type]
        elif (ordered := _inequality(part, whose)) is not None and len(parts.ordered) < 2:
            parts.ordered.append(ordered)
        else:
            sides = [part.this.unnest(), part.expression.unnest()] if isinstance(part.unnest(), exp.EQ) else []
            inside = [isinstance(side, exp.Column) and is_inner(side) for side in sides]
            if inside not in ([True, False], [False, True]) or not all(isinstance(side, exp.Column) for side in sides):
                raise refuse(
                    "a subquery is tied to the row by equalities of columns, and by two of <, <=, > and >= besides, "
                    "each of a value of its own rows and one of the row outside",
                    part,
                    code="subquery",
                )
            parts.pairs.append((sides[0], sides[1]) if inside[0] else (sides[1], sides[0]))
    return parts


def _without_between(part: exp.Expr) -> list[exp.Expr]:
    """BETWEEN as its two inequalities."""
    between = part.unnest()
    if not isinstance(between, exp.Between) or between.args.get("symmetric"):
        return [part]
    low, high = between.args["low"], between.args["high"]
    return [
        exp.GTE(this=between.this.copy(), expression=low.copy()),
        exp.LTE(this=between.this.copy(), expression=high.copy()),
    ]


def _of_days(part: exp.Expr, is_day: Callable[[exp.Expr], bool], whose: Whose) -> exp.Expr:
    """``own - outer <= 30`` of days, or date_diff of them, as ``own <= outer + 30``; any other condition as it is."""
    plain = part.unnest()
    if type(plain) not in _TURNED:
        return part
    left, right, kind = plain.this.unnest(), plain.expression.unnest(), type(plain)
    if not whose(left) and whose(right):
        left, right, kind = right, left, _TURNED[kind]
    if whose(right):
        return part
    sides = [left.this.unnest(), left.expression.unnest()] if isinstance(left, exp.DateDiff | exp.Sub) else []
    if isinstance(left, exp.DateDiff) and str(left.args.get("unit") or "").upper().strip("'") == "DAY":
        sides = [exp.Cast(this=side.copy(), to=exp.DataType.build("DATE")) for side in sides]
    elif not any(map(is_day, sides)):
        return part
    later, earlier = (exp.Paren(this=side.copy()) for side in sides)
    days = exp.Paren(this=right.copy())
    if (whose(later), whose(earlier)) == ({True}, {False}):
        return kind(this=later, expression=exp.Add(this=earlier, expression=days))
    if (whose(later), whose(earlier)) == ({False}, {True}):
        return _TURNED[kind](this=earlier, expression=exp.Sub(this=later, expression=days))
    return part


def _inequality(part: exp.Expr, whose: Whose) -> Ordered | None:
    """An inequality of a value of the subquery's rows with one of the row outside, the first on its left."""
    part = part.unnest()
    if type(part) not in _TURNED:
        return None
    left, right = part.this, part.expression
    if whose(left) == {True} and whose(right) == {False}:
        return Ordered(part, right)  # type: ignore[arg-type]
    if whose(left) == {False} and whose(right) == {True}:
        return Ordered(_TURNED[type(part)](this=right, expression=left), left)
    return None
