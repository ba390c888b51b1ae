"""How many statements a session may send in a while."""

from __future__ import annotations

import asyncio

from dpsql.server.protocol.sqlstate import SessionError


class Rate:
    """How many statements a session may send: so many a minute, as many of them at once."""

    def __init__(self, a_minute: int) -> None:
        self._most = float(a_minute)
        self._left = float(a_minute)
        self._at = asyncio.get_running_loop().time()

    def take(self) -> None:
        """Count one statement. Raises SessionError where there were too many."""
        now = asyncio.get_running_loop().time()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60.0)
        self._at = now
        if self._left < 1.0:
            raise SessionError(f"a session may send {self._most:,.0f} statements a minute; wait a little", "53400")
        self._left -= 1.0
