"""Corpora of statements as tools and analysts send them: which are answered, and why the others are not.

    python tests/sql/corpus.py [NAME ...]

plans every statement of corpora/NAME.sql over the tables of NAME.schema.sql under the policy NAME.toml and prints what
became of it, its seconds, and the table of docs/sql.md. TPC-H is in tests/sql/tpch.sql and docs/tpch.md.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import duckdb

import dpsql
from dpsql.measure import ConnectionEngine, TableSource, read_schemas
from dpsql.planning.prepare import understood_of
from dpsql.policy import Policy

FOLDER = Path(__file__).parent / "corpora"
NAMES = ("clickbench", "dashboards", "omop")
TITLES = {"clickbench": "ClickBench", "dashboards": "dashboards and analysts", "omop": "OMOP cohorts"}
_QUESTION = re.compile(r"^-- \[([^\]\n]+)\](?: refused: ([\w-]+))?\n((?:--[^\n]*\n)*)(.*?)(?=^-- \[|\Z)", re.M | re.S)


@dataclass(frozen=True)
class Question:
    """A statement of a corpus; ``refused`` is the code of its refusal, "" where it is answered, ``why`` in words."""

    name: str
    refused: str
    why: str = field(repr=False)
    sql: str = field(repr=False)


def questions(corpus: str) -> list[Question]:
    """The statements of a corpus, as its file marks them."""
    text = (FOLDER / f"{corpus}.sql").read_text()
    return [
        Question(name, refused, " ".join(line.removeprefix("--").strip() for line in why.splitlines()), sql.strip())
        for name, refused, why, sql in _QUESTION.findall(text)
    ]


@dataclass(frozen=True)
class World:
    """The policy of a corpus and the types of its columns, and a connection to its empty tables."""

    policy: Policy
    schemas: dict[str, dict[str, str]]
    database: duckdb.DuckDBPyConnection

    @classmethod
    def of(cls, corpus: str) -> World:
        """The tables and the policy of a corpus."""
        database = duckdb.connect()
        database.execute((FOLDER / f"{corpus}.schema.sql").read_text())
        policy = Policy.parse((FOLDER / f"{corpus}.toml").read_text())
        sources = [TableSource(name, None) for name in policy.tables]
        return cls(policy, dict(read_schemas(ConnectionEngine(database), sources)), database)

    def refusal(self, sql: str) -> str:
        """The code of a statement's refusal, "" for one that is understood."""
        try:
            understood_of(sql, self.policy, self.schemas)
        except dpsql.SQLError as error:
            return error.code
        return ""

    def connect(self, folder: Path) -> dpsql.Connection:
        """A connection that plans, its ledger in ``folder``."""
        return dpsql.connect(
            self.database, policy=self.policy, ledger=folder / "c.ledger", releases=folder / "c.releases.duckdb"
        )


def table() -> str:
    """The table of docs/sql.md: a line a corpus, with the codes of its refusals and how many statements have each."""
    lines = ["| corpus | statements | answered | refused, by code |", "|---|---:|---:|---|"]
    for corpus in NAMES:
        held = questions(corpus)
        codes = Counter(question.refused for question in held if question.refused)
        shown = ", ".join(f"`{code}` {count}" for code, count in sorted(codes.items(), key=lambda c: (-c[1], c[0])))
        lines.append(f"| {TITLES[corpus]} | {len(held)} | {len(held) - codes.total()} | {shown} |")
    return "\n".join(lines)


def main(names: list[str]) -> None:
    """Plan the corpora of these names, all where there are none, and say what became of each statement."""
    for corpus in names or NAMES:
        with TemporaryDirectory() as folder:
            con = World.of(corpus).connect(Path(folder))
            for question in questions(corpus):
                start = monotonic()
                try:
                    con.plan(question.sql, rho=1)
                    found, said = "", ""
                except dpsql.Error as error:
                    found, said = getattr(error, "code", "other"), f": {error}"
                mark = " " if found == question.refused else "!"
                shown = f"{found}{said}" if found else "answered"
                print(f"{mark} {corpus} {monotonic() - start:6.2f} s  [{question.name}] {shown}", flush=True)
    print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
