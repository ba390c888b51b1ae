"""Where IN is NULL and not FALSE, as counts of rows that a scan looks up.

``(x, y) IN (SELECT a, b FROM d)`` is TRUE where a row of d equals (x, y). Else it is NULL where a row would equal it
but for NULLs: where in some columns x or a is NULL, and in all others both are equal. So for each set of columns that
may be left out a lookup finds the rows that are equal in the rest, and counts them by which of those columns are NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

from sqlglot import exp

from dpsql.sql.resolve.relations import whole
from dpsql.sql.resolve.ties import Ordered, Tied
from dpsql.sql.values.scope import OF_IN

Pairs = Sequence[tuple[exp.Expression, exp.Expression]]
"""A column of the subquery's rows and one of the row outside, which IN or WHERE compares."""


@dataclass(frozen=True)
class Lookup:
    """The rows that equal the row outside in ``keys`` and are ``ordered``; the columns ``without`` are left out."""

    keys: Pairs
    ordered: Sequence[Ordered]
    without: Pairs

    @property
    def kinds(self) -> list[exp.Expression]:
        """Of each set of the columns left out the rows that are NULL there: how many, or the least or greatest."""
        return [self._of(nulls) for nulls in _subsets(self.without)]

    def _of(self, nulls: Pairs) -> exp.Expression:
        where = whole(_is_null(mine) for mine, _ in nulls)
        found = self.ordered[-1].extreme if self.ordered else exp.Count(this=exp.Star())
        return found if where is None else exp.Filter(this=found, expression=exp.Where(this=where))

    def finds(self, kinds: Sequence[exp.Expression]) -> exp.Expression:
        """Whether a row is found, by columns of ``kinds``: the row outside is NULL where the row found is not."""
        cases: list[exp.Expr] = []
        for nulls, kind in zip(_subsets(self.without), kinds, strict=True):
            test = self.ordered[-1].holds(kind) if self.ordered else exp.GT(this=kind, expression=exp.Literal.number(0))
            others = [_is_null(theirs) for mine, theirs in self.without if (mine, theirs) not in nulls]
            cases.append(reduce(lambda left, right: exp.And(this=left, expression=right), [*others, test]))
        return _either(cases)

    @property
    def outside(self) -> exp.Expression:
        """Whether the row outside is NULL in all columns that are left out, so that any row is found."""
        return exp.Paren(this=whole(_is_null(theirs) for _, theirs in self.without))


def lookups(compared: Pairs, tied: Tied, most: int) -> list[Lookup]:
    """The lookups of IN, which compares some columns where WHERE ties others; first those that leave out few.

    At most ``most`` columns find the rows that are equal in them; others are at least and at most the row's.
    """
    made = []
    for without in _subsets(compared):
        rest = [*(pair for pair in compared if pair not in without), *tied.pairs]
        keys = [pair for pair in rest if isinstance(pair[1], exp.Column)][:most]
        loose = [pair for pair in rest if pair not in keys]
        equal = [
            Ordered(kind(this=mine, expression=theirs), theirs) for mine, theirs in loose for kind in (exp.GTE, exp.LTE)
        ]
        made.append(Lookup(keys, [*tied.ordered, *equal], without))
    return made[1:]


def or_null(condition: exp.Expression, unknown: Sequence[exp.Expression]) -> exp.Expression:
    """TRUE where ``condition`` is, else NULL where something of ``unknown`` is TRUE, else FALSE."""
    some = exp.Is(this=_either(unknown), expression=exp.Boolean(this=True))
    return exp.Paren(this=exp.Or(this=condition, expression=exp.Paren(this=exp.And(this=exp.Null(), expression=some))))


def counts_as_false(node: exp.In) -> bool:
    """Whether NULL does where ``node`` stands what FALSE does: as a condition that rows or branches must hold."""
    part: exp.Expr = node
    while isinstance(part.parent, exp.Paren | exp.And | exp.Or):
        part = part.parent
    over = part.parent
    if isinstance(over, exp.If):  # of CASE with an operand it is a value
        return part.arg_key == "this" and not (isinstance(over.parent, exp.Case) and over.parent.this is not None)
    if isinstance(over, exp.Coalesce):
        return over.expressions == [exp.Boolean(this=False)]
    return isinstance(over, exp.Where | exp.CountIf)


def _is_null(node: exp.Expression) -> exp.Expression:
    out = exp.Is(this=node.copy(), expression=exp.Null())
    out.meta[OF_IN] = True
    return out


def _either(parts: Sequence[exp.Expr]) -> exp.Expression:
    return exp.Paren(this=reduce(lambda left, right: exp.Or(this=left, expression=right), parts))


def _subsets(pairs: Pairs) -> Iterator[Pairs]:
    """All subsets, the smaller ones first."""
    return (subset for size in range(len(pairs) + 1) for subset in combinations(pairs, size))
