"""Charges of periods: what every unit loses is at most what the account has spent, and what fits is granted."""

from __future__ import annotations

import heapq
import itertools
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import BudgetError, DataError, IntegrityError, LedgerError
from dpsql.privacy import periods
from dpsql.privacy.accountant import Budget, Charge, Request, charge_for
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_restore import Loss, restore
from dpsql.privacy.periods import Reads, Spending

BUDGET = Budget.of("1")
ALL = 10**12


def reads(*read: str, table: str = "visits", most: int | None = 1, every: str = "1 month") -> Reads:
    return Reads(table, "day", every, "2024-01-01", most, read)


def charge(share: float) -> Charge:
    return charge_for(Request.of(str(share)), BUDGET)[0]


def ledger_in(folder: Path, **more: Any) -> Ledger:
    return Ledger.open_or_create(folder / "p.ledger", "d-1", BUDGET, **more)


def spend(ledger: Ledger, share: float, read: Reads | None = None, key: str = "") -> int:
    body: dict[str, Any] = {"names": ["n"]} | ({} if read is None else {"periods": read.as_dict()})
    return ledger.charge(charge(share), key or f"c{random.random()}", body)


# -- the claim, over all units of small worlds --------------------------------------------------------------


def worlds(count: int = 60) -> list[tuple[list[tuple[int, Reads | None]], int | None, int | None]]:
    """Charges of one account over periods of two tables, and the k of each."""
    draw = random.Random(25)
    found = []
    for _ in range(count):
        ks = [draw.choice([1, 2, 3, None]) for _ in range(2)]
        charges = []
        for _ in range(draw.randint(1, 8)):
            at = draw.randrange(3)
            names = tuple(sorted(draw.sample("abcde", draw.randint(1, 4))))
            charges.append((draw.randint(1, 9), reads(*names, table=f"t{at}", most=ks[at]) if at < 2 else None))
        found.append((charges, ks[0], ks[1]))
    return found


def worst(charges: list[tuple[int, Reads | None]], *ks: int | None) -> int:
    """The most that any unit loses which has rows in at most k periods of each table: every unit there can be."""
    places = [list(itertools.combinations("abcde", 5 if k is None else k)) for k in ks]
    return max(
        sum(units for units, read in charges if read is None or set(read.read) & set(mine[int(read.table[1])]))
        for mine in itertools.product(*places)
    )


def holds() -> bool:
    """No unit loses more than what is spent, in any world; and where charges name one period each, one loses all."""
    for charges, *ks in worlds():
        spent = Spending.among(("pure", units, read) for units, read in charges).spent("pure")
        lost = worst(charges, *ks)
        apart = all(read is None or len(read.read) == 1 for _, read in charges)
        if lost > spent or (apart and lost != spent):
            return False
    return True


def test_no_unit_loses_more_than_is_spent() -> None:
    assert holds()


def one_too_few(most: int | None, sums: Any) -> int:
    return sum(sums) if most is None else sum(heapq.nlargest(most - 1, sums))


