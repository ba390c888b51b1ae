"""Small worlds of persons with several rows in several tables: random policies and batches, and everything that one
person can change, found by the scan itself.

What a person can change is enumerated from rows and declared bounds alone, apart from
``dpsql.workloads.families.contributions``: rows that the scan cannot tell apart are one kind of row, and persons with
all numbers of rows of each kind, as many as count, go through one scan that tells persons apart.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from helpers import compiled_of, engine_of, tables_of

import dpsql
from dpsql.engines.base import TableSource
from dpsql.measure import cells
from dpsql.measure.from_sql import UNIT
from dpsql.measure.reading import scan_of
from dpsql.policy import Policy
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.expr.scan import Select, same
from dpsql.workloads.expr.value_sql import select_text
from dpsql.workloads.expr.values import Cast, Coalesce, Name, whole

Row = tuple[Any, ...]
Person = Mapping[str, Sequence[Row]]
"""The rows of one person by table, the person's number left out."""

COLUMNS = {
    "patients": "patient INTEGER, sex VARCHAR, age INTEGER",
    "visits": "patient INTEGER, ward VARCHAR, day INTEGER, cost INTEGER",
    "labs": "patient INTEGER, kind VARCHAR, v INTEGER",
    "shifts": "nurse INTEGER, ward VARCHAR, hours INTEGER",
}
VALUES: dict[str, tuple[Sequence[Any], ...]] = {
    "patients": (("f", "m", "x", None), (0, 10, None)),
    "visits": (("a", "b", "x", None), (1, 2, 3, 9, None), (-2, 4, None, 1)),
    "labs": (("p", "q", None), (-3, 3, None)),
    "shifts": (("a", "b", "x"), (0, 8, None)),
}
"""What the columns of a row hold: all groups, both bounds, and what lies outside or is missing."""
DECLARED = """dataset = "worlds"
[budget]
epsilon = 1e6
{delta}[tables.patients]
unit = "patient"
key = ["patient"]
max_rows_per_unit = {patients}
[tables.patients.columns]
sex = {{ values = ["f", "m"] }}
age = {{ lower = 0, upper = 10 }}
[tables.visits]
unit = "patient"
references = {{ patient = "patients.patient" }}
max_rows_per_unit = {visits}
at_most = [{caps}]
[tables.visits.columns]
patient = {{ }}
ward = {{ values = ["a", "b"], other = true }}
day = {{ lower = 1, upper = 3 }}
cost = {{ lower = -2, upper = 4 }}
[tables.labs]
unit = "patient"
max_rows_per_unit = {labs}
[tables.labs.columns]
kind = {{ values = ["p", "q"] }}
v = {{ lower = -3, upper = 3 }}
[tables.shifts]
unit = "nurse"
max_rows_per_unit = 2
[tables.shifts.columns]
ward = {{ values = ["a", "b"], nulls = false }}
hours = {{ lower = 0, upper = 8 }}
"""
_MOST = 20_000  # contributions of several tables together
_FEW = 36  # rows of nobody that are tried
_WRITTEN = 20  # rows that one statement lists
_AGAIN = 20  # persons with the same rows, more than count
_CAPS: dict[str, int] = {"ward": 1, "day": 2}
"""The place of a capped column in a row without its person."""


@dataclass(frozen=True)
class Ask:
    """A policy and a batch over it: ``most`` rows by table, ``caps`` of visits as (rows, groups, column)."""

    sql: str
    most: Mapping[str, int]
    caps: tuple[tuple[int | None, int | None, str], ...] = ()

    def policy(self, noise: str) -> str:
        """The policy's text; without a delta no Gaussian noise is drawn."""
        caps = [
            ", ".join([*(f"{name} = {n}" for name, n in (("rows", r), ("groups", g)) if n), f'per = "{per}"'])
            for r, g, per in self.caps
        ]
        delta = "delta = 1e-6\n" if noise == "gaussian" else ""
        return DECLARED.format(**self.most, delta=delta, caps=", ".join(f"{{ {cap} }}" for cap in caps))

    @property
    def joined(self) -> bool:
        """Whether visits are read with their patient, or patients with their visits."""
        return "JOIN" in self.sql or "EXISTS" in self.sql

    @property
    def days(self) -> bool:
        """Whether days of rows matter beyond what one row by itself adds."""
        return any(word in self.sql for word in ("MAX(day)", "ORDER BY day"))

    @property
    def looks(self) -> bool:
        """Whether rows matter that are no longer counted."""
        return any(word in self.sql for word in ("AS k FROM", "HAVING", "OVER", "EXISTS"))


