"""Replicates have the joint law of the noise of their releases: no less, no more, and together."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pytest
from replicate_world import BATCH, connect

import dpsql
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import covariance
from dpsql.replicates.noise import replicates

DRAWS = 3_000
# The relative deviation of a sample variance is at most sqrt(5 / DRAWS), kurtosis 6 of one Laplace variable; six of it.
SLACK = 6 * (5 / DRAWS) ** 0.5


@pytest.fixture(scope="module", params=["pure", "gaussian"])
def world(request, tmp_path_factory):
    """(connection, plan of a batch, its release)."""
    con = connect(tmp_path_factory.mktemp(request.param))
    plan = con.plan(BATCH, epsilon=0.5, delta=None if request.param == "pure" else 1e-9)
    return con, plan, con.run(plan)


def drawn(rel, count=DRAWS):
    """The noise of the counts and sums of ``by_g`` and the count of ``total`` in replicates (count x 9)."""
    by_g, total = rel.draws("by_g", count).df(), rel.draws("total", count).df()
    parts = [by_g["n"].to_numpy().reshape(count, 4), by_g["s"].to_numpy().reshape(count, 4), total[["n"]].to_numpy()]
    shown = [rel["by_g"].column("n"), rel["by_g"].column("s"), rel["total"].column("n")]
    return np.concatenate(parts, axis=1) - np.concatenate(shown)


def exact(plan):
    """Their covariance, from the plan's own reconstruction."""
    slices = {}
    for (core, parts), answer in zip(plan.cores, plan.queries, strict=True):
        slices[answer.name] = [parts[c.output] for c in core.columns if hasattr(c, "output")]
    n, s = slices["by_g"][:2]
    rows = plan.answers.rows([n, s, slices["total"][0]], plan.noise)
    return covariance(rows, plan.noise) / plan.compiled.common_steps**2


def agrees(noise, covariance):
    """Whether sums and differences of the noisy numbers vary as the covariance says, in both directions."""
    rng = np.random.default_rng(0)
    contrasts = np.concatenate([np.eye(9), np.eye(9) - np.roll(np.eye(9), 1, axis=1), rng.choice([-1, 0, 1], (60, 9))])
    expected = np.einsum("ij,jk,ik->i", contrasts, covariance, contrasts)
    found = ((noise @ contrasts.T) ** 2).mean(axis=0)
    size = np.abs(covariance).max()
    return bool(np.all(np.abs(found - expected) <= SLACK * expected + 1e-9 * size))


@pytest.mark.few("gaussian")
def test_the_law_is_the_exact_one_and_mutants_fall(world):
    _, plan, rel = world
    noise, held = drawn(rel), exact(plan)
    assert agrees(noise, held)
    assert not agrees(noise * 0.5**0.5, held)
    assert not agrees(noise * 2**0.5, held)
    apart = np.stack([np.roll(column, 7 * at) for at, column in enumerate(noise.T)], axis=1)  # independent columns
    assert not agrees(apart, held)


def test_the_noise_itself_has_its_law():
    """Integers, with the probabilities of the exact samplers (at 1e-6)."""
    for noise in (Noise.gaussian(3), Noise.laplace(2)):
        held = replicates(noise, 5, 20_000, 1).ravel()
        assert np.array_equal(held, np.rint(held))
        assert abs(held.mean()) < 5 * (noise.variance / held.size) ** 0.5
        for value in range(-3, 4):
            q = np.exp(-1 / 2)
            laplace = (1 - q) / (1 + q) * q ** abs(value)
            sides = [0.5 * (1 + math.erf((value + end) / 6**0.5)) for end in (0.5, -0.5)]
            chance = laplace if noise.kind == "laplace" else sides[0] - sides[1]
            assert abs((held == value).mean() - chance) < 5 * (chance / held.size) ** 0.5


@pytest.mark.few("gaussian")
def test_the_same_numbers_every_time_and_more_begin_with_fewer(world):
    con, plan, rel = world
    few, many = rel.draws("by_g", 20), rel.draws("by_g", 50)
    assert few.fetchall() == many.fetchall()[: len(few)]
    assert few.columns == ("replicate", "g", "n", "s", "a", "m", "top")
    assert few.column("replicate") == [which for which in range(1, 21) for _ in range(4)]
    with connect(con.ledger_path.parent) as again:
        same = again.run(plan)
        assert (same.id, same.cost) == (rel.id, 0)
        assert same.draws("by_g", 20) == few


