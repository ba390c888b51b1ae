"""Alternating maximisation of the dual of the least error, with Anderson mixing.

The mathematics, and most states of the iteration, are in ``dpsql.strategies.core.symmetric``; the state of single cells
is in ``dpsql.strategies.gaussian.optimal``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeVar

import numpy as np

from dpsql.common.arrays import Flags, Floats, Ints
from dpsql.common.numerics import NEGLIGIBLE

_DEPTH = 8
_CLIP = 3.0
_NO_WEIGHT = 3e-3  # of the largest weight: columns below it leave an active set


@dataclass(frozen=True, eq=False)
class Solution:
    """``metric`` M (v x v): X = Y^T M Y has unit largest diagonal; ``lower`` <= E* <= ``upper``.

    ``weights`` (N,): the lambda whose dual value is ``lower``, so that anyone can evaluate it again.
    """

    metric: Floats
    lower: float
    upper: float
    iterations: int
    weights: Floats

    @property
    def gap(self) -> float:
        return self.upper / self.lower - 1.0


class State(Protocol):
    t: float
    q: Floats

    def upper(self) -> float: ...


S = TypeVar("S", bound=State)


def ascend(
    evaluate: Callable[[Floats], S],
    weights: Floats,
    tolerance: float,
    deadline: float,
    limit: int,
    clock: Callable[[], float] = monotonic,
) -> tuple[S, Floats, int]:
    """Raise t by mixed steps in log lambda until upper <= (1 + tolerance) t^2; the best state, its lambda.

    Stops after ``limit`` steps, and where a step as long as the last would end after ``deadline``, in seconds of
    ``clock``.
    """
    began = clock()
    f = np.log(np.maximum(weights, NEGLIGIBLE / weights.size))
    state = evaluate(_normal(f))
    past_f: list[Floats] = []
    past_g: list[Floats] = []
    count = 1
    now = clock()
    took = now - began
    while count < limit and now + took < deadline:
        before, made = now, count
        if state.upper() <= (1.0 + tolerance) * state.t**2:
            break
        g = np.clip(2.0 * np.log(np.maximum(state.q / state.t, 1e-30)), -_CLIP, _CLIP)
        past_f, past_g = [*past_f[-_DEPTH:], f], [*past_g[-_DEPTH:], g]
        accepted = False
        if len(past_f) > 1:
            mixed = _anderson(past_f, past_g)
            trial = evaluate(_normal(mixed))
            count += 1
            accepted = trial.t > state.t
            if accepted:
                f, state = np.log(_normal(mixed)), trial
            else:
                past_f, past_g = past_f[-1:], past_g[-1:]
        if not accepted:
            f = np.log(_normal(f + g))
            state = evaluate(np.exp(f))
            count += 1
        now = clock()
        took = (now - before) / (count - made)
    return state, np.exp(f), count


def _normal(f: Floats) -> Floats:
    lam = np.exp(f - f.max())
    lam = np.maximum(lam / lam.sum(), NEGLIGIBLE / lam.size)
    return np.asarray(lam / lam.sum())


def _anderson(past_f: list[Floats], past_g: list[Floats]) -> Floats:
    """Anderson mixing: the affine combination of past steps whose weighted residual is least."""
    f, g = past_f[-1], past_g[-1]
    root = np.exp(0.5 * f)
    # Rows of unit length and a small ridge keep the few coefficients tame.
    A = np.empty((len(past_g) - 1, g.size))
    for row, before in zip(A, past_g[:-1], strict=True):
        np.multiply(np.subtract(g, before, out=row), root, out=row)
    A_A = A @ A.T
    length = np.sqrt(np.diag(A_A)) + 1e-300
    coef = (
        np.linalg.solve(A_A / np.outer(length, length) + 1e-10 * np.eye(length.size), A @ (g * root) / length) / length
    )
    step = (1.0 - float(coef.sum())) * g - float(coef.sum()) * f
    for share, before_f, before_g in zip(coef.tolist(), past_f[:-1], past_g[:-1], strict=True):
        step += share * (before_f + before_g)
    return np.asarray(f + np.clip(step, -_CLIP, _CLIP))


def exchange(
    lam: Floats, ratio: Floats, violated: Floats, sizes: tuple[int, int], rng: np.random.Generator
) -> tuple[Flags, Ints, Floats]:
    """(which of the active columns stay, places in ``violated`` of those that join, weights of both, of sum 1).

    ``lam``, ``ratio`` (k,): weights and q / t of the active columns; ``violated``: q / t of others. Columns without
    weight that do not bind leave, but never to fewer than the order v. The most violated resemble each other, so that
    at most d of those that join are drawn at random, in proportion to the square of their violation: a third of the
    rounds of the greedy rule. ``sizes``: (v, d).
    """
    v, most = sizes
    stay = (lam > _NO_WEIGHT * lam.max()) | (ratio > 1.0)
    if np.count_nonzero(stay) < v:
        stay[:] = True
    worst = np.flatnonzero(violated > 0.9 + 0.1 * max(float(ratio.max()), float(violated.max(initial=1.0))))
    worst = worst[np.argsort(-violated[worst], kind="stable")]
    greedy, drawn = worst[: v // 2 + 1], worst[v // 2 + 1 :]
    if drawn.size > most:
        chance = (violated[drawn] - 1.0) ** 2
        drawn = rng.choice(drawn, size=most, replace=False, p=chance / chance.sum())
    join = np.concatenate([np.sort(greedy), np.sort(drawn)])
    weights = np.concatenate([lam[stay], np.full(join.size, 0.3 * float(np.median(lam[stay])))])
    return stay, join, weights / weights.sum()
