"""The exponential mechanism over whole-number scores, drawn exactly from the operating system's entropy.

Candidate i has a score s_i, a whole number that neighbours (add or remove one unit) change by at most D_i. What is
drawn is i with

    P(i) proportional to exp(epsilon s_i / (2 D_i))                                   (McSherry and Talwar 2007, Thm 6)

Guarantee: epsilon-DP, purely. Proof: between neighbours every weight changes by a factor of at most e^(epsilon/2)
either way, so does their sum, and the quotient by at most e^epsilon.

Guarantee: sqrt(3927 / 10000) epsilon-GDP, too (so rho-zCDP with rho = 0.19635 epsilon^2). Proof: between neighbours the
log quotients of all outcomes lie in one interval [t - epsilon, t] (bounded range: Durfee and Rogers 2019, since those
of the weights lie within epsilon of each other and their sums' is shared). Quotients in [a, b] of mean 1 are, in convex
order, at most the two-point law on {a, b} of mean 1, so the trade-off is at least that of two coins of biases p and q
with logit p - logit q = epsilon (Blackwell). It is that of N(0, 1) and N(mu, 1) at the least where mu >= Phi^-1(p) -
Phi^-1(q), by convexity, and the slope of Phi^-1 against the logit is at most sqrt(2 pi) / 4, at a half, as it falls on
either side: (logit Phi)' = h(z) + h(-z), h the normal law's hazard, convex. So mu <= sqrt(pi / 8) epsilon does, and
pi / 8 < 0.3927.

The draw is exact. A candidate is proposed uniformly and kept with probability exp(-(top - a_i)), a_i = epsilon s_i /
(2 D_i) and top the largest of them, all of them rationals; what is kept has the law above, by rejection. A coin
of probability exp(-g), g = n/d, is floor(g) coins of exp(-1) and one of the rest, each thrown with integers
(`dpsql.privacy.draws.exp_minus`). No float takes part. The candidate of the top score is always kept when it is
proposed, so a draw takes at most as many proposals as there are candidates, on average.

Timing. The number of proposals depends on the scores, which are private: unlike additive noise, a selection cannot be
drawn before the data are read. Who can time a single draw learns more than the result; see docs/privacy.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from dpsql.errors import InternalError
from dpsql.privacy.draws import EntropySource, Words, below, exp_minus, words

MU_SQUARED = Fraction(3927, 10000)
"""mu^2 of a selection at epsilon 1, at least pi / 8."""


@dataclass(frozen=True)
class Selection:
    """One draw of the exponential mechanism: ``epsilon`` > 0, exact, and ``reach`` (m,), the D_i >= 1 of the scores."""

    epsilon: Fraction
    reach: tuple[int, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, Fraction) or self.epsilon <= 0:
            raise InternalError("the epsilon of a selection must be an exact positive number")
        if not self.reach or any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in self.reach):
            raise InternalError("a selection needs candidates, each with a sensitivity of at least 1")

    @property
    def mu_squared(self) -> Fraction:
        """mu^2 of the Gaussian mechanism that tells as much at least."""
        return MU_SQUARED * self.epsilon**2

    def exponents(self, scores: Sequence[int]) -> list[Fraction]:
        """top - a_i (m,): P(i) is proportional to exp(-exponents[i]); at least one is 0."""
        held, unit = self._behind(scores)
        return [Fraction(self.epsilon.numerator * value, unit) for value in held]

    def _behind(self, scores: Sequence[int]) -> tuple[list[int], int]:
        """Whole numbers h_i and d with exponents[i] = h_i times epsilon's numerator over d."""
        if len(scores) != len(self.reach):
            raise InternalError("every candidate of a selection needs a score")
        common = math.lcm(*set(self.reach))
        held = [score * (common // reach) for score, reach in zip(scores, self.reach, strict=True)]
        top = max(held)
        return [top - value for value in held], 2 * common * self.epsilon.denominator

    def sample(self, scores: Sequence[int]) -> int:
        """The number of the candidate drawn, from OS entropy; the law is exact."""
        return select_from(self, scores, os.urandom)


def select_from(selection: Selection, scores: Sequence[int], source: EntropySource) -> int:
    """A draw with bytes from ``source``. FOR TESTS ONLY: whoever can repeat the source can repeat the draw."""
    behind, unit = selection._behind(scores)
    word = words(source)
    while True:
        proposed = below(word, len(behind))
        if _survives(word, selection.epsilon.numerator * behind[proposed], unit):
            return proposed


def _survives(word: Words, numerator: int, denominator: int) -> bool:
    """True with probability exp(-numerator/denominator), for any ratio >= 0."""
    whole, rest = divmod(numerator, denominator)
    for _ in range(whole):  # ends at the first coin that loses: after 1.6 on average
        if not exp_minus(word, 1, 1):
            return False
    return exp_minus(word, rest, denominator)
