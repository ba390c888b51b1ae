"""Batches that wait for approval: what a charge under an analyst's name needs, and that an approval pays once."""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpsql.errors import BudgetError, IntegrityError, OperationalError, PolicyError, ProgrammingError
from dpsql.privacy.accountant import Budget, Charge, Request, charge_for
from dpsql.privacy.analysts import Analyst
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.ledger_restore import Loss, restore
from dpsql.privacy.requests import MOST_WAITING

BUDGET = Budget.of("4", "1e-9", "2", approval=True)
TEXT = ("SELECT COUNT(*) FROM visits", "the plan")


def pure(epsilon: str) -> Charge:
    return next(charge for charge in charge_for(Request.of(epsilon), BUDGET) if charge.noise == "laplace")


def asked(key: str = "k", **more: Any) -> dict[str, Any]:
    return {"request": key, "tables": ["visits"], **more}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "l.ledger", "d-1", BUDGET)
    for name in ("ann", "bob"):
        made.declare_analyst(lambda _, name=name: Analyst(name, Budget.of("1"), ("visits",)))
    return made


def wait(ledger: Ledger, key: str = "k", label: str = "ann", epsilon: str = "0.1") -> None:
    with pytest.raises(OperationalError, match="waits for the custodian's approval"):
        ledger.request(pure(epsilon), asked(key), TEXT, label=label)


def test_a_batch_waits_is_approved_and_is_charged_once(ledger: Ledger) -> None:
    wait(ledger)
    wait(ledger)  # the same request
    (one,) = ledger.requests()
    assert (one.number, one.label, one.state, one.sql, one.plan) == (1, "ann", "waiting", *TEXT)
    with pytest.raises(BudgetError, match="has not approved this one"):
        ledger.charge(pure("0.1"), "a", asked(), label="ann")
    assert ledger.decide(1, approve=True, note="fine").summary == "approved: fine"
    ledger.request(pure("0.1"), asked(), TEXT, label="ann")
    number = ledger.charge(pure("0.1"), "a", asked(), label="ann")
    assert ledger.charge(pure("0.1"), "a", asked(), label="ann") == number  # the same charge, told again
    assert ledger.requests()[0].summary == f"charged, release {number}"
    with pytest.raises(BudgetError, match="has not approved"):
        ledger.charge(pure("0.1"), "b", asked(), label="ann")
    with pytest.raises(IntegrityError, match="charged already"):
        ledger.decide(1, approve=False)
    wait(ledger)  # what was cut off after its charge is asked for anew
    assert [request.number for request in ledger.requests()] == [1, 4]
    ledger.verify()


@pytest.mark.parametrize(
    ("label", "key", "epsilon"), [("bob", "k", "0.1"), ("ann", "other", "0.1"), ("ann", "k", "0.2"), ("ann", "", "0.1")]
)
def test_an_approval_is_for_one_analyst_one_text_and_one_price(
    ledger: Ledger, label: str, key: str, epsilon: str
) -> None:
    wait(ledger)
    ledger.decide(1, approve=True)
    with pytest.raises(BudgetError, match="has not approved"):
        ledger.charge(pure(epsilon), "a", asked(key), label=label)
    assert ledger.state().accounts[0].spent_units == 0


def test_an_approval_is_for_one_version_of_the_data(ledger: Ledger) -> None:
    wait(ledger)
    ledger.decide(1, approve=True)
    later = ledger.renew("d-2")
    with pytest.raises(BudgetError, match="has not approved"):
        later.charge(pure("0.1"), "a", asked(), label="ann")


def test_a_refusal_stands_until_it_is_taken_back(ledger: Ledger) -> None:
    wait(ledger)
    ledger.decide(1, approve=True)
    ledger.decide(1, approve=False, note="too\nfine")
    with pytest.raises(BudgetError, match=r"refused request 1 \(too fine\)"):
        ledger.request(pure("0.1"), asked(), TEXT, label="ann")
    with pytest.raises(BudgetError, match="has not approved"):
        ledger.charge(pure("0.1"), "a", asked(), label="ann")
    ledger.decide(1, approve=True)
    ledger.charge(pure("0.1"), "a", asked(), label="ann")
    with pytest.raises(ProgrammingError, match="no request 2"):
        ledger.decide(2, approve=True)


def test_what_could_not_be_charged_does_not_wait(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="the analyst ann"):
        ledger.request(pure("1.5"), asked(), TEXT, label="ann")
    with pytest.raises(PolicyError, match="may not ask salaries"):
        ledger.request(pure("0.1"), asked(tables=["salaries"]), TEXT, label="ann")
    ledger.declare_analyst(lambda held: replace(held["ann"], suspended=True))
    with pytest.raises(BudgetError, match="is suspended"):
        ledger.request(pure("0.1"), asked(), TEXT, label="ann")
    assert ledger.requests() == []
    for number in range(MOST_WAITING):
        wait(ledger, str(number), "bob")
    with pytest.raises(BudgetError, match="20 requests of bob wait already"):
        ledger.request(pure("0.1"), asked("more"), TEXT, label="bob")


def test_who_is_no_analyst_needs_no_approval(ledger: Ledger) -> None:
    ledger.request(pure("0.1"), asked(), TEXT, label="the custodian")
    ledger.charge(pure("0.1"), "a", asked(), label="the custodian")
    assert ledger.requests() == []


def test_of_eight_who_use_one_approval_one_is_charged(ledger: Ledger) -> None:
    wait(ledger)
    ledger.decide(1, approve=True)
    start, said = threading.Barrier(8), []

    def ask(number: int) -> None:
        start.wait()
        try:
            said.append(ledger.charge(pure("0.1"), f"c{number}", asked(), label="ann"))
        except BudgetError:
            said.append(0)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(said) == [0] * 7 + [1]
    assert ledger.state().accounts[0].spent_units == 100_000_000_000


def test_an_approval_of_before_a_restore_is_taken_back(ledger: Ledger, tmp_path: Path) -> None:
    """The lost ledger may have charged it, and nobody knows."""
    wait(ledger)
    ledger.decide(1, approve=True)
    ledger.back_up(tmp_path / "backup.ledger")
    ledger.charge(pure("0.1"), "a", asked(), label="ann")
    Path(ledger.path).unlink()
    restore(tmp_path / "backup.ledger", Path(ledger.path), "d-1", BUDGET, anchor=None, loss=Loss(Fraction(1, 10)))
    held = Ledger.open(Path(ledger.path), "d-1", BUDGET)
    assert held.requests()[0].summary == "refused: approved before the ledger was restored"
    held.declare_analyst(lambda _: Analyst("ann", Budget.of("1"), ("visits",)))
    with pytest.raises(BudgetError, match="has not approved"):
        held.charge(pure("0.1"), "b", asked(), label="ann")
    held.decide(1, approve=True)
    assert held.charge(pure("0.1"), "b", asked(), label="ann")
