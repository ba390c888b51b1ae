"""Build rand_hie.parquet from the RAND Health Insurance Experiment file of statsmodels.

    python build_rand_hie.py path/to/statsmodels/datasets/randhie/randhie.csv [rand_hie.parquet]

README.md beside this script says where each column comes from. The order of rows is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import duckdb

ROWS = 20_190

# A dummy of physical limitations holds a group mean where the answer was missing; a mean is no
# answer, so it becomes NULL. The spending limit is kept by the file only for families who pay a
# share of each bill, and so it is NULL for the others.
COLUMNS = """
SELECT
    mdvis::INTEGER AS visits,
    CASE WHEN idp = 1 THEN 'individual deductible'
         WHEN lncoins = 0 THEN 'free'
         ELSE 'coinsurance ' || round(exp(lncoins) - 1)::INTEGER END AS plan,
    round(exp(lncoins) - 1)::INTEGER AS coinsurance,
    CASE WHEN lpi = 0 THEN 0 ELSE round(exp(lpi))::INTEGER END AS incentive,
    CASE WHEN idp = 1 OR lncoins = 0 THEN NULL
         WHEN fmde = 0 THEN 0
         ELSE round(exp(fmde) * 0.01 * (exp(lncoins) - 1))::INTEGER END AS spending_limit,
    CASE WHEN hlthp = 1 THEN 'poor'
         WHEN hlthf = 1 THEN 'fair'
         WHEN hlthg = 1 THEN 'good'
         ELSE 'excellent' END AS health,
    CASE physlm WHEN 1 THEN true WHEN 0 THEN false END AS limited,
    round(disea, 1)::DOUBLE AS disease_index
FROM read_csv(?, header = true)
"""


def build(source: Path, target: Path) -> int:
    """Write ``target`` and return its number of rows; SystemExit where the source is another file."""
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE rand_hie AS {COLUMNS}", [str(source)])
        [(rows,)] = con.execute("SELECT count(*) FROM rand_hie").fetchall()
        if rows != ROWS:
            raise SystemExit(f"{source} has {rows} rows, not {ROWS}; pass randhie.csv of statsmodels")
        con.execute("SET threads = 1")
        con.table("rand_hie").write_parquet(str(target), compression="zstd")
    return int(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Build rand_hie.parquet from statsmodels' randhie.csv.")
    parser.add_argument("source", type=Path, help="randhie.csv of statsmodels/datasets/randhie")
    parser.add_argument("target", type=Path, nargs="?", default=Path(__file__).with_name("rand_hie.parquet"))
    arguments = parser.parse_args()
    rows = build(arguments.source, arguments.target)
    print(f"{arguments.target}: {rows} rows")


if __name__ == "__main__":
    main()
