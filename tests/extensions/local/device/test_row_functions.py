"""Functions of a record: closed forms against the list of all combinations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from dpsql.errors import DataError, InterfaceError, PolicyError
from dpsql.extensions.local.device import OTHER, Domain, RowFunction, constant, tabulated, value, where
from dpsql.extensions.local.device.row_functions import Factor

DOMAIN = Domain.of({"s": ["yes", "no", None], "age": [20, 35, 50, OTHER, None], "b": [True, False], "x": [0.5, 2.5]})
EVERY = DOMAIN.places(np.arange(DOMAIN.size))
RECORDS = [dict(zip(DOMAIN.names, r, strict=True)) for r in zip(*DOMAIN.decode(np.arange(60)).values(), strict=True)]

AGE = {20: 20.0, 35: 35.0, 50: 50.0, OTHER: 7.0, None: 0.0}
smokes, old = where(DOMAIN, {"s": "yes"}), where(DOMAIN, {"age": lambda v: v >= 35})
age, x = value(DOMAIN, "age", other=7), value(DOMAIN, "x")

CASES: list[tuple[RowFunction, Any]] = [
    (constant(DOMAIN, 2), lambda r: 2.0),
    (where(DOMAIN, {}), lambda r: 1.0),
    (smokes, lambda r: r["s"] == "yes"),
    (where(DOMAIN, {"s": [None, "no"], "age": (20, OTHER)}), lambda r: r["s"] != "yes" and r["age"] in (20, OTHER)),
    (where(DOMAIN, {"S": []}), lambda r: 0.0),
    (old, lambda r: r["age"] in (35, 50)),
    (1 - old, lambda r: r["age"] not in (35, 50)),
    (age, lambda r: AGE[r["age"]]),
    (age * smokes, lambda r: AGE[r["age"]] * (r["s"] == "yes")),
    (smokes + old - smokes * old, lambda r: r["s"] == "yes" or r["age"] in (35, 50)),
    (2 * age - x * 3 + 5, lambda r: 2 * AGE[r["age"]] - 3 * float(r["x"]) + 5),
    (age * x * where(DOMAIN, {"b": True}) - 4, lambda r: AGE[r["age"]] * float(r["x"]) * (r["b"] is True) - 4),
    ((age - x) * (age - x), lambda r: (AGE[r["age"]] - float(r["x"])) ** 2),
    (age * age, lambda r: AGE[r["age"]] ** 2),
    (0 * age, lambda r: 0.0),
    (tabulated(DOMAIN, lambda r: len(str(r))), lambda r: len(str(r))),
    (tabulated(DOMAIN, lambda r: r["b"]) * age + smokes, lambda r: r["b"] * AGE[r["age"]] + (r["s"] == "yes")),
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_closed_forms_are_the_sums_over_all_combinations(number: int) -> None:
    phi, oracle = CASES[number]
    listed = np.array([float(oracle(r)) for r in RECORDS])
    assert phi.at(EVERY) == pytest.approx(listed)
    assert phi.total == pytest.approx(listed.sum())
    assert phi.mean == pytest.approx(listed.mean())
    assert phi.inner(phi) == pytest.approx(listed @ listed)
    low, high = phi.bounds
    assert low == pytest.approx(listed.min())
    assert high == pytest.approx(listed.max())
    assert phi.is_indicator == bool(np.isin(listed, (0, 1)).all())
    centred = phi - phi.mean
    assert centred.total == pytest.approx(0, abs=1e-9)
    for other, other_oracle in CASES:
        assert phi.inner(other) == pytest.approx(listed @ np.array([float(other_oracle(r)) for r in RECORDS]))


def test_a_huge_domain_is_never_listed() -> None:
    wide = Domain.of({f"c{i}": range(30) for i in range(6)})
    phi = where(wide, {"c0": [1, 2], "c3": lambda v: v < 10}) * value(wide, "c5")
    assert phi.total == 2 * 10 * 30**3 * sum(range(30))
    assert phi.inner(phi) == 2 * 10 * 30**3 * sum(i * i for i in range(30))
    assert phi.bounds == (0.0, 29.0)
    several = phi + where(wide, {"c1": 1, "c2": 2, "c4": 3})
    low, high = several.bounds  # six columns are too many to list: the bounds of both terms, added up
    assert (low, high) == (0.0, 30.0)
    assert not several.is_indicator
    with pytest.raises(DataError, match="asked 729,000,000 times"):
        tabulated(wide, lambda r: 1.0)


def test_far_away_numbers_are_centred_without_loss() -> None:
    far = Domain.of({"t": [10**12, 10**12 + 1], "s": ["a", "b"]})
    phi = value(far, "t")
    centred = phi - phi.mean
    assert centred.inner(centred) == 4 * 0.25
    plus = phi + 10**12 - 2 * 10**12
    assert (plus.bounds[0], plus.bounds[1]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: where(DOMAIN, {"sx": "yes"}), PolicyError, "not part of this release"),
        (lambda: where(DOMAIN, {"s": "maybe"}), DataError, "'maybe' is no category of column 's'"),
        (lambda: where(DOMAIN, {"s": ["yes", OTHER]}), DataError, "OTHER is no category"),
        (lambda: where(DOMAIN, {"s": [["yes"]]}), DataError, "no category"),
        (lambda: where(DOMAIN, {"s": "yes", "S": "no"}), InterfaceError, "two conditions"),
        (lambda: value(DOMAIN, "s"), DataError, "no numbers"),
        (lambda: value(DOMAIN, "age"), DataError, "other=0"),
        (lambda: value(DOMAIN, "age", other=math.inf), DataError, "finite"),
        (lambda: constant(DOMAIN, math.nan), DataError, "finite"),
        (lambda: tabulated(DOMAIN, lambda r: None), DataError, "finite"),
        (lambda: age + value(Domain.of({"age": [1, 2]}), "age"), InterfaceError, "different domains"),
        (lambda: age.inner(value(Domain.of({"age": [1, 2]}), "age")), InterfaceError, "different domains"),
    ],
)
def test_bad_functions_are_refused(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_sizes_are_capped_before_work() -> None:
    wide = Domain.of({f"c{i}": range(10) for i in range(9)})
    pairs = list(itertools.combinations(range(9), 2))
    total = constant(wide, 0)
    for i, j in pairs:
        total = total + value(wide, f"c{i}") * value(wide, f"c{j}")
    assert total.total == pytest.approx(len(pairs) * 45**2 * 10**7)
    with pytest.raises(DataError, match="terms, more than 500"):
        total * total
    joint = Domain.of({f"c{i}": range(200) for i in range(3)})
    left = tabulated(Domain.of({"a": range(3), "b": range(3)}), lambda r: r["a"] * r["b"])
    assert left.inner(left) == 25
    pair = RowFunction(joint, ((Factor((0, 1), np.ones((200, 200))),),))
    other = RowFunction(joint, ((Factor((1, 2), np.ones((200, 200))),),))
    with pytest.raises(DataError, match="would list 8,000,000 combinations"):
        pair.inner(other)
