"""GROUP BY over a column whose groups are found first: planned, charged and answered in one submission."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from helpers import unwrapped

import dpsql
from dpsql.extensions.discovery.find_first import Finding

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 4.0
delta = 1e-6
[tables.visits]
unit = "patient"
max_rows_per_unit = 2
[tables.visits.columns]
diagnosis = { groups = "discover" }
code = { groups = "discover" }
sex = { values = ["f", "m"], nulls = false }
"""
SHORT = "SELECT diagnosis, COUNT(*) AS n FROM visits WHERE sex = 'f' GROUP BY diagnosis"


def connected(
    folder: Path, values: str = "['flu', 'cold', 'rare ' || i][1 + i % 3]", policy: str = POLICY
) -> dpsql.Connection:
    held = duckdb.connect(":memory:")
    held.execute(
        f"CREATE TABLE visits AS SELECT i // 2 AS patient, {values} AS diagnosis, (i % 2)::INTEGER AS code, "
        "['f', 'm'][1 + (i // 2) % 2] AS sex FROM range(12000) t(i)"
    )
    (folder / "visits.toml").write_text(policy, encoding="utf-8")
    return dpsql.connect(held, policy=folder / "visits.toml")


def test_a_batch_finds_its_groups_and_says_so_before(tmp_path: Path) -> None:
    con = connected(tmp_path)
    plan = con.plan(SHORT, epsilon=1.0)
    (find,) = plan.finds
    assert isinstance(find, Finding)
    assert find.prospect.column == "diagnosis"
    assert "visits.diagnosis is found first, at epsilon 0.3, delta" in str(plan)
    assert plan.charge.guarantee == "epsilon 0.7, delta 1e-6"
    assert not con.ledger_path.exists()
    planned = plan.stderr["q1"][0]
    release = con.run(plan)
    shown = release.only.df()
    assert list(shown["diagnosis"][:2]) == ["cold", "flu"]
    assert shown["diagnosis"][2:].isna().all()  # all others, and NULL
    assert shown["n_stderr"].max() == pytest.approx(planned, rel=0.02)
    kinds = [entry.description.get("kind") for entry in con.releases()]
    assert kinds == ["reserve", "discovery", None]
    # From then on they are its groups: plans are plain ones.
    assert con.plan(SHORT, epsilon=1.0).finds == ()
    assert con.run(SHORT, epsilon=0.7).cost == 0


@pytest.mark.parametrize(
    "budget", ["epsilon = 4.0\ndelta = 1e-6\npure_epsilon = 2.0", "rho = 0.5\ndiscovery_delta = 1e-7"]
)
@pytest.mark.few(every=2)
def test_groups_are_found_from_the_gaussian_account_at_epsilon(budget: str, tmp_path: Path) -> None:
    con = connected(tmp_path, policy=POLICY.replace("epsilon = 4.0\ndelta = 1e-6", budget))
    assert list(con.run(SHORT, epsilon=1.0).only.df()["diagnosis"][:2]) == ["cold", "flu"]
    (found,) = (entry.charge for entry in con.releases() if entry.description.get("kind") == "discovery")
    assert (found.account, found.noise) == ("gaussian", "gaussian")
    assert found.guarantee.startswith("epsilon 0.3, delta")


@pytest.mark.parametrize("more", ["", "\ndiscovery_delta = 1e-7"])
def test_a_policy_that_is_all_pure_says_what_to_write(more: str, tmp_path: Path) -> None:
    con = connected(tmp_path, policy=POLICY.replace("delta = 1e-6", f"delta = 1e-6\npure_epsilon = 4.0{more}"))
    with pytest.raises(dpsql.PolicyError, match="find short texts with max_bytes and no delta"):
        con.run(SHORT, epsilon=1.0)
    # A text that nobody has is shown once in a hundred times.
    assert {"cold", "flu"} <= set(con.discover("visits.diagnosis", epsilon=1.0, max_groups=1, max_bytes=4).values)


