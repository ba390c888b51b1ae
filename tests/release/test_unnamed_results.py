"""Unnamed results: q1 of one label never becomes q1 of another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import dpsql
from dpsql.release import Result
from dpsql.surfaces.cli import main

POLICY = """
dataset = "unnamed-1"
[budget]
epsilon = 100
[tables.t]
unit = "row"
source = "t.csv"
[tables.t.columns]
k = { lower = 0, upper = 9, type = "INTEGER", nulls = false }
"""
LOW, MIDDLE, HIGH = (
    f"SELECT COUNT(*) AS {name} FROM t WHERE k < {end}" for name, end in zip("abc", (2, 5, 9), strict=True)
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("k\n" + "".join(f"{i % 10}\n" for i in range(50)))
    (tmp_path / "p.toml").write_text(POLICY)
    return tmp_path


def connect(place: Path, label: str = "") -> dpsql.Connection:
    return dpsql.connect(policy=place / "p.toml", label=label)


def seen(con: dpsql.Connection, name: str = "q1") -> list[str]:
    """The first column, which tells one batch from another."""
    return list(con.sql(f"SELECT * FROM {name}").columns[:1])


def run(con: dpsql.Connection, sql: str, **options: object) -> Result:
    return con.run(sql, epsilon=1, earlier=False, **options)["q1"]  # type: ignore[arg-type]


def refusal(use: Callable[[], object]) -> str:
    with pytest.raises(dpsql.SQLError) as caught:
        use()
    return str(caught.value)


def test_each_connection_sees_its_own(place: Path) -> None:
    ann, bob = connect(place, "ann"), connect(place, "bob")
    run(ann, LOW)
    assert seen(ann) == seen(bob) == seen(connect(place)) == ["a"]  # there is one, and nobody has another
    run(bob, MIDDLE)
    assert (seen(ann), seen(bob)) == (["a"], ["b"])
    run(ann, HIGH)
    assert (seen(ann), seen(bob)) == (["c"], ["b"])
    run(ann, LOW)  # free, and shown again
    assert (seen(ann), seen(bob)) == (["a"], ["b"])
    assert ann.execute("SELECT * FROM q1").description[0][0] == "a"
    assert (seen(ann, "r2.q1"), seen(ann, "r3.q1")) == (["b"], ["c"])


def test_who_asked_nothing_is_told_what_to_write(place: Path) -> None:
    run(connect(place, "ann"), LOW)
    run(connect(place, "bob,\nfor the board"), MIDDLE)
    run(connect(place, "ann"), HIGH)
    said = "q1 may be the unnamed result of several releases; write which: r3.q1 (ann), r2.q1 ("
    for con in (connect(place), connect(place, "ann")):
        for asked in ("SELECT * FROM q1", "SELECT a FROM q1", "SELECT count(*) FROM dp.q1", 'FROM "q1"'):
            found = refusal(lambda con=con, asked=asked: con.sql(asked))  # type: ignore[misc]
            assert found.startswith(said)
            assert "bob,\n" not in found


@pytest.mark.long
def test_a_rebuilt_file_and_other_programs_agree(place: Path) -> None:
    ann, bob = connect(place, "ann"), connect(place, "bob")
    run(ann, LOW)
    run(bob, MIDDLE)
    run(ann, f"{LOW}; {HIGH}")
    for again in (False, True):
        if again:
            ann.rebuild()
        with duckdb.connect(ann.releases_path, read_only=True) as other:
            with pytest.raises(duckdb.CatalogException, match="q1"):
                other.execute("SELECT * FROM dp.q1")
            assert other.execute("SELECT c FROM dp.q2").fetchall()  # of ann's alone
            assert other.execute("SELECT b FROM r2.q1").fetchall()
    assert (seen(ann), seen(ann, "q2"), seen(bob)) == (["a"], ["c"], ["b"])
    bob.drop("q1", release=2)
    assert seen(connect(place)) == ["a"]  # of ann's alone again
    assert "q1 of release 2 is no longer among the releases" in refusal(lambda: seen(bob))
    run(bob, MIDDLE)
    assert seen(bob) == ["b"]


@pytest.mark.long
def test_two_labels_of_one_connection_are_told_apart(place: Path) -> None:
    con = connect(place, "ann")
    run(con, LOW)
    run(con, MIDDLE, label="for bob")
    for asked in ("SELECT * FROM q1", "SELECT b FROM q1", "SELECT count(*) FROM q1"):
        said = refusal(lambda asked=asked: con.sql(asked))  # type: ignore[misc]
        assert said.startswith("q1 may be the unnamed result of several releases; write which: r2.q1 (for bob), r1.q1")
    assert seen(con, "r2.q1") == ["b"]
    run(con, MIDDLE)  # free: now both mean it
    assert seen(con) == ["b"]


def test_what_earlier_releases_answer_for_free_is_the_askers_own(place: Path) -> None:
    ann, bob = connect(place, "ann"), connect(place, "bob")
    run(ann, LOW)
    run(ann, MIDDLE)
    assert run(bob, LOW) == ann.sql("SELECT * FROM r1.q1")
    assert (seen(ann), seen(bob)) == (["b"], ["a"])


@pytest.mark.long
def test_a_better_answer_stays_with_its_label(place: Path) -> None:
    ann, bob = connect(place, "ann"), connect(place, "bob")
    for con in (ann, bob):
        con.run(LOW if con is ann else HIGH, epsilon=0.5, earlier=False)
        con.run(f"CREATE VIEW v{id(con)} AS {LOW if con is ann else HIGH}", epsilon=2, earlier=False, fresh=True)
    better = ann.refine()
    assert {release.record.label for release in better} == {"ann", "bob"}
    assert (seen(ann), seen(bob)) == (["a"], ["c"])
    (mine,) = (r for r in better if r.record.label == "ann" and "q1" in r.views)
    assert ann.sql("SELECT * FROM q1") == mine["q1"]
    assert refusal(lambda: seen(connect(place)))


def test_one_label_replaces_its_own_as_before(place: Path) -> None:
    for sql, name in ((LOW, "a"), (MIDDLE, "b")):
        run(connect(place), sql)
        assert seen(connect(place)) == [name]
        with duckdb.connect(place / "p.releases.duckdb", read_only=True) as other:
            assert other.execute(f"SELECT {name} FROM dp.q1").fetchall()


@pytest.mark.long
def test_the_command_line_says_which(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(connect(place, "ann"), LOW)
    run(connect(place, "bob"), MIDDLE)
    policy = ["--policy", str(place / "p.toml")]
    for command in (["sql", "SELECT * FROM q1"], ["releases", "show", "q1"]):
        assert main([*command, *policy]) == 1
        assert "write which: r2.q1 (bob), r1.q1 (ann)" in capsys.readouterr().err
    for command in (["sql", "SELECT * FROM r2.q1"], ["releases", "show", "r2.q1"]):
        assert main([*command, *policy]) == 0
        assert "b_stderr" in capsys.readouterr().out
    assert main(["releases", "show", "r9.q1", *policy]) == 1
