"""What one client may take, and an account over all of its sessions and agents: sizes, seconds, numbers, all public."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from dpsql.errors import DataError
from dpsql.extensions.server.protocol.sqlstate import SessionError

BEFORE_SIGN_IN = 10_000
"""Bytes of a message from a client that has not signed in."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server; seconds unless they say otherwise.

    ``connections`` at once, ``per_account`` of one account; ``statement`` bytes of one message; ``statements`` that
    an account may send a minute; ``sign_in`` until the password is there; ``idle`` between two messages; ``stalled``
    within one message, or until a client takes what it was sent; ``query`` of a query over the releases; ``prepared``
    statements and portals that a session may keep; ``portal_values`` that all open portals of an account may hold
    before it opens another; ``readers``: threads for what is free.
    """

    connections: int = 200
    per_account: int = 50
    statement: int = 1_000_000
    statements: int = 6_000
    sign_in: float = 30.0
    idle: float = 3600.0
    stalled: float = 60.0
    query: float = 60.0
    prepared: int = 1_000
    portal_values: int = 5_000_000
    readers: int = 4

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                raise DataError(f"the limit {limit.name} is {value!r}; give a positive number")


class Allowance:
    """So many statements a minute, as many of them at once, and so many values in open portals."""

    def __init__(self, a_minute: int, values: int = 1_000_000) -> None:
        self._most = float(a_minute)
        self._left = float(a_minute)
        self._at = time.monotonic()
        self._values = values
        self._by_session: dict[object, int] = {}

    def take(self) -> None:
        """Count one statement. Raises SessionError where there were too many."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60.0)
        self._at = now
        if self._left < 1.0:
            raise SessionError(f"an account may send {self._most:,.0f} statements a minute; wait a little", "53400")
        self._left -= 1.0

    def keep(self, session: object, values: int) -> None:
        """Note how many values the portals of a session hold."""
        self._by_session[session] = values

    def check_room(self) -> None:
        """Raise SessionError where the portals of the account hold too much for another."""
        if sum(self._by_session.values()) > self._values:
            raise SessionError(
                f"open portals of this account hold more than {self._values:,} values; close some, or read their rows",
                "53400",
            )

    def leave(self, session: object) -> None:
        """Forget a session that has ended, and what it held."""
        self._by_session.pop(session, None)


class Allowances:
    """The allowance of each account. It outlives its sessions: to connect again gives nothing back."""

    def __init__(self, a_minute: int, values: int) -> None:
        self._each = (a_minute, values)
        self._held: dict[str, Allowance] = {}

    def of(self, name: str) -> Allowance:
        """That of an account that signed in, of which there are as many as the custodian made."""
        return self._held.setdefault(name, Allowance(*self._each))
