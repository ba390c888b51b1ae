"""Accounts, requests, charges: what may be spent and what a release costs.

A policy fixes at creation up to three accounts, each a sum of integers of 1e-12:

- ``pure``: epsilon_P; a Laplace release of epsilon costs epsilon.
- ``gaussian``: mu_G^2; a Gaussian release of mu costs mu^2.
- ``local``: epsilon of replace-one local releases, apart from the other two.

Guarantee (neighbours: add or remove one unit; analyst adaptive in queries, strategies, kinds and
sizes of budget). All releases together are (epsilon, delta)-DP when epsilon_P plus the Gaussian
account obey delta_{mu_G}(epsilon - epsilon_P) <= delta. Proof sketch: let L be the privacy loss of the
whole transcript, split into the steps paid from each account. The pure steps add at most epsilon_P to
it on every path. Given the past, a Gaussian step adds at most N(mu_i^2/2, mu_i^2), and the account stops
at sum mu_i^2 <= mu_G^2 on every path; filling up the unspent rest with a dummy Gaussian step makes
that part's law N(mu_G^2/2, mu_G^2) whatever the order of choices, since it is a Brownian motion run
for a time fixed in total (Gaussian filters: Smith and Thakurta 2022; Koskela, Tobaben and Honkela
2023). So the hockey-stick divergence E[(1 - e^(epsilon - L))_+] is at most that of mu_G at
epsilon - epsilon_P, in both directions. A rho policy has one account with mu^2 = 2 rho; zCDP adds up
under the same kind of filter (Feldman and Zrnic 2021), and a pure release is epsilon tanh(epsilon/2)-zCDP.

What is *not* sound, and not done: testing delta against the running history, or crediting a pure
epsilon release with mu = epsilon. It needs mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)), which is larger: 1.23 of
epsilon 1. Its trade-off curve, at worst that of randomised response, is the polygon (0, 1), (p, p), (1, 0) with
p = 1 / (1 + e^epsilon) (Wasserman and Zhou 2010), and that of mu-GDP, convex, lies below it from the mu on at which it
passes through (p, p).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import BudgetError, DataError
from dpsql.privacy.amounts import GRID, LARGEST, exact, show, to_units
from dpsql.privacy.budget import Budget, BudgetAccount, mu_units
from dpsql.privacy.charge import Charge, pure_cost
from dpsql.privacy.state import BudgetState, fresh_state

__all__ = ["Budget", "BudgetAccount", "BudgetState", "Charge", "Request", "charge_for", "fresh_state", "local_charge"]


@dataclass(frozen=True)
class Request:
    """What a user asks to spend on one batch: exactly as given, not yet on the grid."""

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    rho: Fraction | None = None

    def __post_init__(self) -> None:
        if self.rho is not None and (self.epsilon is not None or self.delta is not None):
            raise DataError("rho cannot go with epsilon or delta; give rho alone, or epsilon with or without delta")
        if self.rho is None and self.epsilon is None:
            raise DataError("a budget is needed; give epsilon=..., or epsilon=... and delta=..., or rho=...")
        if self.delta is not None and self.delta >= 1:
            raise DataError("delta must be below 1; 1e-9 is usual")
        for name, value in (("epsilon", self.epsilon), ("rho", self.rho)):
            if value is not None and not Fraction(1, GRID) <= value <= Fraction(LARGEST, GRID):
                raise DataError(f"{name} must lie between 1e-12, the ledger's grid, and 4.6 million; change {name}")

    @classmethod
    def of(cls, epsilon: object = None, delta: object = None, rho: object = None) -> Request:
        """Checked user input: numbers, decimal text, Decimal or Fraction. Raises DataError."""
        return cls(
            epsilon=None if epsilon is None else exact("epsilon", epsilon),
            delta=None if delta is None else exact("delta", delta),
            rho=None if rho is None else exact("rho", rho),
        )


def _pure(account: str, noise: str, epsilon: Fraction, units: int) -> Charge:
    return Charge(account, units, noise, f"epsilon {show(epsilon)} (pure)", epsilon)


def _gaussian(units: int, guarantee: str) -> Charge:
    if units < 1:
        raise DataError(f"{guarantee} is below 1e-12 in mu squared, the ledger's grid; ask for more")
    return Charge("gaussian", units, "gaussian", guarantee)


def charge_for(request: Request, budget: Budget) -> tuple[Charge, ...]:
    """Every way in which ``budget`` would let ``request`` be paid, to be compared by error.

    - epsilon alone: Laplace from the pure account where the policy keeps one. Without one, Gaussian
      with the policy's delta; a rho policy has no delta, there it is Laplace, charged
      2 epsilon tanh(epsilon/2) of mu squared (`calibrate.pure_as_rho`).
    - epsilon and delta: Gaussian from its account, and Laplace at epsilon where the pure account was
      made large enough (a pure release is (epsilon, delta)-DP for every delta).
    - rho: Gaussian with mu^2 = 2 rho.

    All amounts are rounded down to the grid and the noise is calibrated to what was rounded, so what
    is charged is what is spent. Whether an account still holds enough is `BudgetState.check`'s
    question. Raises BudgetError where the policy has no account for the request, DataError below the grid.
    """
    totals = budget.totals
    if request.rho is not None:
        if "gaussian" not in totals:
            raise BudgetError("rho needs a Gaussian account, which this policy does not keep; ask with epsilon")
        return (_gaussian(to_units(2 * request.rho), f"rho {show(request.rho)} (zCDP)"),)
    asked = request.epsilon or Fraction(0)
    units = to_units(asked)
    epsilon = Fraction(units, GRID)
    laplace = _pure("pure", "laplace", epsilon, units)
    if request.delta is None and "pure" in totals:
        return (laplace,)
    if "gaussian" not in totals:
        if "pure" in totals:
            return (laplace,)
        raise BudgetError("this policy keeps a local account only; use synthesize, or add epsilon to its [budget]")
    delta = request.delta or budget.gaussian_delta
    if delta is None:
        return (_pure("gaussian", "laplace", epsilon, pure_cost(epsilon)),)
    # mu from epsilon and delta as they were given: mu^2 is what the grid is for here.
    gaussian = _gaussian(mu_units(asked, delta), f"epsilon {show(asked)}, delta {show(delta)}")
    return (gaussian, laplace) if totals.get("pure", 0) >= units else (gaussian,)


def local_charge(epsilon: object, budget: Budget) -> Charge:
    """The charge of a local release (replace-one relation), from the account of its own.

    Raises DataError for a malformed epsilon, BudgetError where the policy keeps no local account.
    """
    asked = Request(epsilon=exact("epsilon", epsilon)).epsilon or Fraction(0)
    if "local" not in budget.totals:
        raise BudgetError("a local release needs local_epsilon in the policy's [budget]; add it there")
    units = to_units(asked)
    return _pure("local", "response", Fraction(units, GRID), units)
