"""A whole policy found at one charge: what one unit can move in all parts together, and what comes out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.engines.duckdb import ConnectionEngine
from dpsql.extensions.discovery.row_counts import ENDS, RowCounts
from dpsql.measure import cells, measure
from dpsql.measure.survey import SurveyJob
from dpsql.policy import TablePolicy
from dpsql.privacy.threshold import GaussianThreshold
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 12.0
delta = 1e-6
[tables.visits]
unit = "patient"
max_rows_per_unit = 40
[tables.visits.columns]
patient = {}
ward = {}
cost = {}
urgent = {}
day = {}
state = { values = ["NY", "NJ"] }
"""
COLUMNS = "patient INTEGER, ward VARCHAR, cost DOUBLE, urgent BOOLEAN, day DATE, state VARCHAR"
ODD = ["'; DROP TABLE visits; --", '"""', "\x1b[31m", "a\r\n# confirm: b", "\0"]


@pytest.fixture(autouse=True)
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a bucket of noise alone shifts once in ten million discoveries, not in twenty."""
    monkeypatch.setattr("dpsql.extensions.discovery.discovered_bounds.CONFIDENCE", 1e-7)


def connected(folder: Path, rows: str, change: Callable[[str], str] = str) -> dpsql.Connection:
    folder.mkdir(exist_ok=True)
    held = duckdb.connect(":memory:")
    held.execute(f"CREATE TABLE visits ({COLUMNS})")
    held.execute(f"INSERT INTO visits {rows}")
    (folder / "visits.toml").write_text(change(POLICY), encoding="utf-8")
    return dpsql.connect(held, policy=folder / "visits.toml")


def job_of(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> SurveyJob:
    """The job of a survey, which is not carried out."""
    made: list[SurveyJob] = []

    def keep(job: SurveyJob, *_: Any) -> Any:
        made.append(job)
        raise dpsql.OperationalError("kept")

    with monkeypatch.context() as patch:
        patch.setattr("dpsql.extensions.discovery.survey.measure", keep)
        with pytest.raises(dpsql.OperationalError, match="kept"):
            con.survey(**{"epsilon": 0.5, **asked})
    return made[0]


def exact(job: SurveyJob, con: dpsql.Connection) -> list[tuple[dict[Any, int], Fraction]]:
    """Of each part what noise is added to, and the variance of that noise."""
    engine = con._holdings.engine
    assert isinstance(engine, ConnectionEngine)
    found: list[tuple[dict[Any, int], Fraction]] = []
    for counted in job.counts:
        y = cells.observed(counted, engine, [0] * counted.integers.shape[0])
        found.append((dict(enumerate(y)), Fraction(counted.noise.parameter)))
    for column in job.values:
        read = engine.scan(column.values_from(1, column.scan(column.counted())))
        pairs = zip(np.ma.array(read["value"]).tolist(), read["n"].tolist(), strict=True)
        assert isinstance(column.law, GaussianThreshold)
        found.append(({v: int(n) for v, n in pairs if v is not None}, Fraction(column.law.noise.parameter)))
    return found


def moved(job: SurveyJob, con: dpsql.Connection, units: list[object], everything: str) -> float:
    """The most that a unit moves all parts together, squared and in units of the variances: at most mu squared."""
    table = con._holdings.attachable
    assert table is not None
    whole, most = exact(job, con), 0.0
    for unit in units:
        table.execute("DELETE FROM visits WHERE patient IS NOT DISTINCT FROM ?", [unit])
        less = exact(job, con)
        table.execute("DELETE FROM visits")
        table.execute(f"INSERT INTO visits {everything}")
        total = Fraction(0)
        for (before, variance), (after, _) in zip(whole, less, strict=True):
            total += sum((before.get(k, 0) - after.get(k, 0)) ** 2 for k in before.keys() | after.keys()) / variance
        most = max(most, float(total))
    return most


WORLD = (
    "SELECT CASE WHEN i % 7 = 6 THEN NULL ELSE i % 7 END, "
    "['a', 'b', 'c', NULL, 'only ' || i][1 + (hash(i) % 5)::INTEGER], "
    "(hash(i + 7) % 3000)::DOUBLE - 90, i % 3 = 0, DATE '2020-01-01' + (hash(i) % 900)::INTEGER, 'NY' "
    "FROM range(60) t(i) WHERE i % 7 < 5 OR hash(i) % 2 = 0"
)


@pytest.mark.long
def test_a_unit_moves_all_parts_by_no_more_than_the_charge_pays_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = connected(tmp_path, WORLD)
    job = job_of(con, monkeypatch, max_groups=2)
    assert (len(job.counts), len(job.values)) == (3, 1)
    paid, units = float(job.charge.mu_squared), [*range(7), None]
    most = moved(job, con, units, WORLD)
    assert paid * 0.5 < most <= paid
    law = job.values[0].law
    assert isinstance(law, GaussianThreshold)
    assert law.failure(law.least) <= float(job.charge.delta or 0) < law.failure(law.least - 1)
    # Fewer rows are hidden: without truncation of bounds to one row a unit moves more than was paid for.
    with monkeypatch.context() as patch:
        patch.setattr("dpsql.measure.from_sql._truncated", lambda rows, names, first, limit: rows)
        assert moved(job_of(con, monkeypatch, max_groups=2), con, units, WORLD) > paid


def test_the_charge_is_held_to_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise halved for one part, a part more than was paid, and delta spent twice are refused before anything runs."""
    job = job_of(connected(tmp_path, WORLD), monkeypatch)
    part, column = job.counts[0], job.values[0]
    quieter = replace(part, charge=replace(part.charge, units=4 * part.charge.units))
    for wrong in (
        {"counts": (quieter, *job.counts[1:])},
        {"counts": (*job.counts, part)},
        {"values": (column, column)},
        {"charge": replace(job.charge, delta=job.charge.delta / 2)},  # type: ignore[operator]
        {"charge": replace(job.charge, delta=None)},
    ):
        with pytest.raises(dpsql.InternalError, match="does not pay for all parts"):
            replace(job, **wrong)  # type: ignore[arg-type]


