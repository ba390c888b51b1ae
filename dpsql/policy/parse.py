"""From TOML text to the values of a policy: known keys, then their types, then their meaning."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from dpsql.errors import PolicyError, nearest
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BudgetPolicy, TablePolicy
from dpsql.policy.spark_source import is_spark
from dpsql.policy.values import dotted, kind_of

TOP_KEYS = ("dataset", "budget", "tables", "views")
TABLE_KEYS = (
    "unit",
    "max_rows_per_unit",
    "expected_rows",
    "rows_public",
    "public",
    "source",
    "counts",
    "key",
    "references",
    "columns",
)
VIEW_KEYS = ("sql",)
COLUMN_KEYS = ("values", "lower", "upper", "step", "other", "nulls", "type", "public")


def parse_policy(text: str) -> tuple[str, BudgetPolicy, dict[str, TablePolicy], dict[str, str]]:
    """Data-set id, budget, tables and views of a TOML text; PolicyError with the full key of what is wrong."""
    document = _read(text)
    _known("", document, TOP_KEYS)
    if "dataset" not in document:
        raise PolicyError('dataset is missing; name the data set and its version, such as dataset = "visits-2024-1"')
    if "budget" not in document:
        raise PolicyError("budget is missing; write [budget] with epsilon = 1.0, or rho = 0.1")
    if "tables" not in document:
        raise PolicyError("tables is missing; declare at least one, such as [tables.visits]")
    budget = _table("budget", document["budget"])
    _known("budget", budget, BUDGET_FIGURES)
    built = BudgetPolicy(**budget)
    tables = {name: _table_policy(name, value) for name, value in _table("tables", document["tables"]).items()}
    views = {name: _view(name, value) for name, value in _table("views", document.get("views", {})).items()}
    return document["dataset"], built, tables, views


def _view(name: str, value: object) -> str:
    where = dotted("views", name)
    given = _table(where, value)
    _known(where, given, VIEW_KEYS)
    if "sql" not in given:
        raise PolicyError(f'{where}.sql is missing; write sql = "SELECT ... FROM ..."')  # noqa: S608
    sql = given["sql"]
    if not isinstance(sql, str):
        raise PolicyError(f"{where}.sql is {kind_of(sql)}; write a string")
    return sql


def _read(text: str) -> dict[str, Any]:
    if not isinstance(text, str):
        raise PolicyError(f"a policy is a text of TOML, not {type(text).__name__}; read the file first")
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        reason = "it is nested too deeply"
    except (ValueError, InvalidOperation) as error:
        # One line, and not the whole text of a number that Python cannot read.
        reason = (str(error).splitlines() or ["unreadable number"])[0][:200]
    raise PolicyError(f"the policy is not TOML: {reason}; correct it there")


def _table(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError(f"{where} is {kind_of(value)}; write a table, such as [{where}]")
    return value


def _known(where: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            key = f"{where}.{dotted(name)}" if where else dotted(name)
            raise PolicyError(f"{key} is not a setting; {nearest(name, known)}")


def _table_policy(name: str, value: object) -> TablePolicy:
    where = dotted("tables", name)
    given = dict(_table(where, value))
    inner = next((n for n, v in given.items() if isinstance(v, dict) and n not in TABLE_KEYS), None)
    if inner is not None and not nearest(inner, TABLE_KEYS).startswith("did you mean"):
        # [tables.main.visits] makes "main" the table and "visits" an unknown setting of it.
        raise PolicyError(
            f"{where}.{dotted(inner)} is not a setting; quote a name that has a dot, as in "
            f"[{dotted('tables', name + '.' + inner)}]"
        )
    _known(where, given, TABLE_KEYS)
    columns = _table(f"{where}.columns", given.pop("columns", {}))
    # No default: a unit of one row is a decision about whom the noise protects.
    if "unit" not in given and "counts" not in given and given.get("public") is not True:
        raise PolicyError(f'{where}.unit is missing; write unit = "row", or the column that identifies whom to protect')
    if given.get("public") is True and "unit" in given:
        raise PolicyError(f"{where}.unit is for private tables and {where}.public is true; drop one")
    built = {column: _column_policy(where, column, settings) for column, settings in columns.items()}
    if "key" in given:
        given["unique"] = given.pop("key")
    source = given.get("source")
    if isinstance(source, list) and any(is_spark(part) for part in source):
        raise PolicyError(
            f"{where}.source names several things, a Spark table among them; one name is one table: "
            "keep one of them, or declare two tables"
        )
    return TablePolicy(name, built, where=where, **given)


def _column_policy(table: str, name: str, value: object) -> ColumnPolicy:
    where = f"{table}.{dotted('columns', name)}"
    if not isinstance(value, dict):
        raise PolicyError(f"{where} is {kind_of(value)}; write {{ lower = 0, upper = 120 }}, or {{}}")
    _known(where, value, COLUMN_KEYS)
    return ColumnPolicy(name, where=where, **value)
