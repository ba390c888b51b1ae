"""The JSON Schema of the policy, for editors: ``python docs/policy_schema.py`` writes docs/policy.schema.json.

Keys and types come from the code that reads policies: the tables of keys in ``dpsql.policy.policy`` and the
annotations of the values in ``dpsql.policy.model``. A key without a sentence below is refused here, so that an editor
has one for each. JSON has no dates: an editor shows those of TOML to the schema as strings.

The schema accepts every policy that dpsql accepts. It refuses unknown keys and values of another type. Whether bounds
agree, a delta is below 1 and the like is for ``dpsql policy check``.
"""

from __future__ import annotations

import datetime as dt
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpsql.policy import policy
from dpsql.policy.at_most import AtMost
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BUDGET_RULES, BudgetPolicy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.policy.values import Bound, Key

PLACE = Path(__file__).with_name("policy.schema.json")

SENTENCES = {
    "": {
        "dataset": "Name and version of the data set. Releases are combined and reused under one name alone.",
        "database": "The DuckDB file with the tables that name no source, relative to the policy.",
        "anchor": "A file kept elsewhere that detects an older copy of the ledger put back.",
        "budget": "The whole privacy budget of the data set. It cannot be raised once a ledger exists.",
        "tables": "The tables that may be used. A table that is not declared is refused.",
        "views": "Row-wise SELECTs by name, which a batch may read like tables.",
    },
    "budget": {
        "epsilon": "The whole epsilon, for all releases together.",
        "delta": "The delta of Gaussian releases, such as 1e-9. Without it all noise is pure.",
        "rho": "The whole budget in zero-concentrated differential privacy, in place of epsilon and delta.",
        "pure_epsilon": "The part of epsilon that is kept for releases without a delta.",
        "local_epsilon": "The account of local releases, which replace one row, beside the others.",
        "discovery_delta": "The part of delta that is kept for finding the values of columns.",
        "max_epsilon_per_release": "The most epsilon that one release may cost.",
        "max_rho_per_release": "The most rho that one release may cost.",
        "max_local_epsilon_per_release": "The most epsilon that one local release may cost.",
        "losses": "Epsilon (or rho) for which the first run on a version of the data also measures what limits cut.",
        "approval": "On a server, the custodian agrees to each batch before it is charged.",
        "private_releases": "On a server, each analyst sees their own releases and those of no account.",
    },
    "table": {
        "unit": 'Whom noise protects: "row", a column that identifies somebody, or "table.column" of another table.',
        "max_rows_per_unit": "How many rows of one unit count. Further rows are left out of every answer.",
        "at_most": "How the rows of one unit spread: bounds for each value of a column or expression.",
        "expected_rows": "About how many rows there are, if that is public. Used for plans alone.",
        "minimum": "The least count that results show.",
        "rows_public": "Whether a local release may publish the number of rows.",
        "public": "The table is public as a whole: nothing protects its rows.",
        "source": "A Parquet or CSV file, a folder, a pattern, or a Spark table. Without it, a table of the database.",
        "counts": "In a table of counts, the column that says how many units a row stands for.",
        "key": "The columns that no two rows share.",
        "references": 'Which column refers to which: column = "table.column".',
        "periods": "Cuts a table that grows into periods that are released one by one.",
        "max_periods_per_unit": "For units with rows in how many periods the whole budget holds.",
        "largest_unit": "The most rows that one unit can have in the table, if that is public.",
        "columns": "The columns that may be used. A column that is not declared is refused.",
    },
    "column": {
        "values": "The public values: the groups of GROUP BY.",
        "lower": "The lower bound, inclusive. Sums clamp to it.",
        "upper": "The upper bound, inclusive. Sums clamp to it.",
        "step": "The grid that sums round to. It divides upper - lower.",
        "other": "Values outside the domain are a group of their own: true, or its name.",
        "nulls": "false: the schema guarantees that no value is NULL.",
        "type": "The DuckDB type, where files do not say it.",
        "public": "Everybody knows the value in every row. A local release may keep it.",
        "groups": '"discover": a private release finds the groups first.',
    },
    "at_most": {
        "per": "A column, or an expression over columns of the table.",
        "rows": "How many rows of one unit count for each value.",
        "groups": "For how many values rows of one unit count.",
        "sum": "An expression of which one unit adds at most so much to a sum, for each value of per or in all.",
        "lower": "The least that one unit adds to the sum.",
        "upper": "The most that one unit adds to the sum.",
    },
    "periods": {
        "column": "The column of days.",
        "every": 'How long a period is, such as "1 month".',
        "first": "The first day of the first period.",
        "wait": "How many days after its end a period is closed.",
    },
    "view": {"sql": "A row-wise SELECT, without aggregates."},
}
"""What an editor says of each key."""

