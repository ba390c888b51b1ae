"""The SQL front end: a batch's text to queries over declared columns, or a refusal with its place.

routing       whether a batch asks private tables or reads releases (cursors); parameters: values as literals of it
options       BigQuery's OPTIONS, read from the tokens and blanked out
statements    text -> statements (limits, parsing, names)
understand    statements -> answers: cores, and outer SQL over them
  from_items  what FROM names: rows of tables, or relations
  flatten     row-wise WITH queries, derived tables and views written into what reads them
  public_keys FROM a public table LEFT JOIN a private one, from the private side
  joins       FROM -> a base table with at most one row of others beside each row (relations: names and conditions;
              join_graph: which table is the base; row_sources: its way to the unit; batch_tables: one scan for all)
  queries     a SELECT over private rows -> a core and its outer SQL
    select_names what a name means: a column, an alias, a position
    cores     the columns of the core, as they are asked for (core_tables: its noisy table)
    grouping  GROUP BY -> keys and grouping sets (keys: expressions as keys)
    aggregates items -> linear outputs, formulas, quantiles (sums: what SUM adds up)
    over_cores HAVING, ORDER BY, windows and the like over the core's columns
  selects     a SELECT over results -> outer SQL
  outer       outer SQL as a value; sandbox: a DuckDB of its own for it
predicates    Boolean expressions -> conditions "is TRUE" and "is FALSE"
expressions   value expressions -> typed trees of total functions (typed, operands, arithmetic, functions,
              calendar, casts, evaluation), kept as columns by computed
scope         what a statement may name; literals: constants, folded exactly
admitted      no argument of an admitted node is lost
refusals      what is not answered, and what to write instead
names, source DuckDB's own names for columns without an alias, from the user's own text
answers       what all this comes to
trees         walking, writing and keeping thousands of trees
probes        WHERE 1=0 and LIMIT 0: the columns of a result, worked out over nothing
"""

from dpsql.sql.outer.answers import Answer, Understood
from dpsql.sql.parse.statements import Statement, parse
from dpsql.sql.understand import understand
from dpsql.sql.values.scope import table_of

__all__ = ["Answer", "Statement", "Understood", "parse", "table_of", "understand"]
