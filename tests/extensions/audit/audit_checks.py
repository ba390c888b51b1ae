"""A small world with adversarial rows, and the checks that hold it: shared by the audit and the mutants.

Every check raises AssertionError on a fault, so that a mutant can be shown to be caught by the
very function that the real code passes.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql import measure as room
from dpsql.measure import synthetic
from dpsql.measure.synthetic import StillEngine, SyntheticEngine
from dpsql.privacy.noise import Noise
from dpsql.running.result_tables import release_tables

COLUMNS = "g VARCHAR, v BIGINT, r DOUBLE"
POLICY = """
dataset = "audit-1"
[budget]
{budget}
[tables.t]
unit = "row"
[tables.t.columns]
g = {{ values = ["a", "b"], other = true }}
v = {{ lower = -5, upper = 20 }}
r = {{ lower = 0.0, upper = 1.0, step = 0.125 }}
"""
# Counts and sums over the same cells, a sum whose bounds are not centred, a range, an overlap.
BATCH = """
CREATE VIEW by_g AS SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g;
SELECT count(*) AS n, sum(r) AS s FROM t WHERE v >= 3;
SELECT count(*) AS n, count_if(v < 10) AS low FROM t;
"""
BASE: list[tuple[Any, ...]] = [("a", 1, 0.25), ("b", 7, 1.0), (None, 12, 0.5), ("z", None, None), ("a", 20, 0.875)]
ADVERSARIAL: list[tuple[Any, ...]] = list(
    product(
        ("a", "z", None),
        (-(2**63), 2**63 - 1, -8, -5, 3, 9, 20, 44, None),
        (math.nan, math.inf, -math.inf, -7.5, 0.5, 0.55, 1.0, 1e308, None),
    )
)


@dataclass
class World:
    """An in-memory DuckDB with the table t, and a dpsql connection to it."""

    duck: duckdb.DuckDBPyConnection
    con: dpsql.Connection
    engine: SyntheticEngine
    _jobs: dict[int, tuple[dpsql.Plan, Any]] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, budget: str = "rho = 1000000.0", rows: Sequence[tuple[Any, ...]] = BASE) -> World:
        """A new world in ``folder``; only the ledger and the releases are files."""
        engine = SyntheticEngine()
        duck = engine.connection
        duck.execute(f"CREATE TABLE t({COLUMNS})")
        if rows:
            duck.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        policy = dpsql.Policy.parse(POLICY.format(budget=budget))
        return cls(duck, dpsql.connect(duck, policy=policy, ledger=folder / "audit.ledger"), engine)

    def job(self, plan: dpsql.Plan) -> Any:
        """What ``run`` would measure for the plan: made once, for every check scans it many times."""
        if id(plan) not in self._jobs:
            self._jobs[id(plan)] = (plan, self.con._batches.job(plan, "key", ""))
        return self._jobs[id(plan)][1]

    def exact(self, plan: dpsql.Plan) -> list[int]:
        """B x, without noise: what only a test may see."""
        return synthetic.exact(self.job(plan), self.engine)

    @contextmanager
    def with_row(self, row: tuple[Any, ...]) -> Iterator[None]:
        """The neighbouring table that has one row more."""
        self.duck.execute("BEGIN TRANSACTION")
        try:
            self.duck.execute("INSERT INTO t VALUES (?, ?, ?)", row)
            yield
        finally:
            self.duck.execute("ROLLBACK")


class SilentLedger:
    """Stands in for a ledger where only the steps count."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.log = [] if log is None else log

    def failed_scans(self) -> dict[str, object]:
        return {}

    def charge(self, *_: object, **__: object) -> int:
        """Grant."""
        self.log.append("charge")
        return 1

    def record(self, *_: object) -> None:
        """Keep nothing."""
        self.log.append("record")


def observe(world: World, plan: dpsql.Plan) -> list[int]:
    """One noisy measurement, through the room's own ``measure``."""
    return synthetic.noisy(world.job(plan), world.engine)


# -- sensitivity ------------------------------------------------------------------------------------


def moved(world: World, plan: dpsql.Plan, rows: Sequence[tuple[Any, ...]]) -> list[list[int]]:
    """How far each row, added to the table, moves B x: in exact integers."""
    before = world.exact(plan)
    found = []
    for row in rows:
        with world.with_row(row):
            found.append([a - b for a, b in zip(world.exact(plan), before, strict=True)])
    return found


