"""Formula: the answers that are computed from counts and sums, and the SQL over these, at no cost.

>>> stage("formula", "SELECT AVG(age) AS a, COUNT(*) AS n FROM people")
    a from [2], [1]
    n is [3]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.sql.aggregate.aggregates import kind
from dpsql.sql.aggregate.table import CONSTANT, answered, misplaced
from dpsql.sql.outer.relation import HIDDEN, Item, Relation, Selected, hole
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.refusals import unanswered_around
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import DUCKDB, written
from dpsql.sql.resolve.select_names import unwrapped
from dpsql.sql.rules.cores import PRIVATE, CoreDraft
from dpsql.sql.rules.rule import Rule
from dpsql.workloads.expr import batch
from dpsql.workloads.expr.batch import Core, Derived, Ranked, Table
from dpsql.workloads.expr.formulas import leaves

Nested = Callable[[exp.Query], Relation]
_MOST_NESTED = 2_000
"""Aliases that are written out within others; each could hold the one before it twice."""


class OverCore:
    """Writes what is not measured over what is; ``nested`` reads a subquery that stands in an expression.

    ``sources`` are the subqueries read so far, ``bits`` the names of what GROUPING(...) asks for, by its keys.
    """

    def __init__(self, draft: CoreDraft, nested: Nested) -> None:
        self.draft = draft
        self.names = draft.names
        self.nested = nested
        self.sources: list[Relation] = []
        self.bits: dict[tuple[int, ...], str] = {}
        self.in_having = False
        self._numbers: dict[str, None] = {}
        self._nested = 0
        self._within = False

    def sql(self, node: exp.Expression) -> str:
        """The expression over the core's columns, as text."""
        return written(self._outer(node), copy=False)  # the tree is made here, for this

    def item(self, node: exp.Expression) -> str:
        """An item of SELECT over the core's columns; where small counts are hidden, by all its numbers together."""
        self._numbers.clear()
        text = self.sql(node)
        if self.draft.rows.minimum is None:
            return text
        judge = self.draft.together(list(self._numbers), written(node))
        return text if judge is None else f"CASE WHEN {identifier(judge + HIDDEN[0])} THEN NULL ELSE {text} END"

    def _outer(self, node: exp.Expression) -> exp.Expression:
        draft = self.draft
        number = draft.key_number(node) if not isinstance(node, exp.Paren) else None
        if number is not None:
            return exp.to_identifier(draft.key_column(number), quoted=True)
        if isinstance(node, exp.Column):
            # In HAVING an alias means the item, even where a column has its name.
            named = not node.table and (self.in_having or not self.names.is_column(node))
            meant = self.names.alias(node) if named else None
            if meant is None:
                raise raw_value(draft, node)
            return self._meant(meant, node)
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return exp.to_identifier(self._bits(node), quoted=True)
        if isinstance(node, exp.Query | exp.Subquery):
            return self._subquery(node.this if isinstance(node, exp.Subquery) else node)
        if isinstance(node, exp.Window):
            return self._window(node)
        found = kind(node)
        if found in PRIVATE:
            name = draft.number_column(node, found, "")
            self._numbers[name] = None
            return exp.to_identifier(name, quoted=True)
        if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
            raise misplaced(node)
        return self._mapped(node)

    def _meant(self, item: exp.Expression, alias: exp.Column) -> exp.Expression:
        """What an alias stands for. Raises SQLError where aliases of aliases come to too many."""
        self._nested += self._within
        if self._nested > _MOST_NESTED:
            raise refuse("the aliases of the SELECT come to too large expressions; use fewer", alias, code="too-large")
        self._within, before = True, self._within
        found = exp.Paren(this=self._outer(item))
        self._within = before
        return found

    def _mapped(self, node: exp.Expression) -> exp.Expression:
        """The node with its parts over the core's columns."""
        if isinstance(node, exp.In) and node.args.get("query"):
            query = node.args["query"]
            held = self._subquery(query.this if isinstance(query, exp.Subquery) else query)
            return exp.In(this=self._outer(node.this), query=held)
        return type(node)(**{key: self._part(value) for key, value in node.args.items()})

    def _part(self, value: object) -> object:
        if isinstance(value, list):
            return [self._part(part) for part in value]
        if isinstance(value, exp.Identifier | exp.DataType | exp.Star):
            return value.copy()
        return self._outer(value) if isinstance(value, exp.Expression) else value

    def _window(self, node: exp.Window) -> exp.Expression:
        """A window over groups: its function works on columns of the core, and is no private aggregate."""
        if node.args.get("alias"):
            raise refuse("a named window is not answered; write the window into OVER (...)", node)
        out = self._mapped(exp.Window(**{key: value for key, value in node.args.items() if key != "this"}))
        function = node.this
        if isinstance(function, exp.Filter):
            where = exp.Where(this=self._outer(function.expression.this))
            out.set("this", exp.Filter(this=self._mapped(function.this), expression=where))
        else:
            out.set("this", self._mapped(function))
        return out

    def _subquery(self, query: exp.Expression) -> exp.Expression:
        if not isinstance(query, exp.Query):
            raise refuse("a subquery here is not answered; make it a view of its own", query, code="subquery")
        self.sources.append(self.nested(query))
        # The union of the cores comes first among the sources.
        return exp.to_identifier(hole(len(self.sources)), quoted=False)

    def _bits(self, node: exp.Expression) -> str:
        numbers = []
        for part in node.expressions:
            number = self.draft.key_number(unwrapped(part))
            if number is None:
                raise refuse("GROUPING takes columns of GROUP BY", part)
            numbers.append(number)
        return self.bits.setdefault(tuple(numbers), f"g{len(self.bits)}")

    # -- clauses -------------------------------------------------------------------------------

    def conditions(self) -> str:
        """The conditions of HAVING and QUALIFY."""
        text = ""
        for clause, keyword in (("having", "WHERE"), ("qualify", "QUALIFY")):
            node = self.names.select.args.get(clause)
            if node is not None:
                self.in_having = clause == "having"
                text += f" {keyword} {self.sql(node.this)}"
        self.in_having = False
        return text

    def order(self, items: Sequence[Item]) -> str:
        """ORDER BY, LIMIT and OFFSET; ``items`` are those of the outer SELECT."""
        select = self.names.select
        order = select.args.get("order")
        text = ""
        if order is not None:
            text = " ORDER BY " + ", ".join(self._ordered(part, items) for part in order.expressions)
        for clause in ("limit", "offset"):
            node = select.args.get(clause)
            if node is not None:
                value = node.expression if isinstance(node, exp.Limit | exp.Offset) else None
                if value is None or kind(value) != CONSTANT:
                    raise refuse(f"{clause.upper()} takes a constant", node)
                text += " " + written(node).strip()  # with PERCENT, where it stands
        return text

    def _ordered(self, part: exp.Expression, items: Sequence[Item]) -> str:
        node = part.this
        if isinstance(node, exp.Var) and fold(node.name) == "all":
            named: list[exp.Expression] = [exp.to_identifier(item.name, quoted=True) for item in items]
        elif isinstance(node, exp.Literal) and not node.is_string:
            meant = self.names.position(node, "ORDER BY")
            at = next(i for i, item in enumerate(self.names.select.expressions) if item is meant)
            named = [exp.to_identifier(items[at].name, quoted=True)]
        elif isinstance(node, exp.Column) and not node.table and self.names.alias(node) is not None:
            named = [exp.to_identifier(node.name, quoted=True)]
        else:
            named = [self._outer(node)]
        options = {key: value for key, value in part.args.items() if key != "this"}
        return ", ".join(exp.Ordered(this=one, **options).sql(DUCKDB) for one in named)


