"""What one client may take: sizes, seconds and numbers, all public."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dpsql.errors import DataError

BEFORE_SIGN_IN = 10_000
"""Bytes of a message from a client that has not signed in."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server; seconds unless they say otherwise.

    ``connections`` at once, ``per_account`` of one account; ``statement`` bytes of one message; ``statements`` that
    an account may send a minute; ``sign_in`` until the password is there; ``idle`` between two messages; ``stalled``
    within one message, or until a client takes what it was sent; ``query`` of a query over the releases; ``prepared``
    statements and portals that a session may keep; ``kept`` values that all open portals of an account may hold
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
    kept: int = 5_000_000
    readers: int = 4

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
                raise DataError(f"the limit {limit.name} is {value!r}; give a positive number")
