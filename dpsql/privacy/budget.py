"""What a policy allows in all and at once: the figures, the accounts that follow from them, the caps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import DataError, PolicyError
from dpsql.privacy.amounts import GRID, LARGEST, Number, exact, float_down, show, show_left, to_units
from dpsql.privacy.calibrate import gaussian_mu
from dpsql.privacy.charge import ACCOUNTS, Charge


@dataclass(frozen=True)
class Budget:
    """What a policy allows in all, fixed at creation; exact fractions, None where not declared.

    Make it with `Budget.of`. ``delta`` None is a pure policy. ``rho`` stands alone. ``discovery_delta`` is kept for
    thresholds (`reserve`): a part of ``delta``, or beside ``rho`` what the promise leaves out. The caps bound what one
    release may cost: ``max_epsilon`` holds for pure releases and, at the policy's delta, for Gaussian ones,
    ``max_rho`` takes its place in a rho policy, ``max_local_epsilon`` is for local releases. A cap is not
    part of the total: unlike the other figures it may change while the ledger lives, and so may ``approval``: whether
    each charge of an analyst needs the custodian's yes (`requests`).
    """

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    pure_epsilon: Fraction | None = None
    rho: Fraction | None = None
    local_epsilon: Fraction | None = None
    max_epsilon: Fraction | None = None
    max_rho: Fraction | None = None
    max_local_epsilon: Fraction | None = None
    discovery_delta: Fraction | None = None
    approval: bool = False

    def __post_init__(self) -> None:
        if self.rho is not None and not (self.epsilon is self.delta is self.pure_epsilon is None):
            raise PolicyError("[budget] gives rho beside epsilon or delta; keep rho alone or leave it out")
        if self.rho is None and self.epsilon is None and self.local_epsilon is None:
            raise PolicyError("[budget] names no budget; give epsilon, or epsilon and delta, or rho")
        if self.epsilon is None and (self.delta is not None or self.pure_epsilon is not None):
            raise PolicyError("[budget] gives delta or pure_epsilon without epsilon; add epsilon")
        if self.delta is not None and self.delta >= 1:
            raise PolicyError("[budget] delta must be below 1; 1e-9 is usual")
        if self.epsilon is not None and self.pure_epsilon is not None and self.pure_epsilon > self.epsilon:
            raise PolicyError("[budget] pure_epsilon is part of epsilon and cannot exceed it; lower it")
        if self.delta is None and self.pure_epsilon not in (None, self.epsilon):
            raise PolicyError("[budget] without delta all of epsilon is pure; leave pure_epsilon out or add delta")
        if self.discovery_delta is not None:
            most = Fraction(1) if self.rho is not None else self.delta
            if most is None or self.discovery_delta >= most:
                raise PolicyError("[budget] discovery_delta is a part of delta; write less than delta, or leave it out")
        for name, amount in self.totals.items():
            if not 0 < amount <= LARGEST:
                raise PolicyError(
                    f"[budget] the {name} account would be below 1e-12 or above 4.6 million; choose another"
                )
        for name, cap, whole in (
            ("max_epsilon_per_release", self.max_epsilon, self.epsilon),
            ("max_rho_per_release", self.max_rho, self.rho),
            ("max_local_epsilon_per_release", self.max_local_epsilon, self.local_epsilon),
        ):
            if cap is not None and (whole is None or not Fraction(1, GRID) <= cap <= whole):
                raise PolicyError(f"[budget] {name} must lie between 1e-12 and the figure that it caps; change it")

    @classmethod
    def of(
        cls,
        epsilon: Number | None = None,
        delta: Number | None = None,
        pure_epsilon: Number | None = None,
        rho: Number | None = None,
        local_epsilon: Number | None = None,
        max_epsilon_per_release: Number | None = None,
        max_rho_per_release: Number | None = None,
        max_local_epsilon_per_release: Number | None = None,
        discovery_delta: Number | None = None,
        *,
        approval: bool = False,
    ) -> Budget:
        """From a policy's figures, as decimal text or numbers; a float counts as its shortest text.

        ``delta``, ``pure_epsilon`` and ``local_epsilon`` may be 0, the same as not given.
        Raises PolicyError.
        """

        def read(name: str, value: Number | None, *, zero: bool) -> Fraction | None:
            if value is None or (zero and not isinstance(value, bool | str) and value == 0):
                return None
            if zero and isinstance(value, str) and value.strip() and not value.strip().strip("0.+"):
                return None
            return exact(name, value, PolicyError, shortest=True)

        return cls(
            epsilon=read("epsilon", epsilon, zero=False),
            delta=read("delta", delta, zero=True),
            pure_epsilon=read("pure_epsilon", pure_epsilon, zero=True),
            rho=read("rho", rho, zero=False),
            local_epsilon=read("local_epsilon", local_epsilon, zero=True),
            max_epsilon=read("max_epsilon_per_release", max_epsilon_per_release, zero=False),
            max_rho=read("max_rho_per_release", max_rho_per_release, zero=False),
            max_local_epsilon=read("max_local_epsilon_per_release", max_local_epsilon_per_release, zero=False),
            discovery_delta=read("discovery_delta", discovery_delta, zero=True),
            approval=approval,
        )

    @property
    def pure(self) -> Fraction:
        """epsilon_P: all of epsilon without delta, else what pure_epsilon keeps."""
        kept = self.epsilon if self.delta is None else self.pure_epsilon
        return kept if kept is not None else Fraction(0)

    @property
    def gaussian_delta(self) -> Fraction | None:
        """The part of delta that Gaussian releases use: all but what is kept for thresholds."""
        return None if self.delta is None else self.delta - (self.discovery_delta or 0)

    @property
    def totals(self) -> dict[str, int]:
        """The accounts that exist, in units of 1e-12, rounded down. The Gaussian one holds mu^2."""
        amounts: dict[str, int] = {}
        if self.pure:
            amounts["pure"] = to_units(self.pure)
        if self.rho is not None:
            amounts["gaussian"] = to_units(2 * self.rho)
        elif self.epsilon is not None and self.gaussian_delta is not None and self.epsilon > self.pure:
            amounts["gaussian"] = mu_units(self.epsilon - self.pure, self.gaussian_delta)
        if self.local_epsilon is not None:
            amounts["local"] = to_units(self.local_epsilon)
        return amounts

    @property
    def caps(self) -> dict[str, int]:
        """The most units that one release may take of each account that is capped, rounded down."""
        amounts: dict[str, int] = {}
        if self.max_epsilon is not None:
            amounts["pure"] = to_units(self.max_epsilon)
            if self.delta is not None:
                amounts["gaussian"] = mu_units(self.max_epsilon, self.delta)
        if self.max_rho is not None:
            amounts["gaussian"] = to_units(2 * self.max_rho)
        if self.max_local_epsilon is not None:
            amounts["local"] = to_units(self.max_local_epsilon)
        return amounts

    def allows(self, charge: Charge) -> bool:
        """Whether ``charge`` is within the cap on one release, whatever is left."""
        return charge.units <= self.caps.get(charge.account, LARGEST)

    def refusal(self, charge: Charge, called: str = "") -> str:
        """One line for a charge above the cap: what was asked, the cap, what to ask for instead.

        ``called``: what the cap is called, by default by its name in the policy.
        """
        name, cap, asked = "max_epsilon_per_release", self.max_epsilon, "epsilon"
        if charge.account == "local":
            name, cap, asked = "max_local_epsilon_per_release", self.max_local_epsilon, "epsilon"
        elif self.rho is not None:
            name, cap, asked = "max_rho_per_release", self.max_rho, "rho"
        most = show(cap or Fraction(0))
        at = f" at delta {show(self.delta)}" if charge.account == "gaussian" and self.delta is not None else ""
        called = called or f"the policy's {name}"
        return (
            f"a release at {charge.guarantee} is above {called}, {most}{at}; ask for {asked} of at most {most}{at}, or"
            " split the batch"
        )

    def figures(self) -> dict[str, str]:
        """The declared totals as exact text, for comparison and storage; caps are no part of them."""
        named = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "pure_epsilon": self.pure if self.delta is not None else None,
            "rho": self.rho,
            "local_epsilon": self.local_epsilon,
            "discovery_delta": self.discovery_delta,
        }
        return {name: str(value) for name, value in named.items() if value}

    def __str__(self) -> str:
        parts = []
        if self.rho is not None:
            parts.append(f"rho {show(self.rho)}")
        if self.epsilon is not None:
            parts.append(f"epsilon {show(self.epsilon)}")
        if self.delta is not None:
            parts.append(f"delta {show(self.delta)}")
            if self.pure:
                parts.append(f"of which pure {show(self.pure)}")
        if self.discovery_delta is not None:
            parts.append(f"of delta kept for finding groups {show(self.discovery_delta)}")
        if self.local_epsilon is not None:
            parts.append(f"local epsilon {show(self.local_epsilon)}")
        return ", ".join(parts)


def mu_units(epsilon: Fraction, delta: Fraction) -> int:
    """Units of mu^2 for the largest mu that is (epsilon, delta)-DP; every step rounds down."""
    return to_units(Fraction(gaussian_mu(float_down(epsilon), float_down(delta))) ** 2)


@dataclass(frozen=True)
class BudgetAccount:
    """One account of a ledger, in units of 1e-12 of its measure ("epsilon" or "mu squared")."""

    name: str
    total_units: int
    spent_units: int

    def __post_init__(self) -> None:
        if self.name not in ACCOUNTS or not 0 <= self.spent_units <= self.total_units <= LARGEST:
            raise DataError("an account must be spent between 0 and its total; verify the ledger")

    @property
    def measure(self) -> str:
        return "mu squared" if self.name == "gaussian" else "epsilon"

    @property
    def remaining_units(self) -> int:
        return self.total_units - self.spent_units

    @property
    def total(self) -> float:
        """Total, in the account's measure."""
        return self.total_units / GRID

    @property
    def spent(self) -> float:
        """Spent, in the account's measure; these add up over releases."""
        return self.spent_units / GRID

    @property
    def remaining(self) -> float:
        """Total less spent, in the account's measure."""
        return self.remaining_units / GRID

    def __str__(self) -> str:
        left, total = Fraction(self.remaining_units, GRID), Fraction(self.total_units, GRID)
        # What nothing was spent of is shown like the total, which is rounded up, and not a digit below it.
        return f"{self.name}: {self.measure} {show_left(left) if left < total else show(total)} left of {show(total)}"
