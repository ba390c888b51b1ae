"""No row decides whether a scan succeeds: columns at the ends of their types, under all expressions that make cuts."""

from __future__ import annotations

import functools
import itertools
import random
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

import duckdb
import pytest
from helpers import HEADER, HeldEngine, exact, sources_of, understood

import dpsql
from dpsql.engines import rehearsal
from dpsql.engines.base import Scan, TableSource
from dpsql.engines.rehearsal import passes_rehearsal
from dpsql.errors import InternalError, NotSupportedError, PolicyError, SQLError
from dpsql.extensions.spark.expressions import Scope, Writer
from dpsql.measure.from_sql import values_of
from dpsql.measure.reading import scans_of
from dpsql.measure.region_sql import region, when
from dpsql.policy import Policy
from dpsql.sql import table_of
from dpsql.workloads.compile import cells_of_a_row
from dpsql.workloads.compile.compiled import compile_rows
from dpsql.workloads.expr import total
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.batch import Table as Known
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.lines import Line, line_of
from dpsql.workloads.expr.regions import LineAxis, line_axis, representatives
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.total import VALUES, read_once
from dpsql.workloads.expr.value_sql import select_text

INTEGERS = {name: (-(2**bits), 2**bits - 1) for name, bits in
            (("TINYINT", 7), ("SMALLINT", 15), ("INTEGER", 31), ("BIGINT", 63), ("HUGEINT", 127))}  # fmt: skip
INTEGERS |= {name: (0, 2**bits - 1) for name, bits in
             (("UTINYINT", 8), ("USMALLINT", 16), ("UINTEGER", 32), ("UBIGINT", 64), ("UHUGEINT", 128))}  # fmt: skip
DECIMALS = ((1, 0), (2, 2), (3, 1), (4, 1), (5, 2), (9, 9), (9, 0), (18, 4), (19, 3), (38, 0), (38, 10))
REALS = ("FLOAT", "DOUBLE")
DAYS = ("-infinity", "5877642-06-25 (BC)", "0001-01-01", "1970-01-01", "2020-02-29", "9999-12-31", "5881580-07-10",
        "infinity")  # fmt: skip
MOMENTS = ("-infinity", "290309-12-22 (BC) 00:00:00", "0001-01-01", "1970-01-01", "2020-02-29 12:34:56.789",
           "9999-12-31 23:59:59.999999", "294247-01-10 04:00:54.775806", "infinity")  # fmt: skip
FARTHEST = 10**30 - 1
"""The largest bound that a policy declares, in units of 10^-scale."""
COMPARISONS = ("<", "<=", ">", ">=", "=", "<>")
_NUMBERS = re.compile(
    r"year|month|week|dayofweek|isoyear|century|date_part|date_diff|date_sub|length|TRY_CAST|CAST.*INT"
)
_TRUTHS = re.compile(r"NOT v|v [<>]|v IS|v LIKE|starts_with|CAST.*BOOL")
_TEXTS = re.compile(r".*AS VARCHAR|strftime")
CASTS = (*list(INTEGERS)[:5], "DOUBLE", "DECIMAL(4,1)", "DECIMAL(18,0)", "DECIMAL(38,0)") * 3 + (
    *INTEGERS,
    *REALS,
    "VARCHAR",
)
"""Types that values are cast to; those that are refused come less often."""


@dataclass(frozen=True)
class Kind:
    """A column type: its least and greatest value in units of 10^-scale, or what it is otherwise."""

    type: str
    low: int = 0
    high: int = 0
    scale: int = 0
    sort: str = "number"

    @property
    def table(self) -> str:
        """The table with a column ``v`` of this type."""
        return "t_" + "".join(c if c.isalnum() else "_" for c in self.type.lower())

    def shown(self, units: int) -> str:
        """A number of this type."""
        text = f"{abs(units):0{self.scale + 1}d}"
        text = f"{text[: -self.scale]}.{text[-self.scale :]}" if self.scale else text
        return f"-{text}" if units < 0 else text

    @property
    def rows(self) -> Iterator[str]:
        """Values at the ends of the type and about them, of each power of ten below them, and odd ones."""
        if self.sort == "number":
            near = {end + step for end in (self.low, self.high, 0) for step in range(-9, 10)}
            near |= {end - end % 10**power for end in (self.low, self.high) for power in range(39)}
            shown = [self.shown(units) for units in sorted(near) if self.low <= units <= self.high]
        else:
            shown = {
                "real": ["nan", "inf", "-inf", "0", "-0.0", "1e-45", "0.5", "1", "-1", "99.5", "127.5", "9.3e18",
                         "3.4028235e38", "-3.4028235e38", *(["1.7976931348623157e308"] * (self.type == "DOUBLE"))],
                "day": list(DAYS), "moment": list(MOMENTS), "truth": ["true", "false"],
                "text": ["", "a", "b", "A", "\U0010ffff", "a\U0010ffff", "1", "-128", "é"],
            }[self.sort]  # fmt: skip
        yield from (f"CAST('{value}' AS {self.type})" for value in shown)