@pytest.mark.few("gaussian")
def test_parts_add_up_in_every_replicate(world):
    """The total is not asked apart from its groups: one reconstruction, one noise."""
    _, _, rel = world
    by_g, total = rel.draws("by_g", 50).df(), rel.draws("total", 50).df()
    assert np.allclose(by_g.groupby("replicate")["n"].sum(), total["n"], atol=1e-6)


@pytest.mark.few("gaussian")
def test_formulas_and_outer_sql_are_those_of_the_replicate(world):
    _, _, rel = world
    by_g, ranked = rel.draws("by_g", 30).df(), rel.draws("ranked", 30)
    assert np.allclose(by_g["a"], (by_g["s"] / by_g["n"]).clip(0, 10))
    with duckdb.connect() as duck:
        duck.register("by_g", by_g)
        again = duck.sql(
            "SELECT replicate, g, RANK() OVER (PARTITION BY replicate ORDER BY n DESC) AS r, n FROM by_g "
            "QUALIFY r <= 3 ORDER BY replicate, n DESC"
        ).fetchall()
    got = sorted(ranked.fetchall(), key=lambda row: (row[0], -row[3]))
    assert [row[:3] for row in got] == [row[:3] for row in again]
    assert np.allclose([row[3] for row in got], [row[3] for row in again])


@pytest.mark.few("gaussian")
def test_quantiles_of_a_replicate_are_those_of_its_counts(world):
    """Their spread is that of a table whose counts are as uncertain; never outside the domain."""
    _, _, rel = world
    held = rel.draws("by_g", 200).df()
    assert held["m"].between(0, 4).all()
    assert held["top"].between(0, 4).all()
    assert held["m"].nunique() > 2


@pytest.mark.long
def test_releases_vary_together_where_they_rest_on_one_measurement(tmp_path):
    con = connect(tmp_path)
    first = con.run("CREATE VIEW cells AS SELECT g, k, COUNT(*) AS n FROM t GROUP BY g, k", epsilon=1, delta=1e-9)
    free = con.run("CREATE VIEW rolled AS SELECT g, COUNT(*) AS n FROM t WHERE k BETWEEN 0 AND 4 GROUP BY g")
    assert free.cost == 0
    cells = first.draws("cells", 40).df().groupby(["replicate", "g"])["n"].sum().to_numpy()
    assert np.allclose(cells, free.draws("rolled", 40).df()["n"], atol=1e-6)
    answer = con.sql(
        "SELECT g, SUM(c.n) - ANY_VALUE(r.n) AS d FROM cells c JOIN rolled r USING (g) GROUP BY g", errors=True
    )
    assert np.allclose(answer.column("d_stderr"), 0, atol=1e-6)
    # A better answer of the first, from two measurements: the second counts, too.
    con.run(
        "CREATE VIEW again AS SELECT g, COUNT(*) AS n FROM t WHERE k BETWEEN 0 AND 4 GROUP BY g",
        epsilon=1,
        delta=1e-9,
        fresh=True,
    )
    (better, *_) = [one for one in con.refine() if "rolled" in one.views]
    spread = better.draws("rolled", 2_000).df().groupby("g")["n"].std().to_numpy()
    assert np.allclose(spread, better["rolled"].column("n_stderr"), rtol=0.15)
    assert (np.array(better["rolled"].column("n_stderr")) < np.array(free["rolled"].column("n_stderr"))).all()


@pytest.mark.few("gaussian")
def test_draws_cost_nothing_and_say_what_they_cannot(world):
    con, _, rel = world
    before = con.budget.charges
    with pytest.raises(dpsql.NoResultError, match="has no result nothing"):
        rel.draws("nothing", 5)
    with pytest.raises(dpsql.InterfaceError, match="knows no ledger"):
        type(rel)(rel.id, 0.0, "", rel.record).draws("by_g", 5)
    with pytest.raises(dpsql.DataError, match="too many"):
        rel.draws("ranked", 10**7)
    assert con.budget.charges == before
