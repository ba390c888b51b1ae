"""GROUP BY over a column whose groups nobody listed: found first, privately, and counted with what is left.

For columns with ``groups = "discover"`` in the policy and no domain yet. The batch is planned over a stand-in for what
will be found (one value, and all others together), so that its errors are known before anything is spent; the columns
are found at a share of the budget, and then it is planned again over what was found. Two kinds of charges, each with
the guarantee of its own; the one place where the number of rows of a result depends on the data, by way of the
mechanism (``dpsql.privacy.threshold``).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from dpsql.common.notes import BIAS, Note
from dpsql.errors import IntegrityError, RequestError, SQLError
from dpsql.extensions.discovery.discovery import DiscoveryQuery, Finder, Prospect, about, after, reserved, type_of
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan, make_plan
from dpsql.policy import ColumnPolicy, Policy
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Key, fold
from dpsql.privacy.accountant import Request
from dpsql.release import ReleaseRecord
from dpsql.running.finding_share import SHARE, part_of, waiting
from dpsql.workloads.expr.regions import KeyDomain

_STAND_INS: Mapping[str, Key] = {
    **{"text": "found first", "integer": 0, "decimal": Decimal(0), "boolean": True},
    **{"date": dt.date(2000, 1, 1), "timestamp": dt.datetime(2000, 1, 1)},
    "timestamptz": dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
}


@dataclass(frozen=True)
class Finding:
    """A column that is found before a batch is measured, and with what the batch is measured then."""

    query: DiscoveryQuery
    prospect: Prospect
    rest: Request
    options: PlanOptions
    policy: str  # as it was declared then

    @property
    def note(self) -> Note:
        """What a plan says of it."""
        of = self.prospect
        before = "" if of.aside is None else f", {of.aside[0].guarantee} before all else"
        return Note(
            f"{of.table}.{of.column} is found first, at {of.charge.guarantee} beside the cost above{before}: "
            f"values of more than about {about(of.threshold)} {of.unit}s, which are the rows of the result then; "
            "the rows planned here stand for each of them",
            BIAS,
        )


def plan_with_finding(
    sql: str, policy: Policy, schemas: Schemas, request: Request, finder: Finder, options: PlanOptions
) -> Plan | None:
    """The plan over stand-ins, with the columns to be found in ``finds``; None where no GROUP BY waits for one.

    Raises as ``make_plan`` and ``Finder.prospect``: SQLError, too, where the batch needs the domain of another column.
    """
    state, left = finder.books.state(), part_of(request, 1 - SHARE)
    stood = waiting(policy)
    try:
        first = make_plan(sql, _stood_in(policy, schemas, stood), schemas, state, left, options)
    except SQLError:
        return None
    grouped = {
        (fold(core.queries[0].table), fold(key.column))
        for core, _ in first.cores
        for key in core.keys
        if isinstance(key, KeyDomain)
    }
    columns = [(name, column) for name, column in stood if (fold(name), fold(column.name)) in grouped]
    if not columns:
        return None
    if len(columns) < len(stood):  # the others have no domain once these are found
        first = make_plan(sql, _stood_in(policy, schemas, columns), schemas, state, left, options)
    each = part_of(request, SHARE / len(columns))
    delta = reserved(finder.books)[1].left / (4 * len(columns))
    finds = []
    for name, column in columns:
        groups = None if policy.table(name).unit == "row" else 1
        query = DiscoveryQuery(f"{name}.{column.name}", Request(each.epsilon, None, each.rho), delta, groups)
        finds.append(Finding(query, finder.prospect(query), left, options, finder.declared.to_toml()))
    return replace(first, finds=tuple(finds), notes=(*first.notes, *(find.note for find in finds)))


def _stood_in(policy: Policy, schemas: Schemas, columns: Iterable[tuple[str, ColumnPolicy]]) -> Policy:
    """The policy with a stand-in for what will be found of each column."""
    tables = dict(policy.tables)
    for name, column in columns:
        stand_in = _STAND_INS.get(column_type(type_of(schemas, tables[name], column)).kind)
        if stand_in is not None:
            made = replace(column, values=(stand_in,), other=True, lower=None, upper=None, step=None)
            tables[name] = replace(tables[name], columns={**tables[name].columns, column.name: made})
    return replace(policy, tables=tables)


def find_all(plan: Plan, finder: Finder, label: str, register: Callable[[ReleaseRecord], None]) -> Finding:
    """Find the columns that a plan waits for; the last of them, which has the budget of its numbers.

    Raises IntegrityError for a plan of another policy, BudgetError where the budget holds not all that is to be
    charged, both before any of it, and RequestError where nothing was found of a column: what was charged for
    finding stays charged.
    """
    finds = [find for find in plan.finds if isinstance(find, Finding)]
    if any(find.policy != finder.declared.to_toml() for find in finds):
        raise IntegrityError("the plan was made under another policy; plan again (nothing was charged)")
    if any(finder.earlier(find.query) is None for find in finds):
        state, _, _ = reserved(finder.books)
        for find in finds:
            state.check(find.prospect.charge)
            state = after(state, find.prospect.charge)
        state.within(plan.reads).check(plan.charge)
    for find in finds:
        discovery, record = finder.find(find.query, fresh=False, label=label)
        register(record)
        if not discovery.values:
            raise RequestError(
                f"no value of {find.prospect.table}.{find.prospect.column} has enough {find.prospect.unit}s at this "
                "budget, so there is nothing to group by; the discovery stays charged, the batch was not: ask with more"
            )
    return finds[-1]
