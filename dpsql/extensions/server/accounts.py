"""Who may sign in: analysts as the ledger knows them, who prove it by a file beside it.

The ledger says what an analyst may spend, the file how they prove who they are.

The file holds verifiers of passwords and hashes of tokens; neither is ever kept itself. A password signs in to
PostgreSQL's protocol, a token (256 random bits, so that a plain SHA-256 of it tells nothing) to the tools of agents.
The file has mode 0600 and is replaced in one step.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

from dpsql.errors import DataError, IntegrityError, OperationalError, ProgrammingError, nearest
from dpsql.extensions.server.protocol.scram import Verifier
from dpsql.extensions.server.remembered import Remembered
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.privacy.accountant import Budget, BudgetState
from dpsql.privacy.amounts import Number, exact
from dpsql.privacy.analysts import Analyst
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.requests import BatchRequest
from dpsql.release.books import budget_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")
_LEAST = 8  # characters of a password


@dataclass(frozen=True)
class Wish:
    """What a custodian gives an analyst; None leaves it as it is, or at the policy's own for a new one."""

    epsilon: Number | None = None
    pure_epsilon: Number | None = None
    rho: Number | None = None
    local_epsilon: Number | None = None
    per_release: Number | None = None
    tables: tuple[str, ...] | None = None
    expires: str | None = None


