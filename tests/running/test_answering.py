"""Answers from earlier releases: free, exact in their errors, and never a change of what was charged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpsql
from dpsql.planning.prepare import prepare, understood_of
from dpsql.privacy.noise import Noise
from dpsql.release.payload import unpack
from dpsql.running.earlier import combine, past_of
from dpsql.running.earlier.joint import join
from dpsql.running.earlier.stored_measurements import meaning_of
from dpsql.running.result_tables import tables_of
from dpsql.workloads.compile.compiled import compile_rows

POLICY = """
dataset = "survey-1"
[budget]
epsilon = 1000
delta = 1e-9
pure_epsilon = 500
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
g = { values = ["a", "b", "c"], other = true, type = "VARCHAR" }
v = { lower = 0, upper = 100, step = 1, type = "INTEGER" }
[tables.u]
unit = "row"
source = "u.csv"
[tables.u.columns]
k = { lower = 0, upper = 4, type = "INTEGER", nulls = false }
"""
ROWS = [(i * 7 % 10, "abcd"[i % 4] if i % 11 else "", i * 13 % 101 if i % 9 else "") for i in range(300)]
DELTA = 1e-9


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    return connected(tmp_path)


def connected(folder: Path, policy: str = POLICY) -> dpsql.Connection:
    (folder / "t.csv").write_text("k,g,v\n" + "".join(f"{k},{g},{v}\n" for k, g, v in ROWS))
    (folder / "u.csv").write_text("k\n" + "".join(f"{i % 5}\n" for i in range(60)))
    (folder / "p.toml").write_text(policy)
    return dpsql.connect(policy=folder / "p.toml")


def test_a_table_that_moves_keeps_its_answers(tmp_path: Path) -> None:
    """Where the rows lie changes no question: that they are those of before is what the data set's name declares."""
    with connected(tmp_path) as con:
        con.run("SELECT g, COUNT(*) AS n FROM t GROUP BY g", epsilon=5)
    (tmp_path / "t.csv").rename(tmp_path / "moved.csv")
    (tmp_path / "p.toml").write_text(POLICY.replace('"t.csv"', '"moved.csv"'))
    with dpsql.connect(policy=tmp_path / "p.toml") as con:
        assert con.run("SELECT COUNT(*) AS n FROM t WHERE g = 'a'").cost == 0
        assert con.run("SELECT COUNT(*) AS n FROM t WHERE g = 'b'", epsilon=1).cost == 0
        assert con.budget.spent == 5
    (tmp_path / "p.toml").write_text(POLICY.replace('"t.csv"', '"moved.csv"').replace("upper = 9", "upper = 8"))
    with dpsql.connect(policy=tmp_path / "p.toml") as con, pytest.raises(dpsql.Error, match="do not determine"):
        con.run("SELECT COUNT(*) AS n FROM t WHERE g = 'c'")


def test_a_column_called_source_is_no_place() -> None:
    named = 'dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\nunit = "row"\nsource = "x.csv"\n[tables.t.columns]\n'
    marks = [meaning_of(dpsql.Policy.parse(named + text).to_toml()) for text in (
        'source = { lower = 0, upper = 1, type = "INTEGER" }\n', 'source = { lower = 0, upper = 2, type = "INTEGER" }\n'
    )]  # fmt: skip
    assert marks[0] != marks[1]


def spent(con: dpsql.Connection) -> float:
    return float(con.budget.spent)


def number(release: dpsql.Release, name: str = "q1") -> tuple[float, ...]:
    """The one row of a result: value, standard error, low, high."""
    (row,) = release[name].fetchall()
    return tuple(row)


def within(found: float, exact: float, error: float) -> bool:
    return abs(found - exact) <= 7 * error


# -- free ------------------------------------------------------------------------------------------------


