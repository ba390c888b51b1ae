"""What sampling adds to replicates: variances that samples have, and intervals that cover a population's numbers."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from replicate_world import POLICY, connect
from scipy import stats

import dpsql
from dpsql.replicates.law import sampled

TIMES = 20_000


def moves(con: dpsql.Connection, release: int):
    """Moves of the numbers of each core of a release, (count x groups), output by output."""
    combination = con._replicates.laws.of(release).combination
    found = sampled(combination, 7, TIMES)
    return [[found[:, part] for part in slices] for _, slices in combination.cores]


@pytest.fixture(scope="module")
def con(tmp_path_factory):
    held = connect(tmp_path_factory.mktemp("sampling"))
    held.run(
        "CREATE VIEW by_g AS SELECT g, COUNT(*) AS n, SUM(v) AS s, VAR_POP(v) AS w FROM t GROUP BY g; "
        "CREATE VIEW total AS SELECT COUNT(*) AS n, SUM(v) AS s FROM t",
        epsilon=15,
        delta=1e-9,
    )
    held.run("CREATE VIEW bare AS SELECT COUNT(*) AS n, SUM(v) AS s FROM t", epsilon=15, delta=1e-9)
    return held


@pytest.mark.long
def test_counts_move_as_poisson_numbers_and_sums_with_their_rows(con, tmp_path):
    (n, s, *_), (total, whole) = moves(con, 1)
    exact = duckdb.sql(
        "SELECT floor(sqrt(i % 16)) AS g, count(*), sum(v), sum(v * v) "
        "FROM (SELECT i, least(i % 11, 10) AS v FROM range(400) r(i)) GROUP BY g ORDER BY g"
    ).fetchall()
    for at, (_, count, values, squares) in enumerate(exact):
        assert n[:, at].var() == pytest.approx(count, rel=0.15)
        assert s[:, at].var() == pytest.approx(squares, rel=0.15)
        assert np.cov(n[:, at], s[:, at])[0, 1] == pytest.approx(values, rel=0.15)
    assert total[:, 0] == pytest.approx(n.sum(axis=1), abs=1e-6)
    assert whole[:, 0] == pytest.approx(s.sum(axis=1), abs=1e-6)
    assert abs(np.corrcoef(n[:, 0], n[:, 1])[0, 1]) < 0.05


@pytest.mark.long
def test_without_squares_values_vary_as_much_as_their_bounds_allow(con):
    ((n, s),) = moves(con, 2)
    about = s[:, 0] - 5.0 * n[:, 0]  # the middle of 0 to 10
    assert about.var() == pytest.approx(25 * 400, rel=0.15)


@pytest.mark.long
def test_intervals_cover_the_population(tmp_path):
    """Of samples from one population, each released once: shares and means of four groups."""
    generator = np.random.default_rng(11)
    shares, means = np.array([0.4, 0.3, 0.2, 0.1]), np.array([3.0, 4.0, 6.0, 7.0])
    covered = {"share": 0, "mean": 0, "share, noise alone": 0}
    times = 20
    for number in range(times):
        folder = tmp_path / str(number)
        folder.mkdir()
        g = generator.choice(4, 2_000, p=shares)
        with duckdb.connect(str(folder / "d.duckdb")) as duck:
            duck.register("rows", {"g": g, "v": generator.binomial(10, means[g] / 10).astype(float)})
            duck.execute("CREATE TABLE t AS SELECT ['a', 'b', 'c', 'd'][g + 1] AS g, 0::INTEGER AS k, v FROM rows")
        (folder / "p.toml").write_text(POLICY, encoding="utf-8")
        with connect(folder) as con:
            con.run(
                "CREATE VIEW b AS SELECT g, COUNT(*) AS n, SUM(v) AS s, VAR_SAMP(v) AS w FROM t GROUP BY g",
                epsilon=2,
                delta=1e-9,
            )
            query = "SELECT g, n / SUM(n) OVER () AS share, s / n AS mean FROM b ORDER BY g"
            found = con.sql(query, errors=True, population="sample")
            alone = con.sql(query, errors=True)
        for held, what, true in ((found, "share", shares), (found, "mean", means), (alone, "share", shares)):
            low, high = (np.array(held.column(f"{what}_{end}")) for end in ("low", "high"))
            name = what if held is found else "share, noise alone"
            covered[name] += int(((low <= true) & (true <= high)).sum())
    least = stats.binom.ppf(1e-6, 4 * times, 0.95)
    assert covered["share"] >= least
    assert covered["mean"] >= least
    assert covered["share, noise alone"] < least


def test_what_sampling_cannot_tell_is_refused(con):
    with pytest.raises(dpsql.NotSupportedError, match="one release"):
        con.sql("SELECT a.n - b.n AS d FROM total a, bare b", errors=True, population="sample")
    with pytest.raises(dpsql.DataError, match="errors=True"):
        con.sql("SELECT n FROM total", population="sample")


@pytest.mark.long
def test_a_cursor_adds_sampling_as_a_query_does(con):
    asked = "SELECT g, n / 2 AS half FROM by_g ORDER BY g"
    wider = con.sql(asked, errors=True, population="sample")
    with con.cursor(errors=True, population="sample") as cursor:
        cursor.execute(asked)
        assert cursor.fetchall() == wider.fetchall()
    assert wider.column("half_stderr")[0] > 1.5 * con.sql(asked, errors=True).column("half_stderr")[0]
    for wrong in ({"population": "sample"}, {"errors": True, "population": "rows"}):
        with pytest.raises(dpsql.DataError, match="goes with errors=True"):
            con.cursor(**wrong)