class Accounts:
    """The analysts of a policy. ``path``: the file of verifiers, beside the ledger by default."""

    def __init__(self, ledger: Ledger, policy: Policy, path: Path | None = None) -> None:
        self._ledger = ledger
        self._policy = policy
        self._proofs = ProofsFile(ledger.path.with_suffix(".analysts") if path is None else path)
        self._analysts = Remembered(ledger.path, ledger.analysts)

    @classmethod
    def of(cls, policy: Policy, ledger: Path, anchor: Path | None, path: Path | None = None) -> Accounts:
        """Those of the ledger at ``ledger``, which is made where there is none. Raises LedgerError."""
        held = Ledger.open_or_create(ledger, policy.dataset, budget_of(policy), anchor=anchor)
        return cls(held, policy, path)

    # -- for the server ------------------------------------------------------------------------

    def verifier(self, name: str) -> Verifier | None:
        """The verifier of an analyst who may sign in now; None for any other name."""
        held = self._proofs.read().get(name) if self._may(name) else None
        return None if held is None else held.password

    def owner(self, token: str) -> str | None:
        """Whose token it is, of those who may sign in now; None for any other text."""
        wanted = hashed(token)
        found = next((name for name, held in self._proofs.read().items() if wanted in held.tokens), None)
        return found if found is not None and self._may(found) else None

    def state(self, name: str) -> BudgetState | None:
        """What an analyst's budget holds and what is spent of it; None for nobody's name."""
        analyst = self.analyst(name)
        return None if analyst is None else self._ledger.analyst_state(analyst)

    def check(self) -> None:
        """Raise ``dpsql.Error`` where the ledger or the file of proofs cannot be read."""
        self._ledger.analysts()
        self._proofs.read()

    def analyst(self, name: str) -> Analyst | None:
        """The analyst of that name."""
        return self._analysts.value().get(name)

    def requests(self, name: str) -> list[BatchRequest]:
        """What an analyst asked that needs or needed the custodian's approval, oldest first."""
        return [one for one in self._ledger.requests() if one.label == name]

    # -- for the custodian ---------------------------------------------------------------------

    def listed(self) -> list[tuple[Analyst, BudgetState]]:
        """Analysts who were not removed, by name, and what their budgets hold."""
        found = sorted(self._ledger.analysts().items())
        return [(analyst, self._ledger.analyst_state(analyst)) for _, analyst in found if not analyst.removed]

    def add(self, name: str, wish: Wish, password: str | None = None) -> tuple[Analyst, str]:
        """A new analyst, and the password: the one that is given, or one that is made here.

        Raises IntegrityError where there is one of that name, PolicyError and DataError for what cannot be given.
        """
        if not _NAME.fullmatch(name):
            raise DataError(f"the name {name[:70]!r} is none for an analyst; use up to 63 letters, digits and _ . @ -")

        def change(analysts: Mapping[str, Analyst]) -> Analyst:
            if name in analysts and not analysts[name].removed:
                raise IntegrityError(
                    f"there is an analyst {name} already; change what they have with 'dpsql analyst set'"
                )
            return Analyst(name, self._budget(wish, None), self._tables(wish.tables), _expiry(wish.expires))

        secret = _checked(password)
        self._proofs.read()  # nobody is added whose password could not be written beside the others
        analyst = self._ledger.declare_analyst(change)
        self._keep(name, Proofs(Verifier.of(secret)))
        return analyst, secret

    def set(self, name: str, wish: Wish, password: str | None = None, *, suspended: bool | None = None) -> Analyst:
        """Change what an analyst has: what the wish names, the password, whether they are suspended."""
        secret = None if password is None else _checked(password)

        def change(analysts: Mapping[str, Analyst]) -> Analyst:
            found = _named(analysts, name)
            return replace(
                found,
                budget=self._budget(wish, found.budget),
                tables=found.tables if wish.tables is None else self._tables(wish.tables),
                expires=found.expires if wish.expires is None else _expiry(wish.expires),
                suspended=found.suspended if suspended is None else suspended,
            )

        analyst = self._ledger.declare_analyst(change)
        if secret is not None:
            held = self._proofs.read().get(name)
            self._keep(name, Proofs(Verifier.of(secret), () if held is None else held.tokens))
        return analyst

    def token(self, name: str) -> str:
        """A new token of an analyst's, beside those that they have; it is kept as a hash alone."""
        held = self._proven(name)
        token = new_token()
        self._keep(name, replace(held, tokens=(*held.tokens, hashed(token))))
        return token

    def revoke(self, name: str) -> int:
        """Take all tokens of an analyst's back; how many there were."""
        held = self._proven(name)
        self._keep(name, replace(held, tokens=()))
        return len(held.tokens)

    def remove(self, name: str) -> None:
        """Let an analyst go. What was spent stays spent, and what was released stays."""
        self._ledger.declare_analyst(lambda analysts: replace(_named(analysts, name), removed=True))
        self._keep(name, None)

    # -- inside --------------------------------------------------------------------------------

    def _may(self, name: str) -> bool:
        analyst = self.analyst(name)
        return analyst is not None and not analyst.refusal()

    def _proven(self, name: str) -> Proofs:
        _named(self._ledger.analysts(), name)
        held = self._proofs.read().get(name)
        if held is None:
            raise ProgrammingError(f"{name} has no password; make one with 'dpsql analyst set {name} POLICY'")
        return held

    def _keep(self, name: str, proofs: Proofs | None) -> None:
        others = {other: held for other, held in self._proofs.read().items() if other != name}
        self._proofs.write(others if proofs is None else {**others, name: proofs})

    def _budget(self, wish: Wish, before: Budget | None) -> Budget:
        """An analyst's budget: of the policy's kind, at its delta, no larger than the policy's in any account."""
        whole = budget_of(self._policy)
        epsilon = wish.epsilon if wish.epsilon is not None else None if before is None else before.epsilon
        rho = wish.rho if wish.rho is not None else None if before is None else before.rho
        pure = wish.pure_epsilon
        if whole.rho is not None and wish.epsilon is not None:
            raise DataError("the policy's budget is in rho; give --rho")
        if whole.rho is None and wish.rho is not None:
            raise DataError("the policy's budget is in epsilon; give --epsilon")
        if epsilon is None and rho is None and wish.local_epsilon is None:
            raise DataError("an analyst needs a budget; give --epsilon E (--rho R where the policy has rho)")
        if whole.delta is None:
            pure = None
        elif pure is None and epsilon is not None and whole.epsilon:
            kept = before is not None and wish.epsilon is None and before.pure_epsilon is not None
            # The pure part is as large a part of it as of the policy's budget.
            share = exact("epsilon", epsilon) * whole.pure / whole.epsilon
            pure = before.pure_epsilon if kept and before is not None else share or None
        caps: dict[str, Any] = {
            "max_rho_per_release" if whole.rho is not None else "max_epsilon_per_release": wish.per_release
        }
        if wish.per_release is None and before is not None:
            caps = {"max_rho_per_release": before.max_rho, "max_epsilon_per_release": before.max_epsilon}
        local = wish.local_epsilon if wish.local_epsilon is not None else before.local_epsilon if before else None
        delta = whole.gaussian_delta if epsilon is not None else None
        found = Budget.of(epsilon, delta, pure, rho, local, **caps)
        for account, units in found.totals.items():
            if units > whole.totals.get(account, 0):
                raise DataError(
                    f"the {account} account of an analyst would be larger than the policy's ({whole}); give less"
                )
        return found

    def _tables(self, names: Iterable[str] | None) -> tuple[str, ...] | None:
        """Names of tables as the policy writes them; none given, or ``*``, for all."""
        given = None if names is None else [name for name in names if name]
        if given is None or given == ["*"]:
            return None
        if not given:
            raise DataError("no table is named; name some, such as visits, or * for all")
        known = {fold(name): name for name in self._policy.tables}
        for name in given:
            if fold(name) not in known:
                raise ProgrammingError(f"the policy has no table {name[:60]}; {nearest(name, self._policy.tables)}")
        return tuple(known[fold(name)] for name in given)


