"""The SQL front end: a batch's text to queries over declared columns, or a refusal with its place.

routing.py              whether a batch asks private tables or reads releases
understand.py           statements -> answers: cores, and outer SQL over them
rules/                  the stages of a statement in order, one file a rule, each with its precondition and examples
  rule                  what a rule is, and who hears what each made
  parse, spell          text -> statements: limits, trees, the names of results; the tree in plainer forms
  qualify, flatten      names written out; row-wise queries written into the SELECT that reads them
  join, unit            the rows, what each finds in other tables, and whose they are
  aggregate, formula    a core and its outer SQL: items, HAVING, ORDER BY, windows
  cores                 the columns of the core, as they are asked for; GROUP BY -> keys and grouping sets
parse/                  what text is made of, and refusals with their places
  statements, spellings one query and the name of its result, its hints; forms of DuckDB's SQL that mean a plainer one
  options, parameters   BigQuery's OPTIONS, read from the tokens and blanked out; values as literals of the text
  names                 DuckDB's own names for columns without an alias, from the user's own text
  refusals, trees       what is not answered, and what to write instead; walking and writing thousands of trees
resolve/                names and joins
  from_items, relations what FROM names: rows of tables, or relations; flatten: row-wise views written into their reader
  joins                 FROM -> a base table with at most one row of others beside each row (join_graph: which table is
                        the base; row_sources: its way to the unit; batch_tables: one scan for all)
  select_names, selects what a name means: a column, an alias, a position; a SELECT over results -> outer SQL
caps.py                 a policy's at_most: how the rows of one unit spread over groups
sums_of_rows.py         a batch without bounds on its sums, where it adds up the same rows anyway
aggregate/              what a statement counts, sums and groups by
  table                 every aggregate: what it measures, what it is for one unit (of_units), and the words for both
  aggregates            expressions over aggregates -> linear outputs (linear) and formulas (statistics, quantiles)
  sums, pieces          what SUM adds up; in which rows a sum is what
  keys                  expressions as keys (range_keys: all ranges of a column)
values/                 expressions of a row
  predicates            Boolean expressions -> conditions "is TRUE" and "is FALSE" (comparisons, operands)
  expressions           value expressions -> typed trees of total functions (typed, arithmetic, functions, calendar,
                        casts, evaluation, and the table of text_functions)
  computed, scope       expressions kept as columns; what a statement may name
  literals, civil       constants, folded exactly; dates without ends
  admitted, row_cost    no argument of an admitted node is lost; what a row may cost
outer/                  what DuckDB does after the noise
  answers, relation     what all this comes to; outer SQL as a value
  core_tables, sandbox  a core's noisy table; a DuckDB of its own
  probes                WHERE 1=0 and LIMIT 0: the columns of a result, worked out over nothing
"""

from dpsql.sql.caps import capped_table as table_of
from dpsql.sql.outer.answers import Answer, Understood
from dpsql.sql.parse.statements import Statement
from dpsql.sql.rules.parse import parse
from dpsql.sql.understand import understand

__all__ = ["Answer", "Statement", "Understood", "parse", "table_of", "understand"]
