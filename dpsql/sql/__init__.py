"""The SQL front end: a batch's text to queries over declared columns, or a refusal with its place.

statements   text -> statements (limits, parsing, names)
source       the user's own text of a SELECT's items
scope        what a statement may name: tables, columns, group domains
literals     constant expressions, folded exactly
predicates   Boolean expressions -> conditions "is TRUE" and "is FALSE"
admitted     no argument of an admitted node is lost
queries      SELECT -> keys and linear combinations of counts and sums
refusals     what a SELECT may not hold, and what to write instead
names        DuckDB's own names for columns without an alias
"""

from dpsql.sql.answers import Answer, Understood
from dpsql.sql.scope import table_of
from dpsql.sql.statements import Statement, parse
from dpsql.sql.understand import understand

__all__ = ["Answer", "Statement", "Understood", "parse", "table_of", "understand"]
