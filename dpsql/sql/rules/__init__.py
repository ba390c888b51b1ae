"""The rules in order: what `understand` applies, what `dpsql plan --stages` prints, what docs/architecture.md lists."""

from __future__ import annotations

from typing import Any

from dpsql.sql.rules.aggregate import AGGREGATE
from dpsql.sql.rules.flatten import FLATTEN
from dpsql.sql.rules.formula import FORMULA, UnderstoodSelect
from dpsql.sql.rules.join import JOIN
from dpsql.sql.rules.parse import PARSE
from dpsql.sql.rules.qualify import QUALIFY, SelectInProgress
from dpsql.sql.rules.rule import Rule
from dpsql.sql.rules.spell import SPELL
from dpsql.sql.rules.unit import UNIT

RULES: tuple[Rule[Any, Any], ...] = (PARSE, SPELL, QUALIFY, FLATTEN, JOIN, UNIT, AGGREGATE, FORMULA)
"""All rules: the first two for the text of a batch, the others for each SELECT over rows of private tables."""


def applied(given: SelectInProgress) -> UnderstoodSelect:
    """A SELECT over rows, understood. Raises SQLError, with its place, for what cannot be answered."""
    made: Any = given
    for rule in RULES[2:]:
        made = rule(made)
    read: UnderstoodSelect = made
    return read
