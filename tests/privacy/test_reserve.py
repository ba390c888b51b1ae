"""The delta of thresholds: what is set aside for them, when that is sound, and that no more of it is used."""

from __future__ import annotations

import secrets
import threading
from fractions import Fraction
from pathlib import Path

import pytest

from dpsql.errors import BudgetError, DataError, PolicyError
from dpsql.privacy import reserve
from dpsql.privacy.accountant import Request, charge_for
from dpsql.privacy.budget import Budget, mu_units
from dpsql.privacy.calibrate import gaussian_delta
from dpsql.privacy.charge import Charge
from dpsql.privacy.finding import gaussian_way, pure_way
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.state import fresh_state
from dpsql.privacy.universe import Universe

BOTH = Budget.of(1, "1e-6")
DECLARED = Budget.of(1, "1e-6", discovery_delta="4e-7")
PURE = Budget.of(2, "1e-6", pure_epsilon=1, discovery_delta="4e-7")


def ledger_of(folder: Path, budget: Budget, name: str = "ledger") -> Ledger:
    return Ledger.create(folder / name, "visits-1", budget)


def spend(ledger: Ledger, charge: Charge) -> int:
    return ledger.charge(charge, secrets.token_hex(8), {"kind": "discovery", "names": []})


def set_aside(ledger: Ledger) -> None:
    charge, description = reserve.price(ledger.budget)
    ledger.charge(charge, secrets.token_hex(8), description)


def threshold_charge(delta: str, epsilon: str = "0.01") -> Charge:
    """A small Gaussian charge whose threshold fails with ``delta``."""
    return Charge("gaussian", 1000, "gaussian", f"epsilon {epsilon}, delta {delta}", None, Fraction(delta))


def test_a_declared_reserve_is_taken_from_what_gaussian_releases_use() -> None:
    assert DECLARED.gaussian_delta == Fraction("6e-7")
    assert DECLARED.totals["gaussian"] == mu_units(Fraction(1), Fraction("6e-7")) < BOTH.totals["gaussian"]
    # All of it can still be asked for at once.
    (charge,) = charge_for(Request.of(1), DECLARED)
    assert charge.units == DECLARED.totals["gaussian"]
    mu = (charge.units / 1e12) ** 0.5
    assert gaussian_delta(mu, 1.0) + 4e-7 <= 1e-6 * (1 + 1e-9)


def test_what_is_set_aside_leaves_the_promise_as_it_was() -> None:
    """mu squared without the price is that of delta less the reserve: both together are the policy's delta."""
    charge, description = reserve.price(BOTH)
    left = (BOTH.totals["gaussian"] - charge.units) / 1e12
    aside = float(Fraction(description["delta"]))
    assert aside == 5e-7
    assert gaussian_delta(left**0.5, 1.0) + aside <= 1e-6 * (1 + 1e-9)
    assert charge.units < 0.08 * BOTH.totals["gaussian"]


def test_what_is_said_to_be_spent_is_never_less_than_it_was() -> None:
    """Epsilon at the policy's delta of price and releases together, beside that of releases at the rest of delta."""
    price, _ = reserve.price(BOTH)
    state = fresh_state(BOTH)
    smaller = Budget.of(1, "1e-6", discovery_delta="5e-7")
    for share in (0.001, 0.01, 0.1, 0.3, 0.6, 0.9, 1.0):
        used = int((BOTH.totals["gaussian"] - price.units) * share)
        true = fresh_state(smaller)._epsilon(used)
        assert state._epsilon(used + price.units) >= true * (1 - 1e-9)


def test_delta_is_set_aside_once_and_before_any_gaussian_release(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, BOTH)
    assert ledger.state().reserve is None
    with pytest.raises(BudgetError, match="has 0 left of 0"):
        spend(ledger, threshold_charge("1e-9"))
    set_aside(ledger)
    held = ledger.state().reserve
    assert held is not None
    assert (held.total, held.spent) == (Fraction("5e-7"), 0)
    with pytest.raises(BudgetError, match="already"):
        set_aside(ledger)
    assert not ledger.unreleased()
    late = ledger_of(tmp_path, BOTH, "late")
    spend(late, Charge("gaussian", 1, "gaussian", "epsilon 0.001, delta 1e-6"))
    before = late.state().accounts
    with pytest.raises(BudgetError, match="before the first Gaussian release"):
        set_aside(late)
    assert late.state().accounts == before


def test_pure_releases_do_not_stand_in_the_way(tmp_path: Path) -> None:
    budget = Budget.of(2, "1e-6", pure_epsilon=1)
    ledger = ledger_of(tmp_path, budget)
    spend(ledger, Charge("pure", 10**11, "laplace", "epsilon 0.1 (pure)", Fraction(1, 10)))
    set_aside(ledger)
    assert ledger.state().reserve is not None


@pytest.mark.parametrize("budget", [DECLARED, BOTH])
def test_deltas_add_up_to_the_reserve_and_no_further(tmp_path: Path, budget: Budget) -> None:
    ledger = ledger_of(tmp_path, budget)
    if budget is BOTH:
        set_aside(ledger)
    held = ledger.state().reserve
    assert held is not None
    spend(ledger, threshold_charge("3e-7"))
    spend(ledger, threshold_charge("1e-7"))
    rest = held.total - Fraction("4e-7")
    with pytest.raises(BudgetError, match="left of"):
        spend(ledger, threshold_charge(str(rest + Fraction("1e-20"))))
    if rest:
        spend(ledger, threshold_charge(str(rest)))
    held = Ledger.open(ledger.path, "visits-1", budget).state().reserve
    assert held is not None
    assert held.left == 0
    assert ledger.verify() > 2


