"""End-to-end privacy: noisy measurements of neighbouring databases, compared in mu (or epsilon), not in delta.

A bound on epsilon from counts of rare events never catches a doubled rho; the errors of the best test between
neighbours, told in mu, do after some hundred measurements.

Gaussian. Whoever must say which of two neighbours y came from errs: a mu-GDP release has P(says D' | D) +
P(says D | D') >= 2 Phi(-mu / 2) for every test (Dong, Roth and Su 2022, Definition 4), whatever the law of the noise.
The test here is the best one against Gaussian noise: which of the two exact vectors is nearer. Of 2N measurements
at least 2N Phi(-mu / 2) errors are expected; fewer than that have the p-value of the binomial law with that
mean (Hoeffding 1956, Theorem 4: unequal probabilities only make the tail lighter), told as z. So right code fails
exactly as often as z says, noise of a few whole numbers included. m units together pay m mu (group privacy,
Theorem 3 there); m is chosen to bring that near 2.3, where N measurements tell a doubled rho best. A release
of mu above 5 makes no errors, and has no power here.

Laplace. Let b be the scale and d the change. epsilon is sum |d_i| / b over the coordinates that move; m units pay
m epsilon. It is found from the means of y_i, signed by d_i, and b from the mean |noise|; that the noise has its shape
is for ``dpsql.audit.noise`` to say. For one unit that moves up to three coordinates, P(E | D') - e^epsilon P(E | D)
is tested besides, E being that all pass their values under D': pure privacy allows no event more than 0,
whatever the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dpsql.audit.database import KEYS, OWN, SHARED, Rows
from dpsql.audit.sensitivity import NUMBER, Found
from dpsql.audit.world import World
from dpsql.measure import synthetic

GAUSSIAN_AIM, LAPLACE_AIM = 2.3, 12.0
MOST_UNITS = (KEYS - SHARED) // OWN - 4

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Distance:
    """How far apart neighbours are: ``found`` of ``claimed``, in mu or epsilon of ``units`` units.

    ``z``: standard errors (or the same in p) that ``found`` lies above the claim. ``power``: what z a doubled rho (or epsilon) would
    have had here. ``event``: standard errors of the event test, None where it was not made.
    """

    measure: str
    trials: int
    units: int
    claimed: float
    found: float
    z: float
    power: float
    event: float | None = None


def distance(world: World, worst: Found, trials: int) -> Distance:
    """Measure both databases ``trials`` times each and compare. Cost: 2 x ``trials`` measurements."""
    step = _step(world, worst, 1)
    claimed = _claimed(world)
    aim = GAUSSIAN_AIM if world.gaussian else LAPLACE_AIM
    units = max(1, min(round(aim / claimed), MOST_UNITS))
    change = _step(world, worst, units)
    if change != [units * d for d in step]:
        units, change = 1, step  # the units get in each other's way
    shift = np.array([float(value) for value in change])
    plain = _measured(world, worst.base, trials)
    moved = _measured(world, _beside(world, worst, units), trials) + shift
    if world.gaussian:
        return Distance("mu", trials, units, units * claimed, *_gaussian(plain, moved, shift, units * claimed))
    found, z, power = _laplace(plain, moved, shift, units * claimed)
    event = None
    alone = np.array([float(value) for value in step])
    if (alone != 0).sum() <= 3:
        with_one = moved if units == 1 else _measured(world, _beside(world, worst, 1), trials) + alone
        event = _event(plain, with_one, alone, claimed)
    return Distance("epsilon", trials, units, units * claimed, found, z, power, event)


def _beside(world: World, worst: Found, units: int) -> Rows:
    """The base with ``units`` units like the worst one."""
    rows = {name: list(mine) for name, mine in worst.base.items()}
    for name, mine in _rows(world, worst, units).items():
        rows[name] = [*rows.get(name, []), *mine]
    return rows


def _claimed(world: World) -> float:
    charge = world.plan.charge
    return math.sqrt(charge.mu_squared) if world.gaussian else float(charge.epsilon or 0)


def _rows(world: World, worst: Found, units: int) -> Rows:
    """``units`` units like the worst one, numbered past those that stand beside them."""
    found: Rows = {}
    for unit in range(units):
        number = NUMBER if unit == 0 else unit + NUMBER + 1
        for name, mine in world.tables.orderly_unit(worst.label, number, worst.cells).items():
            found[name] = [*found.get(name, []), *mine]
    return found


def _step(world: World, worst: Found, units: int) -> list[int]:
    return world.change(worst.base, _rows(world, worst, units))


def _measured(world: World, rows: Rows, trials: int) -> Floats:
    """Noisy measurements less the exact values of those very rows (trials x p)."""
    world.tables.fill(rows)
    exact = world.exact()
    still = synthetic.StillEngine(world.tables.engine)
    found = np.empty((trials, len(exact)))
    for trial in range(trials):
        y = synthetic.noisy(world.job, still)
        found[trial] = [float(a - b) for a, b in zip(y, exact, strict=True)]
    return found


def _gaussian(plain: Floats, moved: Floats, shift: Floats, claimed: float) -> tuple[float, float, float]:
    tests = 2 * len(plain)
    halfway = float(shift @ shift) / 2
    errors = int((plain @ shift >= halfway).sum() + (moved @ shift < halfway).sum())
    found = -2 * float(special.ndtri(max(errors, 0.5) / tests))
    if_doubled = math.floor(tests * float(special.ndtr(-claimed * math.sqrt(2) / 2)))
    return found, _few(errors, tests, claimed), _few(if_doubled, tests, claimed)


def _few(errors: int, tests: int, mu: float) -> float:
    """z of so few errors in so many tests between neighbours that are mu apart."""
    p = float(special.bdtr(errors, tests, special.ndtr(-mu / 2)))
    return -float(special.ndtri(min(max(p, 1e-300), 1 - 1e-16)))


def _laplace(plain: Floats, moved: Floats, shift: Floats, claimed: float) -> tuple[float, float, float]:
    trials = len(plain)
    moving = shift != 0
    noise = np.concatenate([plain.ravel(), (moved - shift).ravel()])
    scale = _scale(float(np.abs(noise).mean()))
    apart = (moved - plain)[:, moving] @ np.sign(shift[moving]) / scale
    found = float(apart.mean())
    # |noise| has the deviation of its mean: the scale's relative error is 1 / sqrt(draws).
    error = math.sqrt(4.0 * moving.sum() / trials + claimed**2 / noise.size)
    return (
        found,
        (found - claimed) / error,
        claimed / math.sqrt(4.0 * moving.sum() / trials + 4 * claimed**2 / noise.size),
    )


def _scale(mean: float) -> float:
    """b of a discrete Laplace law with that mean of |Z|: 2q / (1 - q^2), q = exp(-1/b)."""
    if mean == 0:
        return 1e-9
    q = (math.sqrt(1 + mean * mean) - 1) / mean
    return -1 / math.log(q) if q < 1 else mean


def _event(plain: Floats, moved: Floats, shift: Floats, epsilon: float) -> float:
    trials = len(plain)
    at = np.flatnonzero(shift)
    without, with_unit = (
        float(((values[:, at] - shift[at]) * np.sign(shift[at]) >= 0).all(axis=1).mean()) for values in (plain, moved)
    )
    low = max(without, 1 / trials)
    factor = math.exp(epsilon)
    error = math.sqrt((with_unit * (1 - with_unit) + factor**2 * low * (1 - low)) / trials)
    return (with_unit - factor * without) / error
