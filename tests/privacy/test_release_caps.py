"""Caps on one release: declared in the policy, refused before the charge, told in the words of the request."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpsql.errors import BudgetError, PolicyError
from dpsql.policy import BudgetPolicy, Policy
from dpsql.privacy.accountant import Budget, Request, charge_for, fresh_state, local_charge
from dpsql.privacy.amounts import GRID

CAPPED = {
    "pure": Budget.of("1", max_epsilon_per_release="0.25"),
    "mixed": Budget.of("4", "1e-9", "1", max_epsilon_per_release="0.25"),
    "rho": Budget.of(rho="0.5", max_rho_per_release="0.02"),
    "local": Budget.of("1", local_epsilon="2", max_local_epsilon_per_release="0.5"),
}


@pytest.mark.parametrize(
    ("policy", "request_", "granted"),
    [
        ("pure", {"epsilon": "0.25"}, [True]),
        ("pure", {"epsilon": "0.250000000001"}, [False]),
        ("mixed", {"epsilon": "0.25"}, [True]),
        ("mixed", {"epsilon": "0.26"}, [False]),
        ("mixed", {"epsilon": "0.25", "delta": "1e-9"}, [True, True]),
        # The same epsilon at a smaller delta is a weaker release, at a larger one a stronger.
        ("mixed", {"epsilon": "0.25", "delta": "1e-12"}, [True, True]),
        ("mixed", {"epsilon": "0.25", "delta": "1e-6"}, [False, True]),
        ("mixed", {"epsilon": "0.26", "delta": "1e-9"}, [False, False]),
        ("mixed", {"rho": "0.0001"}, [True]),
        ("mixed", {"rho": "0.1"}, [False]),
        ("rho", {"rho": "0.02"}, [True]),
        ("rho", {"rho": "0.021"}, [False]),
        ("rho", {"epsilon": "0.2"}, [True]),  # costs epsilon tanh(epsilon / 2) of rho: 0.0199
        ("rho", {"epsilon": "0.21"}, [False]),
    ],
)
def test_a_release_is_held_to_its_cap(policy: str, request_: dict[str, str], granted: list[bool]) -> None:
    state = fresh_state(CAPPED[policy])
    ways = charge_for(Request.of(**request_), CAPPED[policy])
    assert [state.affords(charge) for charge in ways] == granted
    for charge, fits in zip(ways, granted, strict=True):
        if not fits:
            with pytest.raises(BudgetError, match="_per_release"):
                state.check(charge)


def test_local_releases_have_a_cap_of_their_own() -> None:
    state = fresh_state(CAPPED["local"])
    state.check(local_charge("0.5", CAPPED["local"]))
    with pytest.raises(BudgetError, match="max_local_epsilon_per_release, 0\\.5; ask for epsilon of at most 0\\.5"):
        state.check(local_charge("0.6", CAPPED["local"]))
    assert state.affords(charge_for(Request.of(1), CAPPED["local"])[0])


def test_a_refusal_says_what_to_ask_for() -> None:
    (gaussian, _) = charge_for(Request.of("0.5", "1e-9"), CAPPED["mixed"])
    message = fresh_state(CAPPED["mixed"]).refusal(gaussian)
    assert "epsilon 0.5, delta 1e-9 is above the policy's max_epsilon_per_release, 0.25 at delta 1e-9" in message
    assert "at most 0.25 at delta 1e-9" in message
    # What it offers is granted.
    assert fresh_state(CAPPED["mixed"]).affords(charge_for(Request.of("0.25", "1e-9"), CAPPED["mixed"])[0])
    (zcdp,) = charge_for(Request.of(rho="0.1"), CAPPED["rho"])
    assert "max_rho_per_release, 0.02; ask for rho of at most 0.02" in fresh_state(CAPPED["rho"]).refusal(zcdp)


def test_caps_are_no_part_of_the_totals() -> None:
    assert CAPPED["mixed"].figures() == Budget.of("4", "1e-9", "1").figures()
    assert CAPPED["mixed"].totals == Budget.of("4", "1e-9", "1").totals
    assert CAPPED["pure"].caps == {"pure": GRID // 4}
    assert Budget.of("1").caps == {}


@pytest.mark.parametrize(
    "figures",
    [
        {"epsilon": "1", "max_epsilon_per_release": "2"},
        {"epsilon": "1", "max_epsilon_per_release": "0"},
        {"epsilon": "1", "max_epsilon_per_release": "1e-13"},
        {"epsilon": "1", "max_rho_per_release": "0.1"},
        {"rho": "1", "max_epsilon_per_release": "0.1"},
        {"epsilon": "1", "max_local_epsilon_per_release": "0.1"},
        {"epsilon": "1", "max_epsilon_per_release": True},
        {"epsilon": "1", "max_epsilon_per_release": "nan"},
    ],
)
def test_malformed_caps_are_refused(figures: dict[str, object]) -> None:
    with pytest.raises(PolicyError, match="_per_release"):
        Budget.of(**figures)  # type: ignore[arg-type]


# -- in the policy -----------------------------------------------------------------------------------


def parse(budget: str) -> Policy:
    return Policy.parse(f'dataset = "d"\n[budget]\n{budget}\n[tables.t]\nunit = "row"\n')


@pytest.mark.parametrize(
    "budget",
    [
        "epsilon = 1\nmax_epsilon_per_release = 0.1",
        "epsilon = 4.0\ndelta = 1e-9\npure_epsilon = 1\nmax_epsilon_per_release = 0.333",
        "rho = 0.5\nmax_rho_per_release = 0.05",
        "epsilon = 1\nlocal_epsilon = 2\nmax_local_epsilon_per_release = 2",
    ],
)
def test_caps_survive_toml(budget: str) -> None:
    policy = parse(budget)
    assert Policy.parse(policy.to_toml()) == policy
    assert "_per_release" in policy.to_toml()


def test_a_cap_is_the_decimal_that_was_written() -> None:
    held = parse("epsilon = 1\nmax_epsilon_per_release = 0.1").budget
    assert held == BudgetPolicy(Fraction(1), max_epsilon_per_release=Fraction(1, 10))
    assert parse("epsilon = 1").budget.max_epsilon_per_release is None


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ("epsilon = 1\nmax_epsilon_per_release = 2", "budget.max_epsilon_per_release is 2, above budget.epsilon 1"),
        ("epsilon = 1\nmax_rho_per_release = 2", "budget.max_rho_per_release caps budget.rho, which is not given"),
        ("epsilon = 1\nmax_local_epsilon_per_release = 1", "caps budget.local_epsilon, which is not given"),
        ("rho = 1\nmax_epsilon_per_release = 1", "caps budget.epsilon, which is not given"),
        ("epsilon = 1\nmax_epsilon_per_release = 0", "max_epsilon_per_release is 0; write a positive number"),
        ("epsilon = 1\nmax_epsilon_per_release = '1'", "is in quotes, which make it a string; write 1"),
        ("epsilon = 1\nmax_epsilon_per_relase = 1", "did you mean max_epsilon_per_release"),
    ],
)
def test_policy_refusals(budget: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(budget)
    assert message in str(caught.value)