def raw_value(draft: CoreDraft, node: exp.Column) -> SQLError:
    """The refusal of a column of rows that stands where a number or a key is asked."""
    misread = unanswered_around(node, answered(units=False))
    if misread is not None:
        return misread
    draft.rows.find(node)  # a column that no table has is refused as that
    said = f"{shown(node)} is a raw value, which is private; aggregate it, or add it to GROUP BY"
    return refuse(said, node, code="raw-value")


# -- the rule ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnmeasuredCores:
    """What is measured for a SELECT over private rows, ``tree``: its cores, and the tables of their queries.

    ``outer`` makes the SQL over the cores; None where the one core is the result. ``again``: the same for another
    statement that asks the same, by its label and the name of its result where that may be the core's own table.
    """

    tree: exp.Select
    cores: tuple[Core, ...]
    tables: tuple[Table, ...]
    outer: Callable[[], Selected] | None
    again: Callable[[str, str | None], UnmeasuredCores]


@dataclass(frozen=True)
class UnderstoodSelect:
    """A SELECT over private rows, understood: its cores, its outer SQL (None where the one core is all), its tables.

    ``again`` as of ``UnmeasuredCores``.
    """

    cores: tuple[Core, ...]
    outer: Selected | None
    tables: tuple[Table, ...] = field(repr=False)
    again: Callable[[str, str | None], UnderstoodSelect] = field(repr=False, compare=False)


def _broken(given: UnmeasuredCores) -> exp.Expr | None:
    tables = {table.name for table in given.tables}
    for core in given.cores:
        sizes = [len(query.outputs) for query in core.queries]
        placed = all(query < len(sizes) and output < sizes[query] for query, output in core.places)
        if not placed or not all(query.table in tables for query in core.queries):
            return given.tree
    return None


def _read(given: UnmeasuredCores) -> UnderstoodSelect:
    outer = None if given.outer is None else given.outer()
    return UnderstoodSelect(given.cores, outer, given.tables, lambda label, whole: _read(given.again(label, whole)))


def _text(read: UnderstoodSelect) -> str:
    """What is worked out of the numbers, and the SQL over the noisy tables."""
    lines = [line for core in read.cores for line in _derived(core)]
    return "\n".join([*lines, *([] if read.outer is None else [read.outer.sql(False)])]) or "nothing"


def _derived(core: Core) -> Iterator[str]:
    for column in core.columns:
        if isinstance(column, Derived):
            used = ", ".join(f"[{index + 1}]" for index in dict.fromkeys(leaves(column.formula)))
            yield f"{column.title or column.name} from {used}"
        elif isinstance(column, Ranked):
            first, last = column.prefixes[0] + 1, column.prefixes[-1] + 1
            yield f"{column.title or column.name} from the counts [{first}] to [{last}]"
        elif isinstance(column, batch.Measured):
            yield f"{column.title or column.name} is [{column.output + 1}]"


FORMULA: Rule[UnmeasuredCores, UnderstoodSelect] = Rule(
    "formula",
    "answers computed from them, and the SQL over these, at no cost",
    "that each number of a core is one of its queries over the SELECT's tables",
    broken=_broken,
    apply=_read,
    text=_text,
)
