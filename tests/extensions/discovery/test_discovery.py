"""Values found privately, end to end: what is counted, what neighbours may change, and values that are odd as text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.engines.duckdb import ConnectionEngine
from dpsql.extensions.discovery.discovery import Discovery
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.measure import discovery as room
from dpsql.measure.discovery import DiscoveryJob
from dpsql.privacy import threshold
from dpsql.privacy.charge import Charge
from dpsql.privacy.pure_threshold import PureThreshold
from dpsql.privacy.threshold import GaussianThreshold, Integers
from dpsql.workloads.expr import values as tree

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 2.0
delta = 1e-6
[tables.visits]
unit = {unit}
{rows}
[tables.visits.columns]
{columns}
"""
Row = tuple[object, object]
ODD = [
    "", " ", "'", '"', '"""', "\\", "\\u0041", "a\nb", "a\r\nb", "\t", "\0", "a\0b", "\x1b[31mred\x1b[0m", "\x7f",
    "\u2028", "\ufeff", "\U0001f4a9", "e\u0301", "\u00e9", "NULL", "null", "true", "#", "]", "{ values = [] }",
    "'; DROP TABLE visits; --", "%s{0}$(x)", "a" * 1_000_000, "\u202eabc", "A", "a", "a ", "-0", "1e5",
]  # fmt: skip


def fill(con: duckdb.DuckDBPyConnection, rows: list[Row]) -> None:
    if len(rows) > 30:
        patients, values = zip(*rows, strict=True)
        con.execute("INSERT INTO visits SELECT unnest(?), unnest(?)", [list(patients), list(values)])
    elif rows:
        con.executemany("INSERT INTO visits VALUES (?, ?)", rows)


def connected(
    folder: Path, rows: list[Row], columns: str = "v = {}", unit: str = "patient", value_type: str = "VARCHAR"
) -> dpsql.Connection:
    """A connection to a table of (patient, v), in memory."""
    con = duckdb.connect(":memory:")
    con.execute(f"CREATE TABLE visits (patient INTEGER, v {value_type})")
    fill(con, rows)
    folder.mkdir(exist_ok=True, parents=True)
    policy = folder / "visits.toml"
    own = "" if unit == "row" else "max_rows_per_unit = 5"
    policy.write_text(POLICY.format(unit=f'"{unit}"', rows=own, columns=columns), encoding="utf-8")
    return dpsql.connect(con, policy=policy)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No noise, and a threshold of 2."""

    def none(self: object, count: int) -> Integers:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(GaussianThreshold, "sample", none)
    monkeypatch.setattr(GaussianThreshold, "least", 2)


def found_by(con: dpsql.Connection, **options: Any) -> Discovery:
    found = con.discover("visits.v", **{"epsilon": 0.1, "delta": 1e-9, **options})
    assert isinstance(found, Discovery)
    return found


def job_of(con: dpsql.Connection, groups: int, monkeypatch: pytest.MonkeyPatch) -> DiscoveryJob:
    """The job of a discovery, which is not carried out."""
    made: list[DiscoveryJob] = []

    def keep(job: DiscoveryJob, *_: Any) -> Any:
        made.append(job)
        raise dpsql.OperationalError("kept")

    monkeypatch.setattr("dpsql.extensions.discovery.discovery.measure", keep)
    with pytest.raises(dpsql.OperationalError, match="kept"):
        con.discover("visits.v", epsilon=0.1, delta=1e-9, max_groups=groups)
    return made[0]


def histogram(job: DiscoveryJob, con: dpsql.Connection) -> dict[str, int]:
    engine = con._holdings.engine
    assert isinstance(engine, ConnectionEngine)
    found = engine.scan(job.values_from(1, job.scan(job.counted())))
    values = np.ma.array(found["value"]).tolist()
    return {value: int(n) for value, n in zip(values, found["n"].tolist(), strict=True) if value is not None}


# -- what is counted ------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
def test_single_rows_are_counted_as_they_are(tmp_path: Path) -> None:
    rows: list[Row] = [(1, "a")] * 3 + [(2, "b")] * 2 + [(3, "c"), (4, None), (5, None), (6, None)]
    found = found_by(connected(tmp_path, rows, unit="row"))
    assert found.values == ("a", "b")
    assert found.counts == (3, 2)


@pytest.mark.usefixtures("quiet")
def test_a_unit_counts_once_in_a_value_and_without_one_in_none(tmp_path: Path) -> None:
    rows: list[Row] = [(1, "a")] * 5 + [(2, "a"), (2, "b"), (3, "b"), (None, "c"), (None, "c"), (4, "c"), (4, None)]
    found = found_by(connected(tmp_path, rows), max_groups=3)
    assert dict(zip(found.values, found.counts, strict=True)) == {"a": 2, "b": 2}


def test_a_unit_changes_the_counts_of_at_most_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All units of generated tables, each removed: counts of at most k values fall, by 1, and no other moves."""
    rng = np.random.default_rng(21)
    groups, moved = 2, []
    for world in range(3):
        rows: list[Row] = [
            (None if p == 7 else int(p), None if v == 6 else f"v{v}")
            for p, v in zip(rng.integers(0, 8, 40), rng.integers(0, 7, 40), strict=True)
        ]
        con = connected(tmp_path / str(world), rows)
        job = job_of(con, groups, monkeypatch)
        whole = histogram(job, con)
        units = {patient for patient, _ in rows}
        for unit in units:
            table = con._holdings.attachable
            assert table is not None
            table.execute("DELETE FROM visits")
            fill(table, [row for row in rows if row[0] != unit])
            less = histogram(job, con)
            changes = [whole.get(v, 0) - less.get(v, 0) for v in whole.keys() | less.keys()]
            assert set(changes) <= {0, 1}
            assert sum(changes) <= groups
            moved.append(sum(changes))
            if unit is None:
                assert sum(changes) == 0
    assert max(moved) == groups  # the bound is reached
    # The mutant without truncation moves more.
    monkeypatch.setattr("dpsql.measure.from_sql._truncated", lambda rows, names, first, limit: rows)
    con = connected(tmp_path / "mutant", [(1, f"v{n}") for n in range(6)])
    assert len(histogram(job_of(con, groups, monkeypatch), con)) > groups


