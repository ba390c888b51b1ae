"""One way to pay for a release: so much of one account, for one kind of noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import DataError
from dpsql.privacy.amounts import GRID, LARGEST, to_units
from dpsql.privacy.calibrate import pure_as_rho
from dpsql.privacy.noise import Noise, gaussian_noise, pure_noise

ACCOUNTS = ("pure", "gaussian", "local")


@dataclass(frozen=True)
class Charge:
    """One way to pay for a release: so many units of one account, for one kind of noise.

    account: "pure", "gaussian" or "local". units: integers of 1e-12 of the account's measure.
    noise: "laplace" (pure noise, of the 1-norm or in blocks), "gaussian" or "response" (local randomised response);
    "none" of what is `free`.
    epsilon: what Laplace noise or a response is calibrated to, on the grid; None for Gaussian, which
    is calibrated to exactly `mu_squared`. guarantee: what the release alone satisfies, for people. delta: the chance by
    which a threshold fails (`threshold`), taken from the policy's reserve beside the units (`reserve`); else None.

    The noise never gets more than is paid: epsilon in the pure or local account is ``units`` exactly, in the Gaussian
    one (a rho policy) ``units`` hold 2 epsilon tanh(epsilon/2), to one part in 10^9, since libraries of
    mathematics differ in the last digit of tanh. Raises DataError.
    """

    account: str
    units: int
    noise: str
    guarantee: str
    epsilon: Fraction | None = None
    delta: Fraction | None = None

    def __post_init__(self) -> None:
        if self.delta is not None and not (0 < self.delta < 1 and self.noise in ("laplace", "gaussian")):
            raise DataError("a threshold fails with a chance between 0 and 1; make its charge with discovery_charges")
        if self.noise == "none":
            if self.units or self.account or self.epsilon is not None:
                raise DataError("an answer that is free takes nothing from any account; make it with Charge.free")
            return
        if self.account not in ACCOUNTS or self.noise not in ("laplace", "gaussian", "response"):
            raise DataError("a charge names an unknown account or noise; make it with charge_for")
        if isinstance(self.units, bool) or not isinstance(self.units, int) or not 0 < self.units <= LARGEST:
            raise DataError("a charge must be a positive 64-bit number of units; ask for more or for less")
        if (self.epsilon is None) != (self.noise == "gaussian"):
            raise DataError("a charge for Laplace noise or a response needs epsilon, a Gaussian one has none")
        if (self.noise == "response") != (self.account == "local") or (self.noise, self.account) == (
            "gaussian",
            "pure",
        ):
            raise DataError("a charge takes from an account that cannot pay for its noise; make it with charge_for")
        if self.epsilon is not None and not self._pays(self.epsilon):
            raise DataError("a charge pays for another epsilon than its noise has; make it with charge_for")

    def _pays(self, epsilon: Fraction) -> bool:
        if self.account != "gaussian":
            return epsilon * GRID == self.units
        return epsilon > 0 and self.units + 2 >= pure_cost(epsilon) * (1 - Fraction(1, 10**9))

    @property
    def mu_squared(self) -> Fraction:
        """What Gaussian noise is calibrated to: exactly what is charged. DataError for other noise."""
        if self.noise != "gaussian":
            raise DataError("only a charge for Gaussian noise has a mu; use epsilon")
        return Fraction(self.units, GRID)

    @property
    def measure(self) -> str:
        """What its account counts."""
        return "mu squared" if self.account == "gaussian" else "epsilon"

    @property
    def amount(self) -> float:
        """The charge in its account's measure: epsilon, or mu squared."""
        return self.units / GRID

    @property
    def unit_variance(self) -> float:
        """Noise variance at sensitivity 1, continuous: 1/mu^2, or 2/epsilon^2.

        A strategy's total squared error is this times squared sensitivity times its error; it is
        what candidates are compared by. Times D^2 for a sensitivity D.
        """
        if self.epsilon is None:
            return float(1 / self.mu_squared)
        return float(2 / self.epsilon**2)

    def calibrate(self, sensitivity: int, blocks: tuple[int, ...] = ()) -> Noise:
        """The noise that this charge pays for. Raises DataError.

        sensitivity: *squared* L2 for Gaussian noise; L1 for Laplace noise, or, with ``blocks`` of more than one
        coordinate, the sum over these of the largest coordinate (`noise.pure_noise`). Exact, from the integer strategy.
        """
        if self.noise == "gaussian":
            return gaussian_noise(sensitivity, self.mu_squared)
        if self.noise == "laplace" and self.epsilon is not None:
            return pure_noise(sensitivity, self.epsilon, blocks)
        raise DataError("a local release or a free answer draws no additive noise; charge a release with local_charge")

    def as_dict(self) -> dict[str, str | int]:
        """Public and JSON-ready; `from_dict` reads it back."""
        fields: dict[str, str | int] = {
            "purse": self.account,
            "units": self.units,
            "noise": self.noise,
            "guarantee": self.guarantee,
        }
        if self.epsilon is not None:
            fields["epsilon"] = str(self.epsilon)
        if self.delta is not None:
            fields["delta"] = str(self.delta)
        return fields

    @classmethod
    def free(cls, guarantee: str) -> Charge:
        """Nothing: what an answer from earlier releases costs. No ledger takes it as a charge."""
        return cls("", 0, "none", guarantee)

    @classmethod
    def from_dict(cls, fields: dict[str, str | int]) -> Charge:
        """Inverse of `as_dict`. Raises DataError for values that no charge has."""
        epsilon, delta = fields.get("epsilon"), fields.get("delta")
        return cls(
            str(fields["purse"]),
            int(fields["units"]),
            str(fields["noise"]),
            str(fields["guarantee"]),
            None if epsilon is None else Fraction(epsilon),
            None if delta is None else Fraction(delta),
        )


def pure_cost(epsilon: Fraction) -> int:
    """Units of mu squared that a pure release of epsilon costs where a rho policy pays, rounded up.

    2 rho = 2 epsilon tanh(epsilon/2), the least for which every epsilon-DP release is rho-zCDP
    (`calibrate.pure_as_rho`).
    """
    return -to_units(-2 * Fraction(pure_as_rho(math.nextafter(float(epsilon), math.inf))))
