"""The public-domain suite dbapi-compliance (module dbapi20) against dpsql, with its overrides and why.

The suite makes tables and rows through the cursor. dpsql's cursor changes nothing, so the suite's hooks hand that part
to a custodian: rows go into a private table with DuckDB, and a release with next to no noise makes the
view that the suite selects from. Everything that is asserted about dpsql runs through its own cursors.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any, ClassVar

import dbapi20
import duckdb
import pytest
from helpers import filled

import dpsql

POLICY = """
dataset = "bar-1"
[budget]
epsilon = 100000.0
[tables.sold]
unit = "row"
[tables.sold.columns]
name = { values = ["Carlton Cold", "Carlton Draft", "Mountain Goat", "Redback", "Victoria Bitter", "XXXX", "Boag's",
         "Cooper's"], nulls = false }
[tables.drunk]
unit = "row"
[tables.drunk.columns]
name = { values = ["a", "Cooper's", "Victoria Bitter"], nulls = false }
drink = { values = ["thi%s :may ca%(u)se? troub:1e"] }
"""
EPSILON = 100  # a count is wrong with probability 1e-43, so that a released view holds exactly the rows
BOOZE = """
CREATE OR REPLACE VIEW dbapi20test_booze AS SELECT name FROM sold GROUP BY name HAVING count(*) > 0.5;
"""
BARFLYS = """
CREATE OR REPLACE VIEW dbapi20test_barflys AS
SELECT name, drink FROM drunk GROUP BY name, drink HAVING count(*) > 0.5;
"""
TROUBLE = "thi%s :may ca%(u)se? troub:1e"

HOOKS = {
    "executeDDL1": "nothing left to do: the custodian made the table with DuckDB and released it empty",
    "executeDDL2": "the same",
    "_populate": "the custodian inserts the rows with DuckDB and releases them; nothing is left to run",
    "_paraminsert": "the rows go in that way; parameter and odd text stand in a SELECT instead of an INSERT",
    "lower_func": "None, the suite's own switch for drivers without stored procedures",
}
REPLACED = {
    "test_close": "asks a SELECT of the closed connection, where the suite runs DDL",
    "test_cursor_isolation": "the row comes from the custodian, where the suite inserts it through the first cursor",
    "test_description": "without DDL in between, after which description would be None: every statement has a result",
    "test_executemany": "runs a SELECT for each row of parameters, where the suite runs INSERT",
    "test_fetchone": "the row comes from the custodian; no fetch after a statement without result, as there is none",
    "test_nextset": "the suite leaves it to the driver",
    "test_None": "the row comes from the custodian",
    "test_rowcount": "the row comes from the custodian; no rowcount of DDL and INSERT",
    "test_setoutputsize": "the suite leaves it to the driver",
}
NOT_APPLICABLE = {
    "test_callproc": "there are no stored procedures; callproc raises NotSupportedError",
    "test_non_idempotent_close": "close() may be called twice, as in sqlite3; a matter of taste, as the suite says",
}


@functools.cache
def empty_bar() -> tempfile.TemporaryDirectory[str]:
    """A database with the two private tables, empty, their policy, and the two views released."""
    folder = tempfile.TemporaryDirectory()
    database = Path(folder.name) / "bar.duckdb"
    with duckdb.connect(str(database)) as duck:
        duck.execute("CREATE TABLE sold (name VARCHAR); CREATE TABLE drunk (name VARCHAR, drink VARCHAR)")
    database.with_suffix(".toml").write_text(POLICY)
    with dpsql.connect(database, policy=database.with_suffix(".toml")) as con:
        con.run(BOOZE + BARFLYS, EPSILON)
    return folder


class Compliance(dbapi20.DatabaseAPI20Test):  # type: ignore[misc]
    """The suite with the hooks and replacements listed above."""

    driver: ClassVar[Any] = dpsql
    lower_func = None

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        shutil.copytree(empty_bar().name, folder.name, dirs_exist_ok=True)
        self.database = Path(folder.name) / "bar.duckdb"
        self.connect_args = (self.database,)
        self.connect_kw_args = {"policy": self.database.with_suffix(".toml")}

    def tearDown(self) -> None:
        pass  # the folder goes

    def stock(self, table: str, view: str, *rows: tuple[object, ...]) -> None:
        """The custodian's part: put rows into a private table and release its view anew."""
        with filled(self.database) as duck:
            for row in rows:
                duck.execute(f"INSERT INTO {table} VALUES ({', '.join('?' for _ in row)})", row)
        with self._connect() as con:
            con.run(view, EPSILON, fresh=True)

    # -- hooks ---------------------------------------------------------------------------------

    def executeDDL1(self, cursor: Any) -> None:
        pass

    def executeDDL2(self, cursor: Any) -> None:
        pass

    def _populate(self) -> list[str]:
        self.stock("sold", BOOZE, *((name,) for name in self.samples))
        return []

    def _paraminsert(self, cur: Any) -> None:
        self.stock("drunk", BARFLYS, ("Victoria Bitter", TROUBLE), ("Cooper's", TROUBLE))
        cur.execute(
            f"select name, drink, '{TROUBLE}' from dbapi20test_barflys where name = ? or drink is null", ("Cooper's",)
        )
        assert cur.rowcount in (-1, 1)
        assert cur.fetchall() == [("Cooper's", TROUBLE, TROUBLE)]
        cur.execute("select name, drink from dbapi20test_barflys")
        assert sorted(cur.fetchall()) == [("Cooper's", TROUBLE), ("Victoria Bitter", TROUBLE)]

    # -- replaced ------------------------------------------------------------------------------

    def test_close(self) -> None:
        con = self._connect()
        cur = con.cursor()
        con.close()
        with pytest.raises(dpsql.Error):
            cur.execute("select 1")
        with pytest.raises(dpsql.Error):
            con.commit()

    def test_cursor_isolation(self) -> None:
        with self._connect() as con:
            first, second = con.cursor(), con.cursor()
            self.stock("sold", BOOZE, ("Victoria Bitter",))
            for cur in (first, second):
                cur.execute("select name from dbapi20test_booze")
            assert second.fetchall() == [("Victoria Bitter",)]
            assert first.fetchall() == [("Victoria Bitter",)]

    def test_description(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            assert cur.description is None
            self.executeDDL1(cur)
            cur.execute("select name from dbapi20test_booze")
            assert [len(column) for column in cur.description] == [7]
            assert cur.description[0][0].lower() == "name"
            assert cur.description[0][1] == dpsql.STRING

    def test_executemany(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self.stock("sold", BOOZE, ("Boag's",), ("Cooper's",))
            cur.executemany("select name from dbapi20test_booze where name = ?", [("Cooper's",), ("Boag's",)])
            assert cur.rowcount in (-1, 2)
            assert cur.fetchall() == [("Cooper's",), ("Boag's",)]

    def test_fetchone(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            with pytest.raises(dpsql.Error):
                cur.fetchone()
            self.executeDDL1(cur)
            with pytest.raises(dpsql.Error):
                cur.fetchone()
            cur.execute("select name from dbapi20test_booze")
            assert cur.fetchone() is None
            assert cur.rowcount in (-1, 0)
            self.stock("sold", BOOZE, ("Victoria Bitter",))
            cur.execute("select name from dbapi20test_booze")
            assert cur.fetchone() == ("Victoria Bitter",)
            assert cur.fetchone() is None
            assert cur.rowcount in (-1, 1)

    def test_nextset(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self._populate()
            cur.execute("select count(*) from dbapi20test_booze; select name from dbapi20test_booze")
            assert cur.fetchone() == (len(self.samples),)
            assert cur.nextset()
            assert len(cur.fetchall()) == len(self.samples)
            assert cur.nextset() is None

    def test_None(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self.stock("drunk", BARFLYS, ("a", None))
            cur.execute("select drink from dbapi20test_barflys")
            assert cur.fetchall() == [(None,)]

    def test_rowcount(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            assert cur.rowcount == -1
            self.stock("sold", BOOZE, ("Victoria Bitter",))
            cur.execute("select name from dbapi20test_booze")
            assert cur.rowcount in (-1, 1)

    def test_setoutputsize(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            cur.setoutputsize(2, 0)
            cur.execute("select repeat('x', 1000)")
            assert cur.fetchone() == ("x" * 1000,)

    # -- not applicable ------------------------------------------------------------------------

    def test_callproc(self) -> None:
        with self._connect() as con, pytest.raises(dpsql.NotSupportedError):
            con.cursor().callproc("lower", ("FOO",))

    def test_non_idempotent_close(self) -> None:
        con = self._connect()
        con.close()
        con.close()
        with pytest.raises(dpsql.Error):
            con.cursor()


# Under another name pytest would collect the suite's own class too.
def suite_tests() -> set[str]:
    return set(unittest.TestLoader().getTestCaseNames(dbapi20.DatabaseAPI20Test))


def test_every_override_is_listed() -> None:
    tests = suite_tests()
    assert len(tests) == 36
    mine = set(vars(Compliance)) & set(vars(dbapi20.DatabaseAPI20Test))
    demanded = {"setUp", "tearDown", "driver", "__module__", "__doc__"}  # of every driver
    listed = {*HOOKS, *REPLACED, *NOT_APPLICABLE}
    assert {name for name in mine if not name.startswith("_class")} - demanded == listed
    assert set(REPLACED) | set(NOT_APPLICABLE) <= tests
    assert len(tests - set(REPLACED) - set(NOT_APPLICABLE)) == 25


@pytest.mark.parametrize("name", sorted(HOOKS | REPLACED | NOT_APPLICABLE))
def test_the_page_says_why(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "dbapi.md").read_text(encoding="utf-8")
    why = {**HOOKS, **REPLACED, **NOT_APPLICABLE}[name]
    assert f"| `{name}` | {why} |" in page
