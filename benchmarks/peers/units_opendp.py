"""Visits and persons with OpenDP's Polars queries. Run by benchmarks/units.py in an environment of its own.

Persons are the identifier; every query truncates to the bounds of its own grouping, as OpenDP's guide to grouping by
identifiers does, and the context splits the budget evenly.
"""

import functools
import time

import job
import opendp.prelude as dp
import polars as pl

dp.enable_features("contrib")

TYPES = {"month": pl.Int64, "state": pl.String}


def bounded(asked, query, most):
    """At most ``most`` rows of a person, one for each group where that is a month or persons are counted."""
    keys = query["keys"]
    if not query["distinct"] and "month" not in keys:
        return asked.truncate_per_group(most)
    # keep="sample", the default, names a column twice and fails (0.16.0); no person of the data is cut.
    return asked.truncate_per_group(1, by=keys).truncate_num_groups(most, by=keys, keep="first")


def main(task):
    """Answers, what the library says of its noise, and seconds."""
    table = pl.scan_parquet(task["path"]).select(
        "person", "state", pl.col("day").dt.month().cast(pl.Int64).alias("month")
    )
    domains = task["domains"].items()
    groups = {name: pl.LazyFrame({name: values}, schema={name: TYPES[name]}) for name, values in domains}
    began = time.monotonic()
    for _ in range(task["releases"]):
        with job.clock() as clock:
            context = dp.Context.compositor(
                data=table,
                privacy_unit=dp.unit_of(contributions=1, identifier=pl.col("person")),
                privacy_loss=dp.loss_of(**task["budget"]),
                split_evenly_over=len(task["queries"]),
            )
            found, said = [], []
            for query in task["queries"]:
                keys = functools.reduce(lambda a, b: a.join(b, how="cross"), (groups[key] for key in query["keys"]))
                asked = bounded(context.query(), query, task["most"]).group_by(query["keys"])
                asked = asked.agg(dp.len(signed=True).alias("answer")).with_keys(keys)
                noise = asked.summarize()
                said.append(noise["scale"][0] * (2**0.5 if "Laplace" in noise["distribution"][0] else 1))
                found.append(asked.release().collect().select([*query["keys"], "answer"]).rows())
        answers = [[(list(row[:-1]), float(row[-1])) for row in rows] for rows in found]
        yield clock.seconds, {"answers": answers, "said": said}
        if time.monotonic() - began > task["seconds"]:
            return


job.serve(main, "opendp")
