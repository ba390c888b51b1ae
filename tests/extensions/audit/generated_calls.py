"""Generated calls of every public entry point: wrong types, extreme numbers, odd texts, SQL of odd pieces.

``Calls(folder, seed)`` makes and runs them one by one. Each argument is what the entry point takes, or, about half
the time, anything at all. A call may do its work or raise a ``dpsql.Error``, the command line end with a code that it
documents; whatever else is raised is a fault. Missing and unknown keywords are Python's own TypeErrors, and not tried.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import dpsql
from dpsql import bounds, strategy, workload
from dpsql.surfaces.cli import main

POLICY = """
dataset = "calls"
[budget]
epsilon = 1000000.0
delta = 1e-6
pure_epsilon = 500000.0
local_epsilon = 1000.0
[tables.t]
unit = "row"
expected_rows = 50
rows_public = true
[tables.t.columns]
age = { lower = 0, upper = 6 }
sex = { values = ["F", "M"] }
x = { lower = -2.0, upper = 2.0, step = 0.5 }
day = { lower = 2020-01-01, upper = 2020-02-01 }
name = {}
"""

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 2**31, 2**63, -(10**40), 10**400, 10**5000),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"), 1j),
    *(Decimal("0.1"), Decimal("NaN"), Decimal("sNaN"), Decimal("Infinity"), Decimal("1e-400"), Decimal("1e999999")),
    *(Fraction(1, 3), Fraction(-1, 10**50), np.float64("nan"), np.float32(0.1), np.int64(5), np.bool_(True)),
    *(
        "",
        " ",
        "q1",
        "t",
        "0.1",
        "nan",
        "inf",
        "1e999",
        "\x00",
        "'",
        '"',
        "a;b",
        "\ud800",
        "x" * 5000,
        "--",
        "/*",
        "%s",
    ),
    *(
        b"q1",
        bytearray(b"\x00"),
        [],
        [1],
        ["q1"],
        [None],
        [[]],
        (),
        (1, 2),
        {},
        {"q1": 1},
        {1: 2},
        {"q1": float("nan")},
    ),
    *({"q1": "x"}, set(), {1}, object(), int, lambda: None, range(3), ..., NotImplemented),
    *(
        dt.date(2020, 1, 1),
        dt.datetime.max,
        dt.timedelta(days=1),
        Path("nowhere"),
        Path(),
        Path("/"),
        Path("\0"),
        np.timedelta64(1),
    ),
    *(
        np.array([]),
        np.array([[1.0]]),
        np.array([[np.nan]]),
        np.array(["a"]),
        np.zeros((2, 0)),
        np.array([[1e308, -1e308]]),
    ),
)

CONSTANTS = (
    *("0", "1", "-1", "2.5", "1e308", "(1e308*10)", "(1e308*10 - 1e308*10)", "1e-320", "NULL", "TRUE", "'a'", "''"),
    *(
        "DATE '2020-01-05'",
        "DATE '9999-12-31'",
        "INTERVAL 1 DAY",
        "9" * 60,
        "*".join(["9" * 60] * 9),
        "1" * 5000,
        "1e400",
    ),
    *("-0.0", "170141183460469231731687303715884105727", "0.1e-3", "'\u00e9'", "TIMESTAMP '2020-01-01 00:00:00'"),
)
COLUMNS = ("age", "sex", "x", "day", "name", "nosuch", "t.age", '"age"')


class Words:
    """SQL by a grammar, of pieces that are odd here and there."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def one(self, *of: str) -> str:
        return self.draw.choice(of)

    def value(self, depth: int = 0) -> str:
        if depth > 2 or self.draw.random() < 0.45:
            return self.one(*COLUMNS[:5]) if self.draw.random() < 0.6 else self.one(*CONSTANTS, *COLUMNS)
        a, b, c = (self.value(depth + 1) for _ in range(3))
        operator = self.one("+", "-", "*", "/", "//", "%", "||", "**")
        call = self.one(
            *(
                "abs({a})",
                "floor({a})",
                "round({a}, {b})",
                "coalesce({a}, {b})",
                "nullif({a}, {b})",
                "greatest({a}, {b})",
            ),
            *("CASE WHEN {p} THEN {a} ELSE {b} END", "width_bucket({a}, {b}, {c}, 5)", "TRY_CAST({a} AS INTEGER)"),
            *("CAST({a} AS DOUBLE)", "month({a})", "date_trunc('month', {a})", "length({a})", "substr({a}, {b}, {c})"),
            *(
                "sqrt({a})",
                "ln({a})",
                "({a})",
                "-{a}",
                "CAST({a} AS VARCHAR)",
                "power({a}, {b})",
                "date_diff('day', {a}, {b})",
            ),
        )
        found = call.format(a=a, b=b, c=c, p=self.condition(depth + 1))
        return found if self.draw.random() < 0.6 else f"({a} {operator} {b})"

    def condition(self, depth: int = 0) -> str:
        a, b, c = (self.value(depth + 1) for _ in range(3))
        if depth < 2 and self.draw.random() < 0.3:
            return f"({self.condition(depth + 1)} {self.one('AND', 'OR')} {self.condition(depth + 1)})"
        made = self.one(
            *("{a} {o} {b}", "{a} BETWEEN {b} AND {c}", "{a} IN ({b}, {c})", "{a} IS NULL", "NOT ({a} {o} {b})"),
            *("{a} LIKE {b}", "{a} IS DISTINCT FROM {b}", "{a}", "starts_with({a}, {b})", "{a} IN ()"),
        )
        return made.format(a=a, b=b, c=c, o=self.one("<", "<=", "=", "<>", ">"))

    def aggregate(self) -> str:
        made = self.one(
            *(
                "count(*)",
                "count({v})",
                "sum({v})",
                "avg({v})",
                "count_if({p})",
                "sum({v}) FILTER (WHERE {p})",
                "median({v})",
            ),
            *(
                "var_samp({v})",
                "quantile_cont({v}, {k})",
                "min({v})",
                "count(*) * {k}",
                "sum({v}) / {k}",
                "{k} - count(*)",
            ),
            *(
                "sum({v}) / count(*)",
                "count(DISTINCT {v})",
                "sqrt(count(*))",
                "sum({v}) * sum({v})",
                "round(count(*), {k})",
            ),
        )
        column = self.one("x", "age") if self.draw.random() < 0.6 else self.value(1)
        return made.format(v=column, p=self.condition(1), k=self.one(*CONSTANTS))

    def select(self) -> str:
        hint = self.one(*[""] * 8, "/*+ WEIGHT({k}) */ ", "/*+ MAX_ERROR({k}) */ ", "/*+ NOSUCH */ ").format(
            k=self.one(*CONSTANTS)
        )
        options = self.one(*[""] * 12, "WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = {k}) ").format(
            k=self.one(*CONSTANTS)
        )
        items = [self.aggregate() + self.one("", " AS n", ' AS "n;"') for _ in range(self.draw.choice((1, 1, 2)))]
        text = ""
        if self.draw.random() < 0.5:
            key = self.one("sex", "age", "age // 5", "dp_ranges(age)", "dp_prefixes(age)", self.value(1))
            items.insert(0, f"{key} AS k")
            text = f" GROUP BY {self.one('k', '1', 'ALL', key, 'ROLLUP (k)', 'dp_marginals(1, sex, age)')}"
            text += self.one("", "", f" HAVING {self.aggregate()} > {self.one(*CONSTANTS)}")
            text += self.one(
                "",
                "",
                f" ORDER BY {self.one('1', 'n', '1e3', self.value(2))}",
                " LIMIT 2",
                f" LIMIT {self.one(*CONSTANTS)}",
            )
        where = f" WHERE {self.condition()}" if self.draw.random() < 0.5 else ""
        source = self.one(*["t"] * 9, "nosuch", "(SELECT * FROM t) u")
        return f"SELECT {hint}{options}{', '.join(items)} FROM {source}{where}{text}"

    def batch(self) -> str:
        found = self.select()
        if self.draw.random() < 0.15:
            found = (
                self.one("CREATE OR REPLACE VIEW v AS ", "WITH w AS (SELECT * FROM t) ", "EXPLAIN ", "DELETE FROM t; ")
                + found
            )
        if self.draw.random() < 0.1:
            found += self.one(";", "; " + self.select(), " --", " UNION ALL SELECT 1", "'", ")")
        if self.draw.random() < 0.1:
            cut = sorted(self.draw.randrange(len(found) + 1) for _ in range(2))
            found = found[: cut[0]] + found[cut[1] :]
        return found


