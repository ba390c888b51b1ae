"""``dpsql audit``: generated rows, brute force over units and joins, the report, the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.errors import DataError, InternalError, PolicyError
from dpsql.extensions.audit.batch_audit import audit
from dpsql.extensions.audit.database import Synthetic
from dpsql.extensions.audit.noise import chi_square
from dpsql.extensions.audit.sensitivity import brute_force
from dpsql.extensions.audit.values import Draws, constants, type_of
from dpsql.extensions.audit.world import World
from dpsql.measure import ConnectionEngine, synthetic
from dpsql.policy import ColumnPolicy
from dpsql.privacy import charge as charges
from dpsql.privacy.noise import Noise
from dpsql.surfaces.cli import main

POLICY = """
dataset = "clinic-1"
[budget]
{budget}
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.patients.columns]
sex = {{ values = ["f", "m"], nulls = false }}
age = {{ lower = 0, upper = 10 }}
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 2
key = ["id"]
references = {{ patient_id = "patients.id", region = "regions.id" }}
[tables.visits.columns]
kind = {{ values = ["a", "b"], other = true }}
cost = {{ lower = -2, upper = 4 }}
[tables.labs]
unit = "visits.patient_id"
max_rows_per_unit = 2
references = {{ visit_id = "visits.id" }}
[tables.labs.columns]
v = {{ lower = -3, upper = 3 }}
[tables.offices]
public = true
[tables.regions]
public = true
key = ["id"]
[tables.regions.columns]
name = {{ values = ["n", "s"] }}
[tables.beds]
unit = "row"
[tables.beds.columns]
ward = {{ values = [1, 2] }}
"""
SMALL = """
dataset = "small-1"
[budget]
rho = 4.0
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b"], other = true }
v = { lower = -5, upper = 20 }
"""
SMALL_BATCH = "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g"

BATCHES = {
    "rows": "SELECT ward, count(*) FROM beds GROUP BY ward",
    "units": "SELECT kind, count(*), sum(cost) FROM visits GROUP BY kind",
    "a join": "SELECT sex, count(*), sum(age), sum(cost) FROM visits v JOIN patients p ON v.patient_id = p.id "
    "GROUP BY sex",
    "a public join": "SELECT name, count(*) FROM visits JOIN regions ON region = regions.id GROUP BY name",
    "a unit through a join": "SELECT kind, sum(cost), count(*) FROM labs JOIN visits ON visit_id = id GROUP BY kind; "
    "SELECT sum(v) FROM labs",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("rows", "units") else pytest.mark.long) for name in BATCHES]
)
@pytest.mark.few("rows")
def test_the_claim_is_attained_and_never_passed(tmp_path: Path, name: str, assurance: Callable[..., None]) -> None:
    budgets = {"rho = 100.0": {"rho": 1}, "epsilon = 100.0": {"epsilon": 1}}
    if name != "units":
        budgets.pop("epsilon = 100.0")
    for number, (budget, request) in enumerate(budgets.items()):
        (tmp_path / str(number)).mkdir()
        policy = dpsql.Policy.parse(POLICY.format(budget=budget))
        world = World.of(policy, BATCHES[name], tmp_path / str(number), **request)
        found = brute_force(world, pairs=40)
        assert world.paid == world.plan.sensitivity
        assert found.largest <= world.paid
        # What is planned is no more than needed: rows of one unit do reach it.
        assert found.largest >= world.paid * Fraction(4, 5)
        assurance("neighbouring pairs tried", found.pairs)


@pytest.mark.long
@pytest.mark.parametrize("name", BATCHES)
def test_many_more_neighbours(tmp_path: Path, name: str, assurance: Callable[..., None]) -> None:
    world = World.of(dpsql.Policy.parse(POLICY.format(budget="rho = 100.0")), BATCHES[name], tmp_path, rho=1)
    found = brute_force(world, pairs=600)
    assert found.largest <= world.paid
    assurance("neighbouring pairs tried", found.pairs)


# -- generated rows ---------------------------------------------------------------------------------


def test_types_that_the_policy_implies() -> None:
    for settings, kind in [
        ({"values": ("a", "b")}, "VARCHAR"),
        ({"values": (True, False)}, "BOOLEAN"),
        ({"values": (1, 2)}, "BIGINT"),
        ({"lower": 0, "upper": 5}, "BIGINT"),
        ({"lower": Fraction(0), "upper": Fraction(1), "step": Fraction(1, 100)}, "DECIMAL(18,2)"),
        ({"lower": Fraction(0), "upper": Fraction(1, 2)}, "DOUBLE"),
        ({"type": "HUGEINT"}, "HUGEINT"),
    ]:
        assert type_of(ColumnPolicy("c", **settings)) == kind  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="needed for an audit without the tables"):
        type_of(ColumnPolicy("c"))


def test_constants_of_a_batch_and_their_neighbours() -> None:
    found = constants("SELECT count(*) FROM t WHERE v >= 3 AND g = 'it''s' AND r < 2.5")
    assert {"3", "2", "4", "-3", "it's", "2.5", "1.5"} <= set(found)


def test_rows_hold_what_breaks_scans() -> None:
    tables = Synthetic(dpsql.Policy.parse(SMALL), {"t": {"g": "VARCHAR", "v": "BIGINT"}}, ["7"])
    texts = " ".join(tables.tables["t"].columns[1].values)
    assert all(f"'{value}'" in texts for value in (-(2**63), 2**63 - 1, -6, 21, -5, 20, 7))
    assert tables.tables["t"].columns[1].values[0] == "NULL"


@pytest.mark.long
def test_who_owns_a_row_by_hand() -> None:
    tables = Synthetic(dpsql.Policy.parse(POLICY.format(budget="rho = 1.0")), None, [])
    visits, labs = tables.tables["visits"], tables.tables["labs"]

    def visit(key: int | None, patient: int | None) -> tuple[object, ...]:
        cells = {"id": key, "patient_id": patient, "region": 0}
        return tuple(cells.get(c.name, "NULL") for c in visits.columns)

    def lab(key: int | None) -> tuple[object, ...]:
        return tuple(key if c.name == "visit_id" else "NULL" for c in labs.columns)

    rows = {"visits": [visit(1, 7), visit(1, 5), visit(2, None), visit(2, 9), visit(None, 3)]}
    owners = [tables.owner(rows, labs, lab(key)) for key in (1, 2, 3, None)]  # type: ignore[arg-type]
    assert owners == [5, 9, None, None]  # the least of two; a patient before none; dangling; no key


@pytest.mark.long
def test_orderly_units_find_their_own_rows() -> None:
    tables = Synthetic(dpsql.Policy.parse(POLICY.format(budget="rho = 1.0")), None, [])
    draws = Draws("test")
    cells = {
        t.name: {c.name: 0 if c.keys else draws.choice(c.values) for c in t.columns} for t in tables.tables.values()
    }
    unit = tables.orderly_unit("patient_id", 3, cells, more=1)
    assert {name: len(rows) for name, rows in unit.items()} == {"patients": 2, "visits": 3, "labs": 3}
    everything = {**tables.public_rows(draws), **unit}
    assert tables.owned_by(everything, "patient_id", 3) == unit
    tables.fill(everything)
    (count,) = tables.connection.execute("SELECT count(*) FROM labs JOIN visits ON visit_id = id").fetchone() or (0,)
    assert count == 3


def test_exact_values_come_of_generated_rows_only(tmp_path: Path) -> None:
    world = World.of(dpsql.Policy.parse(SMALL), SMALL_BATCH, tmp_path, rho=1)
    with duckdb.connect() as connection, pytest.raises(InternalError, match="generated rows only"):
        synthetic.exact(world.job, ConnectionEngine(connection))  # type: ignore[arg-type]


# -- noise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("size", [Fraction(1, 2), Fraction(3), Fraction(10**9)])
@pytest.mark.long
def test_the_chi_square_has_power_both_ways(kind: str, size: Fraction, assurance: Callable[..., None]) -> None:
    noise = Noise(kind, size)
    draws = noise.sample(100_000)
    assert chi_square(draws, noise) > 1e-6
    for factor in (Fraction(19, 20), Fraction(21, 20)):
        wrong = Noise(kind, size * (factor**2 if kind == "gaussian" else factor))
        assert chi_square(draws, wrong) < 1e-6
    assurance("draws held against their law", len(draws))


def test_the_chi_square_of_nearly_no_noise() -> None:
    noise = Noise.gaussian(Fraction(1, 1000))
    assert chi_square([0] * 1000, noise) == 1
    assert chi_square([0] * 999 + [1], noise) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_a_million_draws_have_their_law(kind: str, assurance: Callable[..., None]) -> None:
    noise = Noise(kind, Fraction(10**6 + 1, 7))
    draws = noise.sample(1_000_000)
    assert chi_square(draws, noise) > 1e-6
    assert abs(np.mean(np.array(draws, dtype=float))) < 5 * (noise.variance / len(draws)) ** 0.5
    assurance("draws held against their law", len(draws))


# -- report and command -----------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "small.sql").write_text(SMALL_BATCH)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ROUNDS = """
dataset = "rounds-1"
[budget]
epsilon = 4
[tables.t]
unit = "row"
expected_rows = 60
[tables.t.columns]
g = { values = ["a", "b", "c"], nulls = false }
"""
QUICK = ["audit", "small.toml", "small.sql", "--rho", "2", "--trials", "100", "--pairs", "20", "--quiet"]


@pytest.mark.long
def test_the_command_reports_and_touches_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is True
    assert all(check["holds"] for check in found["checks"])
    assert {"pairs", "scans", "z", "z_if_doubled", "draws", "chi_square_p", "attained"} <= set(found)
    assert found["attained"] == pytest.approx(1)
    assert sorted(path.name for path in place.iterdir()) == ["small.sql", "small.toml"]


@pytest.mark.long
def test_the_anchor_of_the_policy_is_left_alone(place: Path) -> None:
    """It belongs to the true ledger."""
    (place / "small.toml").write_text('anchor = "a.anchor"\n' + (place / "small.toml").read_text())
    (place / "a.anchor").write_text("another ledger's")
    assert main(QUICK) == 0
    assert (place / "a.anchor").read_text() == "another ledger's"


@pytest.mark.long
def test_the_command_audits_mechanisms_in_rounds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "rounds.toml").write_text(ROUNDS)
    (place / "rounds.sql").write_text("SELECT g, COUNT(*) AS n FROM t GROUP BY g")
    argv = ["audit", "rounds.toml", "rounds.sql", "--epsilon", "1", "--method", "mwem", "--rounds", "2", *QUICK[5:]]
    assert main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon_found"] <= found["epsilon_claimed"] == 1
    assert "selections have their law" in [check["check"] for check in found["checks"]]
    assert main(["audit", "rounds.toml", "rounds.sql", "--epsilon", "1", "--method", "matrix"]) == 1
    assert "method 'matrix' is not known" in capsys.readouterr().err
    assert main([*argv[:5], "--rounds", "2", *QUICK[5:]]) == 1
    assert "rounds" in capsys.readouterr().err


@pytest.mark.long
def test_a_failed_check_is_exit_code_1(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = charges.gaussian_noise
    monkeypatch.setattr(charges, "gaussian_noise", lambda s, mu2: real(s // 4, mu2))
    assert main(QUICK) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "no unit moves the cells further than the noise covers" in out


def test_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["audit", "small.toml", "small.sql"])
    assert stop.value.code == 2
    assert "the budget is missing" in capsys.readouterr().err
    for argv, part in (
        ([*QUICK[:-2], "5"], "pairs must be a whole number"),
        (["audit", "none.toml", "small.sql", "--rho", "1"], "none.toml"),
        (["audit", "small.toml", "none.sql", "--rho", "1"], "none.sql"),
        ([*QUICK, "--database", "none.duckdb"], "none.duckdb is not a file"),
    ):
        assert main(argv) == 1
        assert part in capsys.readouterr().err


@pytest.mark.long
def test_types_come_from_a_database_and_rows_do_not(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with duckdb.connect("small.duckdb") as connection:
        connection.execute("CREATE TABLE t(g VARCHAR, v SMALLINT, note VARCHAR)")
        connection.execute("INSERT INTO t VALUES ('a', 1, 'private')")
    assert main([*QUICK, "--database", "small.duckdb", "--json"]) == 0
    assert "private" not in capsys.readouterr().out.replace("no private row", "")


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(DataError, match="trials must be"):
        audit(dpsql.Policy.parse(SMALL), SMALL_BATCH, rho=1, trials=5)