MUTANTS: dict[str, Callable[..., int]] = {
    "one period too few": one_too_few,
    "the largest alone": lambda most, sums: max(sums, default=0),
    "the mean": lambda most, sums: sum(sums := list(sums)) // max(1, len(sums)),
    "the smallest": lambda most, sums: sum(sorted(sums)[: most or 5]),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_composition_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(periods, "_largest", MUTANTS[mutant])
    assert not holds()


# -- the ledger ----------------------------------------------------------------------------------------------


def test_rows_compose_in_parallel_over_periods(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    for month in range(1, 13):
        spend(ledger, 1, reads(f"2024-{month:02}-01"))
    assert ledger.state().accounts[0].spent_units == ALL
    with pytest.raises(BudgetError, match=r"period 2024-03-01 of visits has 0% left"):
        spend(ledger, 0.1, reads("2024-03-01"))
    with pytest.raises(BudgetError, match="0 left of 1"):
        spend(ledger, 0.1)
    assert ledger.verify() == 13
    assert len(ledger.entries()) == 12
    spend(ledger, 1, reads("2025-01-01"))  # a new period has all of it


def test_what_reads_everything_counts_in_every_period(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    spend(ledger, 0.4)
    spend(ledger, 0.6, reads("2024-01-01"))
    for share, read in ((0.1, reads("2024-01-01")), (0.7, reads("2024-02-01")), (0.1, None)):
        with pytest.raises(BudgetError):
            spend(ledger, share, read)
    spend(ledger, 0.6, reads("2024-02-01"))
    assert ledger.state().within(reads("2024-03-01")).accounts[0].remaining_units == 6 * ALL // 10
    assert ledger.state().within(reads("2024-02-01")).accounts[0].remaining_units == 0


def test_units_of_several_periods_have_a_part_of_each(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    read = [reads(f"2024-{month:02}-01", most=4) for month in range(1, 9)]
    for one in read:
        spend(ledger, 0.25, one)
    assert ledger.state().accounts[0].spent_units == ALL  # of the four periods that cost most
    with pytest.raises(BudgetError, match="its part of the pure account"):
        spend(ledger, 0.01, read[0])
    with pytest.raises(BudgetError):
        spend(ledger, 0.01)
    spanning = reads("2025-01-01", "2025-02-01", most=4)
    spend(ledger, 0.25, spanning)
    assert ledger.state().within(reads("2025-01-01", most=4)).accounts[0].remaining_units == 0


def test_without_a_bound_every_period_adds(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    spend(ledger, 0.5, reads("a", most=None))
    spend(ledger, 0.5, reads("b", most=None))
    with pytest.raises(BudgetError):
        spend(ledger, 0.1, reads("c", most=None))


def test_tables_add_up(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    spend(ledger, 0.5, reads("a"))
    spend(ledger, 0.5, reads("a", table="other"))
    with pytest.raises(BudgetError):
        spend(ledger, 0.1, reads("b", table="third"))


@pytest.mark.parametrize(
    "other", [{"every": "2 months"}, {"most": 2}], ids=["another length", "another number of periods"]
)
def test_periods_that_changed_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    ledger = ledger_in(tmp_path)
    spend(ledger, 0.5, reads("2024-01-01"))
    with pytest.raises(IntegrityError, match=r"the periods of visits are .* put them back \(nothing was charged\)"):
        spend(ledger, 0.1, reads("2024-02-01", **other))
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize(
    "held",
    [
        {},
        "2024",
        {**reads("a").as_dict(), "read": []},
        {**reads("a").as_dict(), "read": ["a", "a"]},
        {**reads("a").as_dict(), "most": 0},
        {**reads("a").as_dict(), "more": 1},
    ],
)
def test_a_charge_says_its_periods_whole(tmp_path: Path, held: object) -> None:
    with pytest.raises(DataError, match="periods"):
        ledger_in(tmp_path).charge(charge(0.1), "c", {"periods": held})


def test_of_racing_charges_of_a_period_those_that_fit_are_granted(tmp_path: Path) -> None:
    ledger_in(tmp_path)
    granted: list[str] = []

    def race(period: str) -> None:
        ledger = ledger_in(tmp_path)
        for _ in range(4):
            try:
                spend(ledger, 0.25, reads(period))
            except BudgetError:
                continue
            granted.append(period)

    racers = [threading.Thread(target=race, args=(f"2024-0{1 + i % 2}-01",)) for i in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(granted) == ["2024-01-01"] * 4 + ["2024-02-01"] * 4
    assert ledger_in(tmp_path).verify() == 9


def test_a_charge_asked_for_again_is_found_again(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    first = spend(ledger, 1, reads("2024-01-01"), key="schedule m 2024-01-01")
    assert spend(ledger_in(tmp_path), 1, reads("2024-01-01"), key="schedule m 2024-01-01") == first
    assert len(ledger.entries()) == 1


def test_what_a_lost_ledger_spent_counts_in_every_period(tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    ledger = ledger_in(tmp_path, anchor=anchor)
    spend(ledger, 0.7, reads("2024-01-01"))
    ledger.back_up(tmp_path / "copy")
    spend(ledger, 0.7, reads("2024-02-01"))  # what the account has spent stays the same
    (tmp_path / "p.ledger").unlink()
    with pytest.raises(LedgerError, match="older than the anchor"):
        restore(tmp_path / "copy", tmp_path / "p.ledger", "d-1", BUDGET, anchor=anchor)
    restore(tmp_path / "copy", tmp_path / "p.ledger", "d-1", BUDGET, anchor=anchor, loss=Loss(True))
    again = ledger_in(tmp_path, anchor=anchor)
    assert again.verify()
    with pytest.raises(BudgetError):  # 0.7 may have been of this period
        spend(again, 0.4, reads("2024-02-01"))
    with pytest.raises(BudgetError):
        spend(again, 0.1, reads("2024-01-01"))
    # What an account holds is not enough to tell: the other period has its part, less what was lost.
    assert again.state().accounts[0].spent_units == ALL


def test_all_that_may_be_lost_closes_every_period(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    spend(ledger, 1, reads("2024-01-01"))
    ledger.back_up(tmp_path / "copy")
    shutil.move(tmp_path / "p.ledger", tmp_path / "gone")
    restore(tmp_path / "copy", tmp_path / "p.ledger", "d-1", BUDGET, anchor=None, loss=Loss(True))
    again = ledger_in(tmp_path)
    with pytest.raises(BudgetError):
        spend(again, 0.01, reads("2024-02-01"))
    assert again.verify()


def test_the_state_of_a_period_says_what_is_granted() -> None:
    draw = random.Random(3)
    for charges, *ks in worlds(30):
        held = Spending.among(("pure", units, read) for units, read in charges)
        total = held.spent("pure") + draw.randint(0, 9)
        for name in "abc":
            one = reads(name, table="t0", most=ks[0])
            room = held.room("pure", total, one)
            fits = [
                units
                for units in range(1, total + 2)
                if held.after("pure", units, one) <= total
                and held.of("pure", one)[0] + units <= periods.share_of(total, one)
            ]
            assert room == max(fits, default=0)


def test_a_read_names_each_period_once() -> None:
    with pytest.raises(DataError):
        replace(reads("a"), read=("a", "a"))


def test_more_periods_than_an_account_can_be_divided_by_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="its part of the pure account"):
        spend(ledger_in(tmp_path), 0.01, reads("2024-01-01", most=10**30))
