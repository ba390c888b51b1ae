"""Databases of adversarial rows and the batches that are asked of them, for tests that measure without noise.

Connections over tables that are filled anew, neighbours of whole units, and the ways in which a batch can be compiled.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from whose_rows import Database, Row, without

import dpsql
from dpsql.measure.cells import cells_of
from dpsql.measure.synthetic import SyntheticEngine
from dpsql.planning import last_plans
from dpsql.planning.plan import Plan
from dpsql.policy import Policy
from dpsql.workloads.cells import merging as cells
from dpsql.workloads.cells.boxes import Boxes
from dpsql.workloads.compile import choice
from dpsql.workloads.compile.structured import Structured

TABLES = """
[tables.t]
unit = "row"
[tables.t.columns]
a = { values = ["x", "y", "z"], other = true }
b = { values = [1, 2, 3, 4], nulls = false }
c = { lower = 0, upper = 5 }
v = { lower = -3, upper = 10 }
d = { lower = -1.5, upper = 2, step = 0.5 }
s = { values = ["p", "q"] }
[tables.patients]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.patients.columns]
sex = { values = ["f", "m"], nulls = false }
age = { lower = 0, upper = 10 }
[tables.visits]
unit = "patient_id"
max_rows_per_unit = 3
key = ["id"]
references = { patient_id = "patients.id", region = "regions.id" }
[tables.visits.columns]
kind = { values = ["a", "b"], other = true }
day = { values = [1, 2, 3] }
cost = { lower = -2, upper = 4 }
[tables.labs]
unit = "visits.patient_id"
max_rows_per_unit = 2
references = { visit_id = "visits.id" }
[tables.labs.columns]
code = { values = [1, 2], nulls = false }
w = { lower = -3, upper = 3 }
[tables.regions]
public = true
key = ["id"]
[tables.regions.columns]
name = { values = ["n", "s"] }
"""
# A budget of each kind: the one pays for Laplace noise alone, the other for Gaussian noise.
POLICIES = {
    "laplace": Policy.parse('dataset = "odd-1"\n[budget]\nepsilon = 9.0\n' + TABLES),
    "gaussian": Policy.parse('dataset = "odd-1"\n[budget]\nepsilon = 9.0\ndelta = 1e-6\n' + TABLES),
}
COLUMNS = {
    "t": "a VARCHAR, b INTEGER, c INTEGER, v BIGINT, d DOUBLE, s VARCHAR",
    "patients": "id INTEGER, sex VARCHAR, age INTEGER",
    "visits": "id INTEGER, patient_id INTEGER, region INTEGER, kind VARCHAR, day INTEGER, cost DOUBLE",
    "labs": "visit_id INTEGER, code INTEGER, w INTEGER",
}
# Values inside and outside what is declared, on bounds, NULL where there should be none; those that keep come first.
POOLS: dict[str, list[list[Any]]] = {
    "t": [["x", "y", "?", None], [1, 4, 2, 9, None], [0, 5, 3, -7, 99, None], [-3, 10, 4, 2**62, -(2**62), None],
          [-1.5, 2.0, 0.3, float("nan"), float("inf"), None], ["p", "q", "r", None]],
    "patients": [[1, 1, 2, None], ["f", "m", "?", None], [0, 10, 99, None]],
    "visits": [[7, 8, 9, None], [1, 1, 2, 3, None], [1, 2, 5, None], ["a", "b", "?", None], [1, 2, 3, 9, None],
               [4.0, -2.0, -9.0, float("nan"), None]],
    "labs": [[7, 8, 9, 11, None], [1, 2, 5], [3, -3, 2, None]],
}  # fmt: skip
UNITS = ("patients", "visits", "labs")
ROWS_ALONE = {
    "cube": "SELECT a, b, s, COUNT(*) FROM t GROUP BY CUBE (a, b, s)",
    "closed beside open": "SELECT b, COUNT(*) FROM t GROUP BY b; SELECT COUNT(*) FROM t; SELECT s, b, COUNT(*) FROM t"
    " GROUP BY s, b; SELECT s, c > 2, COUNT(*) FROM t GROUP BY ALL",
    "sums": "SELECT a, s, COUNT(*), SUM(v), SUM(d) FROM t GROUP BY CUBE (a, s); SELECT b, SUM(v * v) FROM t GROUP BY b",
    "sums alone": "SELECT a, SUM(v) FROM t GROUP BY a; SELECT s, SUM(d) FROM t GROUP BY s; SELECT b, SUM(v) - SUM(d)"
    " FROM t GROUP BY b",
    "averages": "SELECT b, s, AVG(v), VAR_POP(v) FROM t GROUP BY CUBE (b, s); SELECT c, AVG(d) FROM t GROUP BY c",
    "what cancels": "SELECT b, COUNT_IF(a = 'x') - COUNT_IF(a = 'x') FROM t GROUP BY b; SELECT s, COUNT(*) FROM t"
    " GROUP BY s",
    "what never holds": "SELECT a, COUNT(*) FROM t WHERE b > 10 GROUP BY a; SELECT b, s, COUNT(*) FROM t GROUP BY b, s",
    "opaque": "SELECT b, COUNT(*) FROM t WHERE b > c GROUP BY b; SELECT s, COUNT(*) FROM t WHERE a LIKE '%x%' GROUP BY"
    " s; SELECT a, SUM(v) FROM t WHERE c = b GROUP BY a",
    "cases": "SELECT CASE WHEN a = 'x' AND c > 2 THEN 1 WHEN b = 4 THEN 2 END AS k, s, COUNT(*), SUM(v) FROM t GROUP BY"
    " ALL; SELECT s, COUNT(*) FROM t GROUP BY s",
    "ranges": "SELECT dp_ranges(b), COUNT(*) FROM t GROUP BY ALL; SELECT dp_prefixes(c), s, COUNT(*), SUM(v) FROM t"
    " GROUP BY ALL; SELECT a, b, COUNT(*) FROM t GROUP BY a, b",
    "coefficients": "SELECT b, s, 3 * COUNT_IF(c > 2) - 2 * COUNT_IF(a = 'x') + 0.5 * SUM(v) FROM t"
    " GROUP BY CUBE (b, s)",
    "null keys": "SELECT s, a, COUNT(*) FROM t WHERE s IS NULL OR a IS NULL GROUP BY s, a; SELECT c, COUNT(c), COUNT(v)"
    " FROM t GROUP BY c",
    "expressions": "SELECT v + c > 3, b, COUNT(*), SUM(v + c) FROM t GROUP BY ALL; SELECT s, SUM(CASE WHEN a = 'x' THEN"
    " v ELSE c END) FROM t GROUP BY s",
    "boxes": ";".join(
        f"SELECT COUNT(*) FROM t WHERE c BETWEEN {i} AND {i + 2} AND b BETWEEN {j} AND {j + 1} AND v >= {i - j}"
        for i in range(4) for j in range(1, 4)
    ),
    "nested boxes": ";".join(f"SELECT COUNT(*) FROM t WHERE c <= {i} AND s = 'p' AND v < {2 * i}" for i in range(6))
    + "; SELECT COUNT(*) FROM t WHERE c > 1; SELECT COUNT(*) FROM t",
    "boxes and groups": "SELECT b, COUNT(*) FROM t WHERE c > 1 GROUP BY b; SELECT s, COUNT(*) FROM t WHERE v < 5 AND"
    " c < 4 GROUP BY s; SELECT COUNT(*) FROM t WHERE a = 'x' AND c = 2",
}  # fmt: skip
WITH_UNITS = {
    "units": "SELECT kind, day, COUNT(*), SUM(cost) FROM visits GROUP BY CUBE (kind, day)",
    "inner join": "SELECT kind, sex, COUNT(*), SUM(age), SUM(cost) FROM visits v JOIN patients p ON v.patient_id = p.id"
    " GROUP BY CUBE (kind, sex); SELECT day, COUNT(*) FROM visits GROUP BY day",
    "two joins of one base": "SELECT sex, COUNT(*) FROM visits v LEFT JOIN patients p ON v.patient_id = p.id WHERE"
    " p.age > 3 OR v.day = 1 GROUP BY sex; SELECT name, kind, COUNT(*), SUM(cost) FROM visits JOIN regions ON region ="
    " regions.id GROUP BY CUBE (name, kind); SELECT day, kind, COUNT(*) FROM visits WHERE cost > 0 GROUP BY day, kind",
    "three tables of one unit": "SELECT kind, day, COUNT(*) FROM visits GROUP BY CUBE (kind, day); SELECT sex, SUM(age)"
    " FROM patients GROUP BY sex; SELECT code, SUM(w), COUNT(*) FROM labs GROUP BY code",
    "unit through a join": "SELECT code, v.kind, COUNT(*), SUM(w), SUM(v.cost) FROM labs JOIN visits v ON visit_id ="
    " v.id GROUP BY CUBE (code, kind); SELECT kind, COUNT(*) FROM visits GROUP BY kind",
    "chain": "SELECT sex, code, COUNT(*), SUM(p.age) FROM labs JOIN visits v ON visit_id = v.id JOIN patients p ON"
    " v.patient_id = p.id GROUP BY CUBE (sex, code); SELECT sex, COUNT(*) FROM patients GROUP BY sex",
    "rows and units": "SELECT a, b, COUNT(*), SUM(v) FROM t GROUP BY CUBE (a, b); SELECT kind, day, COUNT(*) FROM"
    " visits GROUP BY CUBE (kind, day)",
    "distinct units beside rows": "SELECT kind, COUNT(DISTINCT patient_id) FROM visits GROUP BY kind; SELECT day, kind,"
    " COUNT(*) FROM visits GROUP BY CUBE (day, kind)",
    "boxes over a join": ";".join(
        f"SELECT COUNT(*) FROM visits v LEFT JOIN patients p ON v.patient_id = p.id WHERE p.age BETWEEN {i} AND {i + 4}"
        f" AND v.day <= {j} AND v.cost >= {i - 3}" for i in range(0, 6, 2) for j in range(1, 4)
    ),
}  # fmt: skip
BATCHES = {**ROWS_ALONE, **WITH_UNITS}
WAYS = ("blocks", "matrix", "boxes")


def sent(way: str, patch: pytest.MonkeyPatch) -> None:
    """Compile every batch this way if it can be, whatever its size, and not as one that was planned before."""
    patch.setattr(last_plans, "_KEPT", 0)
    patch.setattr(choice, "FEW_CELLS", 0 if way == "blocks" else 10**9)
    patch.setattr(choice, "_is_structured", lambda _: True)
    patch.setattr(cells, "BOXES_FROM", 0 if way == "boxes" else 10**9)


@dataclass
class World:
    """Connections over tables that are filled anew, one for each kind of noise."""

    engine: SyntheticEngine
    cons: dict[str, dpsql.Connection]

    @classmethod
    def at(cls, folder: Path) -> World:
        engine = SyntheticEngine()
        duck = engine.connection
        for name, columns in COLUMNS.items():
            duck.execute(f"CREATE TABLE {name} ({columns})")
        duck.execute("CREATE TABLE regions (id INTEGER, name VARCHAR)")
        duck.execute("INSERT INTO regions VALUES (1, 'n'), (2, 's'), (2, 'n'), (NULL, 's')")
        cons = {
            noise: dpsql.connect(duck, policy=policy, ledger=folder / f"{noise}.ledger")
            for noise, policy in POLICIES.items()
        }
        return cls(engine, cons)

    def plans(self, batch: str) -> list[Plan]:
        """The batch with each kind of noise: x is the same, strategies and sensitivities are not."""
        found = [con.plan(batch, 1, tolerance=0.1) for con in self.cons.values()]
        assert {plan.strategy.noise for plan in found} == set(POLICIES)
        return found

    def x(self, plan: Plan, database: Database) -> list[int]:
        """L x of a database, by the scans of a run."""
        duck = self.engine.connection
        for name in COLUMNS:
            duck.execute(f"DELETE FROM {name}")
            rows = database.get(name, [])
            if rows:
                marks = ", ".join(["(" + ", ".join("?" * len(rows[0])) + ")"] * len(rows))
                duck.execute(f"INSERT INTO {name} VALUES {marks}", [value for row in rows for value in row])
        con = self.cons[plan.strategy.noise]
        job = con._batches.job(plan, "", "")
        return [int(value) for value in cells_of(job, self.engine)]


# -- neighbours --------------------------------------------------------------------------------------


def drawn(rng: random.Random, name: str, orderly: bool) -> Row:
    return tuple(pool[rng.randrange(2)] if orderly else rng.choice(pool) for pool in POOLS[name])


def pairs(rng: random.Random, units: bool, number: int) -> Iterator[tuple[Database, Database]]:
    """Neighbouring databases: (the larger, the smaller)."""
    for turn in range(number):
        orderly = turn % 2 == 0
        if not units:
            base = [drawn(rng, "t", False) for _ in range(rng.randrange(3))]
            yield {"t": [*base, drawn(rng, "t", orderly)]}, {"t": base}
            continue
        full: Database = {name: [drawn(rng, name, False) for _ in range(rng.randrange(4))] for name in UNITS}
        full["t"] = [drawn(rng, "t", False)]
        if orderly:  # a unit with as many equal rows as count, and more
            visit = drawn(rng, "visits", True)
            full["visits"] = [row for row in full["visits"] if row[0] != visit[0]]
            full["visits"] += [(visit[0], 1, *visit[2:])] * (3 + turn % 4)
            full["labs"] += [(visit[0], *drawn(rng, "labs", True)[1:])] * (2 + turn % 3)
            full["patients"] += [(1, *drawn(rng, "patients", True)[1:])]
        yield full, without(full, 1 if orderly else rng.choice((1, 2, 3, None)))
        if turn % 3 == 0:
            yield full, {**full, "t": []}


def largest_of_blocks(plan: dpsql.Plan, moved: Sequence[int]) -> int:
    """The largest change of each block of measurements, added up; without blocks the L1 norm."""
    entries = iter(moved)
    return sum(max(abs(next(entries)) for _ in range(size)) for size in plan.noise.blocks or (1,) * len(moved))


def excess(world: World, batch: str, number: int, seed: int) -> tuple[float, str]:
    """The largest change over the claim, over kinds of noise; and which way the batch went."""
    rng = random.Random(seed)
    plans = world.plans(batch)
    worst = 0.0
    tables = {layout.source.table for layout in plans[0].compiled.layouts}
    for larger, smaller in pairs(rng, bool(tables & set(UNITS)), number):
        changes: dict[int, list[int]] = {}  # plans for one kind of noise each may read other histograms
        for plan in plans:
            if id(plan.compiled) not in changes:
                before, after = world.x(plan, smaller), world.x(plan, larger)
                changes[id(plan.compiled)] = [a - b for a, b in zip(after, before, strict=True)]
            change = changes[id(plan.compiled)]
            bits = max(map(abs, change), default=0).bit_length() + 1
            moved = plan.strategy.measured.times(change, bits)
            size = sum(d * d for d in moved) if plan.noise.kind == "gaussian" else largest_of_blocks(plan, moved)
            assert size <= plan.sensitivity, f"{plan.noise.kind}: {size} > {plan.sensitivity}"
            worst = max(worst, size / plan.sensitivity)
    compiled = plans[0].compiled
    if isinstance(compiled, Structured):
        return worst, "blocks"
    return worst, "boxes" if isinstance(compiled.layouts[0].cells, Boxes) else "matrix"


# -- random batches ------------------------------------------------------------------------------------

CONDITIONS = {
    "t": ["a = 'x'", "a <> 'y'", "b > 1", "b > c", "c BETWEEN 1 AND 3", "c IS NULL", "NOT (v > 4)", "d < 0.5",
          "s = 'p'", "(a = 'x' OR c > 2)", "a LIKE '%x'", "v IS NOT NULL", "(b = 2) = (c = 2)"],
    "visits": ["kind = 'a'", "day <= 2", "cost > 0", "(kind = 'b' OR day = 3)", "cost IS NULL", "NOT (day = 1)"],
    "joined": ["sex = 'f'", "age > 4", "day <= 2", "(cost > 0 OR age IS NULL)", "kind <> 'a'"],
    "labs": ["code = 1", "w > 0", "w IS NULL"],
}  # fmt: skip
KEYS = {
    "t": ["a", "b", "c", "s", "b > c", "CASE WHEN c > 2 THEN 'up' WHEN b = 1 THEN 'one' END"],
    "visits": ["kind", "day", "cost > 1"],
    "joined": ["kind", "sex", "day", "age > 3"],
    "labs": ["code", "w > 0"],
}
SUMS = {
    "t": ["v", "d", "c", "v * c", "IF(d > 0, v, 2)"],
    "visits": ["cost"],
    "joined": ["cost", "age"],
    "labs": ["w"],
}
FROM = {"joined": "visits v LEFT JOIN patients p ON v.patient_id = p.id"}


def random_batch(rng: random.Random) -> str:
    """Two to four statements over one table or several."""
    out = []
    for _ in range(rng.randrange(2, 5)):
        where = rng.choice(sorted(KEYS))
        keys = rng.sample(KEYS[where], rng.randrange(3)) if where != "labs" else rng.sample(KEYS[where], 1)
        asked = ["COUNT(*)"]
        if rng.random() < 0.5:
            asked.append(f"SUM({rng.choice(SUMS[where])})")
        if rng.random() < 0.3:
            asked.append(f"{rng.randrange(1, 4)} * COUNT_IF({rng.choice(CONDITIONS[where])}) - COUNT(*)")
        if rng.random() < 0.2:
            asked = asked[1:] or asked
        held = [f"{key} AS k{number}" for number, key in enumerate(keys)]
        names = ", ".join(f"k{number}" for number in range(len(keys)))
        text = f"SELECT {', '.join([*held, *asked])} FROM {FROM.get(where, where)}"
        some = rng.sample(CONDITIONS[where], rng.randrange(3))
        text += f" WHERE {' AND '.join(some)}" if some else ""
        if keys:
            plain = rng.random() < 0.5 or any(not key.isidentifier() for key in keys)
            text += f" GROUP BY {names}" if plain else f" GROUP BY CUBE ({', '.join(keys)})"
        out.append(text)
    return "; ".join(out)
