"""The methods of a connection that advise: which way of answering to take, and batches of expected workloads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from dpsql.common.arguments import either, maybe, taking, text, texts, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection import Connection
from dpsql.errors import BudgetError, DataError, SQLError
from dpsql.planning.options import PlanKeywords
from dpsql.release import Result
from dpsql.release.release import Release


@guards_calls
class Advising(Connection):
    """What a ``Connection`` says before anything is spent; all of it is free but ``release_workload``."""

    @taking(objective=maybe(text()), rows_per_unit=maybe(whole(1, 2**63 - 1)))
    def prospects(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        objective: str | None = None,
        rows_per_unit: int | None = None,
    ) -> Result:
        """Which way of answering a batch is expected to be nearest, before anything is spent: a row a way. Free.

        Unbiased and feasible estimates of its plan, rounds that adapt (``method="adaptive"``) and groups that pass a
        threshold (``method="sparse"``) where these are for such a batch: the mean error on public stand-ins of the
        policy's ``expected_rows``, and over that of unbiased estimates (``dpsql.extensions.advice.prospects``). Reads
        no row. Raises as ``plan``, and DataError where there is nothing to compare.
        """
        from dpsql.extensions.advice.prospects import prospects, prospects_of_sparse, table_of

        asked = partial(self.plan, sql, epsilon, delta, rho, objective=objective, rows_per_unit=rows_per_unit)
        ways: dict[str, Any] = {}  # a method that is named plans in its own kind
        for method in ("adaptive", "sparse"):
            try:
                ways[method] = asked(method=method)
            except (DataError, SQLError, BudgetError):
                ways[method] = None
        adaptive, sparse = ways["adaptive"], ways["sparse"]
        try:
            plan = asked(earlier=False)
        except SQLError:
            if sparse is None:
                raise
            return table_of(prospects_of_sparse(sparse))
        return table_of(prospects(plan, adaptive, sparse))

    @taking(declared=either(text(), texts()), table=maybe(text()))
    def workload(self, declared: str | Sequence[str], table: str | None = None) -> str:
        """The SQL batch of an expected workload, such as "ranges(age)" or "marginals(2, sex, state)". Free.

        To be planned, priced (``budget_for``) and run like any batch; ``dpsql.extensions.advice.expected_workload`` has
        the words. ``table``: the private table, needed where the policy has several. Raises DataError and PolicyError.
        """
        from dpsql.extensions.advice.expected_workload import workload_sql

        return workload_sql(self.policy, declared, table)

    @taking(declared=either(text(), texts()), table=maybe(text()), label=maybe(text()))
    def release_workload(
        self,
        declared: str | Sequence[str],
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        table: str | None = None,
        label: str | None = None,
        **options: Unpack[PlanKeywords],
    ) -> Release:
        """Measure an expected workload once (``workload``, ``run``); questions within it are free from then on.

        ``answers_others`` says whether that holds for all of them, or, for very large workloads, for its own
        statements alone.
        """
        return self.run(self.workload(declared, table), epsilon, delta, rho, label=label, **options)