def test_a_batch_that_earlier_releases_determine_is_free(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(*) AS n, count(v) AS c, sum(v) AS s FROM t GROUP BY k", epsilon=2)
    before = spent(con)
    found = con.run(
        "SELECT avg(v) AS a, sum(v) AS s FROM t WHERE k BETWEEN 2 AND 6; SELECT count(*) FROM t WHERE k = 3"
    )
    assert (found.cost, found.guarantee) == (0.0, "free, from release 1")
    assert spent(con) == before
    known = [v for k, _, v in ROWS if 2 <= k <= 6 and v != ""]
    average, a_error, _, _, total, s_error, low, high = number(found)
    assert within(total, sum(known), s_error)
    assert low <= total <= high
    assert within(average, sum(known) / len(known), a_error)
    count, error, *_ = number(found, "q2")
    assert within(count, sum(k == 3 for k, _, _ in ROWS), error)


def test_its_error_is_that_of_least_squares_over_all_of_them(con: dpsql.Connection) -> None:
    first = con.plan("SELECT count(*) FROM t WHERE k = 3", epsilon=1)
    con.run(first)
    con.run("SELECT count(*) FROM t WHERE k = 3; SELECT count(*) FROM t WHERE k = 4", epsilon=1, fresh=True)
    second = con.plan("SELECT count(*) FROM t WHERE k = 3; SELECT count(*) FROM t WHERE k = 4", epsilon=1)
    found = con.run("SELECT count(*) AS n FROM t WHERE k = 3")
    wanted = (first.errors[0] ** -2 + second.errors[0] ** -2) ** -0.5
    assert number(found)[1] == pytest.approx(wanted, rel=1e-9)
    assert found.guarantee == "free, from releases 1, 2"


def test_with_a_budget_it_must_be_as_precise_as_that_would_buy(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=1)
    asked = "SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 4"
    weak = con.run(asked, epsilon=0.25)
    assert weak.cost == 0.0
    assert number(weak)[1] <= con.plan(asked, epsilon=0.25).errors[0]
    strong = con.run(asked, epsilon=5)
    assert strong.cost == 5.0
    fresh = con.run(asked, epsilon=0.25, fresh=True)
    assert fresh.cost == 0.25


@pytest.mark.parametrize("noise", [{"epsilon": 2, "delta": DELTA}, {"rho": 0.5}])
@pytest.mark.few(every=2)
def test_gaussian_releases_are_combined_too(tmp_path: Path, noise: dict[str, float]) -> None:
    budget = "rho = 10" if "rho" in noise else "epsilon = 100\ndelta = 1e-9"
    con = connected(tmp_path, POLICY.replace("epsilon = 1000\ndelta = 1e-9\npure_epsilon = 500", budget))
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", **noise)
    con.run("SELECT count(*) FROM t WHERE k BETWEEN 0 AND 4", **noise, fresh=True)
    found = con.run(
        "SELECT count(*) AS n FROM t WHERE k BETWEEN 5 AND 9; SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 4"
    )
    assert found.cost == 0.0
    for name, part in (("q1", range(5, 10)), ("q2", range(5))):
        value, error, low, high = number(found, name)
        assert within(value, sum(k in part for k, _, _ in ROWS), error)
        assert 1.95 * error <= (high - low) / 2 <= 1.96 * error + 0.51  # half a count for the lattice


def test_a_cursor_answers_so_too(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    before = spent(con)
    cursor = con.cursor()
    (row,) = cursor.execute("SELECT count(*) FROM t WHERE k IN (1, 2)").fetchall()
    assert len(row) == 1
    assert cursor.release is not None
    assert cursor.release.cost == 0.0
    assert spent(con) == before
    with pytest.raises(dpsql.ProgrammingError, match="no earlier release answers this"):
        cursor.execute("SELECT count(*) FROM t WHERE v > 50")


def test_views_are_registered_shown_and_rebuilt(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    con.run("CREATE VIEW low AS SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 4")
    held = con.sql("SELECT * FROM low").fetchall()
    (line,) = con.sql("SELECT cost, strategy, guarantee FROM releases WHERE release_id = 2").fetchall()
    assert line == (0.0, "least squares over release 1", "free, from release 1")
    assert con.rebuild() == 2
    assert con.sql("SELECT * FROM low").fetchall() == held
    with pytest.raises(dpsql.IntegrityError, match="exists already"):
        con.run("CREATE VIEW low AS SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 3")
    assert con.run("CREATE OR REPLACE VIEW low AS SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 3").cost == 0.0
    con._books.ledger().verify()


def test_asked_again_it_is_the_same_release_until_more_is_known(con: dpsql.Connection) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=1)
    asked = "SELECT count(*) AS n FROM t WHERE k BETWEEN 1 AND 3"
    first, again = con.run(asked), con.run(asked)
    assert first.id == again.id
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=3)
    better = con.run(asked)
    assert better.id != first.id
    assert number(better)[1] < number(first)[1] / 3


# -- not free --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT count(*) FROM t WHERE k > 4",  # rows above the declared bounds count here and in no group
        "SELECT count(*) FROM t WHERE k = 3 AND v > 50",
        "SELECT sum(v) FROM t WHERE k = 3",
        "SELECT count(v) FROM t WHERE k = 3",  # NULLs were not told apart
        "SELECT k, count(*) FROM u GROUP BY k",
        "SELECT count(*) FROM t WHERE k = 3; SELECT count(*) FROM t WHERE v = 5",
    ],
)
@pytest.mark.few(every=3)
def test_what_was_not_measured_needs_a_budget(con: dpsql.Connection, asked: str) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        con.run(asked)
    assert con.run(asked, epsilon=0.01).cost == 0.01