def test_of_many_who_ask_at_once_those_get_delta_for_whom_there_is_some(tmp_path: Path) -> None:
    ledger, granted, refused = ledger_of(tmp_path, DECLARED), [], []

    def ask() -> None:
        try:
            granted.append(spend(ledger, threshold_charge("1e-7")))
        except BudgetError:
            refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), len(refused)) == (4, 4)


def test_delta_spent_twice_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a check that looks at each charge alone."""
    monkeypatch.setattr(reserve, "of", lambda connection, budget: reserve.Reserve(Fraction("4e-7"), Fraction(0)))
    ledger = ledger_of(tmp_path, DECLARED)
    for _ in range(2):
        spend(ledger, threshold_charge("4e-7"))
    monkeypatch.undo()
    held = ledger.state().reserve
    assert held is not None
    assert held.spent > held.total  # what the other tests refuse


def test_a_ledger_that_lost_charges_has_nothing_left_of_its_reserve() -> None:
    lost = Charge("gaussian", 1000, "gaussian", "lost")
    held = reserve.among(DECLARED, [(threshold_charge("1e-8"), {}), (lost, {"lost": True})])
    assert held is not None
    assert held.left == 0


def test_policies_without_delta_say_why() -> None:
    with pytest.raises(PolicyError, match="pure epsilon"):
        reserve.price(Budget.of(1))
    with pytest.raises(PolicyError, match="discovery_delta = 1e-9 beside rho"):
        reserve.price(Budget.of(rho="0.1"))
    with pytest.raises(PolicyError, match="keeps all of epsilon pure"):
        reserve.price(Budget.of(1, "1e-6", pure_epsilon=1))
    for figures in (
        {"epsilon": 1, "delta": "1e-6", "discovery_delta": "1e-6"},
        {"epsilon": 1, "discovery_delta": "1e-9"},
    ):
        with pytest.raises(PolicyError, match="discovery_delta"):
            Budget.of(**figures)


def test_a_charge_round_trips_with_its_delta() -> None:
    charge = threshold_charge("1e-9")
    assert Charge.from_dict(charge.as_dict()) == charge
    with pytest.raises(DataError, match="a threshold fails"):
        Charge("gaussian", 1000, "gaussian", "", None, Fraction(2))


def test_what_is_paid_is_what_was_asked() -> None:
    """Noise and threshold together are within the (epsilon, delta) that was asked, in a rho policy as well."""
    delta, left = Fraction("1e-8"), Fraction("4e-7")
    for budget in (PURE, DECLARED, Budget.of(rho="0.5", discovery_delta="1e-6")):
        way = gaussian_way(Request.of("0.5"), delta, budget, 1, left)
        assert way.charge.account == way.charge.noise == "gaussian"
        assert way.charge.delta is not None
        mu = float(way.charge.mu_squared) ** 0.5
        assert gaussian_delta(mu, 0.5) + float(way.charge.delta) <= 1e-8 * (1 + 1e-9)
        assert (way.law.parameter, way.law.delta) == (way.charge.mu_squared, way.charge.delta)


def test_a_way_is_refused_where_a_figure_or_the_budget_is_too_small() -> None:
    request, delta, left = Request.of("0.5"), Fraction("1e-8"), Fraction("4e-7")
    with pytest.raises(DataError, match="needs a delta"):
        gaussian_way(request, None, PURE, 1, left)
    with pytest.raises(BudgetError, match="more than is left"):
        gaussian_way(request, delta, PURE, 1, Fraction("1e-12"))
    with pytest.raises(DataError, match="too small for any value"):
        gaussian_way(Request.of("1e-9"), delta, BOTH, 1, left)


@pytest.mark.parametrize("figures", [{}, {"discovery_delta": "4e-7"}])
def test_a_pure_account_finds_texts_of_a_public_universe_alone(figures: dict[str, str]) -> None:
    budget = Budget.of(1, "1e-6", pure_epsilon=1, **figures)
    with pytest.raises(PolicyError, match="find short texts with max_bytes and no delta"):
        gaussian_way(Request.of("0.5"), Fraction("1e-8"), budget, 1, Fraction("4e-7"))
    assert pure_way(Request.of("0.5"), budget, 1, Universe(5, "0123456789")).charge.account == "pure"


def test_rho_is_what_a_rho_policy_asks_with() -> None:
    budget = Budget.of(rho="0.5", discovery_delta="1e-6")
    delta, left = Fraction("1e-8"), Fraction("1e-6")
    way = gaussian_way(Request.of(rho="0.01"), delta, budget, 2, left)
    assert (way.charge.mu_squared, way.charge.delta) == (Fraction("0.02"), delta)
    with pytest.raises(BudgetError, match="more than is left"):
        gaussian_way(Request.of(rho="0.01"), delta, budget, 2, delta / 2)


def test_delta_is_set_aside_with_what_needs_it_or_not_at_all(tmp_path: Path) -> None:
    """A discovery that the ledger refuses leaves no delta set aside; one that it grants is charged after it."""
    ledger = Ledger.create(tmp_path / "l.ledger", "d-1", budget := Budget.of(epsilon=1, delta="1e-6"))
    aside = reserve.price(budget)
    much = Charge("gaussian", 10**12, "gaussian", "too much", None, Fraction(1, 10**9))
    with pytest.raises(BudgetError):
        ledger.charge(much, "a", {"names": []}, before=aside)
    assert ledger.entries() == []
    little = Charge("gaussian", 10**6, "gaussian", "little", None, Fraction(1, 10**9))
    assert ledger.charge(little, "b", {"names": []}, before=aside) == 2
    assert ledger.charge(little, "b", {"names": []}, before=aside) == 2
    assert [entry.description.get("kind") for entry in ledger.entries()] == ["reserve", None]
