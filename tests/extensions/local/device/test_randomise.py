"""The client's side: one record, many records, nothing else touched."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from repeatable import Bytes
from scipy import stats

from dpsql.errors import DataError, InterfaceError, PolicyError
from dpsql.extensions.local.device import OTHER, Domain, randomise, randomise_many
from dpsql.privacy.response import Response, offsets_from

LEVEL = 1e-6
DOMAIN = {"smoker": ["yes", "no", None], "region": ["north", OTHER]}


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same lies in every run."""
    source = Bytes(11)
    monkeypatch.setattr(Response, "sample", lambda self, count: offsets_from(self, count, source))


def counts_of(rows: dict[str, np.ndarray]) -> np.ndarray:
    domain = Domain.of(DOMAIN)
    return np.bincount(domain.encode(rows), minlength=domain.size)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("record", [("yes", "north"), (None, "moon"), ("perhaps", float("nan"))])
@pytest.mark.few("record0")
def test_a_record_keeps_its_place_in_the_law(record: tuple[object, object]) -> None:
    domain, response = Domain.of(DOMAIN), Response.of(6, 1)
    true = int(domain.encode({"smoker": [record[0]], "region": [record[1]]})[0])
    expected = np.full(6, float(response.lie))
    expected[true] = float(response.keep)
    one_by_one = [
        tuple(randomise({"smoker": record[0], "region": record[1]}, domain, epsilon=1).values()) for _ in range(3000)
    ]
    assert {type(key) for key in one_by_one} == {tuple}
    cells = list(zip(*domain.decode(np.arange(6)).values(), strict=True))
    found = Counter(one_by_one)
    assert stats.chisquare([found[cell] for cell in cells], expected * 3000).pvalue > LEVEL
    many = randomise_many({"smoker": [record[0]] * 100_000, "region": [record[1]] * 100_000}, DOMAIN, epsilon=1)
    assert stats.chisquare(counts_of(many), expected * 100_000).pvalue > LEVEL


def test_the_answer_has_the_columns_of_the_domain_and_declared_values_only() -> None:
    found = randomise({"name": "ann", "region": "x", "smoker": 7}, DOMAIN, epsilon="0.5")
    assert list(found) == ["smoker", "region"]
    assert found["smoker"] in ("yes", "no", None)
    assert found["region"] in ("north", OTHER)
    many = randomise_many({"name": ["a"] * 500, "region": ["x"] * 500, "smoker": [7] * 500}, DOMAIN, epsilon="0.5")
    assert list(many) == ["smoker", "region"]
    assert set(many["smoker"]) == {"yes", "no", None}
    assert set(many["region"]) == {"north", OTHER}
    assert randomise_many({"smoker": [], "region": []}, DOMAIN, epsilon=1)["smoker"].shape == (0,)


@pytest.mark.usefixtures("repeatable")
def test_sixty_releases_of_one_record_show_the_truth() -> None:
    """Why a record is released once: sixty answers at epsilon 1 are one of epsilon 60."""
    people = [("yes", "north"), ("no", OTHER), (None, "north"), ("no", "north")]
    for smoker, region in people:
        record = {"smoker": smoker, "region": region}
        answers = Counter(tuple(randomise(record, DOMAIN, epsilon=1).values()) for _ in range(60))
        assert answers.most_common(1)[0][0] == (smoker, region)
    assert Response.of(6, 1).unit_epsilon(60) == Fraction(60)


def test_bad_calls_are_refused_whatever_the_record_holds() -> None:
    with pytest.raises(InterfaceError, match="no column 'region'"):
        randomise({"smoker": "secret"}, DOMAIN, epsilon=1)
    with pytest.raises(InterfaceError, match="mapping"):
        randomise(["secret"], DOMAIN, epsilon=1)  # type: ignore[arg-type]
    with pytest.raises(InterfaceError, match="column by column"):
        randomise_many([{"smoker": "secret"}], DOMAIN, epsilon=1)  # type: ignore[arg-type]
    with pytest.raises(InterfaceError, match="another length"):
        randomise_many({"smoker": ["secret"], "region": []}, DOMAIN, epsilon=1)
    with pytest.raises(InterfaceError, match="'smoker' is missing"):
        randomise_many({"region": ["secret"]}, DOMAIN, epsilon=1)
    with pytest.raises(PolicyError, match="single combination"):
        randomise({"a": "secret"}, {"a": ["x"]}, epsilon=1)
    with pytest.raises(DataError, match="epsilon"):
        randomise({"smoker": "yes", "region": "north"}, DOMAIN, epsilon=0)


def test_two_releases_differ() -> None:
    rows = {"smoker": ["yes"] * 200, "region": ["north"] * 200}
    first, second = (list(zip(*randomise_many(rows, DOMAIN, epsilon="0.1").values(), strict=True)) for _ in range(2))
    assert first != second


UNTOUCHED = """
import builtins, os, socket, sqlite3, sys
import duckdb
from dpsql.extensions.local.device import estimate, randomise
calls = []
sys.addaudithook(lambda event, args: calls.append(event) if event.split(".")[0] in
    ("open", "socket", "sqlite3", "subprocess", "os") and event != "os.putenv" else None)
duckdb.connect = sqlite3.connect = None
answer = randomise({"a": 1}, {"a": [0, 1]}, epsilon=1)
found = estimate([answer], {"a": 1}, {"a": [0, 1]}, epsilon=1)
print(calls)
"""


def test_no_file_and_no_database_is_opened() -> None:
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=900)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
