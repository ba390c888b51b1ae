"""Errors beside what is computed from releases: exact where they can be, honest elsewhere, and never by luck."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers import repeatable_noise
from replicate_world import BATCH, OTHER, POLICY, connect

import dpsql
from dpsql.driver.cursor import Cursor
from dpsql.privacy.noise import pure_noise
from dpsql.reconstruct.combined import Observed
from dpsql.reconstruct.fieller import fieller
from dpsql.reconstruct.intervals import log_concave_quantile
from dpsql.reconstruct.linear_errors import LinearErrors
from dpsql.replicates import error_propagation
from dpsql.replicates.intervals import Drawn, spread_of
from dpsql.replicates.noise import replicates


@pytest.fixture(scope="module")
def con(tmp_path_factory):
    """A connection with releases of pure and of Gaussian noise, the same every time."""
    held = connect(tmp_path_factory.mktemp("travel"))
    with pytest.MonkeyPatch.context() as patch:
        repeatable_noise(patch, 1)
        held.run(BATCH, epsilon=0.5)
        held.run(OTHER, epsilon=0.4, delta=1e-9)
        held.run("CREATE VIEW few AS SELECT g, COUNT_IF(k = 0) AS n FROM t GROUP BY g", epsilon=0.01, delta=1e-9)
    return held


def one(result):
    """The only row, by column."""
    (row,) = result.fetchall()
    return dict(zip(result.columns, row, strict=True))


def by(result, key="g"):
    return {row[result.columns.index(key)]: dict(zip(result.columns, row, strict=True)) for row in result.fetchall()}


@pytest.mark.long
def test_linear_numbers_have_exact_errors(con):
    """As they were released, and two releases as independent ones."""
    shown, again = by(con.sql("FROM by_g")), by(con.sql("SELECT g, n AS m, -2 * n AS twice FROM by_g", errors=True))
    for g, row in shown.items():
        assert again[g]["m_stderr"] == pytest.approx(row["n_stderr"], rel=1e-6)
        assert again[g]["m_low"] == pytest.approx(row["n_low"], rel=1e-6)
        assert again[g]["m_high"] == pytest.approx(row["n_high"], rel=1e-6)
        assert again[g]["twice_stderr"] == pytest.approx(2 * row["n_stderr"], rel=1e-6)
        assert again[g]["twice_low"] == pytest.approx(-2 * row["n_high"], rel=1e-6)
    apart = one(
        con.sql("SELECT (SELECT n FROM by_g WHERE g = 'a') - (SELECT n FROM by_k WHERE k = 1) AS d", errors=True)
    )
    errors = [shown["a"]["n_stderr"], by(con.sql("FROM by_k"), "k")[1]["n_stderr"]]
    assert apart["d_stderr"] == pytest.approx(np.hypot(*errors), rel=1e-6)
    whole = one(con.sql("SELECT SUM(g.n) - ANY_VALUE(t.n) AS gap FROM by_g g, total t", errors=True))
    assert whole["gap_stderr"] == pytest.approx(0, abs=1e-6)


def test_a_ratio_has_fiellers_interval(con):
    """With the weights of each number over the noise taken from many replicates by least squares, once more."""
    law = con._replicates.laws.of(1)
    answers = law.combination.answers
    parts = law.combination.cores[0][1]
    rows = answers.rows([parts[0], parts[1]])
    errors = LinearErrors.of(rows, 4, answers.law, 0.05, law.combination.compiled.common_steps)
    estimates = np.stack([law.combination.values[part] for part in parts[:2]], axis=1)
    weights = np.tile([0.0, 1.0], (4, 1)), np.tile([1.0, 0.0], (4, 1))
    wanted = fieller(estimates[:, 1], estimates[:, 0], *weights, errors)
    found = con.sql("SELECT g, s / n AS r FROM by_g ORDER BY g", errors=True)
    assert np.allclose(found.column("r_low"), wanted.low, rtol=1e-4)
    assert np.allclose(found.column("r_high"), wanted.high, rtol=1e-4)
    rounded = con.sql("SELECT g, ROUND(s / n, 4) AS r FROM by_g ORDER BY g", errors=True)  # by percentiles
    widths = np.array(rounded.column("r_high")) - np.array(rounded.column("r_low"))
    assert np.allclose(widths[1:], (wanted.high - wanted.low)[1:], rtol=0.35)  # the first group is small


def test_small_denominators_widen_and_are_never_null(con):
    found = by(con.sql("SELECT g, 1000 / n AS r, ROUND(1000 / n, 1) AS rounded FROM few", errors=True))
    unsure = [row["g"] for row in by(con.sql("FROM few")).values() if abs(row["n"]) < 1.7 * row["n_stderr"]]
    assert len(unsure) > 2
    for g in unsure:
        assert (found[g]["r_low"], found[g]["r_high"], found[g]["r_stderr"]) == (-np.inf, np.inf, np.inf)
        assert (found[g]["rounded_low"], found[g]["rounded_high"]) == (-np.inf, np.inf)
    assert all(row[f"r{part}"] is not None for row in found.values() for part in ("_stderr", "_low", "_high"))
    zero = con.sql("SELECT g, n / 0 AS r, NULLIF(n, n) AS gone FROM few", errors=True)
    assert zero.column("gone_stderr") == [None] * 4
    assert zero.columns[:5] == ("g", "r", "r_stderr", "r_low", "r_high")


def test_rows_and_ranks_that_noise_decides_say_how_surely(con):
    top = con.sql("SELECT g, n FROM by_g ORDER BY n DESC LIMIT 2", errors=True)
    assert top.columns == ("g", "n", "n_stderr", "n_low", "n_high", "n_present")
    shares = con.sql("SELECT g, n FROM by_g", errors=True)
    assert all(0 < share <= 1 for share in top.column("n_present"))
    # What is left out decides no number of the rows that stay.
    every = by(shares)
    for g, row in by(top).items():
        assert [row[c] for c in shares.columns[1:]] == pytest.approx([every[g][c] for c in shares.columns[1:]])
    ranks = by(con.sql("SELECT g, RANK() OVER (ORDER BY n DESC) AS r FROM by_g", errors=True))
    assert all(row["r_low"] <= row["r"] <= row["r_high"] for row in ranks.values())
    assert all(row["r_low"] == int(row["r_low"]) for row in ranks.values())
    best = one(con.sql("SELECT ARG_MAX(g, n) AS best, MAX(n) AS most FROM by_g", errors=True))
    first = by(con.sql("SELECT g FROM by_g ORDER BY n DESC LIMIT 1", errors=True))
    assert best["best_present"] == pytest.approx(first[best["best"]]["g_present"])
    gaps = con.sql("SELECT n FROM by_g ORDER BY n", errors=True)  # no key: the smallest, the second, ...
    assert [low < high for low, high in zip(gaps.column("n_low"), gaps.column("n_high"), strict=True)] == [True] * 4


def test_an_answer_without_rows(con):
    found = con.sql("SELECT g, n + 1 AS m FROM by_g WHERE n > 1e6", errors=True)
    assert found.columns == ("g", "m", "m_stderr", "m_low", "m_high", "m_present")
    assert found.fetchall() == []


@pytest.mark.long
def test_names_of_releases_and_columns(con):
    plain = con.sql("SELECT g, n + 1 AS m FROM by_g", errors=True)
    assert con.sql("SELECT g, n + 1 AS m FROM dp.by_g", errors=True) == plain
    assert con.sql("SELECT g, n + 1 AS m FROM r1.by_g", errors=True) == plain
    assert con.sql("SELECT g, n + ? AS m FROM by_g", [1], errors=True) == plain
    con.run("SELECT COUNT(*) AS n FROM t WHERE k = 2", epsilon=0.2, delta=1e-9)
    assert "m_low" in con.sql("SELECT n * 2 AS m FROM q1", errors=True).columns
    taken = con.sql("SELECT g, n, 0 AS n_low FROM by_g", errors=True)
    assert taken.columns == ("g", "n", "n_stderr", "n_low_1", "n_high", "n_low")
    # Released columns of errors are shown once.
    assert con.sql("SELECT * FROM by_k", errors=True) == con.sql("SELECT * FROM by_k")


@pytest.mark.long
def test_the_level_and_the_same_answer_every_time(con):
    sql = "SELECT g, GREATEST(n, 100) AS m FROM by_g"
    wide, narrow = con.sql(sql, errors=True, alpha=0.01), con.sql(sql, errors=True, alpha=0.3)
    pairs = zip(wide.column("m_low"), narrow.column("m_low"), strict=True)
    assert all(a <= b for a, b in pairs)
    assert con.sql(sql, errors=True, alpha=0.3) == narrow


def test_what_has_no_errors_gets_clear_words(con):
    with pytest.warns(UserWarning, match="noise reaches no column"):
        assert con.sql("SELECT g FROM by_g", errors=True) == con.sql("SELECT g FROM by_g")
    with pytest.warns(UserWarning, match="reads no released numbers"):
        assert con.sql("SELECT 1 AS x", errors=True).fetchall() == [(1,)]
    for sql, said in [
        ("SELECT n + random() AS r FROM by_g", "another result at every call"),
        ("SELECT n FROM by_g USING SAMPLE 2", "a sample gives another result"),
        ("SELECT LIST(n) AS l FROM by_g", "holds lists or structs"),
        ("SELECT n, b.range AS i FROM total, range(20000) b", "20,000 rows"),
        ("SELECT * FROM by_g, dp.releases", "results of releases alone"),
    ]:
        with pytest.raises(dpsql.Error, match=said):
            con.sql(sql, errors=True)
    with pytest.raises(dpsql.DataError, match=r"at least 0\.005"):
        con.sql("SELECT n FROM by_g", errors=True, alpha=0.001)
    with pytest.raises(dpsql.SQLError):
        con.sql("SELECT nothing FROM by_g", errors=True)


@pytest.mark.long
def test_a_query_that_fails_on_some_replicates(con):
    """On few of them it does not matter; the release itself decides nothing that its replicates could not."""
    n = max(con.sql("SELECT n FROM by_g").column("n"))
    with pytest.raises(dpsql.SQLError, match=r"the query fails on .* replicates"):
        con.sql(f"SELECT CAST(MAX(n) - {n - 2} AS UTINYINT) AS m FROM by_g", errors=True)
    assert con.sql(f"SELECT CAST(MAX(n) - {n - 100} AS UTINYINT) AS m FROM by_g", errors=True).column("m") == [100]


@pytest.mark.long
def test_renamed_results_and_local_releases(tmp_path):
    con = connect(tmp_path, POLICY.replace("delta = 1e-9", "delta = 1e-9\nlocal_epsilon = 2").replace(
        'unit = "row"', 'unit = "row"\nrows_public = true'))  # fmt: skip
    con.run(OTHER, epsilon=0.4)
    held = con.sql("SELECT k, n * 2 AS m FROM by_k", errors=True)
    con.rename("by_k", "counted")
    assert con.sql("SELECT k, n * 2 AS m FROM counted", errors=True) == held
    con.synthesize("t", ["g"], 1)
    with pytest.raises(dpsql.NotSupportedError, match="release 2 has no noise"):
        con.sql("SELECT COUNT(*) AS n FROM t_synthetic", errors=True)


def test_possible_numbers_keep_their_intervals_around_them(tmp_path):
    """A release that shows numbers a table could have: what is computed of it lies within its interval."""
    con = connect(tmp_path)
    con.run(
        "CREATE VIEW cells AS SELECT g, k, COUNT(*) AS n FROM t GROUP BY g, k", epsilon=0.2, estimates="nonnegative"
    )
    found = con.sql("SELECT g, k, n * 2 AS m FROM cells", errors=True)
    rows = zip(*(found.column(f"m{part}") for part in ("", "_low", "_high")), strict=True)
    assert all(low <= m <= high for m, low, high in rows)


def test_a_cursor_shows_errors_of_what_it_computes(con):
    with con.cursor(errors=True) as cursor:
        cursor.execute("SELECT g, s / n AS r FROM by_g")
        assert [d[0] for d in cursor.description] == ["g", "r", "r_stderr", "r_low", "r_high"]
        cursor.execute("SELECT g FROM by_g")
        assert [d[0] for d in cursor.description] == ["g"]
        with pytest.warns(UserWarning, match="without errors: .* another result"):
            cursor.execute("SELECT n + random() AS r FROM by_g")
        assert [d[0] for d in cursor.description] == ["r"]


def test_who_listens_hears_why_there_are_no_errors_and_is_not_warned(con, recwarn):
    heard = []
    with Cursor(con, errors=True, warn=heard.append) as cursor:
        cursor.execute("SELECT n + random() AS r FROM by_g")
    assert len(heard) == 1
    assert "without errors: " in heard[0]
    assert not recwarn


def test_a_row_that_noise_picked_has_a_wider_interval_than_one_that_was_named(con):
    """Of groups that noise can hardly tell apart one is picked; its interval counts the contenders."""
    picked = one(con.sql("SELECT g, n FROM few ORDER BY n DESC LIMIT 1", errors=True))
    named = one(con.sql(f"SELECT g, n FROM few WHERE g = '{picked['g']}'", errors=True))
    assert picked["n_stderr"] == pytest.approx(named["n_stderr"])
    of_four = one(con.sql(f"SELECT g, n FROM few WHERE g = '{picked['g']}'", errors=True, alpha=0.05 / 4))
    assert (picked["n_low"], picked["n_high"]) == pytest.approx((of_four["n_low"], of_four["n_high"]))
    assert picked["n_low"] < named["n_low"]


def test_what_is_linear_in_much_noise_has_exact_errors(con, monkeypatch):
    """More replicates are drawn where a few would not show it; beyond what fits, percentiles are near."""
    query = "SELECT SUM(g.n) + ANY_VALUE(k.n) AS both FROM by_g g, by_k k WHERE k = 1"
    exact = one(con.sql(query, errors=True))
    monkeypatch.setattr(error_propagation, "_USUAL", 20)
    monkeypatch.setattr(error_propagation, "_TAIL", 1)
    assert one(con.sql(query, errors=True)) == pytest.approx(exact)
    monkeypatch.setattr(error_propagation, "_LINEAR_CELLS", 0)
    near = one(con.sql(query, errors=True))
    assert near["both_stderr"] == pytest.approx(exact["both_stderr"], rel=0.5)
    assert near != pytest.approx(exact)


def test_an_end_beyond_the_replicates_is_as_far_as_normal_noise_would_be():
    """Of few replicates ends at a small level are stretched, and those of whole numbers stay whole."""
    drawn = np.random.default_rng(1).standard_normal((199, 1))
    near, far = (
        spread_of(np.zeros(1), drawn, np.ones((199, 1), bool), (), None, a, whole=False) for a in (0.025, 1e-4)
    )
    assert far.high[0] / near.high[0] == pytest.approx(3.891 / 2.241, rel=1e-3)
    assert far.low[0] < near.low[0]
    endless = spread_of(np.array([np.inf]), drawn, np.ones((199, 1), bool), (), None, 0.05, whole=False)
    assert (endless.low[0], endless.high[0], endless.stderr[0]) == (-np.inf, np.inf, np.inf)
    ranks = spread_of(np.ones(1), 2 + drawn.round(), np.ones((199, 1), bool), (), None, 1e-4, whole=True)
    assert ranks.high[0] == round(ranks.high[0])


@pytest.mark.long
def test_a_picture_of_what_is_computed_has_error_bars(con):
    drawn = con.sql("SELECT g, s / n AS r FROM by_g WHERE n > ?", [0]).plot()
    wanted = con.sql("SELECT g, s / n AS r FROM by_g WHERE n > 0", errors=True).plot(value="r")
    assert [len(axes.collections) for axes in drawn.axes] == [len(axes.collections) for axes in wanted.axes]
    assert drawn.axes[0].collections


def test_nothing_is_spent_and_no_batch_is_measured(con):
    before = con.budget.charges
    con.sql("SELECT g, n / s AS r FROM by_g", errors=True)
    assert con.budget.charges == before


def test_noise_in_blocks_has_ends_that_cover_as_often_as_they_say():
    """The bound of log-concave laws is far for one coordinate of a large block; its replicates are not."""
    noise, rows = pure_noise(1000, Fraction(1), (6,)), np.eye(6)[:1]
    drawn = replicates(noise, 4, 1260, 6)
    sigma = float(np.sqrt(noise.variances[0]))
    observed = (Observed(np.eye(6), 1, (0,) * 6, noise),)
    held = []
    for start in range(0, 1260, 42):
        z, white = drawn[start], drawn[start + 1 : start + 42] / sigma
        kept = Drawn(observed, white)
        errors = spread_of(z[:1], z[:1] + white @ rows.T * sigma, np.ones((41, 1), bool), (), kept, 0.2, whole=False)
        held.append((errors.low[0] <= 0 <= errors.high[0], (errors.high[0] - errors.low[0]) / 2 / sigma))
    covered, width = np.mean(held, axis=0)
    assert 0.6 < covered < 0.95
    assert width < 0.97 * log_concave_quantile(0.2)