@pytest.mark.usefixtures("quiet")
def test_collations_merge_no_values(tmp_path: Path) -> None:
    rows: list[Row] = [(n, "Flu" if n % 2 else "flu") for n in range(8)]
    found = found_by(connected(tmp_path, rows, unit="row", value_type="VARCHAR COLLATE NOCASE"))
    assert found.values == ("Flu", "flu")
    assert found.counts == (4, 4)


# -- what is shown --------------------------------------------------------------------------------


def test_passing_values_are_those_whose_own_draw_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of counts, chunk by chunk, as value by value."""
    law = GaussianThreshold(1, Fraction(1, 100), Fraction("1e-3"))
    counts, sizes = np.array([1, 2, 30, 31, 500]), np.array([40, 7, 5, 1, 3])
    noise = np.random.default_rng(3).normal(0, 25, int(sizes.sum())).astype(np.int64)
    monkeypatch.setattr(threshold, "_CHUNK", 6)
    given = iter(noise.tolist())
    monkeypatch.setattr(
        GaussianThreshold, "sample", lambda self, count: np.array([next(given) for _ in range(count)], dtype=np.int64)
    )
    which, places, noisy = law.passed(counts, sizes)
    expected, at = [], 0
    for number, (count, size) in enumerate(zip(counts.tolist(), sizes.tolist(), strict=True)):
        for place in range(size):
            if count + noise[at] >= law.least:
                expected.append((number, place, count + int(noise[at])))
            at += 1
    assert list(zip(which.tolist(), places.tolist(), noisy.tolist(), strict=True)) == expected
    assert 0 < len(expected) < len(noise)


def test_noise_is_drawn_after_the_charge_and_the_outcome_is_what_the_ledger_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connected(tmp_path, [(n, "common") for n in range(3000)], unit="row")

    def fail(*_: Any) -> Any:
        raise MemoryError("of 17 rows of ann")

    with monkeypatch.context() as patch:
        patch.setattr(room, "_named", fail)
        with pytest.raises(dpsql.OperationalError, match="What was charged stays charged") as caught:
            found_by(con)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert "ann" not in str(caught.value)
    state = con.budget
    assert len(state.unreleased) == 1
    assert state.reserve is not None
    assert state.reserve.spent > 0
    assert con.found_domains == ()
    found = found_by(con)
    assert found.values == ("common",)
    again = found_by(con)
    assert (again.cost, again.counts, again.id) == (0, found.counts, found.id)
    assert con.sql(f"SELECT n FROM {found.name}").fetchall() == [(found.counts[0],)]
    assert found_by(con, fresh=True).cost == found.cost > 0


def test_plans_messages_and_what_is_charged_are_the_same_for_neighbours(tmp_path: Path) -> None:
    """With a value that only one unit has, and without: the same bytes, before and after."""
    common: list[Row] = [(n, "common") for n in range(4000)]
    seen = []
    for name, rows in (("with", [*common, (9999, "HIV+")]), ("without", common)):
        con = connected(tmp_path / name, rows, unit="row")
        prospect = str(con.plan_discovery("visits.v", epsilon=0.1, delta=1e-9))
        found = found_by(con)
        charges = [(entry.charge, entry.description) for entry in con.releases()]
        plan = str(con.plan("SELECT v, COUNT(*) FROM visits GROUP BY v", epsilon=0.1))
        seen.append((prospect, found.values, charges, plan, con.policy.to_toml(), found.name, repr(found)))
    assert seen[0] == seen[1]


def test_rows_that_change_between_the_scans_are_noticed() -> None:
    read = {"value": np.array(["a", "b"], dtype=object), "n": np.array([3, 4])}
    passed = (np.array([0, 1]), np.array([0, 0]), np.array([3, 5]))
    counts, sizes = np.array([3, 5]), np.array([1, 1])
    with pytest.raises(dpsql.OperationalError, match="changed while they were read"):
        room._named(read, counts, sizes, passed, "visits")


# -- of a public universe -------------------------------------------------------------------------

PURE = POLICY.replace("delta = 1e-6\n", "")


def pure(folder: Path, rows: list[Row], monkeypatch: pytest.MonkeyPatch, alone: dict[str, int]) -> dpsql.Connection:
    """A connection whose discoveries draw these texts first."""
    monkeypatch.setattr("test_discovery.POLICY", PURE)
    monkeypatch.setattr(PureThreshold, "alone", lambda self: {text: self.least + more for text, more in alone.items()})
    return connected(folder, rows, value_type="VARCHAR COLLATE NOCASE")


def test_texts_that_pass_by_themselves_are_shown_with_what_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has them or nobody; the others have the same rows as ever, and longer texts are no values."""
    rows: list[Row] = [(n, text) for n in range(300) for text in ("flu", "Flu", "ab\0", "too long a text")]
    con = pure(tmp_path, rows, monkeypatch, {"flu": 5, "it's": 9})
    found = found_by(con, epsilon=1, delta=None, max_groups=3, max_bytes=5)
    least = con.plan_discovery("visits.v", epsilon=1, max_groups=3, max_bytes=5).threshold
    shown = dict(zip(found.values, found.counts, strict=True))
    assert set(shown) == {"flu", "Flu", "ab\0", "it's"}
    assert (shown["flu"], shown["it's"]) == (300 + least + 5, least + 9)
    assert abs(shown["Flu"] - 300) < 100
    assert con.budget.spent == 1
    only = found_by(con, epsilon=1, delta=None, max_groups=3, max_bytes=5, alphabet="uFflxy")
    assert set(only.values) == {"flu", "Flu", "it's"}
    assert con.budget.spent == 2
    assert found_by(con, epsilon=1, delta=None, max_groups=3, max_bytes=5, alphabet="uFflxy").cost == 0