def test_plans_charges_and_bytes_are_the_same_for_neighbours(tmp_path: Path) -> None:
    """With a patient who alone has a ward, the largest cost and many rows, and without."""
    common = "SELECT i % 4000, 'common', 10 + i % 90, true, DATE '2020-02-02', 'NY' FROM range(8000) t(i)"
    odd = f"{common} UNION ALL SELECT 9999, 'HIV+', 1e12, false, DATE '2099-01-01', 'XX' FROM range(300)"
    seen = []
    for name, rows in (("with", odd), ("without", common)):
        con = connected(tmp_path / name, rows)
        plan, found = str(con.plan_survey(6.0)), con.survey(6.0)
        charges = [(entry.charge, entry.description) for entry in con.releases()]
        columns = found.policy.table("visits").columns
        seen.append((plan, charges, columns, found.policy.table("visits").max_rows_per_unit, repr(found)))
    assert seen[0] == seen[1]
    assert seen[0][2]["ward"].values == ("common",)
    assert (seen[0][2]["cost"].lower, seen[0][2]["cost"].upper) == (10, 100)


@pytest.mark.long
def test_a_survey_is_one_charge_and_a_whole_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = " ".join(f"WHEN {at} THEN {dpsql_string(text)}" for at, text in enumerate(ODD))
    rows = (
        "SELECT CASE WHEN i < 9000 THEN i // 3 ELSE 3000 + i END, CASE i % 6 "
        f"{odd} ELSE 'x' END, 10 + i % 90, i % 2 = 0, DATE '2020-01-01' + (i % 700)::INTEGER, "
        "CASE WHEN i % 10 = 0 THEN 'XX' ELSE 'NY' END FROM range(12000) t(i)"
    )
    con = connected(tmp_path, rows)
    plan = con.plan_survey(6.0)
    assert [part.column for part in plan.parts] == [None, "ward", "cost", "day"]
    assert not Path(con.ledger_path).exists()
    found = con.survey(6.0)
    assert [entry.description["kind"] for entry in con.releases()] == ["reserve", "discovery"]
    assert found.cost == plan.charge.amount
    table = found.policy.table("visits")
    assert set(table.column("ward").values or ()) == {*ODD, "x"}
    assert (table.column("cost").lower, table.column("cost").upper) == (10, 99) or table.column("cost").upper == 100
    assert table.column("urgent").values == (False, True)
    assert table.max_rows_per_unit == 3
    assert abs((table.expected_rows or 0) - 12000) < 6 * 3 * 30
    assert (con.survey(6.0).cost, con.survey(6.0).id) == (0, found.id)
    # Each thing found counts at once, in this process and others, and after a rebuild.
    other = dpsql.connect(con._holdings.attachable, policy=tmp_path / "visits.toml")
    assert {domain.column.name for domain in other.found_domains} == {"ward", "cost", "day"}
    assert con.rebuild() == 1
    rows_of = con.sql("SELECT units FROM dp.visits_rows ORDER BY rows_from LIMIT 3").fetchall()
    assert [round(n, -3) for (n,) in rows_of] == [3000, 0, 3000]
    # Every line that was found is to be confirmed; once it is, it reads back as what was found.
    text = found.to_toml()
    assert text.count("\n# confirm: ") == 6
    confirmed = dpsql.Policy.parse(text.replace("\n# confirm: ", "\n"))
    assert confirmed == found.policy
    # Which rows its domains miss is asked privately.
    (tmp_path / "found.toml").write_text(text.replace("\n# confirm: ", "\n"), encoding="utf-8", newline="")
    checked = dpsql.connect(con._holdings.attachable, policy=tmp_path / "found.toml", ledger=con.ledger_path)
    cover = checked.plan_coverage(0.5)
    assert cover.stderr["visits_outside"].shape == (1, 4)  # not of wards, one of which has NUL
    missed = {one.column: one for one in checked.coverage(0.5).missed}
    assert abs(missed["state"].rows - 1200) < 6 * missed["state"].stderr
    assert checked.coverage(0.5).cost == 0
    with pytest.raises(dpsql.NotSupportedError, match="leave errors out"):  # it was asked under a policy of its own
        checked.sql("SELECT state + 0 AS s FROM dp.visits_outside", errors=True)
    capsys.readouterr()


