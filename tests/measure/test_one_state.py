"""Files that are replaced during a release: nothing is released of a mix of two states, and the charge stands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpsql
from dpsql.engines import duckdb as engine
from dpsql.errors import OperationalError
from dpsql.privacy.ledger import Ledger

POLICY = """
dataset = "swaps"
[budget]
epsilon = 100.0
delta = 1e-6
local_epsilon = 5.0
[tables.visits]
{source}
unit = "patient_id"
max_rows_per_unit = 4
rows_public = true
expected_rows = 44
[tables.visits.columns]
patient_id = {{ type = "INTEGER" }}
ward = {{ values = ["a", "b", "c", "d"], nulls = false, type = "VARCHAR" }}
name = {{ type = "VARCHAR" }}
"""
TWICE = (
    "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward; "
    "SELECT ward, COUNT(DISTINCT patient_id) AS u FROM visits GROUP BY ward"
)
ITSELF = (
    "SELECT COUNT(*) AS n FROM visits v WHERE EXISTS "
    "(SELECT 1 FROM visits w WHERE w.patient_id = v.patient_id AND w.ward > v.ward)"
)
SOURCES = {"parquet": "v.parquet", "csv": "v.csv", "folder": "v/*/*.parquet", "database": "v.duckdb"}


def written(path: Path, wards: str, kind: str = "VARCHAR") -> None:
    """The same table in a file of whatever kind, with one unit that has rows in these wards."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = path.suffix == ".duckdb"
    with duckdb.connect(str(path) if database else ":memory:") as con:
        con.execute(f"CREATE TABLE visits (patient_id INTEGER, ward {kind}, name VARCHAR)")
        rows = [(number, "abcd"[number % 4], "x") for number in range(100, 140)] + [(1, ward, "y") for ward in wards]
        con.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)
        if not database:
            con.execute(f"COPY visits TO '{path}' (FORMAT {path.suffix[1:]})")