def test_without_any_release_a_budget_is_needed_and_no_ledger_is_made(con: dpsql.Connection) -> None:
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        con.run("SELECT count(*) FROM t")
    assert not con.ledger_path.exists()


def test_other_data_versions_policies_and_types_are_not_combined(tmp_path: Path) -> None:
    con = connected(tmp_path)
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    asked = "SELECT count(*) FROM t WHERE k = 3"
    assert con.run(asked).cost == 0.0
    other = connected(tmp_path, POLICY.replace("upper = 9", "upper = 8"))
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        other.run(asked)
    typed = connected(tmp_path, POLICY.replace('upper = 9, type = "INTEGER"', 'upper = 9, type = "BIGINT"'))
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        typed.run(asked)
    renewed = connected(tmp_path, POLICY.replace("survey-1", "survey-2"))
    renewed.renew("survey-1")
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        renewed.run(asked)
    renewed.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=1)
    assert renewed.run(asked).guarantee == "free, from release 3"


# -- refine ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_refining_makes_every_earlier_answer_better_and_costs_nothing(con: dpsql.Connection) -> None:
    con.run("CREATE VIEW by_k AS SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=1)
    con.run("CREATE VIEW half AS SELECT count(*) AS n FROM t WHERE k BETWEEN 0 AND 4", epsilon=3)
    before = {name: con.sql(f"SELECT n_stderr FROM {name} ORDER BY ALL").fetchall() for name in ("by_k", "half")}
    paid, charges = spent(con), [e.charge.units for e in con.releases() if e.charge.units]
    better = con.refine()
    assert {view for release in better for view in release.views} == {"by_k", "half"}
    assert all(release.cost == 0.0 for release in better)
    for name, errors in before.items():
        after = con.sql(f"SELECT n_stderr FROM {name} ORDER BY ALL").fetchall()
        assert all(new <= old * (1 + 1e-9) for (new,), (old,) in zip(after, errors, strict=True))
        assert sum(new for (new,) in after) < sum(old for (old,) in errors)
    # The parts add up: least squares over everything is consistent.
    (total,) = con.sql("SELECT sum(n) FROM by_k WHERE k <= 4").fetchall()
    (whole,) = con.sql("SELECT n FROM half").fetchall()
    assert total[0] == pytest.approx(whole[0], rel=1e-9)
    assert spent(con) == paid
    assert [e.charge.units for e in con.releases() if e.charge.units] == charges
    assert con.refine() == []
    con._books.ledger().verify()


# -- the joint cells ------------------------------------------------------------------------------------


def pasts(con: dpsql.Connection) -> list:
    found = []
    for entry in con.releases():
        record, measurement = unpack(con._books.ledger().release(entry.id).payload)
        found.append(past_of(entry.id, record.sql, measurement, con.policy, con.schemas()))
    return found


BATCHES = (
    "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
    "SELECT g, count(*) FROM t WHERE v < 50 GROUP BY g; SELECT sum(v * 2 + k) FROM t WHERE k < 5",
    "CREATE VIEW a AS SELECT g, avg(v) AS m FROM t GROUP BY g; SELECT max(m) FROM a; "
    "SELECT count(*) FROM u WHERE k = 1",
)


@pytest.mark.long
def test_every_earlier_number_is_the_same_over_joint_cells(con: dpsql.Connection) -> None:
    """A brute force over rows: W x of the joint cells is what each batch counts by itself, for any rows."""
    for batch in BATCHES:
        con.run(batch, epsilon=1)
    held = pasts(con)
    assert None not in held
    asked = understood_of(
        "SELECT k, g, count(*) FROM t WHERE v BETWEEN 20 AND 60 GROUP BY k, g", con.policy, con.schemas()
    )
    joint = join(asked, held)
    assert joint is not None
    assert [o.release for o in joint.observations] == [1, 2, 3]
    _, rows, scale = compile_rows(asked.queries, asked.tables)
    assert joint.rows.shape[0] == rows.shape[0]
    assert np.array_equal(joint.scale, scale)
    rng = np.random.default_rng(3)
    for past, seen in zip(held, joint.observations, strict=True):
        matrix = past.integers.mixing @ past.integers.basis
        assert seen.matrix.shape[0] == matrix.shape[0]
        # Each joint entry is one entry of the past or none: columns of B over joint cells are columns of B.
        columns = {tuple(c) for c in matrix.toarray().T} | {(0,) * matrix.shape[0]}
        picked = rng.choice(seen.matrix.shape[1], 40)
        assert {tuple(c) for c in seen.matrix[:, picked].toarray().T} <= columns


DETERMINED = [
    "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k",
    "SELECT sum(v) FROM t WHERE k BETWEEN 2 AND 4",
    "SELECT g, avg(v) FROM t GROUP BY g",
    "SELECT g, count(*) FROM t WHERE v < 50 GROUP BY g",
]


@pytest.mark.long
def test_noiseless_measurements_give_exact_answers(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the combination is what the batch's own measurement says, to rounding: it is unbiased."""
    monkeypatch.setattr(Noise, "sample", lambda self, count: [0] * count)
    for batch in BATCHES:
        con.run(batch, epsilon=4)
    combined = {asked: combine(prepare(asked, con.policy, con.schemas()), pasts(con), 0.05) for asked in DETERMINED}
    for asked, found in combined.items():
        assert found is not None, asked
        exact = con.run(asked, epsilon=1, fresh=True).record.tables
        for ours, theirs in zip(tables_of(found, found.values), exact, strict=True):
            for (name, kind, mine), (_, _, other) in zip(ours.columns, theirs.columns, strict=True):
                if kind == "DOUBLE" and not name.endswith(("_stderr", "_low", "_high")):
                    assert np.allclose(np.array(mine, dtype=float), np.array(other, dtype=float), atol=1e-4), asked
                elif kind != "DOUBLE":
                    assert list(mine) == list(other), asked


def test_integers_of_an_older_reading_are_left_alone(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    monkeypatch.setattr("dpsql.running.earlier.stored_measurements._SAME_CELLS", (99,))
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        con.run("SELECT count(*) FROM t WHERE k = 3")


def test_what_is_too_large_is_measured_and_not_combined(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.running.earlier.stored_measurements.MOST_ENTRIES", 3)
    con.run("SELECT k, count(*) AS n FROM t GROUP BY k", epsilon=2)
    monkeypatch.undo()
    with pytest.raises(dpsql.DataError, match="no budget is given and the releases do not determine this batch"):
        con.run("SELECT count(*) FROM t WHERE k = 3")
    # The same batch is answered by its own release all the same.
    again = con.run("SELECT k, count(*) AS n FROM t GROUP BY k")
    assert (again.id, again.cost) == (1, 0.0)
