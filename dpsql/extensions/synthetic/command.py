"""What ``dpsql synthesize --rows`` does."""

from __future__ import annotations

import argparse

from dpsql.errors import one_line
from dpsql.extensions.synthetic.connection import MakingRows
from dpsql.surfaces import formats, inputs, output


def make_rows(options: argparse.Namespace) -> None:
    """Rows that agree with the counts of an earlier release: a file, or a folder of one for each table."""
    if options.rows is None:
        options.usage("--release and --seed are for --rows")
    if any(given is not None for given in (options.columns, options.ask, options.epsilon, options.ids, options.name)):
        options.usage("--rows makes rows of what was released; it goes with --release, --seed and --output alone")
    if options.output is None or formats.chosen(options) not in ("parquet", "table"):
        options.usage("--rows writes Parquet: name a file with -o rows.parquet, or a folder for several tables")
    with inputs.connected_as(MakingRows, options) as con:
        formats.check_file(options, con.ledger_path, con.releases_path, con.policy.path, options.database)
        made = con.synthetic_rows(options.table, options.rows, release=options.release, seed=options.seed or 0)
    made.write(options.output)
    if not options.quiet:
        shown = ", ".join(f"{len(made[name]):,} rows of {one_line(name)}" for name in made)
        print(f"Wrote {shown} to {options.output}; free. How far their counts are from the released ones:\n")
        print(output.table_text(made.agreement))
        for reason in made.left_out:
            print(f"Not used: {one_line(reason)}")
