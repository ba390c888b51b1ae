"""How many statements an account may send in a while, over all of its sessions and agents."""

from __future__ import annotations

import time

from dpsql.server.protocol.sqlstate import SessionError


class Rate:
    """So many statements a minute, as many of them at once."""

    def __init__(self, a_minute: int) -> None:
        self._most = float(a_minute)
        self._left = float(a_minute)
        self._at = time.monotonic()

    def take(self) -> None:
        """Count one statement. Raises SessionError where there were too many."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60.0)
        self._at = now
        if self._left < 1.0:
            raise SessionError(f"an account may send {self._most:,.0f} statements a minute; wait a little", "53400")
        self._left -= 1.0


class Rates:
    """The rate of each account. It outlives its sessions: to connect again gives nothing back."""

    def __init__(self, a_minute: int) -> None:
        self._each = a_minute
        self._held: dict[str, Rate] = {}

    def of(self, name: str) -> Rate:
        """The rate of an account that signed in, of which there are as many as the custodian made."""
        return self._held.setdefault(name, Rate(self._each))