def dpsql_string(text: str) -> str:
    return " || ".join(f"chr({ord(char)})" for char in text)


def test_rows_of_units_and_what_a_bound_leaves_out() -> None:
    units = [0.0] * (len(ENDS) + 1)
    units[0], units[4], units[9], units[20] = 1000, 500, 5, 4
    table = TablePolicy("visits", unit="patient", max_rows_per_unit=40, largest_unit=45)
    # At 5 rows noise of 5 n is added, and 5 x 5 + about 29 x 4 rows are cut; at 10 twice the noise, and about 100.
    chosen = {}
    for noise in (0.1, 15.0, 400.0):
        found = RowCounts("visits", "patient", "visits_rows", tuple(units), 0.1, noise)
        chosen[noise] = found.most(table)
    assert chosen == {0.1: 45, 15.0: 5, 400.0: 3}
    assert found.lost(5) == 5 * 5 + 16 * 4  # 10 rows, and 21 at least
    assert found.rows(5)[0] == 1000 + 5 * 500 + 5 * 9
    cut = found.cut(5, 45)  # 5 units with 10 rows, 4 with 21 to 45
    assert cut.low <= 5 * 5 + 16 * 4 < cut.value < 5 * 5 + 40 * 4 <= cut.high < 5 * 5 + 40 * 4 + 60
    said = found.remarks(table)["tables.visits.max_rows_per_unit"].text
    assert "rows (" in said
    assert "standard error 1,200 at this charge" in said
    assert found.into(replace(table, max_rows_per_unit=2, largest_unit=3)).max_rows_per_unit == 2
    nothing = RowCounts("visits", "patient", "visits_rows", (0.3,) * (len(ENDS) + 1), 10.0, 4.0)
    assert (nothing.most(table), nothing.expected(table)[0]) == (40, 1)
    # The open end of the last bucket is no bound that is proposed.
    large = RowCounts("visits", "patient", "visits_rows", (0.0,) * len(ENDS) + (90.0,), 0.1, 0.1)
    assert large.most(replace(table, largest_unit=None)) == ENDS[-1]


@pytest.mark.long
def test_single_rows_and_policies_without_an_account(tmp_path: Path) -> None:
    rows = "SELECT i, 'a', i % 50, true, NULL, 'NY' FROM range(5000) t(i)"

    def by_row(text: str) -> str:
        return text.replace('unit = "patient"\nmax_rows_per_unit = 40', 'unit = "row"').replace("patient = {}\n", "")

    con = connected(tmp_path / "rows", rows, by_row)
    table = con.survey(1.0, 1e-7).policy.table("visits")
    assert abs((table.expected_rows or 0) - 5000) < 6 * 30
    assert (table.max_rows_per_unit, table.column("ward").values) == (None, ("a",))
    assert table.column("day").lower is None
    with pytest.raises(dpsql.PolicyError, match="no private table has a domain"):
        connected(tmp_path / "bare", rows, lambda text: text.replace("state = ", "# ")).coverage(1.0)
    held = duckdb.connect(":memory:")
    held.execute(f"CREATE TABLE visits ({COLUMNS})")
    public = dpsql.Policy.parse('dataset = "v"\n[budget]\nepsilon = 1\ndelta = 1e-6\n[tables.visits]\npublic = true\n')
    with pytest.raises(dpsql.PolicyError, match="there is nothing to find"):
        dpsql.connect(held, policy=public, ledger=tmp_path / "public.ledger").survey(1.0)
    pure = connected(tmp_path / "pure", rows, lambda text: text.replace("delta = 1e-6\n", ""))
    with pytest.raises(dpsql.PolicyError, match="has no delta"):
        pure.survey(1.0)
    rho = "rho = 0.5\ndiscovery_delta = 1e-7"
    zero = connected(tmp_path / "rho", rows, lambda text: text.replace("epsilon = 12.0\ndelta = 1e-6", rho))
    assert "but for a chance of 5e-8" in zero.survey(rho=0.05).guarantee
    with pytest.raises(dpsql.BudgetError, match="takes more than is left"):
        zero.survey(rho=0.05, delta=1e-6)