@pytest.mark.long
def test_several_columns_share_and_those_that_are_not_grouped_wait(tmp_path: Path) -> None:
    con = connected(tmp_path)
    both = con.plan("SELECT diagnosis, code, COUNT(*) AS n FROM visits GROUP BY ALL", epsilon=1.0)
    finds = [find.prospect for find in both.finds if isinstance(find, Finding)]
    assert {found.column for found in finds} == {"diagnosis", "code"}
    assert finds[0].charge.guarantee.startswith("epsilon 0.15")
    assert len(con.run(both).only) == 4 * 4
    assert con.plan("SELECT COUNT(*) AS n FROM visits WHERE diagnosis = 'flu'", epsilon=1.0).finds == ()


def test_nothing_found_is_said_after_the_discovery_alone(tmp_path: Path) -> None:
    con = connected(tmp_path, "'rare ' || i")
    with pytest.raises(dpsql.OperationalError, match="nothing to group by; the discovery stays charged"):
        con.run(SHORT, epsilon=1.0)
    assert [entry.description.get("kind") for entry in con.releases()] == ["reserve", "discovery"]


def test_what_cannot_be_found_is_refused_as_ever(tmp_path: Path) -> None:
    con = connected(tmp_path)
    con.run("SELECT COUNT(*) AS n FROM visits", epsilon=0.5)
    with pytest.raises(dpsql.BudgetError, match="set aside before the first Gaussian release"):
        con.plan(SHORT, epsilon=1.0)
    with pytest.raises(dpsql.SQLError, match="GROUP BY patient"):
        con.plan("SELECT patient, COUNT(*) FROM visits GROUP BY patient, diagnosis", epsilon=1.0)
    with pytest.raises(dpsql.PolicyError, match="groups is 'found'"):
        dpsql.Policy.parse(POLICY.replace('"discover"', '"found"'))
    policy = dpsql.Policy.parse(POLICY)
    assert dpsql.Policy.parse(policy.to_toml()) == policy


@pytest.mark.long
def test_nothing_is_found_for_a_batch_that_is_refused(tmp_path: Path) -> None:
    con = connected(tmp_path)
    con.discover("visits.code", epsilon=0.2, delta=1e-9, max_groups=1)
    con.run("CREATE VIEW taken AS SELECT COUNT(*) AS n FROM visits", epsilon=3.0)
    spent = con.budget.spent
    with pytest.raises(dpsql.IntegrityError, match="taken exists already"):
        con.run(f"CREATE VIEW taken AS {SHORT}", epsilon=1.0)
    with pytest.raises(dpsql.InterfaceError, match="estimates='best'"):
        con.run(SHORT, epsilon=1.0, estimates="best")
    with pytest.raises(dpsql.BudgetError, match=r"a release at epsilon 2\.1,"):  # finding would have been paid
        con.run(SHORT, epsilon=3.0)
    assert con.budget.spent == spent
    (tmp_path / "other").mkdir()
    other = connected(tmp_path / "other", policy=POLICY.replace("visits-1", "visits-2"))
    with pytest.raises(dpsql.IntegrityError, match="under another policy"):
        other.run(con.plan(SHORT, epsilon=1.0))
    assert not other.ledger_path.exists()


def test_a_batch_that_needs_another_domain_finds_none(tmp_path: Path) -> None:
    con = connected(tmp_path)
    with pytest.raises(dpsql.SQLError, match="a quantile of code needs its values declared"):
        con.run("SELECT diagnosis, MEDIAN(code) AS m FROM visits GROUP BY diagnosis", epsilon=1.0)
    assert not con.ledger_path.exists()


@pytest.mark.long
def test_the_numbers_are_planned_as_they_were_shown(tmp_path: Path) -> None:
    con = connected(tmp_path)
    plan = con.plan(f"{SHORT}; SELECT COUNT(*) AS m FROM visits", epsilon=1.0, objective="max")
    assert "delta 5e-7 set aside for finding groups before all else" in unwrapped(plan)
    shown = con.run(plan)["q2"].df()
    assert shown["m_stderr"][0] == pytest.approx(plan.stderr["q2"][0], rel=0.04)  # 0.06 without it
