"""A small data set behind a server: what the tests of the server share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers import filled

import dpsql
from dpsql.extensions.server.accounts import Accounts, Wish
from dpsql.extensions.server.journal import Journal
from dpsql.extensions.server.listener import Server
from dpsql.extensions.server.protocol.limits import Limits
from dpsql.extensions.server.protocol.scram import Verifier
from dpsql.extensions.server.service import Service

POLICY = """
dataset = "visits-1"
[budget]
epsilon = 400.0
pure_epsilon = 200.0
delta = 1e-9
[tables.visits]
unit = "row"
expected_rows = 300
[tables.visits.columns]
id = {}
age = { lower = 0, upper = 99, nulls = false }
state = { values = ["BE", "FR", "ZH"], nulls = false }
cost = { lower = 0, upper = 500, step = 0.5 }
day = { lower = 2020-01-01, upper = 2020-12-31 }
"""
VERIFIER = Verifier.of("secret")


def accounts(name: str) -> Verifier | None:
    return VERIFIER if name in ("ann", "bob") else None


def database(folder: Path, rule: str = "") -> Path:
    """The private tables, and the policy beside them; ``rule``: a line more of its budget."""
    path = folder / "visits.duckdb"
    with filled(path) as con:
        con.execute("CREATE TABLE visits (id INTEGER, age INTEGER, state VARCHAR, cost DECIMAL(9,2), day DATE)")
        con.execute(
            "INSERT INTO visits SELECT i, i % 90, ['BE', 'FR', 'ZH'][1 + i % 3], i % 400, "
            "DATE '2020-01-01' + (i % 300)::INTEGER FROM range(300) t(i)"
        )
    (folder / "visits.toml").write_text(POLICY.replace("[tables.visits]", f"{rule}\n[tables.visits]", 1))
    return path


def connection(folder: Path) -> dpsql.Connection:
    return dpsql.connect(database(folder), policy=folder / "visits.toml")


def server(folder: Path, limits: Limits | None = None, **options: Any) -> Server:
    """A server of the small data set at a free port, with accounts ann and bob, password "secret"."""
    held = limits or Limits(stalled=5.0)
    options = {"accounts": accounts, "slow": 1e-6, "journal": Journal(folder / "log.jsonl"), **options}
    return Server(Service(connection(folder), held), port=0, limits=held, **options)


def server_of_analysts(folder: Path, rule: str = "", *names: str) -> Server:
    """A server whose analysts are the ledger's, each with epsilon 40 and the password "secret 12"."""
    con = dpsql.connect(database(folder, rule), policy=folder / "visits.toml")
    held = Accounts.of(con.policy, con.ledger_path, None)
    for name in names or ("ann", "bob"):
        held.add(name, Wish(epsilon=40), "secret 12")
    journal = Journal(folder / "log.jsonl")
    return Server(Service(con, accounts=held), held.verifier, port=0, slow=1e-6, journal=journal)