@pytest.mark.long
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as held:
        held.execute(f"CREATE TABLE visits ({COLUMNS})")
        held.execute("INSERT INTO visits SELECT i, 'w', 5, true, NULL, 'NY' FROM range(5000) t(i)")
    policy = str(tmp_path / "visits.toml")
    text = POLICY.replace('dataset = "visits-1"', 'dataset = "visits-1"\ndatabase = "visits.duckdb"')
    Path(policy).write_text(text, encoding="utf-8")
    asked = ["policy", "init", "--discover", "--policy", policy, "--epsilon", "0.5"]
    assert main([*asked, "--dry-run"]) == 0
    assert "in one charge; each of 4 parts" in capsys.readouterr().out
    assert not (tmp_path / "visits.ledger").exists()
    assert main(asked) == 0
    shown = capsys.readouterr()
    assert '# confirm: ward = { values = ["w"], other = true }' in shown.out
    assert "epsilon 0.5" in shown.err
    assert main(["policy", "check", policy, "--epsilon", "0.5", "--json"]) == 0
    (ward, cost, state) = json.loads(capsys.readouterr().out)["missed"]
    assert (ward["column"], cost["column"], state["column"]) == ("ward", "cost", "state")
    for wrong in (["policy", "init", "--discover"], ["policy", "init", "--epsilon", "1"]):
        with pytest.raises(SystemExit):
            main(wrong)
    capsys.readouterr()


def test_a_unit_of_two_tables_moves_no_more_than_is_paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a patient, in both tables, against the charge of all parts."""
    held = duckdb.connect(":memory:")
    held.execute("CREATE TABLE visits AS SELECT i % 9 AS patient, 'w' || i % 4 AS ward FROM range(60) t(i)")
    held.execute("CREATE TABLE labs AS SELECT i % 9 AS patient, i * 7 % 90 AS v, 'k' || i AS kind FROM range(80) t(i)")
    labs = '\n[tables.labs]\nunit = "patient"\nmax_rows_per_unit = 6\n'
    head, _, _ = POLICY.partition("patient = {}")
    text = f"{head}patient = {{}}\nward = {{}}\n{labs}[tables.labs.columns]\nv = {{}}\nkind = {{}}\n"
    (tmp_path / "visits.toml").write_text(text, encoding="utf-8")
    con = dpsql.connect(held, policy=tmp_path / "visits.toml")
    job = job_of(con, monkeypatch)
    assert (len(job.counts), len(job.values)) == (3, 2)
    whole, most = exact(job, con), Fraction(0)
    for unit in range(9):
        held.execute("BEGIN")
        for table in ("visits", "labs"):
            held.execute(f"DELETE FROM {table} WHERE patient = {unit}")
        held.execute("COMMIT")
        less, total = exact(job, con), Fraction(0)
        for (before, variance), (after, _) in zip(whole, less, strict=True):
            total += sum((before.get(k, 0) - after.get(k, 0)) ** 2 for k in before.keys() | after.keys()) / variance
        most = max(most, total)
        whole = less
    assert job.charge.mu_squared / 2 < most <= job.charge.mu_squared


def test_every_part_is_held_to_the_tables_and_to_its_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected(tmp_path, "VALUES (1, 'a', 1.0, true, DATE '2024-01-01', 'NY')")
    job = job_of(con, monkeypatch)
    first, found = job.counts[0], job.values[0]
    other = {"visits": {**found.schemas["visits"], "more": "INTEGER"}}
    for wrong in (
        replace(job, counts=(replace(first, sensitivity=first.sensitivity // 4), *job.counts[1:])),
        replace(job, counts=(replace(first, schemas=other), *job.counts[1:])),
        replace(job, values=(replace(found, schemas=other), *job.values[1:])),
    ):
        with pytest.raises(dpsql.IntegrityError, match="nothing was charged"):
            measure(wrong, con._holdings.engine, con._books.ledger(), lambda _, __: b"")
    assert con.releases() == []
    for part in (replace(job, counts=()), replace(job, values=())):
        assert set(part.reads) == {"visits"}
