"""What a cursor asks of its connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dpsql.common.thread_lock import ThreadLock
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.policy import Policy
from dpsql.release import Result
from dpsql.release.books import Books
from dpsql.release.cut import Losses
from dpsql.release.release import Release
from dpsql.running.answer_free import Earlier
from dpsql.running.run import Batches

Amounts = tuple[object, object, object]
"""Epsilon, delta, rho."""


class Session(Protocol):
    """The part of a ``Connection`` that its cursors use."""

    releases_path: Path
    _label: str
    _lock: ThreadLock
    _books: Books
    _budget_per_release: Amounts
    _query_timeout: float | None

    @property
    def _past(self) -> Earlier:
        """What earlier releases say."""
        ...

    @property
    def _batches(self) -> Batches:
        """Batches are run."""
        ...

    @property
    def policy(self) -> Policy:
        """What is public of the tables by now."""
        ...

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all private tables, held against the policy."""
        ...

    def plan(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        options: PlanOptions | None = None,
    ) -> Plan:
        """What a batch would release."""
        ...

    def run(self, batch: Plan, *, label: str | None = None) -> Release:
        """Measure a plan and register its views."""
        ...

    def sql(self, query: str, parameters: Sequence[object] | Mapping[str, object] | None = None) -> Result:
        """Run one SELECT over the releases."""
        ...

    def errors_beside(
        self, query: str, answer: Result, *, alpha: float = 0.05, population: str | None = None
    ) -> tuple[Result, str]:
        """The answer of a query over the releases with errors, or without and why."""
        ...

    def _view_names(self) -> tuple[str, ...]: ...

    def _check_payable(self, sql: object, amounts: Sequence[object], label: str) -> None: ...

    def _losses_read(self, query: str) -> Losses: ...

    def _telling_losses(self, release: Release, sql: str) -> Release: ...

    def _check_open(self) -> None: ...