def asks(count: int, seed: int) -> list[Ask]:
    """Random batches over random policies, the same every time."""
    draw = random.Random(seed)
    return [_ask(draw) for _ in range(count)]


def further_asks(count: int, seed: int) -> list[Ask]:
    """The same with statements that look at all rows of a person, count values, or read who owns a row."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ask = _ask(draw)
        more = [draw.choice(_FURTHER) for _ in range(draw.choice((1, 1, 2)))]
        beside = ask.sql.split("; ")[: draw.choice((0, 1, 1, 2))]
        caps = ask.caps if draw.random() < 0.3 else ()
        found.append(Ask("; ".join([*more, *beside]), ask.most, caps))
    return found


_FURTHER = (
    "SELECT k, COUNT(*) AS c FROM (SELECT patient, COUNT(*) AS k FROM visits GROUP BY patient) GROUP BY k",
    "SELECT k, COUNT(*) AS c FROM (SELECT patient, COUNT(*) AS k FROM labs GROUP BY patient) WHERE k < 3 GROUP BY k",
    "SELECT k, COUNT(*) AS c FROM (SELECT patient, MAX(day) AS k FROM visits GROUP BY patient) GROUP BY k",
    "SELECT COUNT(*) AS c FROM (SELECT patient FROM visits WHERE ward = 'a' GROUP BY patient HAVING COUNT(*) > 1)",
    "SELECT sex, COUNT(*) AS c FROM visits LEFT JOIN patients USING (patient) GROUP BY sex",
    "SELECT sex, ward, COUNT(DISTINCT patient) AS c FROM visits LEFT JOIN patients USING (patient) GROUP BY sex, ward",
    "SELECT sex, COUNT(*) AS c FROM patients WHERE EXISTS (SELECT 1 FROM visits WHERE visits.patient = "
    "patients.patient AND ward = 'a') GROUP BY sex",
    "SELECT ward, COUNT(*) AS c FROM (SELECT ward, row_number() OVER (PARTITION BY patient ORDER BY day) AS r FROM "
    "visits) WHERE r = 1 GROUP BY ward",
    "SELECT ward, COUNT(*) AS c FROM visits WHERE patient IS NOT NULL GROUP BY ward",
    "SELECT COUNT(*) AS c, COUNT(DISTINCT patient) AS k FROM visits WHERE patient IS NOT NULL",
)


def _ask(draw: random.Random) -> Ask:
    statements = [_statement(draw) for _ in range(draw.choice((1, 1, 2, 2, 3)))]
    most = {"patients": draw.choice((1, 1, 1, 2)), "visits": draw.randint(1, 4), "labs": draw.randint(1, 3)}
    k, caps = most["visits"], []
    for per in draw.choice(((), (), ("ward",), ("day",), ("day % 2",), ("ward", "day"))):
        rows, groups = draw.choice(((1, None), (2, None), (None, 1), (None, 2), (1, 2), (2, 1)))
        caps.append((rows and min(rows, k), groups and min(groups, k), per))
    return Ask("; ".join(statements), most, tuple(caps))


_TABLES: dict[str, tuple[Sequence[str], str, Sequence[str]]] = {
    "visits": (
        ("ward", "day", "day % 2", "ward, day"),
        "cost",
        ("ward = 'a'", "day >= 2", "ward <> 'b' OR day = 1", "ward IS NULL", "day BETWEEN 1 AND 2 AND ward = 'b'"),
    ),
    "visits JOIN patients USING (patient)": (
        ("sex", "ward", "sex, ward"),
        "cost",
        ("sex = 'f'", "ward = 'a'", "sex = 'm' OR day = 3"),
    ),
    "patients": (("sex",), "age", ("sex = 'f'", "sex IS NOT NULL")),
    "labs": (("kind",), "v", ("kind = 'p'", "kind IS NULL")),
    "shifts": (("ward",), "hours", ("ward = 'b'",)),
}


def _statement(draw: random.Random) -> str:
    table = draw.choice([*["visits"] * 5, *["visits JOIN patients USING (patient)"] * 2, *_TABLES])
    keys, summed, conditions = _TABLES[table]
    key = draw.choice(("", *keys))
    unit = "nurse" if table == "shifts" else "patient"
    if draw.random() < 0.3:
        wanted = [f"COUNT(DISTINCT {unit})"]
    else:
        some = draw.choice(conditions)
        offered = ["COUNT(*)", "COUNT(*)", f"SUM({summed})", f"AVG({summed})", f"COUNT(*) FILTER (WHERE {some})"]
        offered.append(f"SUM({summed}) FILTER (WHERE {some})")
        wanted = list(dict.fromkeys(draw.choice(offered) for _ in range(draw.choice((1, 1, 2)))))
    where = f" WHERE {draw.choice(conditions)}" if draw.random() < 0.35 else ""
    named = [f"{text} AS c{i}" for i, text in enumerate([*(key.split(", ") if key else []), *wanted])]
    grouped = f" GROUP BY {', '.join(str(i + 1) for i in range(key.count(',') + 1))}" if key else ""
    return f"SELECT {', '.join(named)} FROM {table}{where}{grouped}"


class World:
    """One connection over tables that are filled again and again."""

    def __init__(self) -> None:
        self.duck = duckdb.connect(config={"threads": 1})
        self._held: set[str] = set()  # tables that have rows
        self._statements: dict[tuple[int, bool], tuple[Layout, str]] | None = None
        for name, columns in COLUMNS.items():
            self.duck.execute(f"CREATE TABLE {name} ({columns})")

    def fill(self, persons: Mapping[Any, Person]) -> None:
        """Put these persons, by their numbers, in place of all there are."""
        for name in COLUMNS:
            rows = [(number, *row) for number, person in persons.items() for row in person.get(name, ())]
            if name in self._held:
                self.duck.execute(f"DELETE FROM {name}")
                self._held.remove(name)
            if len(rows) > _WRITTEN:
                columns = [pa.array(column) for column in zip(*rows, strict=True)]
                self.duck.register("filled", pa.table(columns, names=[str(i) for i in range(len(columns))]))
                self.duck.execute(f"INSERT INTO {name} FROM filled")
            elif rows:
                values = ("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in rows)
                self.duck.execute(f"INSERT INTO {name} VALUES {', '.join(values)}")
            if rows:
                self._held.add(name)

    def plan(self, ask: Ask, noise: str, folder: Path, **options: Any) -> dpsql.Plan:
        """The plan of a batch. Raises what ``Connection.plan`` raises."""
        path = folder / "p.toml"
        path.write_text(ask.policy(noise))
        for old in folder.glob("l*"):
            old.unlink()
        with dpsql.connect(self.duck, policy=str(path), ledger=str(folder / "l")) as con:
            return con.plan(ask.sql, epsilon=1.0, **options)

    def compiled(self, ask: Ask) -> Compiled:
        """A batch as its plan has it compiled, without the search for what to measure."""
        policy = Policy.parse(ask.policy("gaussian"))
        return compiled_of(ask.sql, policy, tables_of(policy, engine_of(self.duck)))

    def whole(self, compiled: Compiled) -> np.ndarray:
        """L x of the tables as they are, by the scans that a run would make."""
        x = np.zeros(compiled.rows.shape[1], dtype=object)
        for layout in compiled.layouts:
            cells.add(x, layout, self._scanned(layout, by_person=False), compiled.common_steps)
        return x

    def each(self, compiled: Compiled, layouts: Iterable[Layout], count: int) -> np.ndarray:
        """What each of the persons 0, 1, ... adds to L x (count x entries), by the same scans grouped by person."""
        x = np.zeros((count, compiled.rows.shape[1]), dtype=object)
        for layout in layouts:
            found = self._scanned(layout, by_person=True)
            persons, names = found["person"], [name for name in found if name != "person"]
            # What a row of a scan adds does not depend on the others: rows that are alike are worked out once.
            rows, which = np.unique(np.column_stack([found[name] for name in names]), axis=0, return_inverse=True)
            added = np.zeros((len(rows), x.shape[1]), dtype=object)
            for row, into in zip(rows, added, strict=True):
                cells.add(into, layout, dict(zip(names, row[:, None], strict=True)), compiled.common_steps)
            np.add.at(x, persons[persons >= 0], added[which.ravel()[persons >= 0]])
        return x

    @contextlib.contextmanager
    def written_once(self) -> Iterator[None]:
        """Statements of scans are written once while it lasts: for many fillings of the tables in one row."""
        self._statements = {}
        try:
            yield
        finally:
            self._statements = None

    def _scanned(self, layout: Layout, *, by_person: bool) -> dict[str, Any]:
        """The columns of a layout's scan."""
        statements = {} if self._statements is None else self._statements
        key = id(layout), by_person
        if key not in statements:
            select = scan_of(layout, SOURCES).select
            if by_person:
                person = ("person", Cast(Coalesce((Name(UNIT), whole(-1)), "INTEGER"), "BIGINT"))
                grouped = replace(with_unit(select), columns=(person, *select.columns))
                select = replace(grouped, group_by=select.group_by + 1)
            statements[key] = layout, select_text(select, {name: f"memory.main.{name}" for name in COLUMNS})
        return self.duck.execute(statements[key][1]).fetchnumpy()


