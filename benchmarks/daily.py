"""A table that gets a file a day: what the benchmarks of growing tables declare of it."""

import datetime as dt

FIRST = dt.date(2020, 1, 1)


def policy(dataset: str, columns: str) -> str:
    """The policy of a folder ``visits``, of which every day has a budget of one release."""
    return f"""
dataset = "{dataset}"
[budget]
epsilon = 1.0
[tables.visits]
source = "visits/"
unit = "row"
periods = {{ column = "day", every = "1 day", first = {FIRST} }}
[tables.visits.columns]
day = {{}}
{columns}
"""