def norm_paid_for(plan: dpsql.Plan) -> Fraction:
    """The sensitivity (squared for Gaussian noise) that the plan's noise would protect."""
    if plan.noise.kind == "gaussian":
        return plan.noise.parameter * plan.charge.mu_squared
    assert plan.charge.epsilon is not None
    return plan.noise.parameter * plan.charge.epsilon


def check_sensitivity(world: World, plan: dpsql.Plan, rows: Sequence[tuple[Any, ...]] = ADVERSARIAL) -> None:
    """No row moves B x by more than the noise was calibrated to, and some row moves it that far."""
    square = plan.noise.kind == "gaussian"
    largest = max(
        by_blocks(plan, delta) if plan.noise.blocks else sum(d * d if square else abs(d) for d in delta)
        for delta in moved(world, plan, rows)
    )
    assert largest <= norm_paid_for(plan), "a row moves the measurement further than the noise covers"
    assert largest >= norm_paid_for(plan) * Fraction(999, 1000), "the noise is larger than any row needs"


def by_blocks(plan: dpsql.Plan, column: Sequence[int]) -> int:
    """The norm of noise in blocks: the largest entry of each block, added up."""
    ends = itertools.accumulate(plan.noise.blocks)
    return sum(max(abs(int(v)) for v in column[end - m : end]) for m, end in zip(plan.noise.blocks, ends, strict=True))


def check_brute_force_norms(plan: dpsql.Plan) -> None:
    """The strategy's norms against all columns of B @ contributions, in Python integers."""
    strategy = plan.strategy
    corners = strategy.basis if strategy.contributions is None else strategy.basis @ strategy.contributions
    mixing = strategy.mixing.toarray() if hasattr(strategy.mixing, "toarray") else strategy.mixing
    columns = mixing.astype(object) @ corners.toarray().astype(object)
    l1 = max(by_blocks(plan, c) if plan.noise.blocks else sum(abs(int(v)) for v in c) for c in columns.T)
    l2 = max(sum(int(v) ** 2 for v in column) for column in columns.T)
    assert (strategy.l1, strategy.l2_squared) == (l1, l2)
    common = plan.compiled.common_steps
    assert norm_paid_for(plan) == (l2 * common**2 if plan.noise.kind == "gaussian" else l1 * common)


# -- the scan ---------------------------------------------------------------------------------------


def expected(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[tuple[Any, ...]]]:
    """The answers of BATCH by plain Python: clamped, rounded to the step, NULL and NaN left out of sums."""

    def clamped(v: int | None) -> int:
        return 0 if v is None else max(-5, min(20, v))

    def rounded(r: float | None) -> float:
        if r is None or math.isnan(r):
            return 0.0
        clipped = max(0.0, min(1.0, r))
        return math.floor(clipped / 0.125 + 0.5) * 0.125

    by_g = []
    for wanted in ("a", "b", "other", None):
        mine = [row for row in rows if (row[0] if row[0] in ("a", "b", None) else "other") == wanted]
        by_g.append((len(mine), sum(clamped(v) for _, v, _ in mine)))
    wide = [row for row in rows if row[1] is not None and row[1] >= 3]
    low = [row for row in rows if row[1] is not None and row[1] < 10]
    return {
        "by_g": by_g,
        "q1": [(len(wide), sum(rounded(r) for _, _, r in wide))],
        "q2": [(len(rows), len(low))],
    }


def check_exact_answers(world: World, plan: dpsql.Plan, rows: Sequence[tuple[Any, ...]]) -> None:
    """Without noise the released numbers are those of brute force over the same rows."""
    tables = release_tables(plan, world.exact(plan), errors=False)
    for table in tables:
        numbers = [column[2] for column in table.columns if column[0] in ("n", "s", "low")]
        wanted = expected(rows)[table.name]
        assert np.allclose(np.array(numbers, dtype=float).T, np.array(wanted, dtype=float), rtol=0, atol=1e-6), table


def check_total(world: World, plan: dpsql.Plan, rows: Sequence[tuple[Any, ...]] = ADVERSARIAL) -> None:
    """No row, whatever it holds, makes the scan fail."""
    for row in rows:
        with world.with_row(row):
            try:
                world.exact(plan)
            except dpsql.Error:
                raise AssertionError(f"the scan fails where a row is {row}") from None


