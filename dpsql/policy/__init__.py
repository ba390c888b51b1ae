"""The custodian's public declaration: tables, columns, domains, units and the budget.

A policy is public input. Plans, messages and result keys may depend on everything in it,
and on nothing else about a private table; what it does not declare is refused.

    Policy.load(path)                 read and check a TOML file
    policy.table(name).column(name)   look up, in any case, or refuse with the nearest names
    check_schema(policy, schemas)     hold the policy against the types of the tables
"""

from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BudgetPolicy, TablePolicy
from dpsql.policy.policy import Policy
from dpsql.policy.schema import check_schema, csv_schema

__all__ = [
    "BUDGET_FIGURES",
    "BudgetPolicy",
    "ColumnPolicy",
    "Policy",
    "TablePolicy",
    "check_schema",
    "csv_schema",
]
