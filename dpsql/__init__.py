"""dpsql: differentially private answers to whole batches of SQL queries.

con = dpsql.connect("rand.duckdb", policy="rand.toml")
plan = con.plan(sql, epsilon=1.0)      # free: an error bar on every number
rel = con.run(plan)                    # spends, measures once, registers the views
con.sql("SELECT * FROM by_plan")       # over releases only, free
con.budget
con.cursor().execute("SELECT COUNT(*) FROM visits WHERE age >= ?", [65], epsilon=0.1)  # PEP 249
"""

from dpsql.connection import Connection, Release, connect
from dpsql.cursor import Cursor
from dpsql.dbapi import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    apilevel,
    paramstyle,
    threadsafety,
)
from dpsql.errors import (
    BudgetError,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    LedgerError,
    NotSupportedError,
    OperationalError,
    PolicyError,
    ProgrammingError,
    SQLError,
    Warning,  # noqa: A004 - the name is PEP 249's
)
from dpsql.plan import Plan
from dpsql.policy import Policy

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - in the order of sorted()
    "BINARY",
    "Binary",
    "BudgetError",
    "Connection",
    "Cursor",
    "DATETIME",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "LedgerError",
    "NUMBER",
    "NotSupportedError",
    "OperationalError",
    "Plan",
    "Policy",
    "PolicyError",
    "ProgrammingError",
    "ROWID",
    "Release",
    "SQLError",
    "STRING",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]