# -- noise and money --------------------------------------------------------------------------------


def check_noise_is_fresh(world: World, plan: dpsql.Plan) -> None:
    """Every measurement and every coordinate has noise of its own. sigma is above 1000: no equal draws."""
    assert plan.noise.variance > 1e6
    exact = world.exact(plan)
    draws = []
    for _ in range(3):
        draws.append([a - b for a, b in zip(observe(world, plan), exact, strict=True)])
    assert all(len({*a} & {*b}) < len(a) // 2 for a, b in ((draws[0], draws[1]), (draws[1], draws[2])))
    assert all(len(set(draw)) > len(draw) // 2 for draw in draws)


def check_noise_comes_from_the_system(world: World, plan: dpsql.Plan) -> None:
    """A measurement reads at least a word of OS entropy for every draw."""
    read, real = [0], os.urandom

    def counted(size: int) -> bytes:
        read[0] += size
        return real(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", counted)
        observe(world, plan)
    assert read[0] >= 8 * plan.strategy.shape[0], "noise that does not come from the operating system"


def check_order(world: World, plan: dpsql.Plan) -> None:
    """Charge, then all noise, then the scan, then the record."""
    log: list[str] = []
    engine, sample = world.engine, Noise.sample

    class Logged:
        def schemas(self, sources: Any) -> Any:
            return engine.schemas(sources)

        def scan(self, *arguments: Any) -> Any:
            log.append("scan")
            return engine.scan(*arguments)

    def sampled(self: Noise, count: int) -> list[int]:
        log.append(f"noise {count}")
        return sample(self, count)

    def payload(_: int, __: list[int]) -> bytes:
        log.append("answers")
        return b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "sample", sampled)
        room.measure(world.job(plan), Logged(), SilentLedger(log), payload)  # type: ignore[arg-type]
    assert log == ["charge", f"noise {plan.strategy.shape[0]}", "scan", "answers", "record"]


def check_nothing_is_refunded(world: World, plan: dpsql.Plan) -> None:
    """A scan that fails leaves the charge, whatever fails in it."""
    ledger = world.con._books.ledger()
    for failure in (dpsql.OperationalError("the disk is gone"), MemoryError(), KeyboardInterrupt(), ValueError("7")):
        before = ledger.state()

        class Broken:
            def schemas(self, sources: Any) -> Any:
                return world.engine.schemas(sources)

            def scan(self, *_: Any, error: BaseException = failure) -> Any:
                raise error

        with pytest.raises((dpsql.OperationalError, KeyboardInterrupt)):
            room.measure(world.job(plan), Broken(), ledger, lambda _, __: b"")  # type: ignore[arg-type]
        try:
            state = ledger.state()
        except dpsql.LedgerError as error:  # it adds up its charges itself
            raise AssertionError("an error gave the charge back") from error
        spent = next(p.spent_units for p in state.accounts if p.name == plan.charge.account)
        earlier = next(p.spent_units for p in before.accounts if p.name == plan.charge.account)
        assert spent == earlier + plan.charge.units, "an error gave the charge back"


# -- the law of what is released --------------------------------------------------------------------


def standardised(
    world: World, plan: dpsql.Plan, count: int, truth: dict[str, list[tuple[Any, ...]]]
) -> dict[tuple[str, str], np.ndarray]:
    """(released - true) / stderr and the share of intervals that hold, over ``count`` releases.

    Keys (result, column): an array (count, rows, 2) of standardised errors and 0/1 coverage.
    """
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    job, still = world.job(plan), StillEngine(world.engine)
    for _ in range(count):
        for table in release_tables(plan, synthetic.noisy(job, still)):
            columns = {name: np.array(values, dtype=object) for name, _, values in table.columns}
            private = [name for name in columns if f"{name}_stderr" in columns]
            for number, name in enumerate(private):
                exact = np.array([line[number] for line in truth[table.name]], dtype=float)
                value, error, low, high = (
                    columns[c].astype(float) for c in (name, f"{name}_stderr", f"{name}_low", f"{name}_high")
                )
                inside = (low <= exact) & (exact <= high)
                pair = np.stack([(value - exact) / error, inside.astype(float)], axis=1)
                found.setdefault((table.name, name), []).append(pair)
    return {key: np.array(pairs) for key, pairs in found.items()}
