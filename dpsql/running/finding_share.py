"""The columns whose groups are found before a batch is measured, and the share of its budget that finding takes.

For columns with ``groups = "discover"`` in the policy and no domain yet.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from dpsql.policy import ColumnPolicy, Policy
from dpsql.privacy.accountant import Request

SHARE = Fraction(3, 10)
"""Of the budget, for finding; the rest is for the numbers."""


def waiting(policy: Policy) -> list[tuple[str, ColumnPolicy]]:
    """The columns, by table, whose groups are to be found and are not yet."""
    return [
        (held.name, column)
        for held in policy.tables.values()
        for column in held.columns.values()
        if column.groups == "discover" and column.values is None
    ]


def part_of(request: Request, share: Fraction) -> Request:
    """A share of a budget, at the delta of all of it."""
    epsilon, rho = (None if whole is None else whole * share for whole in (request.epsilon, request.rho))
    return replace(request, epsilon=epsilon, rho=rho)
