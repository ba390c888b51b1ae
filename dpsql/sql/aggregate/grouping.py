"""GROUP BY: the keys of a SELECT, and the grouping sets over them.

GROUPING SETS, ROLLUP and CUBE are the papers' data cubes: a query for each set of keys. dp_marginals(k, a, b, ...)
stands for all sets of 1 to k of its columns. dp_ranges(c) and dp_prefixes(c) are keys whose groups are
all ranges of the column's declared values, or all that begin at the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

from sqlglot import exp

from dpsql.errors import listed
from dpsql.policy.values import fold
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.range_keys import NAMES, range_key
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.scope import Scope
from dpsql.workload.expr.batch import Key

MAX_SETS = 2**15

Resolved = Callable[[exp.Expression], exp.Expression]

_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Grouping:
    """``keys`` by canonical text, in order of appearance, and the grouping sets as numbers of keys."""

    keys: dict[str, Key]
    sets: tuple[tuple[int, ...], ...]

    @property
    def simple(self) -> bool:
        """Whether all keys are in the one grouping set."""
        return self.sets == (tuple(range(len(self.keys))),)


class _Keys:
    """Collects keys as GROUP BY names them."""

    def __init__(
        self, select: exp.Select, scope: Scope, canonical: Callable[[exp.Expression], str], resolved: Resolved
    ) -> None:
        self.select = select
        self.scope = scope
        self.canonical = canonical
        self.resolved = resolved
        self.keys: dict[str, Key] = {}

    def number(self, node: exp.Expression) -> int:
        """The number of the key that an item of GROUP BY names."""
        node = self.resolved(node)
        text = self.canonical(node)
        if text not in self.keys:
            name = _function(node)
            self.keys[text] = range_key(node, name, self.scope) if name in NAMES else key_of(node, self.scope)
        return list(self.keys).index(text)

    def sets(self, item: exp.Expression) -> list[tuple[int, ...]]:
        """The grouping sets that one item of GROUP BY stands for."""
        if isinstance(item, exp.Rollup):
            parts = [self.one(part) for part in item.expressions]
            return [sum(parts[:stop], ()) for stop in range(len(parts), -1, -1)]
        if isinstance(item, exp.Cube):
            parts = [self.one(part) for part in item.expressions]
            if 2 ** len(parts) > MAX_SETS:
                held = list(self.keys.values())
                raise refuse(
                    f"CUBE of {len(parts)} makes 2^{len(parts)} groupings, at most {MAX_SETS:,} are released: cube at "
                    f"most {MAX_SETS.bit_length() - 1}, or write GROUP BY dp_marginals(2, ...) for pairs; "
                    f"the most groups have {finest([held[number] for number in sorted(set(sum(parts, ())))])}",
                    item,
                    code="too-many-groups",
                )
            sizes = range(len(parts), -1, -1)
            return [sum(chosen, ()) for size in sizes for chosen in combinations(parts, size)]
        if isinstance(item, exp.GroupingSets):
            return [found for part in item.expressions for found in self.sets(part)]
        if _function(item) == "dp_marginals":
            return self.marginals(item)
        return [self.one(item)]

    def one(self, item: exp.Expression) -> tuple[int, ...]:
        """The keys of one element of a set: an expression, or several in parentheses."""
        if isinstance(item, exp.Tuple):
            return tuple(self.number(part) for part in item.expressions)
        return (self.number(item),)

    def marginals(self, item: exp.Expression) -> list[tuple[int, ...]]:
        order, *columns = item.expressions
        try:
            most = int(order.this) if isinstance(order, exp.Literal) and not order.is_string else 0
        except ValueError:
            most = 0
        if not 1 <= most <= len(columns):
            raise refuse(
                "dp_marginals takes how many columns to combine, from 1 to their number, and then the columns: "
                "dp_marginals(2, a, b, c)",
                item,
            )
        count = sum(comb(len(columns), size) for size in range(1, most + 1))
        if count > MAX_SETS:
            fits = [k for k in range(1, most) if sum(comb(len(columns), size) for size in range(1, k + 1)) <= MAX_SETS]
            fewer = f"combine at most {fits[-1]} of them, or name" if fits else "name"
            keys = [list(self.keys.values())[number] for number in sorted({self.number(c) for c in columns[:MAX_SETS]})]
            raise refuse(
                f"dp_marginals({most}) of {len(columns)} columns makes {count:,} groupings, at most {MAX_SETS:,} are "
                f"released: {fewer} fewer columns; the most groups have {finest(keys)}",
                item,
                code="too-many-groups",
            )
        numbers = [self.number(column) for column in columns]
        return [chosen for size in range(1, most + 1) for chosen in combinations(numbers, size)]


def group(
    select: exp.Select,
    scope: Scope,
    canonical: Callable[[exp.Expression], str],
    resolved: Resolved,
    every: Sequence[exp.Expression],
) -> Grouping:
    """The keys and grouping sets of a SELECT.

    ``canonical`` writes an expression so that equal ones are equal texts; ``resolved`` turns an item of GROUP BY
    (a position, an alias) into the expression that it stands for; ``every`` are the items that GROUP BY ALL means.
    Raises SQLError past 32,768 sets.
    """
    clause = select.args.get("group")
    if clause is None:
        return Grouping({}, ((),))
    keys = _Keys(select, scope, canonical, resolved)
    items: list[exp.Expression] = list(clause.expressions)
    # Some versions of the parser hold ROLLUP and its like in arguments of GROUP BY, some among its items.
    for argument in ("rollup", "cube", "grouping_sets"):
        items.extend(part for part in clause.args.get(argument) or [] if isinstance(part, _SETS))
    if clause.args.get("totals"):
        raise refuse("GROUP BY ... WITH TOTALS is not DuckDB's; write GROUP BY ROLLUP (...)", select)
    if clause.args.get("all"):
        items.extend(every)
    parts = [keys.sets(item) for item in items]
    count = 1
    for part in parts:
        count *= len(part)
        if count > MAX_SETS:
            raise refuse(
                f"GROUP BY makes more than {MAX_SETS:,} groupings; combine fewer columns; the most groups have "
                f"{finest(list(keys.keys.values()))}",
                select,
                code="too-many-groups",
            )
    sets = [tuple(sorted(set(sum(chosen, ())))) for chosen in product(*parts)]
    return Grouping(keys.keys, tuple(sets))


def finest(keys: Sequence[Key]) -> str:
    """The keys with the most groups, for messages: names and sizes, at most six."""
    ordered = sorted(keys, key=len, reverse=True)
    named = ", ".join(f"{_cut(key.name)} ({len(key):,})" for key in ordered[:6])
    return named + (" ..." if len(ordered) > 6 else "")


def to_drop(keys: Sequence[Key], most: int) -> str:
    """The fewest keys without which at most ``most`` groups are left, the most groups first, for messages."""
    ordered = sorted(keys, key=len, reverse=True)
    left = prod(len(key) for key in ordered)
    named: list[str] = []
    for key in ordered:
        left //= len(key)
        named.append(_cut(key.name))
        if left <= most:
            break
    return listed(named)


def _cut(name: str) -> str:
    return name if len(name) <= 30 else name[:27] + "..."


def _function(node: exp.Expression) -> str:
    """The folded name of a function that the parser does not know; empty for anything else."""
    return fold(str(node.this)) if isinstance(node, exp.Anonymous) else ""
