"""Spell: forms of DuckDB's SQL that mean the same as a plainer one, written as that one (``parse/spellings.py``).

>>> stage("spell", "SELECT mean(age) AS a FROM people WHERE ward = ANY(['a', 'b']) FETCH FIRST 2 ROWS ONLY")
SELECT AVG(age) AS a FROM people WHERE ward IN ('a', 'b') LIMIT 2
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.sql.parse.spellings import respelled
from dpsql.sql.rules.rule import Rule, tree_text, unplaced


@dataclass(frozen=True)
class Unspelled:
    """A statement, and whether its batch could have one of the forms (``has_spellings``)."""

    tree: exp.Expr
    forms: bool


SPELL: Rule[Unspelled, exp.Expr] = Rule(
    "spell",
    "synonyms rewritten in the forms that later stages read",
    "that each column has its place in the text",
    broken=lambda given: unplaced(given.tree) if given.forms else None,  # else the tree is left as it is
    apply=lambda given: respelled(given.tree) if given.forms else given.tree,
    text=tree_text,
)
