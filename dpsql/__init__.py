"""dpsql: differentially private answers to whole batches of SQL queries.

con = dpsql.connect("rand.duckdb", policy="rand.toml")
plan = con.plan(sql, epsilon=1.0)      # free: an error bar on every number
rel = con.run(plan)                    # spends, measures once, registers the views
con.sql("SELECT * FROM by_plan")       # over releases only, free
con.budget
"""

from dpsql.connection import Connection, Release, connect
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

__all__ = [
    "BudgetError",
    "Connection",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "LedgerError",
    "NotSupportedError",
    "OperationalError",
    "Plan",
    "Policy",
    "PolicyError",
    "ProgrammingError",
    "Release",
    "SQLError",
    "Warning",
    "connect",
]
