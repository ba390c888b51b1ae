"""The flights batch with SmartNoise SQL. Run by benchmarks/sql_peers.py in an environment of its own."""

import job
import pandas as pd
import snsql

# month and minute are words of SmartNoise's grammar.
NAMES = {"month": "dep_month", "minute": "dep_minute"}
COLUMNS = {
    "month": {"type": "int", "lower": 1, "upper": 12},
    "minute": {"type": "int", "lower": 0, "upper": 1439},
    "origin": {"type": "string", "cardinality": 3},
    "carrier": {"type": "string", "cardinality": 16},
    "distance": {"type": "int", "lower": 0, "upper": 5000},
}


def statement(query):
    """One query of the batch as SQL."""
    keys = [NAMES.get(key, key) for key in query["keys"]]
    value = f"SUM({query['sum']})" if query["sum"] else "COUNT(*)"
    select = ", ".join([*keys, f"{value} AS answer"])
    where = " WHERE dep_minute BETWEEN {} AND {}".format(*query["range"]) if query["range"] else ""
    return f"SELECT {select} FROM flights{where}" + (f" GROUP BY {', '.join(keys)}" if keys else "")


def main(task):
    """Answers and seconds."""
    table = pd.read_parquet(task["path"], columns=list(COLUMNS)).rename(columns=NAMES)
    described = {NAMES.get(name, name): kind for name, kind in COLUMNS.items()}
    flights = {"row_privacy": True, "censor_dims": False, "clamp_counts": False, "rows": len(table), **described}
    share = task["epsilon"] / len(task["queries"])
    for _ in range(task["releases"]):
        with job.clock() as clock:
            # delta is for sums in SmartNoise's own accounting; counts are Laplace.
            privacy = snsql.Privacy(epsilon=share, delta=task["delta"])
            reader = snsql.from_df(table, privacy=privacy, metadata={"": {"": {"flights": flights}}})
            found = [reader.execute(statement(query))[1:] for query in task["queries"]]
        yield clock.seconds, [[(list(row[:-1]), float(row[-1])) for row in rows] for rows in found]


job.serve(main, "smartnoise-sql")