class Calls:
    """Calls of one world, in the order that ``seed`` gives."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.words = Words(self.draw)
        self.folder = folder
        # Most calls are of a connection to tables in memory: opening the file for each of them took 40 % of the time.
        # The command line and ``connect`` have the file.
        self.private = duckdb.connect()
        self.private.execute(
            "CREATE TABLE t AS SELECT i % 7 AS age, ['F', 'M'][i % 2 + 1] AS sex, i % 10 - 4.5::DOUBLE AS x, "
            "DATE '2020-01-01' + i::INTEGER AS day, 'n' || i AS name FROM range(30) r(i)"
        )
        self.private.execute(f"ATTACH '{folder / 't.duckdb'}' AS made; CREATE TABLE made.t AS FROM t; DETACH made")
        (folder / "t.toml").write_text(POLICY)
        self.con = self.connect()
        self.plan = self.con.plan("SELECT sex, count(*) AS n, sum(x) AS s FROM t GROUP BY sex", epsilon=1)
        self.release = self.con.run(self.plan)
        self.synthetic = self.con.synthesize("t", ["sex"], 1)
        self.policy = dpsql.Policy.load(folder / "t.toml")
        self.W, self.cube = workload.all_range(4), workload.marginals([2, 3], order=1)

    def connect(self) -> dpsql.Connection:
        # With the anchor that generated connections may name: a ledger that was held to one needs it from then on.
        return dpsql.connect(self.private, policy=self.folder / "t.toml", anchor=self.folder / "a")

    # -- arguments ------------------------------------------------------------------------------------

    def odd(self) -> Any:
        # An iterator is used up by the first call, so that each gets its own.
        return iter([1]) if self.draw.random() < 0.02 else self.draw.choice(ODD)

    def given(self, *usual: Any, odd: float = 0.4) -> Any:
        return self.odd() if self.draw.random() < odd else self.draw.choice(usual)

    def some(self, **every: tuple[Any, ...]) -> dict[str, Any]:
        """Some of these keywords, each with a value that fits or an odd one."""
        return {name: self.given(*usual) for name, usual in every.items() if self.draw.random() < 0.3}

    def sql(self) -> Any:
        return self.words.batch() if self.draw.random() < 0.9 else self.odd()

    def budget(self) -> dict[str, Any]:
        if self.draw.random() < 0.7:
            return self.draw.choice(({"epsilon": 1}, {"epsilon": 0.1, "delta": 1e-9}, {"epsilon": 100}, {"rho": 0.1}))
        return self.some(epsilon=(1, "0.5"), delta=(1e-9,), rho=(0.1,))

    def planning(self) -> dict[str, Any]:
        return self.some(
            alpha=(0.05, 0.5),
            tolerance=(0.01, 1),
            time_limit=(1, 0.01),
            progress=(None,),
            objective=("total", "max"),
            simultaneous=(True,),
            earlier=(False,),
            method=("auto", "mwem"),
            rounds=(None, 2),
            expected=({"q1": 10},),
        )

    # -- entry points ---------------------------------------------------------------------------------

    def call(self) -> tuple[str, Callable[[], Any]]:
        """The name of the next entry point with its arguments, and the call."""
        kinds = (self.of_plans, self.of_plans, self.of_plans, self.of_connections, self.of_results, self.of_cursors)
        kinds += (self.of_workloads, self.of_workloads, self.of_policies, self.of_commands)
        return self.draw.choice(kinds)()

    def _made(
        self, name: str, function: Callable[..., Any], /, *args: Any, **options: Any
    ) -> tuple[str, Callable[[], Any]]:
        said = [_said(a) for a in args] + [f"{key}={_said(value)}" for key, value in options.items()]
        return f"{name}({', '.join(said)})", lambda: _used(function(*args, **options))

    def of_plans(self) -> tuple[str, Callable[[], Any]]:
        con, kind = self.con, self.draw.random()
        if kind < 0.5:
            return self._made(
                "con.plan", con.plan, self.sql(), **self.budget(), **(self.planning() if kind < 0.1 else {})
            )
        if kind < 0.62:
            options = self.some(relative=(0.5,), measure=("rho", "epsilon"), delta=(1e-9,)) | self.planning()
            for name in ("method", "rounds"):
                options.pop(name, None)
            return self._made("con.budget_for", con.budget_for, self.sql(), self.given(5, 50), **options)
        if kind < 0.75:
            more = self.some(
                fresh=(True,), errors=(False,), estimates=("nonnegative", "whole"), label=("a",), lower_at_zero=(True,)
            )
            batch = self.sql() if self.draw.random() < 0.8 else self.plan
            return self._made("con.run", con.run, batch, **({} if batch is self.plan else self.budget()), **more)
        if kind < 0.8:
            return self._made(
                "con.workload",
                con.workload,
                self.given("ranges(age)", "marginals(1, sex)", ["prefixes(age)"]),
                **self.some(table=("t",)),
            )
        if kind < 0.83:
            return self._made(
                "con.release_workload",
                con.release_workload,
                self.given("ranges(age)", "marginals(1, sex, age)"),
                **self.budget(),
            )
        method = self.draw.choice(
            ("curve", "marginal_costs", "suggestions", "what_if", "explain", "rows", "df", "after", "mean_square")
        )
        arguments = {
            "curve": [self.given(3, 5), self.given(2.0, 8)],
            "marginal_costs": [self.given(3, 5), self.given(1.0)],
            "suggestions": [self.given(0.5)],
            "what_if": [self.given(0.5)],
            "mean_square": [slice(0, 2)],
            "after": [[0] * self.plan.strategy.shape[0]],
        }
        return self._made(f"plan.{method}", getattr(self.plan, method), *arguments.get(method, []))

    def of_connections(self) -> tuple[str, Callable[[], Any]]:
        con = self.con
        name, args, options = self.draw.choice(
            (
                (
                    "sql",
                    [
                        self.given(
                            "SELECT * FROM q1", "SELECT count(*) FROM q1 WHERE n > ?", "SELECT 1e308*10", self.sql()
                        )
                    ],
                    self.some(parameters=([1],)),
                ),
                ("rename", [self.given("q1", "q2"), self.given("q3", "t")], self.some(release=(1, 2))),
                ("drop", [self.given("nosuch")], self.some(release=(99,))),
                ("renew", [self.given("other")], {}),
                ("answers_others", [self.given(1, 2)], {}),
                (
                    "synthesize",
                    [self.given("t"), self.given(["age"], ["sex", "age"]), self.given(1, 0.5)],
                    self.some(ids=(["name"],), name=("s",), label=("a",)),
                ),
                ("synthetic", [self.given("t", None)], {}),
                ("cursor", [], self.some(errors=(True,))),
                ("releases", [], {}),
                ("refine", [], {}),
                ("rebuild", [], {}),
                ("schemas", [], {}),
                ("commit", [], {}),
                ("rollback", [], {}),
            )
        )
        if self.draw.random() < 0.15:
            options = self.some(
                ledger=(self.folder / "t.ledger",),
                releases=(self.folder / "r.duckdb",),
                anchor=(self.folder / "a",),
                label=("a",),
                memory_limit=("1GB",),
                scan_timeout=(10,),
                epsilon_per_release=(0.1,),
                delta_per_release=(1e-9,),
                rho_per_release=(0.1,),
                cursor_errors=(True,),
                query_timeout=(10,),
            )
            for name in ("ledger", "releases", "anchor"):  # texts here would make files of these names
                if isinstance(options.get(name), str | bytes):
                    del options[name]
            database = self.given(self.folder / "t.duckdb", odd=0.2)
            database = None if isinstance(database, str | bytes) else database
            return self._made(
                "connect",
                dpsql.connect,
                database,
                policy=self.given(self.folder / "t.toml", self.policy, odd=0.2),
                **options,
            )
        return self._made(f"con.{name}", getattr(con, name), *args, **options)

    def of_results(self) -> tuple[str, Callable[[], Any]]:
        result = self.release["q1"]
        name, function, args = self.draw.choice(
            (
                ("release[]", self.release.__getitem__, [self.given("q1")]),
                (
                    "plan.stderr[]",
                    self.plan.stderr.__getitem__,
                    [self.draw.choice((0, -1, "nope", None, 1.5, (), b"q1"))],
                ),
                ("result.column", result.column, [self.given("n", "s")]),
                ("result.column_at", result.column_at, [self.given(0, 1)]),
                ("result.fetchmany", result.fetchmany, [self.given(1, 5)]),
                ("result.fetchall", result.fetchall, []),
                ("result.df", result.df, []),
                (
                    "synthetic.sql",
                    self.synthetic.sql,
                    [self.given(self.words.select(), "SELECT sex, count(*) FROM t GROUP BY sex", odd=0.1)],
                ),
                (
                    "synthetic.bounds",
                    self.synthetic.bounds,
                    [self.given("SELECT count(*) FROM t WHERE sex = 'F'", self.words.select(), odd=0.2)],
                ),
            )
        )
        options = self.some(estimator=("proper",), errors=(False,), alpha=(0.1,)) if name == "synthetic.sql" else {}
        return self._made(name, function, *args, **options)

    def of_cursors(self) -> tuple[str, Callable[[], Any]]:
        cursor = self.con.cursor()
        if self.draw.random() < 0.5:
            cursor.execute("SELECT * FROM releases")
        text = self.given(
            "SELECT count(*) FROM t WHERE age < ?",
            "SELECT count(*) FROM t WHERE x = $1 OR name = $2",
            "SELECT :a",
            "SELECT n FROM q1 WHERE n > ?",
            self.words.batch(),
            odd=0.1,
        )
        values = self.given([self.odd()], [self.odd(), self.odd()], {"a": self.odd()}, None, odd=0.2)
        name, args, options = self.draw.choice(
            (
                ("execute", [text, values], self.budget()),
                ("execute", [text, values], self.budget()),
                ("dry_run", [text, values], self.budget()),
                ("executemany", [text, self.given([values], [], [values, values])], self.budget()),
                ("fetchmany", [self.given(1, 3)], {}),
                ("fetchone", [], {}),
                ("fetchall", [], {}),
                ("nextset", [], {}),
                ("rows", [], {}),
                ("callproc", [self.odd(), [self.odd()]], {}),
                ("setinputsizes", [self.odd()], {}),
                ("setoutputsize", [self.odd()], {}),
            )
        )
        return self._made(f"cursor.{name}", getattr(cursor, name), *args, **options)

    def of_workloads(self) -> tuple[str, Callable[[], Any]]:
        W, n, m = self.given(self.W, self.cube, workload.identity(3), odd=0.25), self.given(3, 5), self.given(2, 4)
        two = [W, self.given(self.W, self.cube, odd=0.25)]
        matrix = self.given(np.eye(2), [[1, 0], [1, 1]], [[0.5, 1e-300]], [[1e300, 1e300]])
        name, args = self.draw.choice(
            (
                *((f"workload.{f}", [n]) for f in ("identity", "total", "prefix", "all_range", "all_predicate")),
                ("workload.all_range", [self.given([2, 3], (2, 2))]),
                ("workload.from_matrix", [matrix]),
                ("workload.from_matrix", [matrix]),
                ("workload.kron", two),
                ("workload.stack", two),
                ("workload.weighted", [W, self.given([1.0] * 10, [2])]),
                ("workload.marginals", [self.given([2, 3], [2]), self.given(1, 2)]),
                ("workload.data_cube", [self.given([2, 3])]),
                ("workload.random_ranges", [m, n, self.given(1)]),
                ("workload.wrange", [m, n, self.given(1)]),
                ("workload.wdiscrete", [m, n, self.given(1), self.given(0.1)]),
                ("workload.wrelated", [m, n, self.given(1, 2), self.given(1)]),
                ("workload.sampled_ranges", [m, n, self.given(1)]),
                ("workload.covering_ranges", [m, n, self.given(0.5), self.given(1)]),
                *((f"workload.{f}", two) for f in ("equivalent", "contained", "equal_error", "no_harder")),
                ("workload.column_projection", [W, self.given([0, 1])]),
                ("workload.nonzero_columns", [W]),
                *(
                    (
                        "strategy.select",
                        [W, self.given("gaussian", "laplace", "pure"), self.given("auto", *strategy.CATALOGUE)],
                    ),
                )
                * 4,
                *(
                    (f"bounds.{f}", [W])
                    for f in (
                        "svd_bound",
                        "svd_bound_log10",
                        "hardt_talwar_bound",
                        "bhaskara_bound",
                        "singular_value_order",
                        "geometric_order",
                        "low_rank_guarantee",
                        "looseness",
                        "is_tight",
                        "root_strategy",
                        "variable_agnostic",
                        "cube_shares",
                        "cube_strategy",
                    )
                ),
                ("bounds.svd_bound_of_gram", [matrix]),
                ("bounds.supreme_svd_bound", [W, self.given([[0, 1]], [])]),
                ("bounds.dual_bound", [W, self.given([1.0] * 4)]),
                *(
                    (f"bounds.{f}", [matrix])
                    for f in ("sensitivity", "error_profile", "column_uniform", "redundant_groups", "without_redundant")
                ),
                *((f"bounds.{f}", [matrix, matrix]) for f in ("profile_equivalent", "dominates", "compare")),
                ("bounds.range_window_bound", [n, self.given(1), self.given(2)]),
                ("bounds.supreme_range_bound", [n]),
                ("bounds.rms_accuracy", [self.given(10.0), n, self.given(0.1)]),
                ("bounds.rms_accuracy_order", [m, n, self.given(1.0), self.given(1e-6), self.given(0.1)]),
                ("bounds.accuracy_orders", [m, n, self.given(100), self.given(1.0), self.given(0.1)]),
                ("bounds.variable_agnostic_bound", [self.given(2.0), self.given(1.0), n]),
                ("bounds.variable_agnostic_strategy", [self.given(2.0), self.given(1.0), n]),
            )
        )
        room, _, function = name.partition(".")
        found = getattr({"workload": workload, "strategy": strategy, "bounds": bounds}[room], function, None)
        options = {}
        if function == "select":
            options = self.some(tolerance=(0.1,), time_limit=(0.1,), effort=(1.0,), objective=("total", "max"))
        return self._made(name, found or workload.identity, *args, **options)

    def of_policies(self) -> tuple[str, Callable[[], Any]]:
        if self.draw.random() < 0.2:
            name, args = self.draw.choice(
                (
                    ("table", [self.given("t")]),
                    ("view", [self.given("v")]),
                    ("source_path", [self.given("t")]),
                    ("to_toml", []),
                )
            )
            return self._made(f"policy.{name}", getattr(self.policy, name), *args)
        if self.draw.random() < 0.2:
            name = self.draw.choice(("parse", "load"))
            return self._made(f"Policy.{name}", getattr(dpsql.Policy, name), self.odd())
        lines = POLICY.splitlines()
        for _ in range(self.draw.choice((1, 1, 2))):
            at = self.draw.randrange(1, len(lines))
            key, sign, _ = lines[at].partition("=")
            value = self.draw.choice(
                (
                    *(
                        "nan",
                        "inf",
                        "-1",
                        "0",
                        "1e400",
                        "1" * 5000,
                        "[]",
                        "[[]]",
                        "{}",
                        '""',
                        '"row"',
                        "true",
                        "2020-01-01",
                        "1e-400",
                    ),
                    *(
                        "{ lower = nan }",
                        "{ lower = 5, upper = 1 }",
                        "{ values = [] }",
                        "{ values = [1, 'a'] }",
                        "{ lower = -1e308, upper = 1e308 }",
                    ),
                    *(
                        "{ lower = 0, upper = 1, step = 1e-300 }",
                        "{ values = ['a', 'a'] }",
                        "{ lower = '\\u0000' }",
                        "{ lower = inf, upper = inf }",
                    ),
                )
            )
            lines[at] = (
                f"{key}= {value}"
                if sign
                else self.draw.choice(("[tables.t]", "[tables]", "[budget", "[views]", "", "[tables.u]"))
            )
        return self._made("Policy.parse", dpsql.Policy.parse, "\n".join(lines))

    def of_commands(self) -> tuple[str, Callable[[], Any]]:
        folder, text = self.folder, self.words.batch() if self.draw.random() < 0.8 else "\x00'"
        number = self.draw.choice(("1", "0", "-1", "nan", "inf", "1e400", "1e-400", "x", "", "0.5", "9" * 400))
        common = ["--policy", str(folder / "t.toml"), *self.draw.choice(([], ["--json"]))]
        database = [str(folder / "t.duckdb")]
        argv = self.draw.choice(
            (
                ["plan", *database, text, *common, "--epsilon", number],
                ["plan", *database, text, *common, "--max-error", number],
                ["plan", *database, text, *common, "--epsilon", "1", "--alpha", number],
                ["run", *database, text, *common, "--epsilon", number],
                ["plan", *database, text, *common, "--rho", number, "--delta", number],
                ["budget", *common],
                ["releases", "list", *common],
                ["releases", "show", number, *common],
                ["sql", text, "--releases", str(folder / "t.releases.duckdb")],
                ["policy", "check", str(folder / "t.toml")],
                ["synthesize", *database, *common, "--columns", number, "--epsilon", number],
                [number],
                [],
                ["nosuch", number],
                ["plan"],
                ["plan", "--epsilon"],
                ["audit", *common, "--trials", number],
            )
        )
        if self.draw.random() < 0.3 and argv:
            del argv[self.draw.randrange(len(argv))]
        return f"main({argv!r})"[:900], lambda: _command(argv)


def _said(value: Any) -> str:
    try:
        return repr(value)[:300]
    except ValueError:  # Python writes out no integer of thousands of digits
        return "10**5000"


def _used(found: Any) -> Any:
    """What is done with what a call gave: a plan is read, a result taken."""
    if isinstance(found, dpsql.Plan):
        return str(found), found.rows(), found.stderr, found.half_width
    if isinstance(found, dpsql.Release):
        return [found[name].fetchall() for name in found.views], repr(found)
    return repr(found)


def _command(argv: list[str]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            code = main(argv)
        except SystemExit as stop:
            code = stop.code  # type: ignore[assignment]
    assert code in {None, 0, 1, 2}, f"exit code {code!r}"
