"""``dpsql audit``: a policy and a batch held to their promise on generated rows; exit code 1 where a check fails."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.audit import audit as run_audit
from dpsql.driver.opening import connect
from dpsql.errors import OperationalError
from dpsql.policy import Policy
from dpsql.sql.parse.options import read_options
from dpsql.surfaces import inputs, output


def audit(options: argparse.Namespace) -> int:
    """Audit a batch; 0 where every check holds, else 1."""
    text = inputs.from_file(options.batch, otherwise="")
    if options.epsilon is None and options.rho is None and not any(read_options(text)[1]):
        options.usage("the budget is missing; give --epsilon E, --epsilon E --delta D, or --rho R")
    policy = Policy.load(Path(options.policy))
    progress = output.Progress(quiet=options.quiet, what="auditing")
    try:
        report = run_audit(
            policy,
            text,
            epsilon=options.epsilon,
            delta=options.delta,
            rho=options.rho,
            schemas=_schemas(policy, options),
            trials=options.trials,
            pairs=options.pairs,
            progress=progress,
            method=options.method,
            rounds=options.rounds,
        )
    finally:
        progress.done()
    if options.json:
        output.print_json(report.as_dict())
    else:
        print(report)
    return 0 if report.holds else 1


def _schemas(policy: Policy, options: argparse.Namespace) -> dict[str, dict[str, str]] | None:
    """The types of the real tables where they can be reached; the policy's own otherwise. No row is read."""
    paths = [(policy.source_path(name), table.is_pattern) for name, table in policy.tables.items()]
    if options.database is None and not all(path is not None and (many or path.exists()) for path, many in paths):
        return None
    if options.database is not None and not Path(options.database).is_file():
        raise OperationalError(f"{options.database} is not a file; check the path, or leave --database out")
    with connect(options.database, policy=policy) as con:
        return con.schemas()


def arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("policy", metavar="POLICY", help="policy file (TOML)")
    command.add_argument("batch", metavar="BATCH.sql", help="SQL file of the batch")
    command.add_argument("--epsilon", metavar="E", help="budget of the batch: pure, or with the policy's delta")
    command.add_argument("--delta", metavar="D", help="with --epsilon: (epsilon, delta)-differential privacy")
    command.add_argument("--rho", metavar="R", help="instead of both: zero-concentrated differential privacy")
    command.add_argument(
        "--method",
        choices=("auto", "mwem", "mwem-strategy"),
        default="auto",
        help="the mechanism of the plan, as for dpsql plan (default: auto)",
    )
    command.add_argument("--rounds", metavar="N", type=int, help="rounds of mwem; chosen by simulation if left out")
    command.add_argument(
        "--database",
        metavar="FILE",
        help="DuckDB file with the private tables, for the types of their columns alone; else the policy gives them",
    )
    command.add_argument(
        "--trials",
        metavar="N",
        type=int,
        default=1000,
        help="noisy measurements of each of two neighbouring databases (default: 1000)",
    )
    command.add_argument(
        "--pairs",
        metavar="N",
        type=int,
        default=200,
        help="about how many scans to spend on the largest change, for each kind of unit (default: 200)",
    )
