"""A first policy, for the custodian to confirm, and advice on one; from public schemas alone, no row is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from dpsql.errors import OperationalError
from dpsql.extensions.advice.first_policy import skeleton
from dpsql.extensions.advice.policy_advice import advice
from dpsql.extensions.advice.proposals import Proposal, doubtful_proposals, propose
from dpsql.measure import read_declared
from dpsql.policy import Policy
from dpsql.policy.types import Schemas

log = logging.getLogger("dpsql")


def policy_advice(policy: Policy, schemas: Schemas, database: str | os.PathLike[str] | None) -> list[str]:
    """What a policy's author should look at again, a line each; from the catalog and the policy, no row is read."""
    file = policy.place("database") if database is None else Path(database)
    declared = {} if file is None else read_declared(file.absolute(), {})
    required = {name: table.required for name, table in declared.items()}
    keys = {name: table.key for name, table in declared.items()}
    return advice(policy, schemas, required, keys, {name: table.collations for name, table in declared.items()})


_CSV_NOTE = """\
# The columns of a CSV file are written down as VARCHAR, since only rows could tell their types: correct
# each type, as in year = { type = "INTEGER", lower = 1990, upper = 2030 }.

"""


def draft_policy(
    database: Path | None,
    sources: Mapping[str, str],
    dataset: str,
    choose: Callable[[str, Mapping[str, str], Proposal], Proposal] = lambda table, columns, proposed: proposed,
    budget: Callable[[], tuple[str, str] | None] = lambda: None,
) -> tuple[str, list[str]]:
    """TOML of a policy, and its tables, for ``database`` and the files of ``sources`` (by table name).

    Column types, CHECK bounds and ENUM members come from the catalog, the Parquet footer or the
    CSV header line; no row is read. What the custodian must decide is commented out and marked, but for units that
    ``choose`` decides, from a table, the types of its columns and what keys and names of columns propose, and the
    epsilon and delta of ``budget``.
    Raises OperationalError where a file cannot be read or there is no table.
    """
    found = read_declared(database, {name: Path(source).absolute() for name, source in sources.items()})
    if not found:
        raise OperationalError(f"{database} has no table; name the database that holds the private tables")
    proposals = propose(
        {name: table.columns for name, table in found.items()},
        {name: table.key for name, table in found.items() if table.key},
        {name: table.references for name, table in found.items()},
    )
    decided = {name: choose(name, found[name].columns, proposed) for name, proposed in proposals.items()}
    text = skeleton(found, dataset, decided, sources=sources, budget=budget())
    if any(source.lower().endswith((".csv", ".csv.gz")) for source in sources.values()):
        text = _CSV_NOTE + text
    for line in doubtful_proposals(decided):
        log.warning("%s", line)
        text = f"# {line}\n{text}"
    return text, list(found)