class Files:
    """The files of one kind of source, of which one is replaced by another, or gets another beside it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.folder = kind, folder
        self.at = folder / ("v/ward=1/v.parquet" if kind == "folder" else SOURCES[kind])
        self.states = [folder / f"{name}{self.at.suffix}" for name in ("one", "two")]
        for path, wards in zip(self.states, ("abcd", "aaaa"), strict=True):
            written(path, wards)
        self.put(0)
        source = "" if kind == "database" else f'source = "{SOURCES[kind]}"'
        (folder / "p.toml").write_text(POLICY.format(source=source))

    def put(self, state: int) -> None:
        """Replace the file, as a nightly job does: the new one is complete before it has the name."""
        self.at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.states[state], self.folder / "new")
        os.replace(self.folder / "new", self.at)

    def connected(self) -> dpsql.Connection:
        return dpsql.connect(self.at if self.kind == "database" else None, policy=self.folder / "p.toml")


def swapping(monkeypatch: pytest.MonkeyPatch, after: int, swap: Callable[[], object]) -> list[str]:
    """Call ``swap`` after so many statements of scans; the statements."""
    plain, seen = engine.run_within, list[str]()

    def run(connection: Any, statement: str, seconds: float | None) -> Any:
        if after == 0 and not seen:
            swap()
        found = plain(connection, statement, seconds)
        seen.append(statement)
        if len(seen) == after:
            swap()
        return found

    monkeypatch.setattr(engine, "run_within", run)
    return seen


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.few("0-parquet", "1-csv")
def test_a_file_that_is_replaced_between_statements_releases_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, direction: int
) -> None:
    files = Files(tmp_path, kind)
    files.put(direction)
    con = files.connected()
    plan = con.plan(TWICE, epsilon=1.0, delta=1e-7)
    with monkeypatch.context() as patch:
        seen = swapping(patch, -1, lambda: None)
        con.run(plan, fresh=True)
    assert len(seen) > 1  # several statements of one release
    for after in range(len(seen) + 1):
        files.put(direction)
        spent = con.budget.spent
        with monkeypatch.context() as patch:
            swapping(patch, after, lambda: files.put(1 - direction))
            with pytest.raises(OperationalError, match=r"^the files of visits changed while they were read"):
                con.run(plan, fresh=True)
        assert con.budget.spent > spent
    # Nothing was registered or recorded, and a release over files that stay is made as before.
    assert [entry.id for entry in con.budget.unreleased] == list(range(2, len(seen) + 3))
    assert con.sql("SELECT release_id FROM dp.releases").fetchall() == [(1,)]
    assert con.run(plan, fresh=True).id == len(seen) + 3


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_one_statement_over_a_file_twice_releases_nothing_where_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    files = Files(tmp_path, kind)
    con = files.connected()
    swapping(monkeypatch, 0, lambda: files.put(1))
    with pytest.raises(OperationalError, match="the files of visits changed"):
        con.run(ITSELF, epsilon=1.0)


def test_a_file_that_is_added_to_a_folder_or_taken_away_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path, "folder")
    con = files.connected()
    more = tmp_path / "v/ward=2/w.parquet"
    more.parent.mkdir()
    for change in (lambda: shutil.copy(files.states[1], more), more.unlink, files.at.unlink):
        with monkeypatch.context() as patch:
            swapping(patch, 1, change)
            with pytest.raises(OperationalError, match="the files of visits changed"):
                con.run(TWICE, epsilon=1.0, fresh=True)


def test_a_file_that_is_written_to_in_place_is_noticed_though_its_size_and_time_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(tmp_path, "csv")
    con, was = files.connected(), os.stat(files.at)

    def edit() -> None:
        text = files.at.read_text()
        files.at.write_text(text.replace("1,b", "1,a"))
        os.utime(files.at, ns=(was.st_atime_ns, was.st_mtime_ns))

    swapping(monkeypatch, 1, edit)
    with pytest.raises(OperationalError, match="the files of visits changed"):
        con.run(TWICE, epsilon=1.0)


RELEASES: dict[str, Callable[[dpsql.Connection], object]] = {
    "counts": lambda con: con.run("SELECT COUNT(*) AS n FROM visits", epsilon=1.0),
    "rounds": lambda con: con.run(TWICE.split(";")[0], epsilon=1.0, delta=1e-7, method="adaptive", rounds=2),
    "values": lambda con: con.discover("visits.name", epsilon=1.0, delta=1e-7, max_groups=1),
    "local": lambda con: con.synthesize("visits", ["ward"], epsilon=1.0),
}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("behind", ["file", "connection"])
@pytest.mark.few(every=2)
def test_every_kind_of_release_is_of_one_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, behind: str
) -> None:
    files = Files(tmp_path, "parquet")
    open_ = duckdb.connect() if behind == "connection" else None
    con = dpsql.connect(open_, policy=tmp_path / "p.toml")
    swapping(monkeypatch, 1, lambda: files.put(1))
    with pytest.raises(OperationalError, match="the files of visits changed while they were read"):
        RELEASES[release](con)
    assert len(con.budget.unreleased) == 1


@pytest.mark.parametrize("release", RELEASES)
def test_columns_are_compared_again_where_the_scan_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    """A file of another type that comes between the check before the charge and the scan."""
    files = Files(tmp_path, "parquet")
    written(tmp_path / "three.parquet", "abcd", "BLOB")
    files.states.append(tmp_path / "three.parquet")
    con, plain = files.connected(), Ledger.charge

    def charge(*arguments: Any, **named: Any) -> int:
        number = plain(*arguments, **named)
        files.put(2)
        return number

    monkeypatch.setattr(Ledger, "charge", charge)
    with pytest.raises(OperationalError, match="the columns of visits changed just after the charge"):
        RELEASES[release](con)
    assert len(con.budget.unreleased) == 1
