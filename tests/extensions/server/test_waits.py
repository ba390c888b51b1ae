"""Waits after wrong passwords, on a clock that jumps to whatever happens next: no test here takes real time."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from server_world import server
from wire_client import Client, served

from dpsql.extensions.server import waits
from dpsql.extensions.server.protocol.scram import SignInError
from dpsql.extensions.server.protocol.sqlstate import SessionError
from dpsql.extensions.server.waits import LONGEST, Waits, network_of

T = TypeVar("T")


class _Clock(asyncio.SelectorEventLoop):
    """A loop whose time passes only while nothing can be done, and then at once."""

    def __init__(self) -> None:
        self.now = 1_000.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self.now


class _Jumping(selectors.SelectSelector):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self.clock = clock

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        self.clock.now += 0.0 if found else timeout or 0.0
        return found


def timed(work: Callable[[Waits], Coroutine[Any, Any, T]]) -> tuple[T, float]:
    """What ``work`` returns, and how many seconds of its own clock it takes."""
    with asyncio.Runner(loop_factory=_Clock) as runner:
        loop = runner.get_loop()
        before = loop.time()
        return runner.run(work(Waits())), loop.time() - before


async def elapsed(work: Coroutine[Any, Any, object]) -> float:
    before = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - before


def right() -> bytes:
    return b"proof"


def wrong() -> bytes:
    raise SignInError


def test_waits_double_up_to_the_longest() -> None:
    async def tries(waits: Waits) -> list[float]:
        return [await elapsed(waits.check_in_turn("bob", "x", wrong)) for _ in range(8)]

    found, _ = timed(tries)
    assert found[0] == 0.5
    assert all(a < b for a, b in itertools.pairwise(found) if b < LONGEST)
    assert max(found) == pytest.approx(LONGEST)
    assert min(found[6:]) > 0.8 * LONGEST


def test_a_success_clears_the_count_of_its_own_account_only() -> None:
    async def tries(waits: Waits) -> list[float]:
        for _ in range(6):
            await waits.check_in_turn("bob", "x", wrong)
            assert await waits.check_in_turn("ann", "x", right) == b"proof"
        same_address = await elapsed(waits.check_in_turn("bob", "x", wrong))
        other_address = await elapsed(waits.check_in_turn("bob", "y", wrong))
        await waits.check_in_turn("bob", "z", right)
        cleared = await elapsed(waits.check_in_turn("bob", "new", wrong))
        still_counted = await elapsed(waits.check_in_turn("bob", "x", wrong))
        return [same_address, other_address, cleared, still_counted]

    same_address, other_address, cleared, still_counted = timed(tries)[0]
    assert min(same_address, other_address, still_counted) > 0.8 * LONGEST
    assert cleared == 0.5


def test_counts_fall_with_time() -> None:
    async def tries(waits: Waits) -> float:
        for _ in range(50):
            await waits.check_in_turn("bob", "x", wrong)
        await asyncio.sleep(360)
        return await elapsed(waits.check_in_turn("bob", "x", wrong))

    assert timed(tries)[0] == 0.5


def test_tries_for_one_account_from_one_address_are_made_one_after_the_other() -> None:
    async def tries(waits: Waits) -> list[float]:
        checked: list[float] = []

        def noted() -> bytes:
            checked.append(asyncio.get_running_loop().time())
            raise SignInError

        at_once = [asyncio.create_task(waits.check_in_turn("bob", "x", noted)) for _ in range(60)]
        await asyncio.sleep(0.25)
        at_once[0].cancel()  # a client that does not stay for its answer
        answers = await asyncio.gather(*at_once, return_exceptions=True)
        assert sum(isinstance(answer, SessionError) for answer in answers) == 60 - len(checked)
        return checked

    checked, whole = timed(tries)
    assert [b - a for a, b in itertools.pairwise(checked)] == pytest.approx([0.5, 1, 2, 4], rel=0.1)
    assert whole >= sum((0.5, 1, 2, 4, 8)) * 0.9


@pytest.mark.parametrize(("account", "address", "most"), [("bob", "y", 0), ("ann", "x", 0), ("bob", "x", LONGEST)])
def test_nobody_delays_the_right_password_of_another_by_more(account: str, address: str, most: float) -> None:
    async def tries(waits: Waits) -> list[float]:
        for _ in range(10):
            await waits.check_in_turn("bob", "x", wrong)
        flood = [asyncio.create_task(waits.check_in_turn("bob", "x", wrong)) for _ in range(200)]
        flood += [asyncio.create_task(waits.check_in_turn(f"nobody{n}", "x", wrong)) for n in range(200)]
        flood += [asyncio.create_task(waits.check_in_turn("bob", f"10.0.0.{n}", wrong)) for n in range(200)]
        delays = []
        for _ in range(5):
            await asyncio.sleep(1)
            delays.append(await elapsed(waits.check_in_turn(account, address, right)))
        for task in flood:
            task.cancel()
        return delays

    assert max(timed(tries)[0]) <= most + 1e-9


def test_many_names_and_addresses_neither_fill_memory_nor_erase_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_MOST", 50)

    async def tries(waits: Waits) -> float:
        for _ in range(6):
            await waits.check_in_turn("bob", "x", wrong)
        for n in range(200):
            task = asyncio.create_task(waits.check_in_turn(f"nobody{n}", f"10.0.0.{n}", wrong))
            await asyncio.sleep(0)
            task.cancel()
        assert len(waits._counts) <= 51
        delay = await elapsed(waits.check_in_turn("bob", "y", wrong))
        await asyncio.sleep(LONGEST)
        assert not waits._lines
        return delay

    assert timed(tries)[0] > 0.8 * LONGEST


def test_tokens_count_by_address() -> None:
    async def tries(waits: Waits) -> list[float]:
        found = [await elapsed(waits.wait_after_wrong_token("x")) for _ in range(6)]
        return [*found, await elapsed(waits.check_in_turn("ann", "x", wrong))]

    found = timed(tries)[0]
    assert found[0] == 0.5
    assert found[-1] > 0.8 * LONGEST


def test_addresses_of_one_network_are_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("local") == "local"


def test_the_server_keeps_the_count_of_an_address_over_sign_ins(tmp_path: Path) -> None:
    with served(lambda: server(tmp_path)) as running:
        for name in ("ann", "ann", "nobody"):
            with pytest.raises(PermissionError, match="password is wrong"):
                Client(running.port, name, "wrong")
            Client(running.port, "bob").close()
        Client(running.port, "ann").close()
        counts = dict(running.server.waits._counts)
    assert counts.keys() == {("address", "127.0.0.1"), ("account", "nobody")}
    assert counts["address", "127.0.0.1"][0] > 2