NUMBER, MOMENT = {"type": "number"}, {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}([T ].+)?$"}
WRITTEN: dict[str, Any] = {
    "at_most.lower": NUMBER,
    "column.other": {"type": ["boolean", "string"]},  # a name is read into another field
    "column.groups": {"enum": ["discover"]},
    "table.references": {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^.+\..+$"}},
    "table.columns": {"type": "object", "additionalProperties": {"$ref": "#/definitions/column"}},
    "periods.wait": {"type": "integer", "minimum": 0, "maximum": 366},
}
"""Keys whose written form is another one than the annotation of the field says."""


def of_type(hint: Any) -> dict[str, Any]:
    """The schema of what a policy writes for a field of that annotation. Raises TypeError for an unknown one."""
    if hint == Key:
        return {"type": ["string", "boolean", "number"]}
    if hint == Bound:
        return {"anyOf": [NUMBER, MOMENT]}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        left = [part for part in typing.get_args(hint) if part is not type(None)]
        return of_type(left[0]) if len(left) == 1 else of_type(typing.Union[tuple(left)])  # noqa: UP007
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": of_type(typing.get_args(hint)[0]), "uniqueItems": True}
    plain: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        str: {"type": "string", "minLength": 1},
        int: {"type": "integer", "minimum": 1, "maximum": 10**15},
        Fraction: {"type": "number", "minimum": 0},
        dt.date: MOMENT,
        AtMost: {"$ref": "#/definitions/at_most"},
        Periods: {"$ref": "#/definitions/periods"},
    }
    if hint not in plain:
        raise TypeError(f"the schema has no form for {hint}; add one to of_type")
    return plain[hint]


def described(place: str, keys: Mapping[str, dict[str, Any]], required: Iterable[str] = ()) -> dict[str, Any]:
    """An object that has these keys and no others, each with its sentence. Raises KeyError where one has none."""
    found: dict[str, Any] = {"type": "object", "additionalProperties": False}
    if required := list(required):
        found["required"] = required
    return found | {"properties": {key: {"description": SENTENCES[place][key]} | form for key, form in keys.items()}}


def of_fields(place: str, owner: type, keys: Iterable[str], required: Iterable[str] = ()) -> dict[str, Any]:
    """The object whose keys are read into the fields of ``owner``."""
    hints = typing.get_type_hints(owner)
    forms = {key: WRITTEN.get(f"{place}.{key}") or of_type(hints[policy.SETTINGS.get(key, key)]) for key in keys}
    return described(place, forms, required)


def whole(place: str, owner: type) -> dict[str, Any]:
    """The object of all fields of ``owner``; those without a default are required."""
    listed = fields(owner)
    return of_fields(place, owner, [f.name for f in listed], [f.name for f in listed if f.default is MISSING])


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 7) of a policy."""
    definitions = {
        "budget": of_fields("budget", BudgetPolicy, (*BUDGET_FIGURES, *BUDGET_RULES))
        | {"oneOf": [{"required": ["epsilon"]}, {"required": ["rho"]}]},
        "table": of_fields("table", TablePolicy, policy.TABLE_KEYS)
        # Whom noise protects is a decision: it has no default.
        | {"anyOf": [{"required": [key]} for key in ("unit", "counts", "public")]},
        "column": of_fields("column", ColumnPolicy, policy.COLUMN_KEYS)
        | {"dependencies": {"lower": ["upper"], "upper": ["lower"], "step": ["lower"]}},
        "at_most": whole("at_most", AtMost)
        | {"anyOf": [{"required": ["per", "rows"]}, {"required": ["per", "groups"]}, {"required": ["sum", "upper"]}]},
        "periods": whole("periods", Periods),
        "view": described("view", dict.fromkeys(policy.VIEW_KEYS, of_type(str)), policy.VIEW_KEYS),
    }
    forms: dict[str, dict[str, Any]] = {key: of_type(str) for key in policy.TOP_KEYS}
    forms["budget"] = {"$ref": "#/definitions/budget"}
    for key, definition in (("tables", "table"), ("views", "view")):
        forms[key] = {"type": "object", "additionalProperties": {"$ref": f"#/definitions/{definition}"}}
    forms["tables"]["minProperties"] = 1
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A policy of dpsql"}
    return head | described("", forms, policy.NEEDED) | {"definitions": definitions}


def text() -> str:
    """The file, as it is published."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text(), encoding="utf-8")
