"""What reports say a guarantee means: the policy's own unit, the factor, and how often an attacker can be right."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from dpsql.extensions.reports.promise import promise, right_guesses, unit_noun
from dpsql.privacy.calibrate import gaussian_mu

PATIENTS = "all rows of one patient_id in visits (at most 5 count)"


@pytest.mark.parametrize(
    ("unit", "noun"),
    [
        (PATIENTS, "patient"),
        ("all rows of one household_no in a (at most 1 count) and b (at most 2 count)", "household"),
        ("all rows of one id in people (at most 1 count)", "id"),
        ("one row of rand_hie", "row of rand_hie"),
        (f"{PATIENTS}, or one row of beds", "patient or row of beds"),
        ("", "privacy unit"),
    ],
)
def test_a_unit_is_called_by_its_own_word(unit: str, noun: str) -> None:
    assert unit_noun(unit) == noun


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.9, 12.0])
def test_right_guesses_are_exact(epsilon: float) -> None:
    """Randomised response attains the pure bound; Gaussian noise tells N(0, 1) from N(mu, 1), cut half-way."""
    assert right_guesses(epsilon, None) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))
    mu = gaussian_mu(epsilon, 1e-9)
    assert right_guesses(epsilon, mu**2) == pytest.approx(0.5 * math.erfc(-mu / 2 / math.sqrt(2)))
    as_sure = 2 * NormalDist().inv_cdf(math.exp(epsilon) / (1 + math.exp(epsilon)))
    assert right_guesses(None, as_sure**2) == pytest.approx(right_guesses(epsilon, None), rel=1e-6)
    assert right_guesses(None, None) is None


@pytest.mark.parametrize(
    ("epsilon", "factor", "of_100", "said", "twice"),
    [
        ("0.1", "1.11", "52.5", "hardly better", "55"),
        ("1", "2.72", "73.2", "far from certainty", "88.1"),
        ("2", "7.39", "88.1", "in the worst case", "98.3"),
        ("3.9", "49.4", "98.1", "nearly certainty", "100"),
    ],
)
def test_words_follow_epsilon(epsilon: str, factor: str, of_100: str, said: str, twice: str) -> None:
    text = promise(f"epsilon {epsilon} (pure)", "laplace", "pure", float(epsilon), PATIENTS)
    for words in (
        "the data of any one patient, that is, all rows of one patient_id in visits",
        f"factor of at most {factor}.",
        f"at most {of_100} of 100 cases",
        said,
        "its data are one of two versions, equally likely, they guess which one",
        f"right in at most {twice} of 100 cases.",
    ):
        assert words in text
    assert "equally likely: " not in text
    assert "about equally" not in text


def test_other_guarantees_have_words_of_their_own() -> None:
    gaussian = promise("epsilon 1, delta 1e-9", "gaussian", "gaussian", gaussian_mu(1, 1e-9) ** 2, "one row of t")
    assert "at most 2.72, and by at most 1e-9 beyond that." in gaussian
    assert "53.7 of 100" in gaussian
    assert "that is" not in gaussian
    rho = promise("rho 0.5 (zCDP)", "gaussian", "gaussian", 1.0, "one row of t")
    assert "69.2 of 100" in rho  # Phi(1 / 2)
    assert "factor" not in rho
    assert "replaced by any other" in promise("epsilon 1 (local, replace one row)", "response", "local", 1.0, "")
    assert "cost nothing" in promise("free, from release 1", "gaussian", "", 0.0, "")
