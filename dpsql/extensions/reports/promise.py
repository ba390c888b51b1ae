"""What a guarantee means for one unit, in words and in figures that anybody can weigh."""

from __future__ import annotations

import itertools
import math
import re
from fractions import Fraction

from dpsql.privacy.amounts import show
from dpsql.privacy.calibrate import gaussian_delta

_KEY = re.compile(r"[_ ]?(id|ids|key|no|nr|nbr|num|number|code|uuid)$", re.IGNORECASE)
_FREE = (
    "What this means: these answers were worked out of numbers that had been published before, so they tell nothing "
    "further about anybody and cost nothing."
)
# The share of right guesses up to which an advantage is called so, in the worst case.
_WORDS = (
    (0.55, "That is hardly better than a coin toss"),
    (0.75, "That is better than a coin toss and far from certainty"),
    (0.95, "That is a real advantage: read it as a limit in the worst case, not as safety"),
    (1.00, "That is nearly certainty: this figure alone promises little in the worst case"),
)


def unit_noun(unit: str) -> str:
    """A unit by its own word: "patient" for "all rows of one patient_id in visits (...)", "row of visits" for rows.

    Several kinds of units are joined by "or". ``unit`` is what neighbours differ in, as a plan's guarantee ends.
    """
    names = []
    for part in unit.split(", or "):
        found = re.match(r"all rows of one (.+?) in ", part)
        if found is None:
            names.append(part.partition(" (")[0].removeprefix("one ") or "privacy unit")
            continue
        name = _KEY.sub("", found[1]) or found[1]
        names.append(name.replace("_", " "))
    return " or ".join(dict.fromkeys(names))


def right_guesses(epsilon: float | None, mu_squared: float | None) -> float | None:
    """The largest share of right guesses of whoever tells two neighbours apart that were equally likely beforehand.

    (1 + TV) / 2 for the largest total variation TV between neighbours, which is delta at epsilon 0: of Gaussian noise
    2 Phi(mu / 2) - 1, exactly; of a pure guarantee tanh(epsilon / 2), which randomised response attains. None where
    neither is known.
    """
    if mu_squared is not None:
        return (1.0 + gaussian_delta(math.sqrt(mu_squared), 0.0)) / 2.0
    return None if epsilon is None else 1.0 / (1.0 + math.exp(-epsilon))


def promise(guarantee: str, noise: str, account: str, cost: float, unit: str) -> str:
    """A guarantee in plain words.

    ``noise``, ``account`` and ``cost`` are what was charged, in the account's measure; ``unit`` what neighbours differ
    in ("" where it is not known).
    """
    if not account:
        return _FREE
    held = _figures(guarantee)
    epsilon = held.get("epsilon")
    mu_squared = cost if (noise, account) == ("gaussian", "gaussian") else None
    noun = unit_noun(unit)
    whose = f"the data of any one {noun}" + (f", that is, {unit}" if unit.startswith("all rows") else "")
    other = "as it is or replaced by any other" if noise == "response" else "in the database or not"
    text = f"What this means: take {whose}. Whether it is {other}, "
    if epsilon is not None:
        factor = f"{math.exp(epsilon):,.3g}" if epsilon < 20 else f"e to the power {epsilon:g}"
        slack = f", and by at most {show(Fraction(held['delta']))} beyond that" if held.get("delta") else ""
        text += f"the probability of every outcome of this release changes by a factor of at most {factor}{slack}. "
    else:
        text += "what is released here follows nearly the same law; how nearly, the next sentence says. "
    right = right_guesses(epsilon, mu_squared)
    if right is None:
        return text.rstrip()
    content = ""
    if noise != "response":
        again = right_guesses(None if epsilon is None else 2 * epsilon, None if mu_squared is None else 4 * mu_squared)
        content = (
            f" If it is known that the {noun} is in the database, and its data are one of two versions, equally "
            "likely, they guess which one"
        )
        content += "" if again is None else f" right in at most {_of_100(again)} of 100 cases."
    said = next(words for limit, words in _WORDS if right <= limit)
    return (
        f"{text}Suppose that somebody knows all other data, and thinks that both are equally likely. With this release "
        f"they guess right in at most {_of_100(right)} of 100 cases; a coin toss is right in 50. {said}.{content} "
        "Several releases together tell more; the privacy budget limits what all of them tell."
    )


def _figures(guarantee: str) -> dict[str, float]:
    """Epsilon and delta of a guarantee's words, the first of each."""
    held: dict[str, float] = {}
    for name, value in itertools.pairwise(guarantee.replace(",", " ").replace("(", " ").split()):
        if name in ("epsilon", "delta") and re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", value):
            held.setdefault(name, float(value))
    return held


def _of_100(share: float) -> str:
    """Rounded up, to a digit after the point where that says more."""
    return f"{math.ceil(1000 * share) / 10:g}"
