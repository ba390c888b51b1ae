"""Every message of docs/errors.md that stands in a table, provoked: what a user did, in a folder of its own.

Each entry is a name and a function of a ``Scene``. ``ELSEWHERE`` are messages that take a broken disk or a race, with
the test that provokes them.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from worlds import clinic

import dpsql
from dpsql import workload
from dpsql.extensions.audit.batch_audit import audit
from dpsql.extensions.reports import plots

COUNT = "SELECT COUNT(*) AS n FROM visits"
NANOSECOND = np.datetime64("2024-01-01T00:00:00.000000001", "ns")
BUDGET = {"epsilon": 0.1, "delta": 1e-9}


@dataclass
class Scene:
    """A folder with the clinic in it, and a connection."""

    folder: Path
    con: dpsql.Connection

    def again(self, change: Callable[[str], str] = lambda text: text, **options: Any) -> dpsql.Connection:
        """Connect once more, to a policy whose text is changed."""
        held = self.folder / "clinic.toml"
        held.write_text(change(held.read_text(encoding="utf-8")), encoding="utf-8")
        return dpsql.connect(self.folder / "clinic.duckdb", policy=held, **options)

    def other(self, change: Callable[[str], str]) -> dpsql.Connection:
        """A connection under a policy, and a ledger, of its own."""
        (self.folder / "other").mkdir()
        held = self.folder / "other" / "clinic.toml"
        held.write_text(change((self.folder / "clinic.toml").read_text(encoding="utf-8")), encoding="utf-8")
        return dpsql.connect(self.folder / "clinic.duckdb", policy=held)

    def execute(self, *given: Any) -> object:
        return self.con.cursor().execute(*given)

    def without_ledger(self) -> None:
        """Release something, then lose the ledger."""
        self.con.run(COUNT, **BUDGET)
        self.con.ledger_path.unlink()


def scene(folder: Path) -> Scene:
    """A clinic of its own."""
    return Scene(folder, clinic(folder))


def _pure(text: str) -> str:
    return text.replace("delta = 1e-9\n", "")


def _rho(text: str) -> str:
    return text.replace("epsilon = 4.0\ndelta = 1e-9", "rho = 0.5")


def _both(text: str) -> str:
    return text.replace("delta = 1e-9", "delta = 1e-9\npure_epsilon = 1.0")


def _capped(line: str) -> Callable[[str], str]:
    return lambda text: text.replace("[tables.patients]", f"{line}\n[tables.patients]", 1)


def _spread(bound: str) -> Callable[[str], str]:
    return lambda text: text.replace("max_rows_per_unit = 5", f"at_most = [{{ {bound} }}]\nmax_rows_per_unit = 5")


def _measured(s: Scene) -> dpsql.Connection:
    """Where what limits cut is known."""
    con = s.other(lambda text: text.replace("max_rows_per_unit = 5", "max_rows_per_unit = 5\nlargest_unit = 50"))
    con.losses("visits", epsilon=0.1)
    return con


def _spent(s: Scene) -> None:
    con = s.other(_pure)
    con.run(COUNT, epsilon=4)
    con.run(COUNT, epsilon=4, fresh=True)


def _renamed(s: Scene) -> None:
    plan = s.con.plan(COUNT, **BUDGET)
    s.other(lambda text: text.replace("clinic-1", "clinic-9")).run(plan)


DAYS = "day >= DATE '2024-01-01' AND day < DATE '2024-02-01'"
STANDING = "CREATE VIEW v AS SELECT COUNT(*) AS n FROM visits"


def _growing(s: Scene, today: str = "2024-03-01", text: str = "") -> dpsql.Connection:
    """A connection to the clinic whose visits have periods of a month, under a policy and a ledger of its own."""
    folder = s.folder / "growing"
    folder.mkdir(exist_ok=True)
    periods = text or 'periods = { column = "day", every = "1 month", first = 2024-01-01 }'
    held = (s.folder / "clinic.toml").read_text(encoding="utf-8")
    (folder / "clinic.toml").write_text(held.replace("[tables.visits]\n", f"[tables.visits]\n{periods}\n"))
    return dpsql.connect(s.folder / "clinic.duckdb", policy=folder / "clinic.toml", today=today)


def _stands(sql: str = STANDING, **more: Any) -> Callable[[Scene], object]:
    return lambda s: _growing(s).schedules.add(sql, **{"epsilon": 0.1, "delta": 1e-9, "name": "monthly", **more})


def _other_periods(s: Scene) -> None:
    _growing(s).run(f"{COUNT} WHERE {DAYS}", **BUDGET)
    other = 'periods = { column = "day", every = "1 week", first = 2024-01-01 }'
    _growing(s, text=other).run(f"{COUNT} WHERE day < '2024-01-08' AND day >= '2024-01-01'", **BUDGET)


def _too_many_periods(s: Scene) -> None:
    other = 'periods = { column = "day", every = "1 day", first = 2000-01-01 }'
    _growing(s, text=other).plan(f"{COUNT} WHERE day >= '2001-01-01' AND day < '2023-01-01'", **BUDGET)


def _stands_twice(s: Scene, sql: str, name: str) -> None:
    con = _growing(s)
    con.schedules.add(STANDING, **BUDGET, name="monthly")
    con.schedules.add(sql, **BUDGET, name=name)


GROWING: dict[str, Callable[[Scene], object]] = {
    "days that are not over": lambda s: _growing(s).plan(COUNT, **BUDGET),
    "a first period that runs": lambda s: _growing(s, "2024-01-09").plan(COUNT, **BUDGET),
    "other periods": _other_periods,
    "too many periods": _too_many_periods,
    "every day": _stands(every="day"),
    "before the first period": _stands(first="2020-01-01"),
    "another table stands": _stands("CREATE VIEW v AS SELECT COUNT(*) AS n FROM patients"),
    "no name stands": _stands(COUNT),
    "a column called period": _stands("CREATE VIEW v AS SELECT 1 AS period, COUNT(*) AS n FROM visits"),
    "two tables stand": _stands(f"{STANDING}; CREATE VIEW w AS SELECT COUNT(*) AS n FROM patients"),
    "a horizon of units": _stands(horizon=12),
    "a schedule's name": lambda s: _stands_twice(s, STANDING.replace("VIEW v", "VIEW w"), "monthly"),
    "a schedule's result": lambda s: _stands_twice(s, STANDING, "again"),
    "no such schedule": lambda s: _growing(s).schedules.remove("monthly"),
    "no periods": lambda s: s.con.schedules.add(STANDING, **BUDGET, name="monthly"),
    "a table without periods": _stands(table="patients"),
}


def _found_as_nothing(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    needed = s.con.budget_for(COUNT, max_error=1000)
    s.other(lambda text: text).run(needed)


def _rests_elsewhere(s: Scene) -> None:
    s.con.run("SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex", **BUDGET)
    plan = s.con.plan("SELECT COUNT(*) AS n FROM patients", epsilon=0.12, delta=1e-9)
    assert plan.rests_on == (1,)
    s.other(lambda text: text).run(plan)


def _policy_changed(s: Scene) -> None:
    plan = s.con.plan(COUNT, **BUDGET)
    s.again(lambda text: text.replace("upper = 99", "upper = 98")).run(plan)


def _columns_changed(s: Scene) -> None:
    plan = s.con.plan(COUNT, **BUDGET)
    with duckdb.connect(str(s.folder / "clinic.duckdb")) as db:
        db.execute("ALTER TABLE visits ALTER age TYPE BIGINT")
    s.con.run(plan)


def _named_twice(s: Scene) -> None:
    s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)
    s.con.run(f"CREATE VIEW v AS {COUNT} WHERE age > 3", **BUDGET)


def _no_result(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)["by_state"]


def _after(query: str) -> Callable[[Scene], object]:
    """Ask the releases, once there are some."""

    def provoke(s: Scene) -> object:
        s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)
        return s.con.sql(query)

    return provoke


def _full_joins(first: int, tables: int) -> str:
    """FULL JOINs of FULL JOINs of so many tables."""
    if tables == 1:
        return f"range(1) r{first}(a{first})"
    half = tables // 2
    left, right = _full_joins(first, half), _full_joins(first + half, half)
    return f"({left} FULL JOIN {right} ON a{first} = a{first + half})"


def _beside(query: str, **options: Any) -> Callable[[Scene], object]:
    """Ask the releases for errors, once there are some; {n} is a number below the one that was released."""

    def provoke(s: Scene) -> object:
        n = int(s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)["v"].column("n")[0])
        return s.con.sql(query.format(n=n), errors=True, **options)

    return provoke


def _other_policy(s: Scene) -> None:
    s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)
    s.again(lambda text: text.replace("upper = 99", "upper = 98")).sql("SELECT n + 1 AS m FROM v", errors=True)


def _two_samples(s: Scene) -> None:
    s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)
    s.con.run("CREATE VIEW w AS SELECT SUM(qty) AS q FROM visits", **BUDGET)
    s.con.sql("SELECT q / n AS r FROM v, w", errors=True, population="sample")


def _sample_of_sums(s: Scene) -> None:
    s.con.run("CREATE VIEW v AS SELECT SUM(LEAST(CAST(sex = 'f' AS INT) * 2 - 1, 1)) AS n FROM patients", **BUDGET)
    s.con.sql("SELECT n FROM v", errors=True, population="sample")


def _tiny(s: Scene) -> None:
    s.con.run(f"CREATE VIEW v AS SELECT CAST(n AS TINYINT) AS n FROM ({COUNT})", **BUDGET)
    s.con.sql("FROM v", errors=True)


def _releases_broken(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    with open(s.con.releases_path, "r+b") as file:
        file.write(b"garbage" * 1000)
    s.con.sql("SELECT 1")


def _unreachable(s: Scene) -> None:
    (s.folder / "loop.ledger").symlink_to("loop.ledger")
    s.again(ledger=s.folder / "loop.ledger")


def _releases_foreign(s: Scene) -> None:
    con = s.again(releases=s.folder / "foreign.duckdb")
    (s.folder / "foreign.duckdb").write_bytes(b"not a database" * 100)
    con.run(COUNT, **BUDGET)


def _releases_of_another(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    other = s.other(lambda text: text)
    other.run(COUNT, **BUDGET)
    shutil.copy(s.con.releases_path, other.releases_path)
    other.run(f"{COUNT} WHERE age > 3", **BUDGET)


def _ran(s: Scene) -> dpsql.Release:
    return s.con.run(COUNT, **BUDGET)


def _renamed_result(s: Scene, to: str) -> None:
    s.con.run(f"CREATE VIEW v AS {COUNT}", **BUDGET)
    s.con.rename("v", to)


def _drawn_ranges(s: Scene) -> None:
    plots.plot_ranges(_ran(s)["q1"])


def _expected(text: str) -> str:
    return _pure(text).replace("[tables.visits]", "[tables.visits]\nexpected_rows = 4000", 1)


def _sparse(number: str) -> str:
    return f"SELECT age, state, {number} AS n FROM visits GROUP BY age, state"


def _audited(s: Scene) -> None:
    con = s.other(_expected)
    audit(con.policy, _sparse("COUNT(*)"), epsilon=1, method="sparse", schemas=con.schemas())


def _slow_query(s: Scene) -> None:
    con = s.again(query_timeout=0.2)
    con.run(COUNT, **BUDGET)
    con.sql(
        "SELECT max(m) FROM (SELECT median(hash(a)) OVER (PARTITION BY b) AS m FROM range(3000) s(a), range(1600) t(b))"
    )


def _column(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)["q1"].column("m")


def _closed_cursor(s: Scene) -> None:
    cursor = s.con.cursor()
    cursor.close()
    cursor.fetchone()


def _closed(s: Scene) -> None:
    s.con.close()
    s.con.plan(COUNT, epsilon=1)


def _plan_and_budget(s: Scene) -> None:
    s.con.run(s.con.plan(COUNT, **BUDGET), epsilon=1)


def _policy_object(s: Scene) -> None:
    text = (s.folder / "clinic.toml").read_text(encoding="utf-8")
    dpsql.connect(s.folder / "clinic.duckdb", policy=dpsql.Policy.parse(text))


def _one_file_twice(s: Scene) -> None:
    s.again(ledger=s.folder / "x.file", releases=s.folder / "x.file")


def _memory_of_a_connection(s: Scene) -> None:
    with duckdb.connect() as db:
        dpsql.connect(db, policy=s.folder / "clinic.toml", memory_limit="1GB")


def _no_matplotlib(s: Scene) -> None:
    held = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "matplotlib"}
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    try:
        s.con.plan(COUNT, **BUDGET).plot()
    finally:
        del sys.modules["matplotlib"]
        sys.modules.update(held)


def _no_file(s: Scene) -> None:
    dpsql.connect(s.folder / "nothing.duckdb", policy=s.folder / "clinic.toml").plan(COUNT, epsilon=1)


def _no_database(s: Scene) -> None:
    (s.folder / "text.duckdb").write_text("no database", encoding="utf-8")
    dpsql.connect(s.folder / "text.duckdb", policy=s.folder / "clinic.toml").plan(COUNT, epsilon=1)


def _written_elsewhere(s: Scene) -> None:
    code = f"import duckdb; c = duckdb.connect({str(s.folder / 'clinic.duckdb')!r}); print('open', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        s.con.plan(COUNT, epsilon=1)
    finally:
        child.communicate("\n", timeout=900)


def _written_here(s: Scene) -> None:
    with duckdb.connect(str(s.folder / "clinic.duckdb")):
        s.con.plan(COUNT, epsilon=1)


def _connection_closed(s: Scene) -> None:
    db = duckdb.connect()
    con = dpsql.connect(db, policy=s.folder / "clinic.toml", ledger=s.folder / "x.ledger")
    db.close()
    con.plan(COUNT, epsilon=1)


def _no_source(s: Scene) -> None:
    held = s.folder / "files.toml"
    held.write_text(
        'dataset = "x"\n[budget]\nepsilon = 1.0\n[tables.t]\nsource = "t.parquet"\nunit = "row"\n', encoding="utf-8"
    )
    dpsql.connect(policy=held).plan("SELECT COUNT(*) FROM t", epsilon=1)


def _no_policy(s: Scene) -> None:
    dpsql.connect(policy=s.folder / "nothing.toml")


def _slow(s: Scene) -> None:
    with duckdb.connect(str(s.folder / "clinic.duckdb")) as db:
        db.execute("INSERT INTO visits SELECT v.* FROM visits v, range(1000)")
    s.again(scan_timeout=0.001).run(COUNT, **BUDGET)


def _ledger_text(s: Scene) -> None:
    s.con.ledger_path.write_text("no ledger" * 100, encoding="utf-8")
    s.con.run(COUNT, **BUDGET)


def _ledger_foreign(s: Scene) -> None:
    import contextlib
    import sqlite3

    with contextlib.closing(sqlite3.connect(s.con.ledger_path)) as db:
        db.execute("CREATE TABLE t (i)")
        db.commit()
    s.con.run(COUNT, **BUDGET)


def _ledger_folder(s: Scene) -> None:
    s.con.ledger_path.mkdir()
    s.con.run(COUNT, **BUDGET)


def _ledger_blocked(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    Path(f"{s.con.ledger_path}-journal").mkdir()
    s.con.run(COUNT, **BUDGET, fresh=True)


def _ledger_nowhere(s: Scene) -> None:
    s.again(ledger=s.folder / "no such folder" / "x.ledger", releases=s.folder / "r.duckdb").run(COUNT, **BUDGET)


def _ledger_damaged(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    size = s.con.ledger_path.stat().st_size
    with open(s.con.ledger_path, "r+b") as file:
        file.seek(4096)
        file.write(bytes(size - 4096))
    s.con.budget  # noqa: B018 - a property that reads


def _another_version(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.again(lambda text: text.replace("clinic-1", "clinic-2")).run(COUNT, **BUDGET)


def _another_budget(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.again(lambda text: text.replace("epsilon = 4.0", "epsilon = 8.0")).run(COUNT, **BUDGET)


def _older(s: Scene) -> None:
    con = s.again(anchor=s.folder / "anchor")
    con.run(COUNT, **BUDGET)
    shutil.copy(con.ledger_path, s.folder / "backup")
    con.run(COUNT, **BUDGET, fresh=True)
    shutil.copy(s.folder / "backup", con.ledger_path)
    s.again(anchor=s.folder / "anchor").run(COUNT, **BUDGET)


def _newer(s: Scene) -> None:
    import contextlib
    import sqlite3

    s.con.run(COUNT, **BUDGET)
    with contextlib.closing(sqlite3.connect(s.con.ledger_path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    s.again().run(COUNT, **BUDGET)


def _gone(s: Scene) -> None:
    s.without_ledger()
    s.again().run(COUNT, **BUDGET)


def _no_ledger(s: Scene) -> None:
    s.con.renew(was="clinic-0")


def _known_before(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.again(lambda text: text.replace("clinic-1", "clinic-2")).renew(was="clinic-1")
    s.again(lambda text: text.replace("clinic-2", "clinic-1")).renew(was="clinic-2")


def _anchor_broken(s: Scene) -> None:
    s.again(anchor=s.folder / "anchor").run(COUNT, **BUDGET)
    (s.folder / "anchor").write_text("not an anchor", encoding="utf-8")
    s.again(anchor=s.folder / "anchor").run(COUNT, **BUDGET)


def _anchor_of_before(s: Scene) -> None:
    con = s.again(anchor=s.folder / "anchor")
    con.run(COUNT, **BUDGET)
    con.ledger_path.unlink()
    con.releases_path.unlink()
    s.again(anchor=s.folder / "anchor").run(COUNT, **BUDGET)


def _of_several(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET, label="ann")
    s.con.run(COUNT, **BUDGET, label="bob", fresh=True)
    s.again().sql("SELECT * FROM q1")


def _dropped_q1(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.con.drop("q1")
    s.con.sql("SELECT * FROM q1")


def _backed_up(s: Scene) -> dpsql.Connection:
    """A connection with an anchor and a backup of its ledger, which has one release more."""
    con = s.again(anchor=s.folder / "anchor")
    con.run(COUNT, **BUDGET)
    con.ledger.backup(s.folder / "backup")
    con.run(COUNT, **BUDGET, fresh=True)
    return con


def _older_than_releases(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    older = s.con.ledger_path.read_bytes()
    s.con.run(COUNT, **BUDGET, fresh=True)
    s.con.ledger_path.write_bytes(older)
    s.again().budget  # noqa: B018 - a property that reads


def _anchor_not_named(s: Scene) -> None:
    _backed_up(s)
    s.again().budget  # noqa: B018 - a property that reads


def _anchor_gone(s: Scene) -> None:
    con = _backed_up(s)
    (s.folder / "anchor").unlink()
    con.budget  # noqa: B018 - a property that reads


def _restore_older(s: Scene) -> None:
    con = _backed_up(s)
    con.ledger_path.unlink()
    con.ledger.restore(s.folder / "backup")


def _restore_unknown(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.con.ledger.backup(s.folder / "backup")
    s.con.ledger_path.unlink()
    s.con.ledger.restore(s.folder / "backup")


def _restore_beside(s: Scene) -> None:
    con = s.again(anchor=s.folder / "anchor")
    con.run(COUNT, **BUDGET)
    con.ledger_path.rename(s.folder / "backup")
    con.releases_path.unlink()
    s.con.run(COUNT, **BUDGET)
    con.ledger.restore(s.folder / "backup")


def _restore_nothing(s: Scene) -> None:
    con = _backed_up(s)
    con.ledger.restore(con.ledger_path)


def _restore_another(s: Scene) -> None:
    con = _backed_up(s)
    s.again(ledger=s.folder / "y.ledger").run(COUNT, **BUDGET)
    con.ledger.restore(s.folder / "y.ledger")


def _restore_before_renewal(s: Scene) -> None:
    _backed_up(s).ledger_path.unlink()
    s.again(lambda text: text.replace("clinic-1", "clinic-2")).ledger.restore(s.folder / "backup")


def _releases_altered(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    with duckdb.connect(str(s.con.releases_path)) as db:
        db.execute("UPDATE r1.q1 SET n = n + 1")
    s.con.ledger.verify()


def _view_as_table(s: Scene) -> None:
    with duckdb.connect(str(s.folder / "clinic.duckdb")) as db:
        db.execute("DROP TABLE kinds; CREATE VIEW kinds AS SELECT * FROM visits")
    s.con.plan(COUNT, epsilon=1)


def _no_table(s: Scene) -> None:
    with duckdb.connect(str(s.folder / "clinic.duckdb")) as db:
        db.execute("DROP TABLE kinds")
    s.con.plan(COUNT, epsilon=1)


def _no_column(s: Scene) -> None:
    with duckdb.connect(str(s.folder / "clinic.duckdb")) as db:
        db.execute("ALTER TABLE visits DROP note")
    s.con.plan(COUNT, epsilon=1)


def _no_toml(s: Scene) -> None:
    s.again(lambda text: text + "\nthis is no TOML")


AGE = f"{COUNT} WHERE age >= "


def _found(target: str = "visits.note", **given: Any) -> Callable[[Scene], object]:
    """Find the values, or the bounds, of a column."""
    asked = {"epsilon": 0.1, "delta": 1e-10, "max_groups": 1, **given}
    return lambda s: s.con.discover(target, **{name: value for name, value in asked.items() if value is not None})


def _found_under(change: Callable[[str], str], **given: Any) -> Callable[[Scene], object]:
    return lambda s: s.other(change).discover("visits.note", **{"delta": 1e-10, "max_groups": 1, **given})


def _found_late(s: Scene) -> None:
    s.con.run(COUNT, **BUDGET)
    s.con.discover("visits.note", epsilon=0.1, delta=1e-10, max_groups=1)


def _all_pure(text: str) -> str:
    return text.replace("delta = 1e-9", "delta = 1e-9\npure_epsilon = 4.0")


def _small(text: str) -> str:
    return text.replace("max_rows_per_unit = 5", "expected_rows = 50\nmax_rows_per_unit = 5")


def _keyed(s: Scene) -> None:
    s.other(
        lambda text: text.replace("note = {}", "note = {}\nid = {}").replace(
            'unit = "patient_id"\n', 'unit = "patient_id"\nkey = ["id"]\n'
        )
    ).discover("visits.id", epsilon=0.1, delta=1e-10, max_groups=1)


PROVOCATIONS: dict[str, Callable[[Scene], object]] = {
    **GROWING,
    "values without a delta": _found(delta=None),
    "values of units without max_groups": _found(max_groups=None),
    "max_groups of rows": _found("kinds.flag", max_groups=2),
    "max_bytes with delta": _found(max_bytes=8),
    "max_bytes at rho": lambda s: s.other(_rho).discover("visits.note", rho=0.1, max_groups=1, max_bytes=8),
    "max_bytes without pure epsilon": _found(delta=None, max_bytes=8),
    "max_bytes of a number": lambda s: s.other(_pure).discover("kinds.flag", epsilon=0.1, max_bytes=8),
    "an alphabet of no length": _found(alphabet="abc"),
    "an alphabet of one character twice": _found(delta=None, max_bytes=8, alphabet="aba"),
    "an alphabet of half a character": _found(delta=None, max_bytes=8, alphabet="a\ud800"),
    "max_groups of bounds": _found("visits.note", bounds=True),
    "values of a table": _found("visits"),
    "an epsilon for nothing": _found(epsilon=1e-10),
    "an epsilon for no value": _found_under(_small, epsilon=0.01),
    "a threshold past any table": _found(epsilon=1e-6, delta=1e-10, max_groups=10**6),
    "delta past what is kept": _found(delta=1e-7),
    "values after a Gaussian release": _found_late,
    "values of a pure policy": _found_under(_pure, epsilon=0.1),
    "values of a policy of rho": _found_under(_rho, rho=0.1),
    "values of a policy that is all pure": _found_under(_all_pure, epsilon=0.1),
    "values of a column with a domain": _found("visits.age"),
    "values of the unit": _found("visits.patient_id"),
    "values of the key": _keyed,
    "values of numbers with a point": lambda s: s.other(
        lambda text: text.replace("weight = { lower = 0, upper = 200, step = 0.5 }", "weight = {}")
    ).discover("visits.weight", epsilon=0.1, delta=1e-10, max_groups=1),
    "a survey at too little": lambda s: s.con.survey(1e-11, 1e-10),
    "a bound of totals and bounds": lambda s: s.con.discover("visits.cost", epsilon=0.1, unit_sum=True, bounds=True),
    "groups of no totals": lambda s: s.con.discover("visits.cost", epsilon=0.1, per="state"),
    "bounds of a text": _found(delta=None, max_groups=None, bounds=True),
    "values of a public table": _found("regions.region"),
    "too much": lambda s: s.con.run(COUNT, epsilon=100, delta=1e-9),
    "spent": _spent,
    "pure spent, gaussian left": lambda s: s.other(_both).run(COUNT, epsilon=2),
    "rho of a pure policy": lambda s: s.other(_pure).run(COUNT, rho=0.1),
    "a bound above the rows of a unit": lambda s: s.other(_spread('rows = 9, per = "state"')),
    "a bound of rows and sums": lambda s: s.other(_spread('sum = "cost", upper = 9, rows = 1')),
    "a bound on a sum without an end": lambda s: s.other(_spread('sum = "cost"')),
    "a bound on a sum of both signs": lambda s: s.other(_spread('sum = "age * (age - 50)", upper = 9')).plan(
        COUNT, epsilon=1
    ),
    "a bound with its ends the wrong way round": lambda s: s.other(_spread('sum = "cost", lower = 9, upper = 3')),
    "a bound without 0": lambda s: s.other(_spread('sum = "cost", lower = 1, upper = 3')),
    "a bound of 0": lambda s: s.other(_spread('sum = "cost", lower = 0, upper = 0')),
    "one bound twice": lambda s: s.other(_spread('sum = "cost", upper = 9 }, { sum = "cost", upper = 8')),
    "a bound above the whole": lambda s: s.other(
        _spread('sum = "cost", upper = 9, per = "state" }, { sum = "cost", upper = 8')
    ),
    "a bound on no sum": lambda s: s.other(_spread('sum = "state", upper = 9')).plan(COUNT, epsilon=1),
    "a bound of no groups": lambda s: s.other(_spread('rows = 1, per = "age > 3 AND smoker"')).plan(COUNT, epsilon=1),
    "above the cap": lambda s: s.other(_capped("max_epsilon_per_release = 0.5")).run(COUNT, epsilon=1),
    "above the cap of rho": lambda s: s.other(
        lambda text: _rho(text).replace("rho = 0.5", "rho = 0.5\nmax_rho_per_release = 0.1")
    ).run(COUNT, rho=0.2),
    "no budget": lambda s: s.con.plan(COUNT),
    "nothing is free": lambda s: s.con.run(COUNT),
    "a budget of 0 elsewhere": _found_as_nothing,
    "releases of another ledger below a plan": _rests_elsewhere,
    "rho and epsilon": lambda s: s.con.plan(COUNT, epsilon=1, rho=0.1),
    "negative": lambda s: s.con.plan(COUNT, epsilon=-1),
    "no number": lambda s: s.con.plan(COUNT, epsilon=float("nan")),
    "too small": lambda s: s.con.plan(COUNT, epsilon=1e-15, delta=1e-9),
    "too small for delta": lambda s: s.con.plan(COUNT, epsilon=1e-9, delta=1e-9),
    "delta of one": lambda s: s.con.plan(COUNT, epsilon=1, delta=1),
    "rho beside options": lambda s: s.con.plan(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 1) COUNT(*) FROM visits", rho=0.1
    ),
    "two epsilons": lambda s: s.con.plan(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon = 1) COUNT(*) FROM visits", epsilon=2
    ),
    "alpha": lambda s: s.con.plan(COUNT, epsilon=1, alpha=2),
    "tolerance as text": lambda s: s.con.plan(COUNT, epsilon=1, tolerance="small"),
    "tolerance": lambda s: s.con.plan(COUNT, epsilon=1, tolerance=-1),
    "time limit": lambda s: s.con.plan(COUNT, epsilon=1, time_limit=-1),
    "objective": lambda s: s.con.plan(COUNT, epsilon=1, objective="median"),
    "private text in sql()": lambda s: s.con.sql(COUNT),
    "a loop of links": _unreachable,
    "releases like a schema": lambda s: dpsql.connect(
        s.folder / "clinic.duckdb", policy=s.folder / "clinic.toml", releases=s.folder / "r1.duckdb"
    ),
    "connect without a policy": lambda s: dpsql.connect(s.folder / "clinic.duckdb"),
    "places swapped": lambda s: dpsql.connect(s.folder / "clinic.toml", policy=s.folder / "clinic.duckdb"),
    "several results": lambda s: s.con.run(f"{COUNT}; {COUNT} WHERE age > 3", **BUDGET).df(),
    "an argument of another kind": lambda _: workload.all_range("x"),
    "label": lambda s: s.again(label="x" * 501).run(COUNT, **BUDGET),
    "two wishes": lambda s: s.con.budget_for(COUNT, max_error=50, relative=0.1),
    "wish and budget": lambda s: s.con.plan(COUNT, epsilon=1, max_error=50),
    "no wish": lambda s: s.con.budget_for(COUNT),
    "a negative wish": lambda s: s.con.budget_for(COUNT, max_error=-1),
    "an empty wish": lambda s: s.con.budget_for(COUNT, max_error={}),
    "a wish by number": lambda s: s.con.budget_for(COUNT, max_error={1: 50}),
    "a column by a number that is none": lambda s: s.con.run(COUNT, **BUDGET)["q1"].column_at(99),
    "expected": lambda s: s.con.budget_for(COUNT, relative=0.1, expected=1000),
    "simultaneous": lambda s: s.con.budget_for(COUNT, max_error=50, simultaneous="yes"),
    "simultaneous alone": lambda s: s.con.plan(COUNT, **BUDGET, simultaneous=True),
    "no such result to wish for": lambda s: s.con.budget_for(COUNT, max_error=50, expected={"q2": 50}),
    "a wish for one": lambda s: s.con.budget_for(f"{COUNT}; {COUNT} WHERE age > 3", max_error={"q1": 50}),
    "two wishes for one": lambda s: s.con.budget_for(
        "SELECT /*+ MAX_ERROR(20) */ COUNT(*) FROM visits", max_error={"q1": 50}
    ),
    "relative to nothing known": lambda s: s.con.budget_for(COUNT, relative=0.1),
    "measure": lambda s: s.con.budget_for(COUNT, max_error=50, measure="mu"),
    "rho and delta wanted": lambda s: s.con.budget_for(COUNT, max_error=50, measure="rho", delta=1e-9),
    "rho wanted of a pure policy": lambda s: s.other(_pure).budget_for(COUNT, max_error=50, measure="rho"),
    "a table of an attached database": lambda s: s.other(
        lambda text: text + '\n[tables."store.visits"]\nunit = "row"\n'
    ).plan(COUNT, epsilon=1),
    "method": lambda s: s.con.plan(COUNT, epsilon=1, method="magic"),
    "a wavelet of two columns": lambda s: s.con.plan(
        "SELECT state, age, COUNT(*) FROM visits GROUP BY state, age", epsilon=1, method="haar"
    ),
    "rounds": lambda s: s.con.plan(COUNT, epsilon=1, rounds=5),
    "mwem is pure": lambda s: s.con.plan(COUNT, epsilon=1, method="mwem"),
    "mwem needs rows": lambda s: s.other(_pure).plan(COUNT, epsilon=1, method="mwem"),
    "mwem of averages": lambda s: s.other(_pure).plan("SELECT AVG(age) FROM visits", epsilon=1, method="mwem"),
    "sparse of one number": lambda s: s.other(_expected).plan(COUNT, epsilon=1, method="sparse"),
    "sparse of sums": lambda s: s.other(_expected).plan(_sparse("SUM(age)"), epsilon=1, method="sparse"),
    "sparse of units": lambda s: s.other(_expected).plan(_sparse("COUNT(DISTINCT qty)"), epsilon=1, method="sparse"),
    "sparse needs rows": lambda s: s.other(_pure).plan(_sparse("COUNT(*)"), epsilon=1, method="sparse"),
    "sparse at a small budget": lambda s: s.other(_expected).plan(_sparse("COUNT(*)"), epsilon=1e-9, method="sparse"),
    "sparse audited": _audited,
    "mwem of a wish": lambda s: s.con.plan(COUNT, max_error=50, method="mwem"),
    "mwem of many cells": lambda s: s.other(_pure).plan(
        "SELECT age, qty, day, state, COUNT(*) FROM visits GROUP BY dp_marginals(2, age, qty, day, state)",
        epsilon=1,
        method="mwem",
    ),
    "estimates": lambda s: s.con.run(COUNT, **BUDGET, estimates="nice"),
    "intervals": lambda s: s.con.run(COUNT, **BUDGET, intervals="all"),
    "total of unmeasured": lambda s: s.con.run("SELECT COUNT(*) FROM visits", **BUDGET, intervals="total"),
    "total of an average": lambda s: _measured(s).run("SELECT AVG(age) FROM visits", epsilon=1, intervals="total"),
    "no largest unit": lambda s: s.con.losses("visits", epsilon=0.1),
    "small largest unit": lambda s: s.other(lambda text: text.replace("unit = 5", "unit = 5\nlargest_unit = 2")),
    "nothing is cut": lambda s: s.con.losses("patients", epsilon=0.1),
    "total of an order": lambda s: _measured(s).run(f"{COUNT} ORDER BY 1", epsilon=1, intervals="total"),
    "whole sums": lambda s: s.con.run("SELECT SUM(age) FROM visits", **BUDGET, estimates="whole"),
    "estimates of mwem": lambda s: s.other(_expected).run(COUNT, epsilon=1, method="mwem", estimates="whole"),
    "points": lambda s: s.con.plan(COUNT, **BUDGET).curve(points=0),
    "span": lambda s: s.con.plan(COUNT, **BUDGET).curve(span=0),
    "query timeout": lambda s: s.again(query_timeout=-1),
    "a slow query": _slow_query,
    "rename to a table": lambda s: _renamed_result(s, "visits"),
    "drop nothing": lambda s: s.con.drop(),
    "drop before a release": lambda s: s.con.drop("v"),
    "nothing to draw": lambda s: plots.plot_result(_ran(s) and s.con.sql("SELECT 'a' AS word")),
    "no such number": lambda s: plots.plot_result(_ran(s)["q1"], value="m"),
    "no ranges": lambda s: _drawn_ranges(s),
    "memory limit": lambda s: s.again(memory_limit="much"),
    "scan timeout": lambda s: s.again(scan_timeout=-1),
    "a taken name": _named_twice,
    "one name twice": lambda s: s.con.run(f"CREATE VIEW a AS {COUNT}; CREATE VIEW A AS {COUNT}", **BUDGET),
    "a kept name": lambda s: s.con.run(f"CREATE VIEW releases AS {COUNT}", **BUDGET),
    "no such result": _no_result,
    "no such place": lambda s: s.con.run(COUNT, **BUDGET)[3],
    "a pivot of releases without values": _after("PIVOT v ON n"),
    "a public table among releases": _after("SELECT COUNT(*) FROM regions"),
    "another data set": _renamed,
    "another policy": _policy_changed,
    "another type": _columns_changed,
    "no such release": _after("SELECT * FROM w"),
    "unnamed results of two labels": _of_several,
    "a dropped unnamed result": _dropped_q1,
    "nothing released": lambda s: s.con.sql("SELECT 1"),
    "two statements": _after("SELECT 1; SELECT 2"),
    "a write": _after("DROP VIEW v"),
    "zones": _after("SELECT now()"),
    "a surrogate": _after("SELECT '\ud800'"),
    "releases unreadable": _releases_broken,
    "releases no database": _releases_foreign,
    "no SELECT": lambda s: s.execute("FROM (PIVOT (VALUES (1, 2)) t(a, b) ON a USING sum(b))"),
    "a function on no list": _after("SELECT getenv('HOME') FROM v"),
    "a cast on no list": _after("SELECT '1'::BIGNUM"),
    "a table function on no list": _after("FROM duckdb_settings()"),
    "a table on no list": _after("FROM duckdb_databases"),
    "a large value": _after("SELECT repeat('a', 10000000)"),
    "many large values": _after("SELECT repeat('a', 900000) FROM range(1000)"),
    "many steps": _after("SELECT levenshtein(repeat('a', 40000), repeat('b', 40000))"),
    "a large join": _after("FROM range(10000) a, range(10000) b"),
    "a large series": _after("FROM range(100000000)"),
    "many grouping sets": _after("SELECT count(*) FROM range(4000000) r(a) GROUP BY CUBE(a)"),
    "grouping sets beyond count": _after(
        f"SELECT count(*) FROM range(9) r(a) GROUP BY CUBE({', '.join(f'a + {i}' for i in range(8))})"
    ),
    "many SELECTs": _after(" UNION ALL ".join(["SELECT 1"] * 1_001)),
    "many tables": _after(f"SELECT 1 FROM {', '.join(f'range(1) r{i}' for i in range(65))}"),
    "full joins of full joins": _after(f"SELECT 1 FROM {_full_joins(0, 16)}"),
    "many copies": _after("SELECT " + "nullif(" * 14 + "1" + ", 2)" * 14),
    "copies of the parser": _after("SELECT " + "CASE " * 20 + "1" + " WHEN 1 THEN 2 WHEN 2 THEN 1 END" * 20),
    "a long query": _after("SELECT 1" + " + 1" * 30_000),
    "a deep query": _after("SELECT " + "abs(" * 700 + "1" + ")" * 700),
    "WITH RECURSIVE over releases": _after(
        "WITH RECURSIVE r AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM r) SELECT x FROM r"
    ),
    "SHOW of the server": _after("SHOW DATABASES"),
    "a lambda too many": _after("SELECT list_sort([1], lambda x: x)"),
    "no lambda": _after("SELECT list_transform([1], 2)"),
    "no lambda to reduce by": _after("SELECT list_reduce([1], x)"),
    "a list reduced to a long one": _after("SELECT list_reduce(['a'], lambda a, b: a || b)"),
    "no expression": _after("SELECT DEFAULT FROM v"),
    "too many rows": _after("SELECT * FROM range(2_000_000)"),
    "errors of chance": _beside("SELECT n + random() AS r FROM v"),
    "errors of many rows": _beside("SELECT n, i.range AS i FROM v, range(20000) i"),
    "errors of a list": _beside("SELECT list(n) AS l FROM v"),
    "errors of a list of releases": _beside("SELECT n, cost FROM v, dp.releases"),
    "errors far out": _beside("SELECT n FROM v", alpha=0.001),
    "errors of what fails": _beside("SELECT CAST(n - {n} AS UTINYINT) AS m FROM v"),
    "errors under another policy": _other_policy,
    "another population": _beside("SELECT n FROM v", population="census"),
    "a sample of units": _beside("SELECT n FROM v", population="sample"),
    "a sample of two releases": _two_samples,
    "a sample of sums": _sample_of_sums,
    "errors of a result that failed": _tiny,
    "too many draws": lambda s: s.con.run(COUNT, **BUDGET).draws("q1", 10**8),
    "rows of no counts": lambda s: s.con.run(COUNT, **BUDGET).synthetic_rows(5),
    "rows of no release": lambda s: s.con.synthetic_rows("visits", 5),
    "draws of no ledger": lambda s: replace(s.con.run(COUNT, **BUDGET), replicates=None).draws("q1"),
    "no such column": _column,
    "no budget for a cursor": lambda s: s.execute(COUNT),
    "nothing to fetch": lambda s: s.con.cursor().fetchone(),
    "cursor closed": _closed_cursor,
    "values missing": lambda s: s.execute(f"{AGE}?"),
    "too many values": lambda s: s.execute(f"{AGE}?", [1, 2]),
    "names for marks": lambda s: s.execute(f"{AGE}?", {"age": 1}),
    "marks for names": lambda s: s.execute(f"{AGE}:age", [1]),
    "a name missing": lambda s: s.execute(f"{AGE}:age", {"agee": 1}),
    "marks mixed": lambda s: s.execute(f"{AGE}:age AND age < ?", {"age": 1}),
    "a list as value": lambda s: s.execute(f"{AGE}?", [[1, 2]]),
    "NaN as value": lambda s: s.execute(f"{AGE}?", [float("nan")]),
    "NUL as value": lambda s: s.execute(f"{AGE}?", ["\0"]),
    "nanoseconds": lambda s: s.execute(f"{COUNT} WHERE seen > ?", [NANOSECOND]),
    "a bare value": lambda s: s.execute(f"{AGE}?", 65),
    "executemany": lambda s: s.con.cursor().executemany(f"{AGE}?", 65),
    "connection closed": _closed,
    "plan and budget": _plan_and_budget,
    "a policy without a file": _policy_object,
    "one file twice": _one_file_twice,
    "memory of a connection": _memory_of_a_connection,
    "no matplotlib": _no_matplotlib,
    "no curve": lambda s: s.con.plan("SELECT AVG(age) AS a FROM visits", **BUDGET).plot_curve(),
    "columns of no private table": lambda s: s.con.cursor().columns("SELECT 1"),
    "callproc": lambda s: s.con.cursor().callproc("f"),
    "a write by cursor": lambda s: s.execute("INSERT INTO visits VALUES (1)"),
    "summary of a table": lambda s: s.execute("SUMMARIZE visits"),
    "no file": _no_file,
    "no database": _no_database,
    "written elsewhere": _written_elsewhere,
    "written here": _written_here,
    "connection of DuckDB closed": _connection_closed,
    "no source": _no_source,
    "no policy": _no_policy,
    "releases of another ledger": _releases_of_another,
    "a slow scan": _slow,
    "a text as ledger": _ledger_text,
    "a database as ledger": _ledger_foreign,
    "a folder as ledger": _ledger_folder,
    "a ledger nowhere": _ledger_nowhere,
    "a folder in the ledger's way": _ledger_blocked,
    "a damaged ledger": _ledger_damaged,
    "another version": _another_version,
    "another budget": _another_budget,
    "an older ledger": _older,
    "a newer schema": _newer,
    "a ledger gone": _gone,
    "no ledger": _no_ledger,
    "a version known before": _known_before,
    "a broken anchor": _anchor_broken,
    "an anchor of before": _anchor_of_before,
    "a ledger older than its releases": _older_than_releases,
    "an anchor that is not named": _anchor_not_named,
    "an anchor that is gone": _anchor_gone,
    "an older backup": _restore_older,
    "a backup without an anchor": _restore_unknown,
    "a backup beside a ledger": _restore_beside,
    "a backup of a newer ledger": lambda s: _backed_up(s).ledger.restore(s.folder / "backup"),
    "a ledger restored from itself": _restore_nothing,
    "a backup of another ledger": _restore_another,
    "a backup of before a renewal": _restore_before_renewal,
    "a backup over another file": lambda s: _backed_up(s).ledger.backup(s.folder / "clinic.toml"),
    "releases changed by hand": _releases_altered,
    "nothing to verify": lambda s: s.con.ledger.verify(),
    "a table gone": _no_table,
    "a column gone": _no_column,
    "no database given": lambda s: dpsql.connect(policy=s.folder / "clinic.toml").plan(COUNT, epsilon=1),
    "a view as table": _view_as_table,
    "no TOML": _no_toml,
    "two errors of a policy": lambda s: s.other(
        lambda text: text.replace("upper = 99", "upper = -1").replace("unit = 5", "unit = 0")
    ),
    "a number in quotes": lambda s: s.other(lambda text: text.replace("upper = 99", 'upper = "99"', 1)),
    "files of no ledger": lambda s: s.con.confirm_files(),
}

# Messages that take a full disk, a lock of another process or a failing scan: by what they begin with, and their test.
ELSEWHERE = {
    "memory ran out": "extensions/server/test_out_of_memory.py",
    "interrupted": "running/test_interrupted_calls.py",
    "the statement was cancelled": "extensions/server/test_cancelled_statements.py",
    "alphabet has half of a character": "privacy/test_pure_threshold.py",
    "--population sample goes with --errors": "surfaces/test_cli.py",
    "dpsql.population is": "extensions/server/test_server_protocol.py",
    "dpsql.confidence is": "surfaces/test_option_table.py",
    "the shell has no": "surfaces/test_shell.py",
    "there is no table or view": "surfaces/test_shell.py",
    "… has all ranges of a line": "strategies/test_long_ranges.py",
    'population="sample" needs the cells of a batch': "replicates/test_planned_again.py",
    "a batch over a horizon asks nothing of": "extensions/periods/test_horizon.py",
    "… measurements over … cells, of": "extensions/periods/test_horizon.py",
    "release … shows another result as …, and all periods": "extensions/periods/test_schedules.py",
    "windows are numbers of periods": "extensions/periods/test_horizon.py",
    "an endless horizon has windows": "extensions/periods/test_horizon.py",
    "horizon=… is no number of periods": "extensions/periods/test_horizon.py",
    "a horizon is measured with Gaussian noise": "extensions/periods/test_horizon.py",
    "… measures each period together with all before": "extensions/periods/test_horizon.py",
    "… measures each period as the first one was": "extensions/periods/test_horizon.py",
    "period … has not paid for this release": "extensions/periods/test_horizon.py",
    "strategy: the largest error is not planned": "strategies/test_minimax.py",
    "strategy: the batch falls into": "strategies/test_copies.py",
    "the time limit ended when": "planning/test_plan_time_limit.py",
    "the earlier release of this batch was measured with": "running/test_estimates.py",
    "ledger … is locked": "privacy/test_ledger.py",
    "method=… needs cells that are listed": "planning/test_named_strategy.py",
    "method=… needs a list of all that": "planning/test_named_strategy.py",
    "strategy: … over … distinct cells": "planning/test_named_strategy.py",
    "method='mwem-strategy' selects among": "extensions/adaptive/test_adaptive.py",
    "… is estimated without bias only": "running/test_estimates.py",
    "the intervals of … are worked out where": "strategies/test_long_ranges.py",
    "the … groups of … are too many for a policy": "running/test_minimum.py",
    "no value of … has enough": "extensions/discovery/test_find_first.py",
    "there is nothing to find": "extensions/discovery/test_survey.py",
    "no private table has a domain": "extensions/discovery/test_survey.py",
    "polars has one column a name": "release/test_result_exchange.py",
    "the result has no Arrow form": "release/test_result_exchange.py",
    "the … groups of … are estimated": "strategies/test_long_ranges.py",
    "request …, …, waits for the custodian's approval": "privacy/test_requests.py",
    "the custodian refused request": "privacy/test_requests.py",
    "the custodian approves each batch": "privacy/test_requests.py",
    "… requests of … wait already": "privacy/test_requests.py",
    "… was released locally already": "extensions/local/test_local_release.py",
    "dpsql sql reads what is released": "driver/test_one_way_in.py",
    "ledger … cannot be opened": "docs/test_errors_page.py",
    "ledger … cannot be written": "assurance/test_read_only_files.py",
    "ledger … cannot grow": "assurance/test_disk_full.py",
    "the scan of … failed inside DuckDB": "measure/test_scan.py",
    "the scan of … failed for release": "measure/test_failed_sources.py",
    "the files of … changed while they were read": "measure/test_one_state.py",
    "the columns of … changed just after the charge": "measure/test_one_state.py",
    "the noise of a count would not fit": "extensions/discovery/test_sparse.py",
    "…: … are undecided": "extensions/advice/test_policy_advice.py",
    "estimates=… needs the cells": "running/test_estimates.py",
    "the threshold would be larger than any table: ask for more epsilon or shorter": "privacy/test_pure_threshold.py",
    "the threshold would be larger than any table: ask for more epsilon or more": "privacy/test_threshold.py",
    "the custodian finds values and bounds": "extensions/discovery/test_discovery.py",
    "releases are private to their label": "extensions/server/test_private_releases.py",
    "release … has no noise": "replicates/test_error_propagation.py",
    "release … counts the rows of": "extensions/synthetic/test_synthetic_rows.py",
    "rows of … are referred to by": "extensions/synthetic/test_synthetic_rows.py",
    "release … is none of a batch": "extensions/local/test_cli_synthesize.py",
    "the policy has changed since release": "extensions/synthetic/test_synthetic_rows.py",
    "the released counts add up to no rows": "extensions/synthetic/test_synthetic_rows.py",
    "no synthetic table is called": "extensions/synthetic/test_synthetic_rows.py",
    "there are … synthetic tables": "extensions/synthetic/test_synthetic_rows.py",
    "one SELECT at a time runs over synthetic": "extensions/synthetic/test_synthetic_rows.py",
    "errors=True cannot read": "replicates/test_partitioned.py",
    "the query took too long over": "replicates/test_partitioned.py",
    "the query over the releases has texts": "extensions/server/test_server_protocol.py",
    "… protects one … by the policy": "measure/test_file_changes.py",
}
