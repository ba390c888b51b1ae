"""Budgets of analysts inside the policy's: what a charge under an analyst's name is held to."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import BudgetError, DataError, LedgerError, PolicyError
from dpsql.privacy.accountant import Budget, Charge, Request, charge_for
from dpsql.privacy.analysts import Analyst
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_restore import Loss, restore

BUDGET = Budget.of("4", "1e-9", "2", local_epsilon="1")
ANN = Analyst("ann", Budget.of("1", "1e-9", "0.5", max_epsilon_per_release="0.3"))


def pure(epsilon: str) -> Charge:
    return next(charge for charge in charge_for(Request.of(epsilon), BUDGET) if charge.noise == "laplace")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "l.ledger", "d-1", BUDGET)
    made.declare_analyst(lambda _: ANN)
    return made


def left(ledger: Ledger, name: str = "ann") -> int:
    account = ledger.analyst_state(ledger.analysts()[name]).account("pure")
    assert account is not None
    return account.remaining_units


def test_an_analyst_spends_up_to_their_own_budget(ledger: Ledger) -> None:
    ledger.charge(pure("0.3"), "a", {}, label="ann")
    assert left(ledger) == 200_000_000_000
    with pytest.raises(BudgetError, match=r"ann: a release at epsilon 0.25 \(pure\) needs epsilon 0.25 .* 0.2 left"):
        ledger.charge(pure("0.25"), "b", {}, label="ann")
    ledger.charge(pure("0.2"), "c", {}, label="ann")
    assert left(ledger) == 0
    with pytest.raises(BudgetError, match="it is spent"):
        ledger.charge(pure("0.1"), "d", {}, label="ann")
    ledger.charge(pure("0.1"), "d", {}, label="somebody")  # whom the policy alone limits
    assert [account.spent_units for account in ledger.state().accounts] == [600_000_000_000, 0, 0]
    ledger.verify()


def test_the_gaussian_part_is_of_its_own_and_its_errors_add_up_in_mu(ledger: Ledger) -> None:
    (charge,) = [c for c in charge_for(Request.of("0.3", "1e-9"), BUDGET) if c.noise == "gaussian"]
    ledger.charge(charge, "a", {}, label="ann")
    ledger.charge(charge, "b", {}, label="ann")
    with pytest.raises(BudgetError, match="ann"):
        ledger.charge(charge, "c", {}, label="ann")
    spent = ledger.analyst_state(ANN).account("gaussian")
    assert spent is not None
    assert spent.spent_units == 2 * charge.units <= spent.total_units < 3 * charge.units
    assert left(ledger) == 500_000_000_000


def test_the_policy_limits_all_analysts_together(ledger: Ledger) -> None:
    for name in ("b", "c", "d", "e", "f"):
        ledger.declare_analyst(lambda _, name=name: Analyst(name, Budget.of("1")))
    granted = 0
    for name in ("b", "c", "d", "e", "f"):
        try:
            ledger.charge(pure("0.75"), name, {}, label=name)
            granted += 1
        except BudgetError:
            pass
    assert granted == 2  # of 2 in the policy's pure account


def test_what_an_analyst_is_refused(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match=r"above the cap on one release of the analyst ann, 0.3"):
        ledger.charge(pure("0.4"), "a", {}, label="ann")
    ledger.declare_analyst(lambda held: replace(held["ann"], tables=("visits", "people")))
    ledger.charge(pure("0.1"), "a", {"tables": ["VISITS"]}, label="ann")
    with pytest.raises(PolicyError, match="ann may not ask salaries; ask visits, people"):
        ledger.charge(pure("0.1"), "b", {"tables": ["visits", "salaries"]}, label="ann")
    ledger.declare_analyst(lambda held: replace(held["ann"], budget=Budget.of(rho="0.5")))
    with pytest.raises(BudgetError, match="the analyst ann has no pure account"):
        ledger.charge(pure("0.1"), "b", {}, label="ann")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"suspended": True}, "ann is suspended"),
        ({"removed": True}, "ann was removed"),
        ({"expires": datetime(2020, 2, 3, tzinfo=UTC)}, "ann expired at 2020-02-03 00:00 UTC"),
    ],
)
def test_who_may_not_ask(ledger: Ledger, change: dict[str, object], said: str) -> None:
    ledger.declare_analyst(lambda held: replace(held["ann"], **change))  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match=said):
        ledger.charge(pure("0.1"), "a", {}, label="ann")
    assert ledger.state().accounts[0].spent_units == 0
    later = ledger.declare_analyst(lambda _: replace(ANN, expires=datetime.now(UTC) + timedelta(days=1)))
    assert ledger.analysts() == {"ann": later}
    ledger.charge(pure("0.1"), "a", {}, label="ann")


def test_what_was_spent_stays_spent_under_a_name(ledger: Ledger) -> None:
    ledger.charge(pure("0.3"), "a", {}, label="ann")
    ledger.declare_analyst(lambda held: replace(held["ann"], removed=True))
    ledger.declare_analyst(lambda _: ANN)
    assert left(ledger) == 200_000_000_000
    ledger.declare_analyst(lambda held: replace(held["ann"], budget=Budget.of("0.1")))
    assert left(ledger) == 0


def test_of_many_who_ask_for_the_last_of_it_as_many_are_granted_as_fit(ledger: Ledger) -> None:
    start, granted = threading.Barrier(8), []

    def ask(number: int) -> None:
        start.wait()
        try:
            ledger.charge(pure("0.1"), f"c{number}", {}, label="ann")
            granted.append(number)
        except BudgetError:
            pass

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == 5
    assert left(ledger) == 0


@pytest.mark.long
def test_fifty_accounts_race_for_the_last_charges_again_and_again(tmp_path: Path) -> None:
    whole = Budget.of("0.3")
    names = [f"a{number}" for number in range(50)]
    made = Ledger.create(tmp_path / "l.ledger", "d-1", whole)
    for name in names:
        made.declare_analyst(lambda _, name=name: Analyst(name, Budget.of("0.1")))
    (charge,) = [charge for charge in charge_for(Request.of("0.1"), whole) if charge.noise == "laplace"]
    for run in range(30):
        path = Path(shutil.copy(tmp_path / "l.ledger", tmp_path / f"{run}.ledger"))
        start, granted = threading.Barrier(len(names)), []

        def ask(name: str, path: Path = path, start: threading.Barrier = start, granted: list[str] = granted) -> None:
            ledger = Ledger.open(path, "d-1", whole, timeout=300)
            start.wait()
            try:
                ledger.charge(charge, name, {}, label=name)
                granted.append(name)
            except BudgetError:
                pass

        threads = [threading.Thread(target=ask, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        held = Ledger.open(path, "d-1", whole)
        assert len(granted) == 3
        assert held.state().accounts[0].spent_units == 3 * 10**11
        assert sorted(entry.label for entry in held.entries()) == sorted(granted)


def test_rows_of_analysts_are_links_of_the_chain(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        ledger.declare_analyst(lambda _: replace(ANN, name=""))
    assert ledger.verify() == 2
    with closing(sqlite3.connect(tmp_path / "l.ledger", isolation_level=None)) as connection:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute("DELETE FROM analysts")
        connection.execute("INSERT INTO analysts (time, name, terms) VALUES ('', 'eve', '{}')")
    with pytest.raises(LedgerError, match="analysts has rows outside the hash chain"):
        Ledger.open(tmp_path / "l.ledger", "d-1", BUDGET)


def test_what_a_lost_ledger_had_spent_counts_for_every_analyst(ledger: Ledger, tmp_path: Path) -> None:
    """Or a restore would give ann her budget again, and bob, who was suspended, his account."""
    bob = Analyst("bob", Budget.of("0.4"))
    ledger.declare_analyst(lambda _: bob)
    ledger.back_up(tmp_path / "backup.ledger")
    ledger.charge(pure("0.3"), "a", {"names": []}, label="ann")
    ledger.declare_analyst(lambda _: replace(bob, suspended=True))
    Path(ledger.path).unlink()
    done = restore(
        tmp_path / "backup.ledger", Path(ledger.path), "d-1", BUDGET, anchor=None, loss=Loss(Fraction(3, 10))
    )
    assert done.suspended == ("ann", "bob")
    held = Ledger.open(Path(ledger.path), "d-1", BUDGET)
    assert {name for name, analyst in held.analysts().items() if analyst.suspended} == {"ann", "bob"}
    with pytest.raises(BudgetError, match="the analyst bob is suspended"):
        held.charge(pure("0.1"), "b", {"names": []}, label="bob")
    for analyst in (ANN, bob, replace(ANN, name="eve")):
        held.declare_analyst(lambda _, analyst=analyst: analyst)
    assert left(held) == left(held, "eve") - 3 * 10**11
    assert left(held, "bob") == 10**11
    with pytest.raises(BudgetError):
        held.charge(pure("0.3"), "c", {"names": []}, label="ann")


def test_a_threshold_is_no_charge_of_an_analyst(tmp_path: Path) -> None:
    """The policy keeps a part of delta for thresholds, and no analyst's budget has one."""
    held = Ledger.create(tmp_path / "d.ledger", "d-1", Budget.of("4", "1e-9", "2", discovery_delta="5e-10"))
    held.declare_analyst(lambda _: ANN)
    charge = replace(pure("0.1"), delta=Fraction(1, 10**12))
    with pytest.raises(BudgetError, match="ann is an analyst"):
        held.charge(charge, "a", {"names": []}, label="ann")
    assert left(held) == 5 * 10**11
    assert held.charge(charge, "b", {"names": []}, label="the custodian")