def test_a_unit_moves_the_same_counts_whatever_is_drawn_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving out what was drawn first before units are held to their groups would let a unit count in more."""
    rows: list[Row] = [(1, f"v{n}") for n in range(6)]
    con = pure(tmp_path, rows, monkeypatch, {})
    with monkeypatch.context() as patch:
        real = con.discover
        given = {"epsilon": 1, "delta": None, "max_bytes": 5}
        patch.setattr(con, "discover", lambda target, **options: real(target, **{**options, **given}))
        job = job_of(con, 2, patch)
    engine, texts, once_of = con._holdings.engine, ["v0", "v1", "v2"], DiscoveryJob._once
    assert isinstance(engine, ConnectionEngine)
    with engine.opened([job.sources["visits"]]) as held, held.materialized(job.scan(job.counted())) as counted:
        parts = [held.scan(job.values_from(1, room._of(counted, texts, only=only))) for only in (True, False)]
    listed = [text for part in parts for text in np.ma.array(part["value"]).tolist()]
    assert len(listed) == len(set(listed)) == 2
    monkeypatch.setattr(DiscoveryJob, "_once", lambda job: narrowed())  # the mutant
    once, shown = once_of(job), 0
    for test in _tests(texts):
        assert once.then is not None
        narrowed = partial(replace, once, then=tree.Guarded(test, once.then))
        shown += len(engine.scan(job.values_from(1, job.scan(job.counted())))["n"])
    assert shown > 2


def _tests(texts: list[str]) -> list[tree.Test]:
    kept = tuple(tree.Compared(tree.Name("value"), "=", tree.Constant(text, "VARCHAR")) for text in texts)
    return [tree.Some(kept), tree.Every(tuple(replace(test, operator="<>") for test in kept))]


# -- odd values -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
@pytest.mark.long
def test_odd_texts_are_values_like_others(tmp_path: Path) -> None:
    rows: list[Row] = [(n, text) for text in ODD for n in range(3)]
    con = connected(tmp_path, rows, unit="row")
    found = found_by(con)
    assert set(found.values) == set(ODD)
    assert set(found.counts) == {3.0}
    # Into the policy file and back.
    again = tmp_path / "again.toml"
    again.write_text(con.policy.to_toml(), encoding="utf-8", newline="")
    assert dpsql.Policy.load(again) == con.policy
    line = found.to_toml()
    assert line.count("\n") == 0
    # Into plans, results and views.
    short = "SELECT v, COUNT(*) AS n FROM visits GROUP BY v"
    released = con.run(short, epsilon=1.0)
    listed = [row[0] for row in released.fetchall() if row[0] is not None]
    assert set(listed) == set(ODD)
    shown = con.sql(f"SELECT v, n FROM dp.{found.name}").fetchall()
    assert {v for v, _ in shown} == set(ODD)
    assert con.rebuild() == 2
    other = dpsql.connect(con._holdings.attachable, policy=con._domains.declared)
    assert set(other.policy.table("visits").column("v").values or ()) == set(ODD)


TYPED: list[tuple[str, list[Any], list[Any]]] = [
    ("BOOLEAN", [True, False], []),
    ("TINYINT", [-128, 0, 127], []),
    ("HUGEINT", [-(10**29), 5], [2**127 - 1]),
    ("DECIMAL(18,2)", [Decimal("-0.01"), Decimal("12345.60")], []),
    ("DATE", [dt.date(1, 1, 1), dt.date(2024, 2, 29)], ["infinity", "20000-01-01"]),
    ("TIMESTAMP", [dt.datetime(2024, 1, 2, 3, 4, 5, 678)], ["infinity"]),
    ("TIMESTAMPTZ", [dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)], []),
    ("ENUM('x', 'y')", ["x", "y"], []),
]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("kind", "values", "unfit"), TYPED, ids=[case[0] for case in TYPED])
@pytest.mark.few(every=6)
def test_values_of_every_type_become_a_domain(kind: str, values: list[Any], unfit: list[Any], tmp_path: Path) -> None:
    """Those that no policy can hold, such as infinite dates, are among the rest."""
    rows: list[Row] = [(n, str(value) if value in unfit else value) for value in (*values, *unfit) for n in range(3)]
    con = connected(tmp_path, rows, unit="row", value_type=kind)
    found = found_by(con)
    assert list(found.values) == sorted(values)
    released = con.run("SELECT v, COUNT(*) AS n FROM visits GROUP BY v", epsilon=1.0, errors=False)
    assert len(released.fetchall()) == len(values) + 2  # OTHER and NULL
    reconnected = dpsql.connect(con._holdings.attachable, policy=con._domains.declared)
    assert reconnected.policy == con.policy


# -- from then on ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("quiet")
def test_another_connection_knows_at_once_and_a_declared_domain_counts_before(tmp_path: Path) -> None:
    rows: list[Row] = [(n, "a" if n % 3 else "b") for n in range(9)]
    con = connected(tmp_path, rows, unit="row")
    other = dpsql.connect(con._holdings.attachable, policy=tmp_path / "visits.toml")
    with pytest.raises(dpsql.SQLError):
        other.plan("SELECT v, COUNT(*) FROM visits GROUP BY v", epsilon=0.1)
    found = found_by(con)
    assert other.plan("SELECT v, COUNT(*) AS n FROM visits GROUP BY v", epsilon=0.1).stderr["q1"].shape == (4,)
    (domain,) = other.found_domains
    assert (domain.table, domain.column.name, domain.release, domain.dataset) == ("visits", "v", found.id, "visits-1")
    text = (tmp_path / "visits.toml").read_text(encoding="utf-8").replace("v = {}", 'v = { values = ["z"] }')
    (tmp_path / "visits.toml").write_text(text, encoding="utf-8")
    declared = dpsql.connect(con._holdings.attachable, policy=tmp_path / "visits.toml")
    assert declared.found_domains == ()
    assert declared.policy.table("visits").column("v").values == ("z",)
    with pytest.raises(dpsql.PolicyError, match="has a domain"):
        declared.discover("visits.v", epsilon=0.1, delta=1e-9)


@pytest.mark.usefixtures("quiet")
def test_a_new_version_of_the_data_keeps_the_domain_and_finds_anew(tmp_path: Path) -> None:
    con = connected(tmp_path, [(n, "a") for n in range(3)], unit="row")
    first = found_by(con)
    policy = tmp_path / "visits.toml"
    policy.write_text(policy.read_text(encoding="utf-8").replace("visits-1", "visits-2"), encoding="utf-8")
    con._holdings.attachable.execute("UPDATE visits SET v = 'b'")  # type: ignore[union-attr]
    renewed = dpsql.connect(con._holdings.attachable, policy=policy)
    renewed.renew("visits-1")
    assert renewed.policy.table("visits").column("v").values == ("a",)
    second = found_by(renewed)
    assert second.cost == first.cost > 0
    assert renewed.policy.table("visits").column("v").values == ("b",)


def test_nothing_passed_is_an_answer_too(tmp_path: Path) -> None:
    con = connected(tmp_path, [(n, f"v{n}") for n in range(50)], unit="row")
    found = found_by(con)
    assert found.values == found.counts == ()
    assert con.found_domains == ()
    assert con.sql(f"SELECT COUNT(*) FROM {found.name}").fetchall() == [(0,)]


# -- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], type[dpsql.Error], str]] = [
    ("visits.v", {"delta": None}, dpsql.DataError, "needs a delta"),
    ("visits.v", {"epsilon": None}, dpsql.DataError, "a budget is needed"),
    ("visits.v", {"max_groups": None}, dpsql.DataError, "max_groups is missing"),
    ("visits.v", {"max_groups": 0}, dpsql.DataError, "max_groups"),
    ("visits.v", {"delta": 1e-3}, dpsql.BudgetError, "more than is left"),
    ("visits.v", {"delta": 2}, dpsql.DataError, "below 1"),
    ("visits.v", {"epsilon": -1}, dpsql.DataError, "positive"),
    ("visits.v", {"epsilon": 1e-10}, dpsql.DataError, "too small for any value"),
    ("visits.v", {"epsilon": 1e-3}, dpsql.DataError, r"only values with more than about [0-9,]+ patients can appear"),
    ("visits.patient", {}, dpsql.PolicyError, "says whose a row is"),
    ("visits.other", {}, dpsql.PolicyError, "not declared"),
    ("visits", {}, dpsql.DataError, "a table and a column"),
    ("nowhere.v", {}, dpsql.PolicyError, "not declared"),
    ("visits.age", {}, dpsql.PolicyError, "has a domain"),
    ("visits.cost", {}, dpsql.PolicyError, "whose values are no groups"),
    ("visits.v", {"epsilon": 2.5, "delta": 4e-7}, dpsql.BudgetError, "left of"),
]


@pytest.fixture
def clinic(tmp_path: Path) -> dpsql.Connection:
    con = duckdb.connect(":memory:")
    con.execute("CREATE TABLE visits (patient INTEGER, v VARCHAR, age INTEGER, cost DOUBLE, other VARCHAR)")
    policy = tmp_path / "visits.toml"
    columns = "v = {}\npatient = {}\nage = { lower = 0, upper = 9 }\ncost = {}"
    own = "max_rows_per_unit = 5\nexpected_rows = 1000"
    policy.write_text(POLICY.format(unit='"patient"', rows=own, columns=columns), encoding="utf-8")
    return dpsql.connect(con, policy=policy)


@pytest.mark.parametrize(("target", "options", "error", "words"), REFUSED)
@pytest.mark.few(every=2)
def test_bad_input_is_refused_before_any_charge(
    target: str, options: dict[str, Any], error: type[dpsql.Error], words: str, clinic: dpsql.Connection
) -> None:
    asked = {"epsilon": 0.5, "delta": 1e-9, "max_groups": 2, **options}
    with pytest.raises(error, match=words):
        clinic.discover(target, **asked)
    assert clinic.budget.spent == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("delta = 1e-6", ""),
        lambda text: text.replace("epsilon = 2.0", "rho = 0.1").replace("delta = 1e-6", ""),
        lambda text: text.replace("delta = 1e-6", "delta = 1e-6\npure_epsilon = 2.0"),
        lambda text: text.replace("delta = 1e-6", "delta = 1e-6\npure_epsilon = 2.0\ndiscovery_delta = 1e-7"),
    ],
)
def test_policies_without_a_delta_to_set_aside_are_refused(
    change: Callable[[str], str], clinic: dpsql.Connection, tmp_path: Path
) -> None:
    policy = tmp_path / "visits.toml"
    policy.write_text(change(policy.read_text(encoding="utf-8")), encoding="utf-8")
    con = dpsql.connect(clinic._holdings.attachable, policy=policy, ledger=tmp_path / "other.ledger")
    how = {"rho": 0.01} if con.policy.budget.rho else {"epsilon": 0.5}
    with pytest.raises(dpsql.PolicyError, match=r"\[budget\]"):
        con.discover("visits.v", delta=1e-9, max_groups=1, **how)
    assert not con.ledger_path.exists() or con.budget.spent == 0


def test_after_a_gaussian_release_delta_can_no_longer_be_set_aside(clinic: dpsql.Connection) -> None:
    clinic.run("SELECT COUNT(*) AS n FROM visits", epsilon=0.1)
    spent = clinic.budget.spent
    with pytest.raises(dpsql.BudgetError, match="before the first Gaussian release"):
        clinic.discover("visits.v", epsilon=0.5, delta=1e-9, max_groups=1)
    assert clinic.budget.spent == spent


def test_a_job_holds_its_charge_to_its_law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(connected(tmp_path, [(1, "a")]), 2, monkeypatch)
    fields = {name: getattr(job, name) for name in job.__dataclass_fields__}
    law = job.law
    assert isinstance(law, GaussianThreshold)
    for other in (
        GaussianThreshold(2, 2 * law.mu_squared, law.delta),  # less noise than is paid for
        GaussianThreshold(2, law.mu_squared, 2 * law.delta),  # a lower threshold
    ):
        with pytest.raises(dpsql.InternalError, match="does not pay"):
            DiscoveryJob(**{**fields, "law": other})
    with pytest.raises(dpsql.InternalError):
        DiscoveryJob(**{**fields, "charge": Charge("gaussian", 1000, "gaussian", "")})


def test_a_text_that_would_fill_the_memory_is_no_value(tmp_path: Path, quiet: None) -> None:
    """Else the one row that has it would decide whether the discovery fails."""
    rows: list[Row] = [(i, "flu") for i in range(9)]
    con = connected(tmp_path, [*rows, (10, "x" * (room.LONGEST + 1)), (11, "x" * (room.LONGEST + 1))])
    found = con.discover("visits.v", epsilon=1, delta=1e-7, max_groups=1)
    assert found.values == ("flu",)


@pytest.mark.parametrize("value_type", ["TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"])
def test_times_that_no_query_groups_by_are_refused(tmp_path: Path, value_type: str) -> None:
    con = connected(tmp_path, [], value_type=value_type)
    with pytest.raises(dpsql.PolicyError, match="whose values are no groups"):
        con.discover("visits.v", epsilon=1, delta=1e-7, max_groups=1)
    assert con.budget.spent == 0


def test_an_analyst_finds_nothing_for_everybody(tmp_path: Path) -> None:
    """Neither values nor bounds, and nothing is set aside on the way: an analyst has no part of delta for it."""
    con = connected(tmp_path, [(1, "a")])
    con.run("SELECT COUNT(*) FROM visits", rho=None, epsilon=0.01, delta=1e-9)
    accounts = Accounts.of(con.policy, con.ledger_path, None)
    accounts.add("ann", Wish(epsilon=1), "password of ann")
    spent = con.budget.spent
    for more in ({"max_groups": 1}, {"bounds": True}):
        with pytest.raises(dpsql.BudgetError, match="ann is an analyst"):
            con.discover("visits.v", epsilon=0.1, delta=1e-7, label="ann", **more)
    assert con.budget.spent == spent
