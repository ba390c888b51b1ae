"""The flights batch with OpenDP's Polars queries. Run by benchmarks/sql_peers.py in an environment of its own."""

import itertools

import job
import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib")


def keys_table(query, domains):
    """Every group of a query, since the groups are public."""
    names = query["keys"]
    rows = list(itertools.product(*(domains[name] for name in names)))
    schema = {name: pl.Int32 if name == "month" else pl.String for name in names}
    return pl.LazyFrame(dict(zip(names, zip(*rows, strict=True), strict=True)), schema=schema)


def main(task):
    """Answers and seconds."""
    columns = ["month", "minute", "origin", "carrier", "distance"]
    for _ in range(task["releases"]):
        with job.clock() as clock:
            table = pl.scan_parquet(task["path"]).select(*columns).with_columns(pl.col("distance").cast(pl.Int64))
            context = dp.Context.compositor(
                data=table,
                privacy_unit=dp.unit_of(contributions=1),
                privacy_loss=dp.loss_of(epsilon=task["epsilon"]),
                split_evenly_over=len(task["queries"]),
                # A public bound on the number of rows, which sums ask for.
                margins=[dp.polars.Margin(max_length=100_000_000)],
            )
            found = []
            for query in task["queries"]:
                asked = context.query()
                if query["range"]:
                    low, high = query["range"]
                    asked = asked.filter((pl.col("minute") >= low) & (pl.col("minute") <= high))
                value = dp.len()
                if query["sum"]:
                    value = pl.col(query["sum"]).fill_null(0).dp.sum((0, 5000))
                if query["keys"]:
                    asked = asked.group_by(query["keys"]).agg(value.alias("answer"))
                    asked = asked.with_keys(keys_table(query, task["domains"]))
                else:
                    asked = asked.select(value.alias("answer"))
                found.append(asked.release().collect().select([*query["keys"], "answer"]).rows())
        yield clock.seconds, [[(list(row[:-1]), float(row[-1])) for row in rows] for rows in found]


job.serve(main, "opendp")
