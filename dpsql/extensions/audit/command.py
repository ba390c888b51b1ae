"""The command ``dpsql audit``."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.driver.opening import connect
from dpsql.errors import OperationalError
from dpsql.extensions.audit.batch_audit import audit as run_audit
from dpsql.policy import Policy
from dpsql.sql.parse.options import read_options
from dpsql.surfaces import inputs, output


def audit(options: argparse.Namespace) -> int:
    """Audit a batch; 0 where every check holds, else 1."""
    text = inputs.from_file(options.batch, otherwise="")
    if options.epsilon is None and options.rho is None and not any(read_options(text)[1]):
        options.usage("the budget is missing; give --epsilon E, --epsilon E --delta D, or --rho R")
    policy = Policy.load(Path(options.policy))
    with output.Progress(quiet=options.quiet, what="auditing") as progress:
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
