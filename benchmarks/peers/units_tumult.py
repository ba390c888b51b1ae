"""Visits and persons with Tumult Analytics. Run by benchmarks/units.py in an environment of its own.

Persons are the ID of the table; every query enforces the bounds of its own grouping, as Tumult's tutorial on privacy
IDs does, at an equal part of the budget; Laplace noise for pure budgets, Gaussian for zCDP, its defaults.
"""

import os
import sys
import time
import warnings

import job

# Spark's workers are to be of this environment, and its messages not ours.
os.environ["PYSPARK_PYTHON"] = sys.executable
warnings.filterwarnings("ignore")

from pyspark.sql import SparkSession, functions  # noqa: E402
from tmlt import analytics as tm  # noqa: E402


def budget_of(budget, parts):
    """A part of the whole."""
    if "rho" in budget:
        return tm.RhoZCDPBudget(budget["rho"] / parts)
    return tm.PureDPBudget(budget["epsilon"] / parts)


def query_of(query, task):
    """One query, with at most ``most`` rows of a person, one a month."""
    keys, most = query["keys"], task["most"]
    asked = tm.QueryBuilder("visits")
    if "month" in keys:
        asked = asked.enforce(tm.MaxGroupsPerID("month", most)).enforce(tm.MaxRowsPerGroupPerID("month", 1))
    elif query["distinct"]:
        asked = asked.enforce(tm.MaxGroupsPerID(keys[0], most))
    else:
        asked = asked.enforce(tm.MaxRowsPerID(most))
    asked = asked.groupby(tm.KeySet.from_dict({key: task["domains"][key] for key in keys}))
    return asked.count_distinct(["person"], name="answer") if query["distinct"] else asked.count(name="answer")


def said_of(session, asked, share):
    """The standard error that the library says: its Gaussian's parameter is a variance, its Laplace's a scale."""
    (noise,) = session._noise_info(asked, share)
    parameter = float(noise["noise_parameter"])
    return parameter**0.5 if "GAUSSIAN" in noise["noise_mechanism"].name else parameter * 2**0.5


def main(task):
    """Answers, what the library says of its noise, and seconds."""
    folder = os.path.dirname(task["result"])
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.sql.warehouse.dir": folder}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    table = spark.read.parquet(task["path"]).select("person", "state", functions.month("day").alias("month"))
    parts = len(task["queries"])
    began = time.monotonic()
    for _ in range(task["releases"]):
        with job.clock() as clock:
            session = tm.Session.from_dataframe(
                budget_of(task["budget"], 1), "visits", table, protected_change=tm.AddRowsWithID("person")
            )
            share, found, said = budget_of(task["budget"], parts), [], []
            for query in task["queries"]:
                asked = query_of(query, task)
                said.append(said_of(session, asked, share))
                rows = session.evaluate(asked, share).select(*query["keys"], "answer").collect()
                found.append([(list(row[:-1]), float(row[-1])) for row in rows])
        yield clock.seconds, {"answers": found, "said": said}
        if time.monotonic() - began > task["seconds"]:
            return


job.serve(main, "tmlt.analytics")
