"""Waits after wrong passwords: for whoever gives them, and no longer than a bound for anybody else.

Wrong passwords are counted by account and by address. The larger of the two counts sets the wait: ``first`` seconds
after one wrong password, twice as long after each further one, never more than ``LONGEST``. Until it is over, the wrong
password gets no answer, and no other one for the same account from the same address is checked: such tries are made one
after the other, whether or not their clients stay for the answer.

- A right password clears the count of its own account. The count of an address falls with time alone, by one a
  minute: nobody shortens the waits of their address by signing in themselves.
- A right password waits only for tries of its own account from its own address. So no attack delays whoever signs in
  from elsewhere, or under another name.
- The newest try has the next turn, and a try without a turn in ``LONGEST`` seconds is told to come back. So tries that
  were sent before cannot delay a right password longer. (Whoever keeps sending new ones for an account from the very
  address of its owner can still take the turns: nothing distinguishes the two before a password is checked.)
- Names that no account has are counted like others, so that waits do not tell which accounts there are.
- Many names or addresses cannot make the server forget a large count: the smallest are forgotten first.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import ipaddress
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from dpsql.extensions.server.protocol.scram import SignInError
from dpsql.extensions.server.protocol.sqlstate import SessionError

LONGEST = 8.0
"""Seconds."""
BUSY = "others try to sign in to this account from this address; come back in a few seconds"
_FALL = 60.0  # seconds in which a count falls by one
_MOST = 20_000  # counts in memory
_NAME = 64  # characters; the name of an account is shorter

Check: TypeAlias = Callable[[], bytes]
"""What the server answers to a proof of the password. Raises SignInError for a wrong one."""


@dataclass
class _Line:
    """The tries of one account from one address that wait for their turn; ``opens``: when the next one has it."""

    opens: float = 0.0
    waiting: list[tuple[asyncio.Future[bytes | None], Check]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


@dataclass
class Waits:
    """The counts and the lines of a server, for one event loop, by whose clock they go."""

    first: float = 0.5
    _counts: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """A count and the time at which it was that, by ("account", name) or ("address", network)."""
    _lines: dict[tuple[str, str], _Line] = field(default_factory=dict)

    async def check_in_turn(self, account: str, peer: str, check: Check) -> bytes | None:
        """What ``check`` returns at the try's turn; None, after the wait, where the password is wrong.

        Raises SessionError where the turn does not come in ``LONGEST`` seconds; nothing is checked or counted then.
        """
        key = account[:_NAME], network_of(peer)
        line = self._lines.setdefault(key, _Line())
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append((turn, check))
        self._take_turns(key)
        try:
            await asyncio.wait([turn], timeout=LONGEST)
            if not turn.done():
                raise SessionError(BUSY, "53300")
        finally:
            line.waiting = [one for one in line.waiting if one[0] is not turn]
        checked: bytes | None = turn.result()
        if checked is None:
            await asyncio.sleep(line.opens - _now())
        return checked

    async def wait_after_wrong_token(self, peer: str) -> None:
        """Wait as after a wrong password from this address; a token that is wrong names no account."""
        await asyncio.sleep(self._wait_after_another(("address", network_of(peer))))

    def _take_turns(self, key: tuple[str, str]) -> None:
        """Check those whose turn has come; the line is forgotten once it is open and empty."""
        line = self._lines[key]
        if line.timer is not None:
            line.timer.cancel()
        while line.waiting and line.opens <= _now():
            turn, check = line.waiting.pop()
            try:
                checked = check()
            except SignInError:
                checked = None
                account, network = key
                line.opens = _now() + self._wait_after_another(("account", account), ("address", network))
            else:
                self._counts.pop(("account", key[0]), None)
            turn.set_result(checked)
        if line.opens > _now():
            line.timer = asyncio.get_running_loop().call_at(line.opens, self._take_turns, key)
        else:
            del self._lines[key]

    def _wait_after_another(self, *keys: tuple[str, str]) -> float:
        """Add one to each count; the seconds to wait then."""
        now, longest = _now(), 0.0
        for key in keys:
            count = self._count(key)
            if self._wait(count) < LONGEST:  # a larger count would take longer to fall, for nothing
                count += 1
            self._counts[key] = count, now
            longest = max(longest, self._wait(count))
        if len(self._counts) > _MOST:
            largest = heapq.nlargest(_MOST // 2, self._counts, key=self._count)
            self._counts = {key: self._counts[key] for key in largest}
        return longest

    def _count(self, key: tuple[str, str]) -> float:
        count, since = self._counts.get(key, (0.0, 0.0))
        return max(0.0, count - (_now() - since) / _FALL)

    def _wait(self, count: float) -> float:
        return min(LONGEST, self.first * math.exp2(count - 1.0))


def network_of(peer: str) -> str:
    """What is counted as one address: of IPv6 the network of 64 bits, all of whose addresses one client may have."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(peer)
        if isinstance(address, ipaddress.IPv6Address):
            mapped = address.ipv4_mapped
            return f"{int(address) >> 64:x}::/64" if mapped is None else str(mapped)
    return peer


def _now() -> float:
    return asyncio.get_running_loop().time()