SOURCES = {name: TableSource(name) for name in COLUMNS}


def with_unit(select: Select) -> Select:
    """The same rows with whose they are."""
    if any(name == UNIT for name, _ in select.columns):
        return select
    assert isinstance(select.source, Select)
    return replace(select, columns=(*same(UNIT), *select.columns), source=with_unit(select.source))


@dataclass
class Enumerated:
    """All that one person can change of L x: ``vectors`` (N x entries), ``whole`` where every person was tried."""

    vectors: np.ndarray = field(repr=False)
    whole: bool

    @cached_property
    def floats(self) -> np.ndarray:
        return self.vectors.astype(np.float64)


def enumerated(world: World, ask: Ask, compiled: Compiled, most: int, draw: random.Random) -> list[Enumerated]:
    """For patients and for nurses all that one can change, over at most about ``most`` persons a table."""
    with world.written_once():
        return _enumerated(world, ask, compiled, most, draw)


def _enumerated(world: World, ask: Ask, compiled: Compiled, most: int, draw: random.Random) -> list[Enumerated]:
    found = []
    for tables in (("patients", "visits", "labs"), ("shifts",)):
        layouts = [layout for layout in compiled.layouts if layout.source.table in tables]
        if not layouts:
            continue
        read = {name for layout in layouts for name in layout.source.tables}
        parts: list[tuple[Enumerated, np.ndarray]] = []
        clusters = [("patients", "visits"), ("labs",)] if ask.joined and "labs" in tables else [(t,) for t in tables]
        for cluster in clusters:
            mine = [layout for layout in layouts if layout.source.table in cluster]
            if mine and read & set(cluster):
                parts.append(_cluster(world, ask, compiled, mine, [t for t in cluster if t in read], most, draw))
        whole = all(part.whole for part, _ in parts)
        each = []
        for of_tables in ([part.vectors for part, _ in parts], [nobody for _, nobody in parts]):
            vectors = np.zeros((1, compiled.rows.shape[1]), dtype=object)
            for added in of_tables:
                held = np.concatenate([np.zeros((1, vectors.shape[1]), dtype=object), added])
                if len(vectors) * len(held) > _MOST:
                    few = max(1, _MOST // len(vectors))
                    held, whole = held[draw.sample(range(len(held)), few)], False
                vectors = _distinct((vectors[:, None, :] + held[None, :, :]).reshape(-1, vectors.shape[1]))
            each.append(vectors)
        found.append(Enumerated(_distinct(np.concatenate(each)), whole))
    return found


def _distinct(vectors: np.ndarray) -> np.ndarray:
    if abs(vectors).max(initial=0) < 2**62:
        return np.unique(vectors.astype(np.int64), axis=0).astype(object)
    return np.array(sorted({tuple(v) for v in vectors.tolist()}), dtype=object)


def _cluster(
    world: World,
    ask: Ask,
    compiled: Compiled,
    layouts: Sequence[Layout],
    tables: Sequence[str],
    most: int,
    draw: random.Random,
) -> tuple[Enumerated, np.ndarray]:
    """Persons of some tables: a row of patients, or none, and all numbers of rows of each kind of the others.

    And what rows of nobody add.
    """
    persons: list[dict[str, list[Row]]] = [{}]
    cut: list[dict[str, list[Row]]] = []  # of more rows than count
    whole = True
    for table in tables:
        longer: list[dict[str, list[Row]]] = []
        for person, kinds in zip(persons, _kinds(world, ask, compiled, layouts, persons, table), strict=True):
            k = 2 if table == "shifts" else ask.most[table]
            held, all_ = _numbers(kinds, 1 if len(tables) > 1 and table == "patients" else k, most, draw)
            whole &= all_
            scans = len(_readers([layout for layout in layouts if layout.source.table == table]))
            if table != "patients" and (scans > 1 or ask.looks):
                more = _beyond(kinds, k, max(2, scans), 2 * most)
                whole &= bool(more)
                cut.extend({**person, table: rows} for rows in more)
            longer.extend({**person, table: rows} for rows in held)
        persons = longer
    if len(tables) > 1 and ask.most["patients"] > 1:
        whole = False
    world.fill(dict(enumerate(persons)))
    vectors = world.each(compiled, layouts, len(persons))
    more_persons, more_vectors = _cut(world, compiled, layouts, cut)
    persons, vectors = [*persons, *more_persons], np.concatenate([vectors, more_vectors])
    # Rows of nobody are a unit, too, which finds no row of patients and which no count of persons counts. A row of
    # patients of its own is found by none of its visits.
    if "IS NOT NULL" in ask.sql or ask.looks:
        whole &= len(persons) <= _FEW
        return Enumerated(_distinct(vectors), whole), _alone(world, compiled, persons, draw)
    parts = [vectors[[not (ask.joined and person.get("patients")) for person in persons]]]
    if ask.joined and "patients" in tables:
        parts.append(vectors[[set(person) <= {"patients"} or not person["visits"] for person in persons]])
    for layout in layouts:
        if layout.source.counts_units:
            for one in parts:
                one[:, np.unique(layout.entry[layout.entry >= 0])] = 0
    nobody = parts[0]
    for one in parts[1:]:
        nobody = (nobody[:, None, :] + _distinct(one)[None, :, :]).reshape(-1, nobody.shape[1])
    return Enumerated(_distinct(vectors), whole), _distinct(nobody)


def _alone(world: World, compiled: Compiled, persons: Sequence[Person], draw: random.Random) -> np.ndarray:
    """What rows of nobody add that are those of the persons, or of some, the longest among them."""
    some = sorted(persons, key=lambda person: -max(map(len, person.values()), default=0))[: _FEW // 2]
    found = []
    for person in persons if len(persons) <= _FEW else [*some, *draw.sample(list(persons), _FEW // 2)]:
        world.fill({None: person})
        found.append(world.whole(compiled))
    return _distinct(np.array(found, dtype=object))


def _kinds(
    world: World, ask: Ask, compiled: Compiled, layouts: Sequence[Layout], persons: Sequence[Person], table: str
) -> list[list[Row]]:
    """For each person, who has no rows of the table yet, one row of each kind that the batch and the bounds tell apart.

    One scan tells the rows of all persons apart.
    """
    rows = list(itertools.product(*VALUES[table]))
    if table == "patients" and ask.joined:
        return [list({row[0]: row for row in rows}.values()) if len(layouts) == 1 else rows] * len(persons)
    each = ({**person, table: [row]} for person in persons for row in rows)
    world.fill(dict(enumerate(each)))
    x = world.each(compiled, layouts, len(persons) * len(rows)).tolist()
    capped = [_CAPS[per.partition(" ")[0]] - 1 for _, _, per in ask.caps] if table == "visits" else []
    capped += [1] if ask.days and table == "visits" else []
    capped += [0] if ask.looks and table == "visits" else []
    found: list[list[Row]] = []
    for at in range(0, len(x), len(rows)):
        told = {(tuple(v), *(row[i] for i in capped)): row for v, row in zip(x[at : at + len(rows)], rows, strict=True)}
        found.append(list(told.values()))
    return found


def _beyond(kinds: Sequence[Row], k: int, scans: int, most: int) -> list[list[Row]]:
    """More rows than count, of which each of several scans may keep others; none where these are many."""
    sizes = range(k + 1, scans * k + 1)
    if sum(math.comb(len(kinds) + size - 1, size) for size in sizes) * _AGAIN > most:
        return []
    return [list(some) for size in sizes for some in itertools.combinations_with_replacement(kinds, size)]


def _cut(
    world: World, compiled: Compiled, layouts: Sequence[Layout], persons: Sequence[dict[str, list[Row]]]
) -> tuple[list[dict[str, list[Row]]], np.ndarray]:
    """What persons add of whom not all rows count: all that each scan was seen to keep, with all that others were.

    Which rows a scan keeps is decided by a hash of the person's number, so that each is tried with several numbers.
    """
    n = compiled.rows.shape[1]
    found, whose = np.zeros((0, n), dtype=object), list[dict[str, list[Row]]]()
    if not persons:
        return whose, found
    world.fill(dict(enumerate(person for person in persons for _ in range(_AGAIN))))
    each = [world.each(compiled, mates, len(persons) * _AGAIN) for mates in _readers(layouts)]
    parts = [found]
    for at, person in enumerate(persons):
        sums = np.zeros((1, n), dtype=object)
        for of_reader in each:
            kept = _distinct(of_reader[at * _AGAIN : (at + 1) * _AGAIN])
            sums = (sums[:, None, :] + kept[None, :, :]).reshape(-1, n)
        parts.append(sums)
        whose += [person] * len(sums)
    return whose, np.concatenate(parts)


def _readers(layouts: Sequence[Layout]) -> list[list[Layout]]:
    """The layouts, those together that keep the same rows of a person."""
    readers: dict[object, list[Layout]] = {}
    for layout in layouts:
        tied = [one.table for one in layouts if one.tie is not None and one.tie.counted.table == layout.table]
        key = id(layout.together) if layout.together is not None else tied[0] if tied else layout.table
        readers.setdefault(key, []).append(layout)
    return list(readers.values())


def _numbers(kinds: Sequence[Row], k: int, most: int, draw: random.Random) -> tuple[list[list[Row]], bool]:
    """All ways to have 0 to ``k`` rows of the kinds, or some of them; whether these are all."""
    if sum(math.comb(len(kinds) + size - 1, size) for size in range(k + 1)) <= most:
        sizes = range(k + 1)
        return [list(rows) for size in sizes for rows in itertools.combinations_with_replacement(kinds, size)], True
    held = [[row] * k for row in kinds]
    while len(held) < most:
        held.append([draw.choice(kinds) for _ in range(k)])
    return held, False


def broken(draw: random.Random, persons: int) -> dict[Any, Person]:
    """Patients with more rows than count, some alike, rows of nobody, and as the last person a nurse."""
    found: dict[Any, Person] = {}
    for number in (*range(persons), None):
        nurse = number == persons - 1
        found[number] = {
            name: [tuple(draw.choice(pool) for pool in pools) for _ in range(draw.choice((0, 1, 2, 5, 9)))]
            for name, pools in VALUES.items()
            if (name == "shifts") == nurse
        }
    return found


def norm(plan: dpsql.Plan, vectors: np.ndarray) -> int:
    """``norm_of`` what the plan measures, in the norm of its noise."""
    held = plan.strategy.measured.written
    assert held is not None
    mixing, basis = (np.asarray(m.toarray() if hasattr(m, "toarray") else m) for m in held)
    return norm_of(plan.noise.kind, mixing, basis, vectors, plan.noise.blocks)


def norm_of(
    noise: str, mixing: np.ndarray, basis: np.ndarray, vectors: np.ndarray, blocks: tuple[int, ...] = ()
) -> int:
    """The largest L1, or squared L2, norm of mixing @ basis @ c: exact, of those that floats cannot tell from it.

    By ``blocks``, if any: the sum over them of the largest entry, or of the patterns that a change is made of.
    """
    gaussian = noise == "gaussian"
    change = (vectors.astype(np.float64) @ basis.T.astype(np.float64)) @ mixing.T.astype(np.float64)
    sizes = (change**2).sum(axis=1) if gaussian else _in_blocks(change, blocks)
    near = np.flatnonzero(sizes >= sizes.max() * (1 - 1e-9))[:20]
    exact = (vectors[near] @ basis.T.astype(object)) @ mixing.T.astype(object)
    return int(((exact**2).sum(axis=1) if gaussian else _in_blocks(exact, blocks)).max())


def _in_blocks(changes: np.ndarray, blocks: tuple[int, ...]) -> Any:
    """The norm of each change (N x entries)."""
    if not blocks:
        return abs(changes).sum(axis=1)
    total, at = np.zeros(len(changes), dtype=changes.dtype), 0
    for block in blocks:
        part, at = changes[:, at : at + block], at + block
        limit = getattr(block, "limit", 0)
        for side in (np.maximum(part, 0), np.maximum(-part, 0)) if limit else (abs(part),):
            most = side.max(axis=1)
            total += np.maximum(most, -(-side.sum(axis=1) // limit)) if limit else most
    return total


def paid(plan: dpsql.Plan) -> Fraction:
    """The sensitivity (squared for Gaussian noise) that the plan's noise protects at its charge."""
    if plan.noise.kind == "gaussian":
        return plan.noise.parameter * plan.charge.mu_squared
    assert plan.charge.epsilon is not None
    return plan.noise.parameter * plan.charge.epsilon


@dataclass(frozen=True)
class Least:
    """Bounds of the least error of any Gaussian matrix mechanism over listed contributions: lower <= least <= upper."""

    lower: float
    upper: float


def least(W: np.ndarray, vectors: np.ndarray, gap: float = 1e-3, steps: int = 20_000) -> Least:
    """The least error of W (m x n) for units that change x by one of ``vectors`` (N x n), by multiplicative ascent.

    max over weights lambda of (tr (U M U^T)^1/2)^2, M = sum lambda_c c c^T, U^T U = W^T W: every step is a bound from
    below, and K^-1/2 scaled to the worst contribution one from above. ``steps`` bound the work.
    """
    Y = W @ vectors.T.astype(np.float64)
    Y = np.unique((Y * np.sign(Y[np.argmax(abs(Y) > 1e-12, axis=0), np.arange(Y.shape[1])])).T.round(12), axis=0).T
    left, size, _ = np.linalg.svd(Y, full_matrices=False)
    Y = left[:, size > 1e-10 * size[0]].T @ Y
    lam = np.full(Y.shape[1], 1.0 / Y.shape[1])
    lower, upper = 0.0, np.inf
    for _ in range(steps):
        s, V = np.linalg.eigh((Y * lam) @ Y.T)
        root = np.sqrt(np.maximum(s, 1e-300))
        t = float(root.sum())
        q = ((V.T @ Y) ** 2 / root[:, None]).sum(axis=0)
        lower, upper = max(lower, t * t), min(upper, t * float(q.max()))
        if upper <= lower * (1 + gap):
            break
        lam = lam * (q / t) ** 2
        lam = lam / lam.sum()
    return Least(lower, upper)
