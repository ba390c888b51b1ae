"""Runs in rounds: privacy of whole runs by brute force on tiny domains, charges, refusals, and what is never seen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest
from helpers import filled, unwrapped
from scipy import special

import dpsql
from dpsql.errors import IntegrityError, OperationalError
from dpsql.extensions.adaptive.marginals import AdaptiveMarginals
from dpsql.extensions.adaptive.steps import Step
from dpsql.extensions.audit.batch_audit import audit
from dpsql.extensions.audit.privacy import (
    answer_quotient,
    log_quotient,
    logs,
    selection_quotients,
    steps_of,
)
from dpsql.measure import ConnectionEngine, adaptive, measure
from dpsql.measure.adaptive import AdaptiveJob
from dpsql.policy import Policy
from dpsql.privacy.noise import Noise
from dpsql.privacy.selection import MU_SQUARED, Selection
from dpsql.workloads.compile.structured import compile_structured

POLICY = """
dataset = "m-1"
[budget]
epsilon = 4.0
[tables.t]
unit = "row"
expected_rows = 60
[tables.t.columns]
g = { values = ["a", "b", "c"], nulls = false }
v = { lower = 0, upper = 4, step = 1, nulls = false }
other = { values = [1, 2], nulls = false }
"""
BATCH = "SELECT g, COUNT(*) AS n FROM t GROUP BY g; SELECT COUNT(*) AS n FROM t WHERE g <> 'a'"
PAIRS = "SELECT g, v, COUNT(*) AS n FROM t GROUP BY g, v; SELECT COUNT(*) AS n FROM t WHERE g <> 'a'"


@pytest.fixture
def con(tmp_path: Path) -> dpsql.Connection:
    with filled(tmp_path / "m.duckdb") as raw:
        raw.execute(
            "CREATE TABLE t AS SELECT ['a', 'a', 'a', 'b', 'c'][1 + range::INT % 5] AS g, range::INT % 5 AS v, "
            "1 AS other FROM range(60)"
        )
    (tmp_path / "m.toml").write_text(POLICY)
    return dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")


def job_of(con: dpsql.Connection, sql: str = "", rounds: int = 2, method: str = "mwem") -> AdaptiveJob:
    sql = sql or (PAIRS if method == "adaptive" else BATCH)
    job = con._batches.job(con.plan(sql, epsilon=1, method=method, rounds=rounds), "key", "label")
    assert isinstance(job, AdaptiveJob)
    return job


def candidates(job: AdaptiveJob, rows: list[str]) -> list[int]:
    """The exact candidates of a table with those groups."""
    return candidates_of(job, [rows])[0]


def candidates_of(job: AdaptiveJob, tables: Sequence[Sequence[str]]) -> list[list[int]]:
    """The same of each of several tables."""
    found = []
    with duckdb.connect() as raw:
        engine = ConnectionEngine(raw)
        for rows in tables:
            raw.execute("CREATE OR REPLACE TABLE t (g VARCHAR, v INTEGER, other INTEGER)")
            if rows:
                raw.execute("INSERT INTO t VALUES " + ", ".join(f"('{g}', 1, 1)" for g in rows))
            found.append(adaptive.cells.observed(job, engine, [0] * job.integers.shape[0]))
    return found


def test_whole_runs_of_every_small_table_are_within_epsilon(con: dpsql.Connection) -> None:
    """Two rounds, all tables of at most two rows in two groups and their neighbours, all selections: exactly."""
    job = job_of(con)
    assert job.spends == 1
    listed = [rows for size in range(3) for rows in itertools.combinations_with_replacement("ab", size)]
    tables = dict(zip(listed, candidates_of(job, listed), strict=True))
    worst = 0.0
    choices = range(1, job.integers.shape[0])
    for small, large in itertools.product(tables, tables):
        if len(large) != len(small) + 1 or any(small.count(g) > large.count(g) for g in "ab"):
            continue
        left, right = tables[small], tables[large]
        for total, first, second in itertools.product((-40, 2), choices, choices):
            for one, two in ((-9, 9), (30, 0)):
                parts, answers = log_quotient(job, [total, first, one, second, two], left, right)
                worst = max(worst, abs(sum(parts) + float(sum(answers))))
    assert worst <= 1 + 1e-9
    assert worst > 0.4  # the bound is not idle: every answer that moves spends all of its part


def neighbours(job: AdaptiveJob) -> list[tuple[list[int], list[int]]]:
    """The candidates of all tables of at most two rows in the groups a and b, each without and with one more."""
    every = ["".join(rows) for size in range(4) for rows in itertools.combinations_with_replacement("ab", size)]
    found = dict(zip(every, candidates_of(job, every), strict=True))
    return [(found[rows], found["".join(sorted(rows + more))]) for rows in every if len(rows) < 3 for more in "ab"]


def test_whole_adaptive_runs_are_within_epsilon(con: dpsql.Connection) -> None:
    """Transcripts of runs over all small tables, their probability on a neighbour: exactly."""
    job = job_of(con, rounds=3, method="adaptive")
    assert job.spends == 1
    worst = 0.0
    for left, right in neighbours(job):
        for exact in (left, right):
            selections, answers = log_quotient(job, adaptive._rounds(job, exact), left, right)
            worst = max(worst, abs(sum(selections) + float(sum(answers))))
    assert 0.4 < worst <= 1 + 1e-9


TRIPLE = "SELECT g, v, other, COUNT(*) AS n FROM t GROUP BY g, v, other"


@pytest.mark.long
def test_runs_that_measure_a_part_of_what_is_asked_are_within_epsilon(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest marginal is no candidate and has no histogram; it is made up of the others, and all is shown."""
    whole = con.plan(TRIPLE, epsilon=1, method="adaptive", rounds=3)
    assert whole.strategy.beyond == ()
    monkeypatch.setattr("dpsql.extensions.adaptive.marginals.MOST_NUMBERS", 70)
    monkeypatch.setattr("dpsql.extensions.adaptive.marginals.WHEN_CUT", 41)
    plan = con.plan(TRIPLE, epsilon=1, method="adaptive", rounds=3, objective="total")
    assert plan.strategy.beyond == ((0, 1, 2),)
    assert sorted(len(S) for S in plan.strategy.candidates) == [1, 1, 1, 2, 2, 2]
    assert [len(held.axes) for held in plan.compiled.histograms] == [2, 2, 2]
    assert "1 larger ones are made up of them" in plan.strategy.described
    job = con._batches.job(plan, "key", "label")
    assert isinstance(job, AdaptiveJob)
    worst = 0.0
    for left, right in neighbours(job):
        for exact in (left, right):
            selections, answers = log_quotient(job, adaptive._rounds(job, exact), left, right)
            worst = max(worst, abs(sum(selections) + float(sum(answers))))
    assert 0.4 < worst <= 1 + 1e-9
    release = con.run(plan)
    counts = release["q1"].column("n")
    assert (release.cost, len(counts), min(counts) >= 0) == (1.0, 30, True)


