"""What a connection holds: private tables, a policy, a ledger and the releases made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.thread_lock import ThreadLock
from dpsql.driver.dbapi import Exceptions
from dpsql.errors import (
    InterfaceError,
)
from dpsql.measure import Opening
from dpsql.measure.failed_sources import refuse_failed
from dpsql.measure.sources import Holdings
from dpsql.planning.last_plans import LastPlans
from dpsql.planning.plan import Plan
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState
from dpsql.release import ReleaseStore
from dpsql.release.books import Books, Places, budget_of, place_of
from dpsql.release.limits import QUERY_SECONDS, check_seconds
from dpsql.running.found_domains import FoundDomain, FoundDomains

if TYPE_CHECKING:
    from dpsql.replicates import Replicates
    from dpsql.running.answer_free import Earlier
    from dpsql.running.losses import LedgerLosses
    from dpsql.running.run import Batches

T = TypeVar("T")


class _once(cached_property[T]):  # noqa: N801  # a decorator
    """A value that one thread makes, at its first use; others wait for it."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> T: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Self | T:
        """The value, made behind the connection's lock."""
        if instance is None:
            return self
        with instance._state_lock:
            made: T = super().__get__(instance, owner)
        return made


@dataclass(frozen=True)
class CursorDefaults:
    """What ``connect`` says of its cursors: the budget of a batch that names none, and whether errors are shown."""

    budget_per_release: tuple[object, object, object] = (None, None, None)
    errors: bool = False


@guards_calls
class ConnectionState(Exceptions):
    """Tables, policy and books of a connection, and what follows from them: the base of ``Connection``'s parts."""

    def __init__(
        self,
        engine: Opening,
        policy: Policy,
        places: Places,
        *,
        label: str,
        cursors: CursorDefaults = CursorDefaults(),
        query_timeout: float | None = QUERY_SECONDS,
    ) -> None:
        self.ledger_path, self._places = places.ledger, places
        private = policy.budget.private_releases
        self.releases_path = place_of(places.releases, label) if private else places.releases
        self._label = label
        self._store = ReleaseStore(self.releases_path, private=private and bool(label))
        self._budget_per_release = cursors.budget_per_release
        self._cursor_errors = cursors.errors
        self._query_timeout = check_seconds("query_timeout", query_timeout)
        self._lock = ThreadLock()  # of cursors, while one of them executes
        self._state_lock = ThreadLock()  # of a short look at what the connection remembers
        self._closed = False
        self._holdings = Holdings(engine, policy)
        books = (places, self._store, policy.dataset, budget_of(policy), self._holdings.files)
        self._books = Books(*books, label if private else None)
        self._domains = FoundDomains(policy, self._books)
        self._plans = LastPlans()
        self._best: Callable[[], Plan] | None = None  # what makes ``last_plan``
        self._unnamed: dict[str, dict[str, int]] = {}  # what q1, q2, ... are here: releases by name and label
        self._books.warn_of_changes()

    @property
    def policy(self) -> Policy:
        """What is public of the tables by now: the custodian's policy, with the domains that were found (``discover``).

        Another process may find one, so the ledger is looked at each time.
        """
        with self._state_lock:
            held = self._domains.refresh()
            if held is not self._holdings.policy:
                self._holdings.policy = held
                self._past.under(held)
                self._behind.under(held)
            return held

    @_once
    def _past(self) -> Earlier:
        """What earlier releases say; imported where there may be some."""
        return self._earlier()

    @_once
    def _behind(self) -> Earlier:
        """The same for what is behind releases that are shown."""
        return self._earlier()

    def _earlier(self) -> Earlier:
        from dpsql.running.answer_free import Earlier

        return Earlier(self._books, self._holdings.policy, self._holdings.schemas)

    @_once
    def _ledger_losses(self) -> LedgerLosses:
        """What limits cut, as the ledger says; imported with the first plan."""
        from dpsql.running.losses import LedgerLosses

        return LedgerLosses(self._books)

    @_once
    def _batches(self) -> Batches:
        """Batches are run; imported with the first one."""
        from dpsql.running.run import Batches

        return Batches(self._holdings, self._books, self._past)

    @_once
    def _replicates(self) -> Replicates:
        """Errors of queries over releases; imported with the first release that is shown."""
        from dpsql.replicates import Replicates

        return Replicates(self._books, self._store, self._behind)

    @property
    def found_domains(self) -> tuple[FoundDomain, ...]:
        """The domains of ``policy`` that were found and not declared, each with its release and data version."""
        with self._state_lock:
            self._domains.refresh()
            return self._domains.found

    def __repr__(self) -> str:
        return f"<dpsql.Connection to {self._domains.declared.dataset!r}, ledger {str(self.ledger_path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; ledger and releases are files and stay."""
        self._closed = True

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all private tables, held against the policy. Reads no row."""
        self._check_open()
        return self._holdings.schemas()

    @property
    def budget(self) -> BudgetState:
        """Total, spent and remaining budget; ``.accounts`` for the detail, ``.by_label()`` for who spent it.

        ``.charges`` says for what, ``.unreleased`` what was charged and never released.
        """
        self._check_open()
        return self._books.state()

    def _checked_label(self, label: str | None) -> str:
        """The label of a charge; another one than the connection's only where releases are everybody's."""
        if label is not None and label != self._label and self._books.whose is not None:
            raise InterfaceError(
                f"releases are private to their label in this policy, and the connection's is {self._label!r}; connect "
                "with label=... to release under another"
            )
        return self._label if label is None else label

    def _view_names(self) -> tuple[str, ...]:
        """Names of the released views, sorted; from the ledger, as the releases file may be busy or behind."""
        if not self.ledger_path.exists():
            return self._store.names()
        entries = self._books.entries()
        return tuple(sorted({name for entry in entries if entry.released is not None for name in entry.views}))

    def _check_payable(
        self, sql: object, amounts: Sequence[object], label: str, *, plain: bool = True, fresh: bool = False
    ) -> None:
        """Raise, before a batch is planned, what its charge would be refused with (``dpsql.running.payable``).

        If a target error is to give the budget of a batch, the account is compared with the plan alone.
        """
        from dpsql.planning.needed_budget import request_of
        from dpsql.running.payable import PendingBatch, check_payable
        from dpsql.sql.parse.options import budget_of, read_options

        if not isinstance(sql, str):
            return
        epsilon, _, rho = amounts
        named = epsilon is not None or rho is not None or budget_of(read_options(sql)[1]) is not None
        _ = self.policy  # with what was found since
        batch = PendingBatch(sql, request_of(sql, *amounts) if named else None, label, plain, fresh)
        check_payable(batch, self._holdings, self._books, self._past)

    def _check_sources(self) -> None:
        """Raise OperationalError where the last scan of a table failed and its files are as they were then."""
        if self.ledger_path.exists():
            refuse_failed(self._holdings.engine, self._books.ledger(), self._holdings.sources.values())

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed; connect again")