def _named(analysts: Mapping[str, Analyst], name: str) -> Analyst:
    found = analysts.get(name)
    if found is None or found.removed:
        names = [other for other, analyst in analysts.items() if not analyst.removed]
        raise ProgrammingError(f"there is no analyst {name[:70]}; {nearest(name, names)}")
    return found


def _checked(password: str | None) -> str:
    """A password that may be used, as it was given, or a new one of 120 bits."""
    if password is None:
        return base64.urlsafe_b64encode(os.urandom(15)).decode()
    if len(password) < _LEAST or not (password.isascii() and password.isprintable()):
        raise DataError(f"a password has at least {_LEAST} characters, all of them printable ASCII; choose another")
    return password


def _expiry(text: str | None) -> datetime | None:
    """The moment, UTC, at which an account ends: that of a date is its beginning; ``never`` for none."""
    if text is None or text == "never":
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None:
        raise DataError(f"{text[:40]!r} is no date; write one such as 2027-01-01, or never")
    if isinstance(moment, date) and moment.tzinfo is None:
        moment = datetime.combine(moment.date(), moment.time() or time.min, UTC)
    return moment.astimezone(UTC)


@dataclass(frozen=True)
class Proofs:
    """What is kept of one analyst's password and tokens."""

    password: Verifier
    tokens: tuple[str, ...] = ()
    """SHA-256 of each, in hexadecimal digits."""


class ProofsFile:
    """The file at ``path``, which need not be there. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int], dict[str, Proofs]] | None = None

    def read(self) -> dict[str, Proofs]:
        """By name, as the file is now. Raises OperationalError."""
        with self._lock:
            failure = ""
            try:
                state = os.stat(self.path)
            except FileNotFoundError:
                return {}
            except OSError as error:
                failure = error.strerror or "unknown"
            if failure:
                raise self._error(f"cannot be reached ({failure})")
            mark = (state.st_ino, state.st_mtime_ns)
            if self._read is None or self._read[0] != mark:
                self._read = mark, _proofs(self.path)
            return self._read[1]

    def write(self, proofs: Mapping[str, Proofs]) -> None:
        """Replace the file. Raises OperationalError."""
        held = {name: {"password": str(one.password), "tokens": one.tokens} for name, one in sorted(proofs.items())}
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        failure = ""
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(json.dumps(held, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
        except OSError as error:
            failure = error.strerror or "unwritable"
        if failure:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise self._error(f"cannot be written ({failure})")

    def _error(self, text: str) -> OperationalError:
        return OperationalError(
            f"the passwords' file {str(self.path)!r} {text}; give this user access to its directory, or name another "
            "file with --passwords"
        )


def new_token() -> str:
    """A token, to be shown once."""
    return "dpsql_" + base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")


def hashed(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def _proofs(path: Path) -> dict[str, Proofs]:
    failure = ""
    try:
        return {str(name): _one(held) for name, held in json.loads(path.read_text(encoding="utf-8")).items()}
    except OSError as error:
        failure = error.strerror or "unreadable"
    except (ValueError, AttributeError, TypeError, LookupError, DataError):
        failure = "it is no file of passwords"
    raise OperationalError(f"the passwords' file {str(path)!r}: {failure}; set the passwords again")


def _one(stored: Any) -> Proofs:
    """Of one analyst; earlier versions wrote the password's verifier alone."""
    if isinstance(stored, str):
        return Proofs(Verifier.read(stored))
    return Proofs(Verifier.read(stored["password"]), tuple(str(token) for token in stored["tokens"]))