KINDS = [
    *(Kind(name, low, high) for name, (low, high) in INTEGERS.items()),
    *(Kind(f"DECIMAL({width},{scale})", 1 - 10**width, 10**width - 1, scale) for width, scale in DECIMALS),
    *(Kind(name, sort="real") for name in REALS),
    Kind("DATE", sort="day"), Kind("TIMESTAMP", sort="moment"), Kind("TIMESTAMPTZ", sort="moment"),
    Kind("BOOLEAN", sort="truth"), Kind("VARCHAR", sort="text"),
]  # fmt: skip


@dataclass
class Draw:
    """One choice of bounds and expressions over a column ``v`` of a kind; a ``wide`` domain has many values."""

    kind: Kind
    rng: random.Random
    declared: str = ""
    low: int = 0
    high: int = 0
    wide: bool = False

    def __post_init__(self) -> None:
        kind, rng = self.kind, self.rng
        if kind.sort == "number":
            least, most = max(kind.low, -FARTHEST), min(kind.high, FARTHEST)
            self.low, self.high = rng.choice(
                [(most - 3, most), (least, least + 3), (least, most), (max(0, least), most)]
            )
            self.wide = self.high - self.low > 30
            low, high = kind.shown(self.low), kind.shown(self.high)
            step = f", step = {kind.shown(1)}" if kind.scale > 1 else ""
            self.declared = f"{{ lower = {low}, upper = {high}{step} }}"
            if rng.random() < 0.1:
                self.declared, self.wide = f"{{ values = [{low}, {high}], other = true }}", False
        elif kind.sort == "real":
            self.declared = rng.choice(["{ lower = 0.0, upper = 2.5, step = 0.5 }", "{ lower = 120.0, upper = 127.5 }",
                                        "{ lower = -9e29, upper = 9e29 }"])  # fmt: skip
        elif kind.sort in ("day", "moment"):
            low, high = rng.choice([("0001-01-01", "0001-01-09"), ("9999-12-20", "9999-12-31"),
                                    ("2020-02-25", "2020-03-02")])  # fmt: skip
            ends = {"day": "", "moment": "T00:00:00"}[kind.sort] + ("Z" if kind.type.endswith("TZ") else "")
            self.declared = f"{{ lower = {low}{ends}, upper = {high}{ends} }}"
        elif kind.sort == "text":
            self.declared = rng.choice(
                ['{ values = ["a", "b", "\U0010ffff"], other = true }', '{ values = ["", "a"] }']
            )
        else:
            self.declared = rng.choice(["{ values = [true, false] }", "{}"])

    def constant(self) -> str:
        """A constant about the ends of the type and of what is declared, inside and outside of it."""
        kind, rng = self.kind, self.rng
        if kind.sort == "number":
            ends = (kind.low, kind.high, self.low, self.high, 0)
            return kind.shown(rng.choice(ends) + rng.randrange(-1, 2)) + rng.choice(["", "5"] if kind.scale else [""])
        if kind.sort in ("day", "moment"):
            day = rng.choice(["0001-01-01", "0001-01-03", "9999-12-31", "2020-02-29"])
            return (
                f"DATE '{day}'" if kind.sort == "day" else f"{kind.type} '{day} 00:00:00{'+00' * ('TZ' in kind.type)}'"
            )
        return rng.choice({"real": ["0", "0.5", "127", "3.5e38", "1e300", "-1e-40", "2.5"], "truth": ["TRUE", "FALSE"],
                           "text": ["'a'", "''", "'\U0010ffff'", "'zz'"]}[kind.sort])  # fmt: skip

    def test(self) -> str:
        """A condition on ``v``."""
        c, rng = self.constant, self.rng
        compared = f"v {rng.choice(COMPARISONS)} {c()}"
        return rng.choice([compared, f"v BETWEEN {c()} AND {c()}", "v IS NULL", f"v IN ({c()}, {c()})"])

    def value(self) -> str:
        """An expression of ``v`` that is no condition; of a wide domain one with few values."""
        own = [f"CASE WHEN v >= {self.constant()} THEN 1 WHEN v < {self.constant()} THEN 2 END"]
        return self.rng.choice([*getattr(self, f"_of_{self.kind.sort}")(), *(["v"] if not self.wide else own)])

    def expression(self) -> str:
        """A value, or a condition."""
        return self.value() if self.rng.random() < 0.75 else self.test()

    def condition(self) -> str:
        """A comparison of an expression with a constant of its type."""
        compared, rng, kind = self.rng.choice(COMPARISONS), self.rng, self.kind
        if rng.random() < 0.2:
            return f"({self.test()}) {compared} {rng.choice(['TRUE', 'FALSE'])}"
        value = self.value()
        dated = kind.sort in ("day", "moment")
        if _TRUTHS.match(value):
            return f"({value}) {compared} {rng.choice(['TRUE', 'FALSE'])}"
        if dated and _NUMBERS.match(value):
            return f"({value}) {compared} {rng.choice([0, 1, 12, 97, 100, 2020, 9999, 10_000])}"
        constant = {"truth": "TRUE", "text": "'a'"}.get(kind.sort) or self.constant()
        if _TEXTS.match(value):
            constant = "'9'"
        if "CASE" in value or (kind.sort in ("text", "truth") and _NUMBERS.match(value)):
            constant = "1"
        return f"({value}) {compared} {constant}"

    def counts(self) -> str:
        """Several conditions, each of which counts as a statement; the first stands in the first line."""
        return ",\n".join(f"COUNT(*) FILTER (WHERE {self.condition()}) AS n{at}" for at in range(TOGETHER))

    def _of_number(self) -> list[str]:
        rng, c, scale = self.rng, self.constant, self.kind.scale
        parts = max(1, (self.high - self.low) // 10**scale // rng.choice([1, 2, 3, 5])) if self.wide else 1
        digits = max(0, len(str(self.high // 10**scale)) - 1) if self.wide else rng.choice([0, 0, 1])
        inner = rng.choice(["v", "v", "(-v)", "(v * 2)", "(v + 1)", "(v - 1)", "abs(v)", "(v * -1)"])
        if self.kind.high > FARTHEST and rng.random() < 0.9:  # most arithmetic takes more than 128 bits
            inner = "v"
        few = [f"{inner} / {parts}" if not self.wide else "sign(v)", f"sign({inner})", f"floor(v / {parts}) + {c()}"]
        if not scale:
            few += [f"{inner} // {parts}", f"-(v // {parts})", f"v // -{parts}"]
        few += [f"{name}({inner} / {parts})" for name in ("floor", "ceil", "round", "trunc")]
        few += [f"round({inner}, -{digits})" if digits <= 15 else "v IS NULL", f"{inner} % {rng.choice([2, 3, 7])}"]
        few += [f"{rng.choice(['CAST', 'TRY_CAST'])}({inner} / {parts} AS {rng.choice(CASTS)})"]
        few += [f"width_bucket(v, {self.kind.shown(self.low)}, {self.kind.shown(self.high)}, 5)"]
        few += [f"CAST(v > {c()} AS INTEGER)"]
        if self.wide:
            return few
        more = [
            inner,
            f"greatest(v, {c()})",
            f"least(v, {c()})",
            f"nullif(v, {c()})",
            "coalesce(v, 0)",
            "v + v",
            "v - v",
        ]
        more += [f"{name}({inner})" for name in ("floor", "ceil", "round", "trunc")]
        more += [f"round(v, {scale - 1 if scale else -1})", f"v + {c()}", f"v - {c()}", f"IF(v > {c()}, v, {c()})"]
        more += [f"{rng.choice(['CAST', 'TRY_CAST'])}({inner} AS {rng.choice(CASTS)})", "v * v"]
        return [*few, *more, *(["v // v"] if not scale else [])]

    def _of_real(self) -> list[str]:
        rng = self.rng
        v = "v" if self.kind.type == "DOUBLE" or rng.random() < 0.1 else "CAST(v AS DOUBLE)"
        part = rng.choice(["1", "10", "1e38", "1e308"])
        found = [f"{name}({v} / {part})" for name in ("floor", "ceil", "round", "trunc")]
        found += [f"round({v}, {rng.choice([0, 1, -1, -15])})", f"CAST({v} AS {rng.choice(CASTS)})", f"sign({v})"]
        low, high = rng.choice([("0", "0.5"), ("-1e-40", "127"), ("2.5", "3.5e38"), ("0", "1e300")])
        found += [f"TRY_CAST({v} AS {rng.choice(CASTS)})", f"width_bucket({v}, {low}, {high}, 5)"]
        return [*found, f"abs({v})", f"-{v}"]

    def _of_day(self) -> list[str]:
        rng, c = self.rng, self.constant
        v = "CAST(v AS TIMESTAMP)" if self.kind.type == "TIMESTAMPTZ" else "v"
        unit = rng.choice(["day", "week", "month", "quarter", "year", "decade", "century", "day"])
        found = [f"{name}({v})" for name in ("year", "month", "week", "dayofweek", "last_day", "isoyear", "century")]
        found += [f"date_trunc('{unit}', {v})", f"date_part('{unit}', {v})", f"date_diff('{unit}', {c()}, v)"]
        found += [
            f"{v} {rng.choice('+-')} INTERVAL {rng.choice([1, 40])} {rng.choice(['DAY', 'MONTH'])}",
            f"strftime({v}, '%Y')",
        ]
        found += [f"date_sub('{unit}', {c()}, v)", f"CAST(v AS {rng.choice(['DATE', 'TIMESTAMP', 'VARCHAR'])})"]
        found += [f"greatest(v, {c()})"] if v == "v" else []
        return [*found, f"time_bucket(INTERVAL 1 MONTH, {v})", f"year({v}) // 1000", f"date_trunc('millennium', {v})"]

    _of_moment = _of_day

    def _of_truth(self) -> list[str]:
        return [
            "NOT v",
            "CAST(v AS TINYINT)",
            "v <= TRUE",
            "v > TRUE",
            "v < FALSE",
            "v IS NOT TRUE",
            "coalesce(v, TRUE)",
        ]

    def _of_text(self) -> list[str]:
        return ["v LIKE 'a%'", "v LIKE '\U0010ffff%'", "upper(v)", "length(v) // 2", "TRY_CAST(v AS TINYINT)",
                "left(v, 1)", "starts_with(v, '\U0010ffff')"]  # fmt: skip

    def statement(self, use: str) -> tuple[str, str]:
        """SQL, and the policy that it is asked under."""
        c, t, compared = self.constant, self.kind.table, self.rng.choice(COMPARISONS)
        e, f = (self.value(), self.value()) if use in ("quantile", "two sides", "lag") else (self.expression(), "")
        if use in ("keys", "sum", "case"):
            f = self.expression()
        held = "CAST(v AS TIMESTAMP)" if self.kind.type == "TIMESTAMPTZ" else "v"
        sql = {
            "key": f"SELECT {e} AS g, COUNT(*) AS n FROM {t} GROUP BY g",
            "keys": f"SELECT {e} AS g, {f} AS h, COUNT(*) AS n FROM {t} GROUP BY g, h",
            "quantile": f"SELECT MEDIAN({e}) AS m FROM {t}",
            "limit": f"SELECT COUNT(*) AS n FROM {t}",
            "sum": f"SELECT SUM({e}) AS s, COUNT({f}) AS n FROM {t}",
            "where": f"SELECT {self.counts() if use == 'where' else ''}\nFROM {t}",
            "two sides": f"SELECT COUNT(*) AS n FROM {t} WHERE ({e}) {compared} ({f})",
            "case": f"SELECT SUM(CASE WHEN {self.condition() if use == 'case' else ''} THEN {f} END) AS s FROM {t}",
            "distinct": f"SELECT COUNT(DISTINCT {e}) AS n FROM {t}",
            "per unit": f"SELECT {e} AS g, COUNT(*) AS n FROM (SELECT u, {self.rng.choice(['MAX', 'MIN'])}(v) AS v FROM"
            f" {t} GROUP BY u) GROUP BY g",
            "exists": f"SELECT COUNT(*) AS n FROM {t} AS a WHERE EXISTS (SELECT 1 FROM {t} AS b WHERE b.u = a.u AND"
            f" b.v > a.v AND b.v {compared} {c()})",
            "lag": f"SELECT COUNT(*) AS n FROM (SELECT {e} AS e, LAG({held}) OVER (PARTITION BY u ORDER BY {held}) AS v"
            f" FROM {t}) WHERE {f} {compared} e",
        }[use]
        limits = (
            f"at_most = [{{ {self.rng.choice(['rows', 'groups'])} = 1, per = '''{e}''' }}]\n" if use == "limit" else ""
        )
        unit = (
            'unit = "u"\nmax_rows_per_unit = 3\n' if use in ("limit", "per unit", "exists", "lag") else 'unit = "row"\n'
        )
        columns = f"[tables.{t}.columns]\nu = {{}}\nv = {self.declared}\n"
        return sql, f"{HEADER}[tables.{t}]\n{unit}{limits}{columns}"


TOGETHER = 12
"""Conditions that share a statement: to read one with the policy takes a millisecond, each by itself three."""
MIX = {"where": 8, "key": 8, "limit": 5, "quantile": 1, "distinct": 6, "two sides": 3, "per unit": 3, "exists": 2,
       "sum": 2, "case": 2, "keys": 2, "lag": 1}  # fmt: skip
"""How often each use comes."""
FEW = {"where": 12, "key": 7, "limit": 3, "quantile": 1}


@functools.cache
def world() -> HeldEngine:
    """A table for each type, of rows at its ends, two of a unit."""
    con = duckdb.connect(config={"threads": 1})
    for kind in KINDS:
        rows = ", ".join(f"({number // 2}, {value})" for number, value in enumerate(kind.rows))
        con.execute(f"CREATE TABLE {kind.table} (u INTEGER, v {kind.type})")
        con.execute(f"INSERT INTO {kind.table} VALUES {rows}, (0, NULL), (NULL, NULL)")
    return HeldEngine(con)


@functools.cache
def schema(table: str) -> dict[str, dict[str, str]]:
    return world().schemas([TableSource(table)])


@functools.lru_cache(1024)  # as many as there are bounds without limits
def known(policy: str) -> tuple[Policy, dict[str, Known]]:
    held = Policy.parse(policy)
    (table,) = held.tables
    return held, {table: table_of(held.tables[table], schema(table)[table])}


def scans(sql: str, policy: str) -> list[Scan]:
    """The scans of a batch. Raises as a plan does."""
    held, tables = known(policy)
    found = understood(sql, held, tables)
    layouts, _, _ = compile_rows(found.queries, found.tables)
    return [reading.scan(sources_of(held)) for reading in scans_of(layouts, keeps=True)]


def admitted_scans(sql: str, policy: str) -> tuple[list[Scan], int]:
    """The scans of what is admitted of a statement, and of how many of its lines; FROM may stand in the last one."""
    *lines, last = sql.split("\n")
    while lines or last:
        try:
            return scans("\n".join([*lines, last]), policy), max(1, len(lines))
        except (SQLError, PolicyError, NotSupportedError) as error:
            refused = getattr(error, "line", None)
            if len(lines) < 2 or refused is None:
                break
            del lines[min(refused, len(lines)) - 1]
            lines = [lines[0].removeprefix("SELECT ").removesuffix(",")] + [
                line.removesuffix(",") for line in lines[1:]
            ]
            lines = [
                "SELECT " + lines[0] + "," * (len(lines) > 1),
                *(f"{line}," for line in lines[1:-1]),
                *lines[1:][-1:],
            ]
    return [], 0


def statements(seed: int, mix: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """SQL and policy of each use of each kind, in any order; most of them are admitted."""
    rng = random.Random(seed)
    cases = list(itertools.product([use for use, times in mix.items() for _ in range(times)], KINDS))
    rng.shuffle(cases)
    for use, kind in itertools.cycle(cases):
        yield Draw(kind, rng).statement(use)


def check(count: int, seed: int, mix: Mapping[str, int], rehearsed: int) -> None:
    """``count`` admitted statements scan all rows, so that none of these fails; each ``rehearsed``-th is rehearsed."""
    admitted = 0
    for sql, policy in itertools.islice(statements(seed, mix), 4 * count):
        asked, lines = admitted_scans(sql, policy)
        before, admitted = admitted, admitted + lines
        for scan in asked:
            tables = {table.name: table.name for table in scan.tables}
            try:
                world().connection.execute(select_text(scan.select, tables)).fetchall()
            except duckdb.Error as error:
                pytest.fail(f"{sql}\n{policy}\n{error}")
            if before // rehearsed != admitted // rehearsed:
                assert passes_rehearsal(scan, schema(scan.tables[0].name)), f"{sql}\n{policy}"
        if admitted >= count:
            return
    pytest.fail(f"{admitted} statements were admitted")


@pytest.fixture
def combined(monkeypatch: pytest.MonkeyPatch) -> None:
    """All combinations of regions are counted: to find those that no row is in takes longer than all else here."""
    monkeypatch.setattr(cells_of_a_row, "related", lambda *_: ())


def test_no_row_at_the_end_of_a_type_makes_a_scan_fail(combined: None) -> None:
    check(200, 1, FEW, rehearsed=25)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_nor_does_one_of_twenty_thousand_statements(combined: None, seed: int) -> None:
    check(1_000, 100 + seed, MIX, rehearsed=20)


# -- each of three layers by itself ----------------------------------------------------------------

EVE = "SELECT floor(m) AS g, COUNT(*) AS n FROM (SELECT name, MAX(v) AS m FROM t GROUP BY name) GROUP BY g"
AT_THE_END = (
    HEADER
    + """[tables.t]
unit = "name"
max_rows_per_unit = 2
[tables.t.columns]
name = {}
v = { lower = 0, upper = 999.9, step = 0.1 }
"""
)


@pytest.fixture
def eve(tmp_path: Path) -> dpsql.Connection:
    """A connection whose one row has the largest value of its type."""
    con = duckdb.connect()
    con.execute("CREATE TABLE t (name VARCHAR, v DECIMAL(4,1)); INSERT INTO t VALUES ('eve', 999.9)")
    return dpsql.connect(con, policy=Policy.parse(AT_THE_END), ledger=tmp_path / "ledger")


def unclipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Line, "inside", lambda _, cuts: (0, len(cuts)))


@pytest.mark.long
def test_a_row_at_the_end_is_counted(eve: dpsql.Connection) -> None:
    con = eve._holdings.attachable
    found = exact("SELECT floor(v) AS g, COUNT(*) AS n FROM t GROUP BY g", Policy.parse(AT_THE_END), con)
    assert {row[0][1]: row[1] for row in found.rows(0) if row[1]} == {999: 1}
    eve.run(EVE, epsilon=1e-6)


def test_printers_refuse_a_constant_outside_its_type(eve: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    unclipped(monkeypatch)
    with pytest.raises(InternalError, match=r"10000 as a constant of DECIMAL\(4,1\)"):
        eve.run(EVE, epsilon=1e-6)
    assert eve.budget.spent == 0


def test_the_rehearsal_evaluates_every_constant(eve: dpsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    unclipped(monkeypatch)
    monkeypatch.setattr(total, "_check_in_range", lambda _: None)
    monkeypatch.setattr(rehearsal, "_fill", lambda *_: None)  # no generated rows but NULL
    with pytest.raises(InternalError, match="generated rows"):
        eve.run(EVE, epsilon=1e-6)
    assert eve.budget.spent == 0


def test_the_rehearsal_runs_over_a_row_in_each_region() -> None:
    """``error`` stands where neither NULL nor an end of the type leads: the value is computed of these."""
    line = line_of("INTEGER")
    axis = line_axis("w", line, [LineAtom("w", (((3, 0), (5, 0)),))]).axis
    assert isinstance(axis, LineAxis)
    once = read_once(
        tree.bare("+", tree.Stored("v", "TINYINT"), tree.Constant(200, "INTEGER"), type="INTEGER"), line, "c0"
    )
    number = region(axis, {"w": tree.Stored("c0", "INTEGER", VALUES)})
    for found in range(axis.size):
        fails = when(
            tree.Compared(number, "=", tree.whole(found)), tree.bare("error", tree.Constant("!", "VARCHAR")), number
        )
        select = Select((("a0", tree.Cast(fails, "INTEGER", bare=True)),), values_of([once], Table("t")))
        asked = Scan("t", (TableSource("t"),), select, ((("c0",), axis),))
        assert not passes_rehearsal(asked, {"t": {"v": "TINYINT"}}), found


def test_spark_refuses_such_a_constant_too() -> None:
    for node in (
        tree.Constant(10_000, "DECIMAL(4,1)"),
        tree.Constant(2**31, "DATE"),
        tree.Numbers((1, 128), "TINYINT"),
    ):
        with pytest.raises(InternalError, match="as a constant of"):
            Writer(Scope({})).value(node)


@pytest.mark.parametrize("kind", [kind.type for kind in KINDS])
def test_a_representative_lies_in_every_region(kind: str) -> None:
    line, rng = line_of(kind), random.Random(1)
    ends = [end for end in line.ends if end is not None]
    for _ in range(20):
        if line.kind == "text":
            values: list[object] = rng.sample(["", "a", "a\0", "b", "é"], 3)
        elif line.kind == "real":
            values = [rng.choice([-inf, -1.0, 0.0, 5e-324, 1e308, inf]) for _ in range(3)]
        else:
            values = [rng.choice([*ends, 0, 1]) + rng.randrange(-2, 3) for _ in range(3)]
        cuts = sorted({(value, 0 if line.discrete else rng.randrange(2)) for value in values})
        truths = line_axis("v", line, [LineAtom("v", ((cut, None),)) for cut in cuts])
        axis = truths.axis
        assert isinstance(axis, LineAxis)
        found = {int(axis.pieces[bisect_right(axis.cuts, (value, 0))]) for (value,) in representatives(axis)}
        # Nothing is below the empty text or minus infinity, or between a text and the same with a zero after it.
        empty = {((None, ("", 0))), ((None, (-inf, 0))), ((("a", 1), ("a\0", 0))), (((0.0, 1), (5e-324, 0)))}
        empty |= {((inf, 1), None)}
        pieces = dict(zip(pairwise([None, *axis.cuts, None]), axis.pieces.tolist(), strict=True))
        assert found >= {region for ends, region in pieces.items() if ends not in empty} - (
            {0} if not axis.cuts else set()
        )


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP"])
@pytest.mark.parametrize(
    ("bounds", "expression", "left"),
    [
        ("0001-01-01 0001-03-31", "v - INTERVAL 1 MONTH", "v >= '0001-02-01'"),
        ("9999-11-01 9999-12-31", "date_trunc('month', v + INTERVAL 1 MONTH)", "v < '9999-12-01'"),
        ("0001-01-01 0012-12-31", "time_bucket(INTERVAL 10 YEAR, v)", "v >= '0010-01-01'"),
        ("0001-01-01 0012-12-31", "date_trunc('decade', v)", "v >= '0010-01-01'"),
        ("0001-01-01 0003-12-31", "last_day(v) - INTERVAL 1 YEAR", "v >= '0002-02-01'"),
    ],
)
@pytest.mark.few(every=3)
def test_groups_beyond_the_calendar_are_refused_and_those_within_are_counted(
    kind: str, bounds: str, expression: str, left: str
) -> None:
    low, high = bounds.split()
    time = "T00:00:00" if kind == "TIMESTAMP" else ""
    unit = 'unit = "u"\nmax_rows_per_unit = 3\n'
    policy = f"{HEADER}[tables.t_{kind.lower()}]\n{unit}[tables.t_{kind.lower()}.columns]\nu = {{}}\n"
    policy += f"v = {{ lower = {low}{time}, upper = {high}{time} }}\n"
    if kind == "TIMESTAMP":  # of which only few groups are public
        expression = f"date_trunc('day', {expression})"
    sql = f"SELECT {expression} AS g, COUNT(*) AS n FROM t_{kind.lower()} {{}} GROUP BY g"
    with pytest.raises(SQLError, match="outside of the years 1 to 9999") as refused:
        scans(sql.format(""), policy)
    assert refused.value.line == 1
    assert scans(sql.format(f"WHERE {left}"), policy)
    limited = policy.replace(unit, f"{unit}at_most = [{{ groups = 1, per = '''{expression}''' }}]\n")
    with pytest.raises((SQLError, PolicyError), match="outside of the years 1 to 9999"):
        scans(f"SELECT COUNT(*) AS n FROM t_{kind.lower()}", limited)