Pairs = Sequence[tuple[list[int], list[int]]]


def shares(job: AdaptiveJob, run: AdaptiveMarginals, pairs: Pairs) -> tuple[float, float]:
    """The largest part of a selection and of an answer over what each is allowed: neighbours of one row, any estimate.

    The estimate lies on one side of some candidates and on the other side of others, which is where scores move most.
    """
    chosen, answered = 0.0, Fraction(0)
    for left, right in pairs:
        for number in range(len(job.reach)):
            known = [0] * job.stops[-1]
            known[job.part(number)] = [9] * len(known[job.part(number)])
            step = Step(None, run.each_measure, selection=run.each_selection, estimate=known)
            apart = selection_quotients(job, step, left, right)
            chosen = max(chosen, float(np.ptp(apart)) / float(step.selection), float(abs(apart).max() / step.selection))
            told = answer_quotient(job, step, number, [50] * len(known[job.part(number)]), left, right)
            answered = max(answered, abs(told) / step.measure)
    return chosen, float(answered)


def test_selections_and_answers_spend_no_more_than_their_part(con: dpsql.Connection) -> None:
    """A score's sensitivity halved, noise halved: each is found."""
    plan = con.plan(PAIRS, epsilon=1, method="adaptive", rounds=3)
    job = job_of(con, rounds=3, method="adaptive")
    pairs = neighbours(job)
    chosen, answered = shares(job, plan.strategy, pairs)
    assert 0.6 < chosen <= 1 + 1e-9
    assert answered == 1
    assert shares(replace(job, steep=tuple(d // 2 for d in job.steep)), plan.strategy, pairs)[0] > 1.2

    @dataclass(frozen=True)
    class Halved(AdaptiveJob):
        def law(self, step: Step, number: int) -> Noise:
            found = super().law(step, number)
            return Noise(found.kind, found.parameter / 2)

    half = Halved(**{f.name: getattr(job, f.name) for f in fields(job)})
    assert shares(half, plan.strategy, pairs)[1] == 2


def test_a_course_that_does_not_count_its_selections_is_stopped(con: dpsql.Connection) -> None:
    run = con.plan(PAIRS, epsilon=1, method="adaptive", rounds=9).strategy
    cheap = replace(run, each=run.each_measure)
    job = replace(job_of(con, rounds=9, method="adaptive"), course=cheap.course)
    with pytest.raises(IntegrityError, match="more than its budget"):
        adaptive._rounds(job, candidates(job, ["a"]))


def test_rounds_are_of_no_horizon(con: dpsql.Connection) -> None:
    job = job_of(con, rounds=3, method="adaptive")
    job.check_sensitivity()
    with pytest.raises(IntegrityError, match="nothing was charged"):
        replace(job, over=object()).check_sensitivity()  # type: ignore[arg-type]


def test_selections_are_gaussian_private_at_their_price() -> None:
    """The trade-off of the worst pair of coins with a bounded range, over a grid: above N(0, 1) and N(mu, 1)'s."""
    for epsilon in (0.01, 0.3, 1.0, 3.0, 8.0):
        mu = math.sqrt(Selection(Fraction(epsilon), (1,)).mu_squared)
        logit = np.linspace(-12, 12, 4001)
        apart = special.ndtri(special.expit(logit + epsilon / 2)) - special.ndtri(special.expit(logit - epsilon / 2))
        assert apart.max() <= mu
        assert epsilon > 1 or apart.max() > 0.98 * mu


@pytest.mark.long
def test_a_gaussian_run_tells_no_more_than_its_mu(tmp_path: Path) -> None:
    """mu^2 of every step, of all runs over small neighbours; 60 percent of what is charged and more is reached."""
    with duckdb.connect(tmp_path / "m.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT 'a' AS g, 1 AS v, 1 AS other")
    (tmp_path / "m.toml").write_text(POLICY.replace("epsilon = 4.0", "rho = 4.0"))
    con = dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")
    plan = con.plan(PAIRS, rho="0.5", method="adaptive", rounds=6)
    job = con._batches.job(plan, "key", "label")
    assert isinstance(job, AdaptiveJob)
    assert job.spends == 1
    assert plan.noise == job.noise
    worst = 0.0
    for left, right in neighbours(job):
        told = Fraction(0)
        for step, number, _ in steps_of(job, adaptive._rounds(job, left)):
            if step.number is None:
                used = float(np.ptp(selection_quotients(job, step, left, right))) / float(step.selection)
                assert used <= 1 + 1e-9
                told += (job.cost(step) - step.measure) * Fraction(used) ** 2
            moved = sum((a - b) ** 2 for a, b in zip(left[job.part(number)], right[job.part(number)], strict=True))
            told += step.times**2 * moved / job.law(step, number).parameter
        worst = max(worst, float(told))
    assert 0.6 < worst <= 1


def test_an_adaptive_run_answers_consistently_and_is_charged_once(con: dpsql.Connection) -> None:
    plan = con.plan(PAIRS, epsilon="0.5", method="adaptive", rounds=4)
    release = con.run(plan)
    assert (release.cost, con.budget.spent, con.run(plan).cost) == (0.5, 0.5, 0.0)
    rows = release["q1"].fetchall()
    assert len(rows) == 15
    values = release["q1"].column("n")
    assert min(values) >= 0
    outside = sum(n for n, g in zip(values, release["q1"].column("g"), strict=True) if g != "a")
    assert outside <= release["q2"].column("n")[0] + 1e-6  # which counts rows without a v, too
    assert min(release["q1"].column("n_low")) >= 0
    assert con.run(plan)["q1"].fetchall() == rows
    assert con.sql("SELECT strategy FROM releases WHERE release_id = 1").fetchall() == [("adaptive, errors estimated",)]
    assert "marginals" in plan.explain()


def test_quotients_are_those_of_the_laws(con: dpsql.Connection) -> None:
    """The quotients above, written down anew from the definitions."""
    job = job_of(con)
    left, right = candidates(job, ["a"]), candidates(job, ["a", "b"])
    transcript = [5, 2, 3, 1, 0]

    run = con.plan(BATCH, epsilon=1, method="mwem", rounds=2).strategy

    def log_p(exact: list[int]) -> float:
        fit, found = run.model.start(transcript[0]), 0.0
        b = job.reach[0] / float(run.each_measure)
        found -= abs(transcript[0] - exact[0]) / b
        for number, answer in zip(transcript[1::2], transcript[2::2], strict=True):
            known = fit.whole_answers()
            s = [abs(x - k) for x, k in zip(exact[1:], known[1:], strict=True)]
            w = [math.exp(float(run.each_selection) * v / (2 * d)) for v, d in zip(s, job.reach[1:], strict=True)]
            b = job.reach[number] / float(run.each_measure)
            found += math.log(w[number - 1] / sum(w)) - abs(answer - exact[number]) / b
            fit.learn(number, answer)
        return found

    parts, answers = log_quotient(job, transcript, left, right)
    assert sum(parts) + float(sum(answers)) == pytest.approx(log_p(left) - log_p(right), abs=1e-9)


@pytest.mark.long
def test_runs_select_and_answer_by_their_laws(con: dpsql.Connection) -> None:
    """500 one-round runs: how often each pair of a rounded total and a candidate comes, beside the law."""
    job = job_of(con, rounds=1)
    exact = candidates(job, ["a"] * 9 + ["b"])
    runs = [adaptive._rounds(job, exact) for _ in range(500)]
    expected = np.zeros(len(exact) - 1)
    for run in runs:  # given the totals that came, exactly
        step = next(step for step, _, _ in steps_of(job, run) if step.number is None)
        expected += np.exp(logs(job.selection(step).exponents(job.scores(step, exact))))
    found = np.bincount([run[1] - 1 for run in runs], minlength=len(expected))
    # Independent given the totals; 5.5 standard deviations fail once in 10^7.
    assert (np.abs(found - expected) < 5.5 * np.sqrt(expected) + 1).all()
    off = np.array([run[2] - exact[run[1]] for run in runs], dtype=float)
    scale = float(job.noise.parameter)
    assert np.abs(off).mean() == pytest.approx(scale, rel=6 / math.sqrt(len(runs)))


def test_a_run_is_charged_once_recorded_and_found_again(con: dpsql.Connection) -> None:
    plan = con.plan(BATCH, epsilon="0.5", method="mwem", rounds=2)
    assert plan.estimated
    assert plan.gap is None
    release = con.run(plan)
    assert release.cost == 0.5
    assert con.budget.spent == 0.5
    assert con.run(plan).cost == 0.0
    assert con.run(BATCH, epsilon="0.5").cost == 0.5  # another method's answers are another question
    values = release["q1"].column("n")
    assert sum(values) == pytest.approx(values[0] + release["q2"].column("n")[0])
    assert min(release["q1"].column("n_low")) >= 0
    assert con.sql("SELECT strategy FROM releases WHERE release_id = 1").fetchall() == [("mwem, errors estimated",)]


def test_sums_lie_within_their_counts(con: dpsql.Connection) -> None:
    rows = con.run("SELECT g, COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY g", epsilon=1, method="mwem", rounds=2)["q1"]
    for n, s in zip(rows.column("n"), rows.column("s"), strict=True):
        assert -1e-6 <= s <= 4 * n + 1e-6


@pytest.mark.parametrize("method", ["mwem", "mwem-strategy"])
def test_the_text_says_that_errors_are_estimated(con: dpsql.Connection, method: str) -> None:
    plan = con.plan(BATCH, epsilon=1, method=method, rounds=2)
    assert "estimated on made-up public data, not proven" in unwrapped(plan)
    assert "Proof" not in str(plan)
    assert method in plan.explain()
    assert "half of epsilon selects" in unwrapped(plan.explain())


def test_what_a_release_says_of_its_errors_follows_from_its_transcript(con: dpsql.Connection) -> None:
    """By hand: four times the rows that were expected, and answers that the even table meets, or misses by far."""
    plan = con.plan(BATCH, epsilon=1, method="mwem", rounds=2)
    run, common = plan.strategy, plan.compiled.common_steps
    assert run.rows == 60
    assert run.misfit > 0
    a = next(i for i in range(1, run.candidates.shape[0]) if run.model.queries[[i]].sum() == 1)  # one group of three
    met = [240 * common, a, 80 * common, a, 80 * common]
    assert run.stretch(met) == pytest.approx(4)
    assert run.stretch([60 * common, a, 20 * common, a, 20 * common]) == 1.0
    assert run.stretch([30 * common, a, 10 * common, a, 10 * common]) == 1.0  # never smaller than planned
    off = round(40 * run.misfit * common)
    assert run.stretch([240 * common, a, 80 * common, a, 80 * common + off]) == pytest.approx(off / common / run.misfit)
    assert plan.after(met).errors == pytest.approx(4 * plan.errors)
    assert plan.after(met).widths == pytest.approx(4 * plan.widths)
    assert plan.after([0] * len(met)) is plan  # a rehearsal
    exact = con.plan(BATCH, epsilon=1)
    assert exact.after([1]) is exact


@pytest.mark.parametrize("rows", [60, 48_000])
@pytest.mark.long
def test_intervals_hold_on_tables_of_other_sizes_than_expected(con: dpsql.Connection, rows: int) -> None:
    """60 rows are expected. Estimates, so no level is promised: most of them hold, also 800 times past what is said."""
    plan = con.plan(BATCH, epsilon=1, method="mwem")
    job = con._batches.job(plan, "key", "label")
    groups = ["a", "a", "a", "b", "c"] * (rows // 5)
    true = np.array([3, 1, 1, 2]) * (rows / 5)
    planned, held = [], []
    exact = [int(v) for v in job.integers.basis @ np.array([groups.count(g) for g in "abc"])]
    exact = [value * job.common_steps for value in exact]
    for _ in range(40):
        transcript = adaptive._rounds(job, exact)
        off = np.abs(plan.answers.estimate(transcript, job.common_steps) - true)
        planned.append(off <= plan.widths)
        held.append(off <= plan.after(transcript).widths)
    assert np.mean(held) >= 0.85
    if rows > 60:
        assert np.mean(planned) < 0.5  # the policy's figure alone does not do


def test_a_released_table_states_the_stretched_errors(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "m.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT 'a' AS g, 1 AS v, 1 AS other FROM range(6000)")
    (tmp_path / "m.toml").write_text(POLICY)
    con = dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")
    plan = con.plan(BATCH, epsilon=1, method="mwem", rounds=2)
    release = con.run(plan)
    assert min(release["q1"].column("n_stderr")) > 50 * plan.errors.max()
    assert con.run(plan)["q1"].fetchall() == release["q1"].fetchall()  # found again, the same


def test_plans_are_alike_on_neighbours(con: dpsql.Connection) -> None:
    """Nothing of a plan depends on rows, nor on when it was made."""
    one, two = (con.plan(BATCH, epsilon=1, method="mwem", rounds=2) for _ in range(2))
    assert str(one) == str(two)


REFUSED = [
    ("SELECT AVG(v) FROM t", {}, "ask for the counts and sums"),
    ("SELECT MEDIAN(v) FROM t", {}, "ask for the counts and sums"),
    ("SELECT SUM(v - 2) FROM t", {}, "add COUNT"),
    (BATCH, {"rounds": 0}, "1 to 1000"),
    (BATCH, {"rounds": 2.5}, "1 to 1000"),
    (BATCH, {"method": "mvem"}, "is not known"),
    (BATCH, {"epsilon": None, "max_error": 5}, "give epsilon"),
]


@pytest.mark.parametrize(("sql", "options", "said"), REFUSED, ids=range(len(REFUSED)))
def test_refusals_come_before_the_charge(
    con: dpsql.Connection, sql: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(dpsql.Error, match=said):
        con.plan(sql, **{"epsilon": 1, "method": "mwem", **options})
    assert con.budget.spent == 0


def test_too_many_cells_say_size_cap_and_next_step(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.extensions.papers.mwem.MOST_RAYS", 2)
    with pytest.raises(dpsql.DataError, match="3 here, at most 2; ask for fewer or coarser groups"):
        con.plan(BATCH, epsilon=1, method="mwem")


def test_a_batch_measured_block_by_block_has_no_one_strategy(
    con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dpsql.planning.prepare.compile_any", lambda queries, tables, *_: compile_structured(queries, tables)
    )
    with pytest.raises(dpsql.DataError, match="measured block by block; use method='mwem'"):
        con.plan(BATCH, epsilon=1, method="mwem-strategy")
    assert con.run(BATCH, epsilon=1, method="mwem", rounds=1).cost == 1  # its cells are few


@pytest.mark.long
def test_rounds_are_chosen_by_the_least_estimated_error(con: dpsql.Connection) -> None:
    strategy = con.plan(BATCH, epsilon=1, method="mwem").strategy
    tried = dict(strategy.tried)
    assert sorted(tried) == [2, 4, 8, 16, 32]
    assert strategy.rounds == min(tried, key=lambda n: tried[n])


def test_rounds_belong_to_mwem(con: dpsql.Connection) -> None:
    with pytest.raises(dpsql.DataError, match="rounds are those of"):
        con.plan(BATCH, epsilon=1, rounds=3)


def test_expected_rows_are_needed(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "m.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT 'a' AS g, 1 AS v, 1 AS other")
    (tmp_path / "m.toml").write_text(POLICY.replace("expected_rows = 60\n", ""))
    con = dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")
    with pytest.raises(dpsql.DataError, match=r"add expected_rows to \[tables.t\]"):
        con.plan(BATCH, epsilon=1, method="mwem")


def test_a_gaussian_budget_cannot_pay(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "m.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT 'a' AS g, 1 AS v, 1 AS other")
    (tmp_path / "m.toml").write_text(POLICY.replace("epsilon = 4.0", "epsilon = 4.0\ndelta = 1e-9"))
    con = dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")
    with pytest.raises(dpsql.BudgetError, match="is pure"):
        con.plan(BATCH, epsilon=1, method="mwem")


@pytest.mark.parametrize(
    "change",
    [
        lambda job: replace(job, reach=tuple(max(r - 1, 0) for r in job.reach)),
        lambda job: replace(job, steep=tuple(d // 2 for d in job.steep)),
        lambda job: replace(job, spends=job.spends + Fraction(1, 10**12)),
        lambda job: replace(job, stops=(*job.stops[1:], job.stops[-1])),
        lambda job: replace(job, charge=replace(job.charge, units=job.charge.units // 2, epsilon=Fraction(1, 2))),
    ],
    ids=["reach too small", "scores too steep", "a budget too large", "other candidates", "charge too small"],
)
@pytest.mark.parametrize("method", ["mwem", "adaptive"])
@pytest.mark.few(every=3)
def test_what_does_not_add_up_is_refused_before_the_charge(con: dpsql.Connection, change: object, method: str) -> None:
    job = change(job_of(con, method=method, rounds=4))  # type: ignore[operator]
    with pytest.raises(IntegrityError, match="nothing was charged"):
        measure(job, con._holdings.engine, con._books.ledger(), lambda _, __: b"")
    assert con.budget.spent == 0


@pytest.mark.parametrize(
    "dearer",
    [
        lambda step: replace(step, measure=2 * step.measure),
        lambda step: replace(step, selection=2 * step.selection),
        lambda step: step if step.number is None else replace(step, measure=step.measure + Fraction(1, 10**12)),
    ],
    ids=["answers", "selections", "a little"],
)
@pytest.mark.parametrize("method", ["mwem", "adaptive"])
@pytest.mark.few(every=5)
def test_a_run_that_asks_for_more_than_its_budget_is_stopped(
    con: dpsql.Connection, dearer: Callable[[Step], Step], method: str
) -> None:
    """Whatever a course asks for, every step of it is counted before it is taken."""
    job = job_of(con, method=method, rounds=4)

    class Dearer:
        def __init__(self) -> None:
            self.course = job.course()

        def step(self) -> Step | None:
            found = self.course.step()
            return None if found is None else dearer(found)

        def learn(self, *answer: object) -> None:
            self.course.learn(*answer)  # type: ignore[arg-type]

    exact = candidates(job, ["a"])
    taken = sum(job.cost(step) for step, _, _ in steps_of(job, adaptive._rounds(job, exact)))
    assert job.spends * Fraction(9, 10) < taken <= job.spends
    with pytest.raises(IntegrityError, match="more than its budget"):
        adaptive._rounds(replace(job, course=Dearer, spends=taken), exact)


def test_a_failed_scan_leaves_the_charge_and_no_value(con: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[int]:
        secret = 424242
        raise ValueError(f"the exact count is {secret}")

    monkeypatch.setattr(adaptive, "_rounds", broken)
    with pytest.raises(OperationalError) as caught:
        con.run(con.plan(BATCH, epsilon=1, method="mwem", rounds=2))
    assert "424242" not in str(caught.value)
    assert caught.value.__context__ is None
    assert con.budget.spent == 1


@pytest.mark.long
def test_the_audit_holds_and_has_power(tmp_path: Path) -> None:
    policy = Policy.parse(POLICY)
    schemas = {"t": {"g": "VARCHAR", "v": "INTEGER", "other": "INTEGER"}}
    batch = BATCH + "; SELECT g, SUM(v) FROM t GROUP BY g"
    report = audit(policy, batch, epsilon=1, method="mwem", schemas=schemas, trials=200, pairs=40, draws=20_000)
    assert report.holds, str(report)
    assert report.figures["share_of_an_answer"] == pytest.approx(1.0)
    assert 0 < report.figures["epsilon_found"] <= 1


UNITS = POLICY.replace('unit = "row"', 'unit = "u"\nmax_rows_per_unit = 2')


@pytest.mark.long
@pytest.mark.parametrize("budget", [{"epsilon": 1}, {"rho": 0.5}], ids=["pure", "gaussian"])
def test_the_audit_holds_of_adaptive_runs(budget: dict[str, float]) -> None:
    """Brute force over neighbours, exact quotients, laws and ledger, for units of two rows."""
    policy = Policy.parse(UNITS if "epsilon" in budget else UNITS.replace("epsilon = 4.0", "rho = 4.0"))
    schemas = {"t": {"g": "VARCHAR", "v": "INTEGER", "other": "INTEGER", "u": "INTEGER"}}
    sizes = {"trials": 200, "pairs": 40, "draws": 20_000}
    report = audit(policy, PAIRS, method="adaptive", rounds=6, schemas=schemas, **budget, **sizes)
    assert report.holds, str(report)
    assert report.figures["share_of_an_answer"] == pytest.approx(1.0)


@dataclass
class Worst:
    """A course that gives half of its budget to one selection and half to one answer, beside any estimate."""

    job: AdaptiveJob
    known: list[int]
    ended: bool = False

    def step(self) -> Step | None:
        half = self.job.spends / 2
        at = half
        if self.job.charge.noise == "gaussian":  # the epsilon whose selection costs no more than half of mu^2
            at = Fraction(int(math.sqrt(half / MU_SQUARED) * 2**40), 2**40)
        return None if self.ended else Step(None, half, times=3, selection=at, estimate=self.known)

    def learn(self, number: int, times: int, answer: object, /) -> None:
        self.ended = True


def estimates_beside(job: AdaptiveJob) -> list[list[int]]:
    """Estimates above one candidate and below all others, and the other way round."""
    out = []
    for number, (low, high) in itertools.product(range(len(job.reach)), ((0, 9), (9, 0))):
        known = [low] * job.stops[-1]
        known[job.part(number)] = [high] * len(known[job.part(number)])
        out.append(known)
    return out


def most_of_whole_transcripts(job: AdaptiveJob, pairs: Pairs) -> float:
    """The largest log quotient of a transcript, of all that a ``Worst`` run may leave: exact up to floats."""
    worst = 0.0
    for (left, right), known in itertools.product(pairs, estimates_beside(job)):
        step = Worst(job, known).step()
        assert step is not None
        apart = selection_quotients(job, step, left, right)
        for number, far in itertools.product(range(len(job.reach)), (-99, 99)):
            answer = [far] * len(known[job.part(number)])
            told = answer_quotient(job, step, number, answer, left, right)
            worst = max(worst, abs(apart[number] + float(told)))
    return worst


def gaussian_excess(job: AdaptiveJob, pairs: Pairs) -> float:
    """How far the hockey-stick divergence of whole ``Worst`` runs, at some epsilon, lies above what mu allows."""

    def delta(mu: float, gain: float, epsilon: float) -> float:  # of e^gain N(mu, 1) against e^epsilon N(0, 1)
        if mu == 0:
            return max(math.exp(gain) - math.exp(epsilon), 0.0)
        at = (epsilon - gain) / mu
        above, beside = special.ndtr(mu / 2 - at), special.ndtr(-mu / 2 - at)
        return float(math.exp(gain) * above - math.exp(epsilon) * beside)

    excess, allowed = -1.0, math.sqrt(job.spends)
    for (one, other), known in itertools.product(pairs, estimates_beside(job)):
        step = Worst(job, known).step()
        assert step is not None
        for left, right in ((one, other), (other, one)):
            gains = selection_quotients(job, step, left, right)
            chances = np.exp(logs(job.selection(step).exponents(job.scores(step, right))))
            far = [
                step.times * math.dist(left[job.part(i)], right[job.part(i)]) / math.sqrt(job.law(step, i).parameter)
                for i in range(len(job.reach))
            ]
            for epsilon in (0.0, 0.5, 1.5):
                whole = sum(p * delta(mu, g, epsilon) for p, g, mu in zip(chances, gains, far, strict=True))
                excess = max(excess, float(whole) - delta(allowed, 0.0, epsilon))
    return excess


def widest_range(job: AdaptiveJob, pairs: Pairs) -> float:
    """The range of the log quotients of a selection, over its epsilon."""
    worst = 0.0
    for (left, right), known in itertools.product(pairs, estimates_beside(job)):
        step = Worst(job, known).step()
        assert step is not None
        worst = max(worst, float(np.ptp(selection_quotients(job, step, left, right))) / float(step.selection))
    return worst


@dataclass(frozen=True)
class HalfNoise(AdaptiveJob):
    """A mutant: half of the noise's scale."""

    def law(self, step: Step, number: int) -> Noise:
        found = super().law(step, number)
        return Noise(found.kind, found.parameter / (4 if found.kind == "gaussian" else 2))


def unit_pairs(job: AdaptiveJob, most: int) -> list[tuple[list[int], list[int]]]:
    """Exact candidates of small tables, without and with a unit of up to ``most`` + 1 rows, of which ``most`` count."""
    groups, found = [("a", 4), ("b", 4), ("c", 1)], []
    with duckdb.connect() as raw:
        raw.execute("CREATE TABLE t (g VARCHAR, v INTEGER, other INTEGER, u INTEGER)")
        engine = ConnectionEngine(raw)

        def exact(rows: list[tuple[str, int, int]]) -> list[int]:
            raw.execute("DELETE FROM t")
            for g, v, u in rows:
                raw.execute("INSERT INTO t VALUES (?, ?, 1, ?)", [g, v, u])
            return adaptive.cells.observed(job, engine, [0] * job.integers.shape[0])

        for base in ([], [("a", 0, 1), ("b", 4, 1), ("c", 1, 2)]):
            before = exact(base)
            for size in (1, most, most + 1):
                for unit in itertools.combinations_with_replacement(groups, size):
                    found.append((before, exact([*base, *((g, v, 7) for g, v in unit)])))
    return found


@pytest.mark.parametrize("budget", [{"epsilon": 1}, {"rho": 0.5}], ids=["pure", "gaussian"])
@pytest.mark.long
def test_whole_transcripts_of_units_with_several_rows_stay_within_the_charge(
    tmp_path: Path, budget: dict[str, float]
) -> None:
    """The law of whole runs of the worst course on neighbouring tables; half the noise, half a score's reach: found."""
    with duckdb.connect(tmp_path / "m.duckdb") as raw:
        raw.execute("CREATE TABLE t AS SELECT 'a' AS g, 1 AS v, 1 AS other, 1 AS u")
    text = UNITS if "epsilon" in budget else UNITS.replace("epsilon = 4.0", "rho = 4.0")
    (tmp_path / "m.toml").write_text(text)
    con = dpsql.connect(tmp_path / "m.duckdb", policy=tmp_path / "m.toml")
    plan = con.plan(PAIRS, method="adaptive", rounds=3, **budget)
    job = con._batches.job(plan, "key", "label")
    assert isinstance(job, AdaptiveJob)
    job.check_sensitivity()
    assert job.spends == 1
    pairs = unit_pairs(job, 2)
    noisy = HalfNoise(**{f.name: getattr(job, f.name) for f in fields(job)})
    steep = replace(job, steep=tuple(d // 2 for d in job.steep))
    if "epsilon" in budget:
        assert 0.75 < most_of_whole_transcripts(job, pairs) <= 1 + 1e-9
        assert most_of_whole_transcripts(noisy, pairs) > 1.2
        assert most_of_whole_transcripts(steep, pairs) > 1.05
    else:
        assert gaussian_excess(job, pairs) <= 1e-12
        assert gaussian_excess(noisy, pairs) > 0.05
        # What a selection is priced at is loose unless two candidates are as likely, so that its range is looked at.
        assert widest_range(job, pairs) <= 1 + 1e-9
        assert widest_range(steep, pairs) > 1.05
