"""Joint domains: mixed radix, NULL and OTHER, every private value in its place, caps."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpsql.errors import DataError, InterfaceError, PolicyError
from dpsql.extensions.local.device import OTHER, Categories, Domain
from dpsql.policy import Policy

SMALL = Domain.of({"smoker": ["yes", "no", None], "age": [20, 30, OTHER], "ok": [True, False]})

POLICY = Policy.parse(
    """
    dataset = "d"
    [budget]
    epsilon = 1
    [tables.visits]
    unit = "row"
    [tables.visits.columns]
    region = { values = ["north", "south"], other = true }
    age = { type = "INTEGER", lower = 18, upper = 20, nulls = false }
    day = { type = "DATE", lower = 2020-02-28, upper = 2020-03-01 }
    free = { type = "VARCHAR" }
    cost = { type = "DOUBLE", lower = 0, upper = 10 }
    """
)


def test_every_combination_has_a_number_of_its_own_and_back() -> None:
    assert (SMALL.shape, SMALL.size, SMALL.names) == ((3, 3, 2), 18, ("smoker", "age", "ok"))
    records = SMALL.decode(np.arange(18))
    assert len(set(zip(*records.values(), strict=True))) == 18
    assert SMALL.encode(records).tolist() == list(range(18))
    assert [records[name][0] for name in SMALL.names] == ["yes", 20, True]  # the last column is the fastest
    assert [records[name][1] for name in SMALL.names] == ["yes", 20, False]
    assert [records[name][17] for name in SMALL.names] == [None, OTHER, False]
    for places, axis in zip(SMALL.places(np.arange(18)), range(3), strict=True):
        assert places.tolist() == np.unravel_index(np.arange(18), SMALL.shape)[axis].tolist()


@pytest.mark.parametrize("code", [-1, 18])
def test_numbers_outside_the_domain_are_refused(code: int) -> None:
    with pytest.raises(DataError, match="between 0 and 17"):
        SMALL.places(np.array([0, code]))


class Strange:
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_every_value_has_a_category(nulls: bool, other: bool) -> None:
    """No value fails, whatever a record holds: NULL and OTHER stand in for each other, then the first value."""
    column = Categories("c", ("a", "b"), other=other, nulls=nulls)
    null = column.all.index(None) if nulls else column.all.index(OTHER) if other else 0
    outside = column.all.index(OTHER) if other else column.all.index(None) if nulls else 0
    for missing in (None, float("nan"), np.float32("nan"), pd.NA, pd.NaT):
        assert column.place(missing) == null, repr(missing)
    for stranger in ("c", "A", 1, [], {}, Strange(), b"a", 2.5, Decimal("nan"), OTHER, object()):
        assert column.place(stranger) == outside, repr(stranger)
    assert column.places(["b", [], "a", None, "b"]).tolist() == [1, outside, 0, null, 1]


def test_numbers_are_equal_as_they_show() -> None:
    column = Domain.of({"dose": [0.1, 0.5, OTHER, None]}).columns[0]
    assert column.values == (Decimal("0.1"), Decimal("0.5"))
    assert column.places(np.array([0.1, 0.5, np.nan, 0.3, np.inf])).tolist() == [0, 1, 3, 2, 2]
    assert column.places([Decimal("0.10"), 0.5, np.float64(0.1)]).tolist() == [0, 1, 0]
    ages = Domain.of({"age": range(18, 21)}).columns[0]
    for made in (np.array([18, 20]), np.array([18, 20], dtype=np.uint64), np.array([18.0, 20.0]), [18, Decimal(20)]):
        assert ages.places(made).tolist() == [0, 2]
    assert ages.places([2**64, -1]).tolist() == [0, 0]


def test_dates_and_moments_of_numpy_and_pandas() -> None:
    days = Domain.of({"day": [date(2020, 2, 28), date(2020, 2, 29), OTHER, None]}).columns[0]
    stamps = np.array(["2020-02-29", "2020-02-28T00:00:01", "NaT", "2020-02-28"], dtype="datetime64[ns]")
    assert days.places(stamps).tolist() == [1, 2, 3, 0]
    assert days.places(stamps.astype("datetime64[D]")).tolist() == [1, 0, 3, 0]
    assert days.places(pd.Series([date(2020, 2, 29), None])).tolist() == [1, 3]
    moments = Domain.of({"at": [datetime(2020, 1, 1, 12), OTHER]}).columns[0]
    assert moments.places(np.array(["2020-01-01T12:00"], dtype="datetime64[m]")).tolist() == [0]
    assert moments.places(np.array(["2020-01-01T12:00:00.000000001"], dtype="datetime64[ns]")).tolist() == [1]
    zoned = Domain.of({"at": [datetime(2020, 1, 1, 12, tzinfo=UTC), None]}).columns[0]
    assert zoned.places(pd.Series(pd.to_datetime(["2020-01-01T13:00+01:00"]))).tolist() == [0]


def test_released_rows_are_held_to_the_domain() -> None:
    good = SMALL.decode(np.arange(18))
    assert [p.tolist() for p in SMALL.public_places(good)] == [p.tolist() for p in SMALL.places(np.arange(18))]
    with pytest.raises(DataError, match="row 1 has a value of 'smoker' outside"):
        SMALL.public_places({**good, "smoker": ["yes", "maybe"]})
    with pytest.raises(DataError, match="row 0 has a value of 'age'"):
        SMALL.public_places({"smoker": ["yes"], "age": [None], "ok": [True]})
    for function in (SMALL.public_places, SMALL.encode):
        with pytest.raises(InterfaceError, match="'age' is missing"):
            function({"smoker": ["yes"], "ok": [True]})
        with pytest.raises(InterfaceError, match="'age' has another length"):
            function({"smoker": ["yes"], "age": [20, 30], "ok": [True]})
        with pytest.raises(InterfaceError, match="one dimension"):
            function({"smoker": np.array([["yes"]]), "age": [20], "ok": [True]})


def test_a_policy_declares_domains() -> None:
    domain = Domain.declared(POLICY.table("visits"), ["Region", "age", "day"])
    assert domain.names == ("region", "age", "day")
    assert [column.all for column in domain.columns] == [
        ("north", "south", OTHER, None),
        (18, 19, 20),
        (date(2020, 2, 28), date(2020, 2, 29), date(2020, 3, 1), None),
    ]
    assert Domain.of({"region": POLICY.table("visits").column("region")}).columns == domain.columns[:1]
    for name in ("free", "cost"):
        with pytest.raises(PolicyError, match=f"{name} has no finite domain"):
            Domain.declared(POLICY.table("visits"), [name])
    with pytest.raises(PolicyError, match="not declared"):
        Domain.declared(POLICY.table("visits"), ["nobody"])
    with pytest.raises(InterfaceError, match=r"write \[\"age\"\]"):
        Domain.declared(POLICY.table("visits"), "age")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "at least one column"),
        ({"a": ["x"]}, "single combination"),
        ({"a": ["x"], "b": [1]}, "single combination"),
        ({"a": ["x", "y"], "A": [1, 2]}, "named twice"),
        ({"a": ["x", "x"]}, "twice"),
        ({"a": ["x", None, None]}, "lists None twice"),
        ({"a": ["x", OTHER, OTHER]}, "lists OTHER twice"),
        ({"a": [None, OTHER]}, "no value but NULL"),
        ({"a": []}, "no value but NULL"),
        ({"a": "xyz"}, "must be a list"),
        ({"a": 3}, "must be a list"),
        ({"a": ["x", 3]}, "one type"),
        ({"a": [float("nan"), 1.0]}, "finite"),
        ({3: ["x", "y"]}, "have names"),
        ({"a": range(1_000_001)}, "more than 1,000,000"),
        (
            {"a": range(4000), "b": range(4000), "c": range(100), "d": range(9)},
            r"14,400,000,000 combinations, more than 1,000,000,000; release groups of columns apart, such as "
            r"\(a, b\) and \(c, d\)",
        ),
    ],
)
def test_what_is_no_domain_is_refused(columns: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Domain.of(columns)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [("a", "a"), (1, True), ("a", None), ("a", OTHER)])
def test_categories_are_distinct(values: tuple[Any, ...]) -> None:
    with pytest.raises(PolicyError, match="twice"):
        Categories("c", values, nulls=False)
    with pytest.raises(PolicyError, match="no value but"):
        Categories("c", ())


def test_a_domain_is_a_mapping() -> None:
    with pytest.raises(InterfaceError, match="mapping"):
        Domain.of([("a", [1, 2])])  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="'agr' is not part of this release; did you mean age"):
        SMALL.axis("agr")
    assert SMALL.axis("AGE") == 1


def test_other_is_one_thing_everywhere() -> None:
    assert pickle.loads(pickle.dumps(OTHER)) is OTHER
    assert repr(OTHER) == "OTHER"
