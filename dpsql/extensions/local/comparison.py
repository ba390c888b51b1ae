"""A plan's errors beside those of a local release of the same columns at the same epsilon. Public, and free.

Both protect a unit: the plan against its rows being added or removed, the release against their values being replaced.
The error of a local release depends a little on the data: it lies between what no row decides and what the worst rows
would make of it (``estimators``), for ``expected_rows`` of the policy. It grows with the root of the number of rows and
not with the number of questions; a plan's error is the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import NoReturn

import numpy as np

from dpsql.errors import DataError, InterfaceError, InternalError, PolicyError, SQLError
from dpsql.extensions.local.device import Domain, Response
from dpsql.extensions.local.estimators import Estimator
from dpsql.extensions.local.functions import shape_of
from dpsql.extensions.local.listing import Listed, listed
from dpsql.extensions.local.places import Places, columns_read
from dpsql.extensions.local.released import Released, table_of_rows
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.values import fold
from dpsql.privacy.amounts import show
from dpsql.sql.outer.answers import Understood

MOST_NUMBERS = 20_000


@dataclass(frozen=True)
class LocalComparison:
    """Root mean squared errors over all numbers of a batch: ``matrix`` of the plan, ``least`` to ``most`` of a release.

    The release is of ``columns`` of ``table``, ``combinations`` together, at ``epsilon`` a unit, with ``rows`` rows.
    ``why_not``: why there is no comparison; the figures are 0 then.
    """

    table: str
    columns: tuple[str, ...] = ()
    combinations: int = 0
    rows: int = 0
    epsilon: Fraction = Fraction(0)
    matrix: float = 0.0
    least: float = 0.0
    most: float = 0.0
    why_not: str = ""

    def as_dict(self) -> dict[str, object]:
        """The comparison for programs; ``why_not`` where there is none."""
        if self.why_not:
            return {"why_not": self.why_not}
        return {
            **{"table": self.table, "columns": list(self.columns), "combinations": self.combinations},
            **{"rows": self.rows, "winner": self.winner, "factor": list(self.factor), "even_rows": self.even_rows},
        }

    @property
    def winner(self) -> str:
        """Which has the smaller error whatever the data, "matrix" or "local"; "open" where the data decide."""
        if self.why_not:
            return "open"
        return "matrix" if self.matrix <= self.least else "local" if self.most <= self.matrix else "open"

    @property
    def factor(self) -> tuple[float, float]:
        """Error of the release over error of the plan, least and most."""
        # A plan's error may be as small as floats hold.
        return (self.least / self.matrix, self.most / self.matrix) if self.matrix > 1e-300 else (inf, inf)

    @property
    def even_rows(self) -> int:
        """With at most so many rows the release would have the smaller error whatever the data."""
        times = self.matrix / self.most if self.most else 0.0
        return int(self.rows * Fraction(times) ** 2) if times < inf else 0

    def __str__(self) -> str:
        if self.why_not:
            return f"a local release is not compared: {self.why_not}"
        low, high = self.factor
        what = f"a local release of {', '.join(self.columns)} ({self.combinations:,} combinations) at epsilon "
        what += f"{show(self.epsilon)}, {self.rows:,} rows expected"
        if self.winner == "local":
            smaller = f"{1 / high:.3g} to {1 / low:.3g} times smaller" if low else f"0 to {high:.3g} times as large"
            return f"{what}, wins: its errors are {smaller}, for any questions later"
        even = f"; up to {self.even_rows:,} rows it would win" if self.even_rows else ""
        if self.winner == "matrix":
            return f"{what}, loses: its errors are {_between(low, high)} as large{even}"
        return f"{what}: its errors are {_between(low, high)} as large, by the data"


def _between(low: float, high: float) -> str:
    """A range of factors to three digits."""
    first, last = (f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in (low, high))
    return f"{first} times" if first == last else f"{first} to {last} times"


def compared(
    understood: Understood,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    epsilon: Fraction | None,
    mean_square: Callable[[slice], float],
    numbers: int,
) -> LocalComparison | None:
    """The comparison for a batch; None where the policy allows no local release of its table.

    ``mean_square`` gives the plan's mean squared error of a slice of its numbers.
    """
    queries = understood.queries
    names = {understood.tables[query.table].policy.name for query in queries}
    held = [policy.table(name) for name in sorted(names)]
    if not policy.budget.local_epsilon or not any(table.rows_public for table in held):
        return None
    table = held[0]
    if len(held) > 1:
        return LocalComparison(table.name, why_not="the batch reads several tables")
    if epsilon is None:
        return LocalComparison(table.name, why_not="the request names no epsilon")
    if table.expected_rows is None:
        return LocalComparison(table.name, why_not=f"{table.key('expected_rows')} is not given")
    if numbers > MOST_NUMBERS:
        return LocalComparison(table.name, why_not=f"the batch has more than {MOST_NUMBERS:,} numbers")
    try:
        return _compared(understood, table, schemas, epsilon, mean_square(slice(0, numbers)))
    except (PolicyError, SQLError, DataError, InterfaceError) as error:
        why = str(error)
    except InternalError:
        why = "the batch reads columns of other private tables"
    return LocalComparison(table.name, why_not=why)


def _compared(
    understood: Understood,
    table: TablePolicy,
    schemas: Mapping[str, Mapping[str, str]],
    epsilon: Fraction,
    matrix: float,
) -> LocalComparison:
    rows = table.expected_rows or 0
    shapes = [shape_of(query, understood.tables[query.table]) for query in understood.queries]
    if any(shape.table.source is not None and shape.table.source.distinct for shape in shapes):
        raise SQLError("units are counted, which is no statistical query over rows")
    used = list(dict.fromkeys(name for shape in shapes for name in columns_read(shape)))
    if not used:
        raise SQLError("the batch reads no column")
    types = {fold(name): (name, kind) for name, kind in schemas[table.name].items()}
    domain = Domain.declared(table, used, schemas[table.name])
    units = 1 if table.unit == "row" else table.max_rows_per_unit or 1
    kinds = tuple(types[fold(name)][1] for name in domain.names)
    response = Response.of(domain.size, epsilon / units)
    released = Released(table.name, "compared", domain, kinds, (), response.epsilon, units)
    places = Places(released, table_of_rows(released, np.zeros(0, dtype=np.int64), ()), _no_public_rows)
    least = most = 0.0
    count = 0
    for shape in shapes:
        nothing = listed(shape, places)
        # As if there were that many rows: no row is looked at.
        found = Estimator(shape, Listed(nothing.rows, nothing.domain, np.array([rows])), response)
        for output in range(len(shape.query.outputs)):
            least += float((found.best_stderr(output) ** 2).sum())
            most += float((found.worst_stderr(output) ** 2).sum())
            count += shape.groups
    return LocalComparison(
        table.name,
        domain.names,
        domain.size,
        rows,
        epsilon,
        matrix**0.5,
        (least / count) ** 0.5,
        (most / count) ** 0.5,
    )


def _no_public_rows(name: str, _: Mapping[str, str]) -> NoReturn:
    raise SQLError(f"the batch reads {name}, whose rows a plan does not look at")
