"""Understanding a batch: each statement as private cores and the outer SQL over their noisy tables.

What FROM names decides. Rows of private tables, through row-wise WITH queries, derived tables and
views that the policy names, are flattened into one SELECT over tables and become a core. Results (a
WITH query that aggregates, an earlier statement of the batch) are relations: whatever is done with
them is outer SQL, which costs nothing and reveals nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlglot import exp

from dpsql.common.notes import BIAS, Note
from dpsql.common.quoting import identifier
from dpsql.errors import SQLError
from dpsql.free_sql.bounds import check
from dpsql.free_sql.tables import Bounds, table
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.clamped import clamped_notes
from dpsql.sql.left_out import left_out_notes
from dpsql.sql.outer.answers import Answer, Understood
from dpsql.sql.outer.core_tables import bounds_of, core_columns, core_types, key_columns, noisy_types
from dpsql.sql.outer.relation import Named, Relation, Selected, United, bare, combined, gathered
from dpsql.sql.outer.sandbox import Sandbox, changing_function, is_plain, shape_of
from dpsql.sql.parse.quoted import reading
from dpsql.sql.parse.statements import Statement, refuse, without_place
from dpsql.sql.parse.trees import loosened, uncollected
from dpsql.sql.resolve import selects
from dpsql.sql.resolve.batch_tables import chosen_once, joined_counts, united
from dpsql.sql.resolve.flatten import Rows, is_row_wise
from dpsql.sql.resolve.from_items import Context, FromItems, Withs
from dpsql.sql.resolve.pivots import labels_of, pivoted
from dpsql.sql.rules import applied
from dpsql.sql.rules.formula import UnderstoodSelect
from dpsql.sql.rules.parse import parse, repeated
from dpsql.sql.rules.qualify import SelectInProgress
from dpsql.sql.values.row_cost import check_searched, check_written
from dpsql.workloads.expr.batch import Core, KeyOutput, Table
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.expr.lines import Scalar

MAX_CORES = 40_000
_RUNS = 50  # of outer SQL: to plan it, to try it and to show its errors, over replicates, too


Types = Sequence[tuple[str, str]]


@uncollected()
def understand(
    statements: Sequence[Statement], policy: Policy, tables: Mapping[str, Table], deadline: Deadline = NONE
) -> Understood:
    """Turn the statements of a batch into answers over declared columns.

    ``tables`` are all tables of the policy, by its names for them. Raises SQLError at the first
    statement that cannot be answered, with its place, and past ``deadline``.
    """
    with Sandbox() as sandbox:
        batch = _Batch(policy, tables, sandbox, repeated(statements, policy, tables))
        answers: list[Answer] = []
        for statement in statements:
            deadline.check(len(answers), len(statements), "statements")
            answers.append(batch.answer(statement))
        batch.alike.clear()  # they hold the batch
        for tree in batch.context.copies:
            loosened(tree)
    for computed in (*batch.context.computed.values(), *batch.context.of_units.values()):
        check_written(computed.values)
        check_searched(computed.values, computed.patterns)
    tables = chosen_once(united(batch.used))
    joined = joined_counts([query for answer in answers for core in answer.cores for query in core.queries], tables)
    if joined:
        tables = united([joined.get(name, table) for name, table in tables.items()])
        answers = [_renamed(answer, joined) for answer in answers]
    notes = dict.fromkeys(note for computed in batch.context.computed.values() for note in computed.notes)
    notes |= dict.fromkeys(left_out_notes(answers, tables))
    notes |= dict.fromkeys(clamped_notes(answers, tables))
    notes |= dict.fromkeys(Note(text, BIAS) for text in policy.doubtful_units)
    return Understood(tuple(answers), tables, tuple(notes))


def _renamed(answer: Answer, tables: Mapping[str, Table]) -> Answer:
    """The statement with its queries over ``tables``, by the names of those that these stand for."""
    cores = []
    for core in answer.cores:
        queries = [replace(q, table=tables[q.table].name) if q.table in tables else q for q in core.queries]
        cores.append(replace(core, queries=tuple(queries)))
    return replace(answer, cores=tuple(cores))


class _Batch:
    """A batch on its way: what its earlier statements are called, and the tables that it uses."""

    def __init__(
        self, policy: Policy, tables: Mapping[str, Table], sandbox: Sandbox, repeated: Collection[str] = ()
    ) -> None:
        self.context = Context(policy, dict(tables))
        self.sandbox = sandbox
        self.bounds: dict[str, Bounds] = {}
        self.bounded: dict[object, Bounds] = {}
        self.described: dict[tuple[str, tuple[Types, ...]], Types] = {}
        self.marked: list[str] = []  # results that could be mistaken for a noisy table's name
        self.types: dict[str, Types] = {}
        self.created: set[str] = set()
        self.used: list[Table] = []
        self.repeated = repeated
        self.alike: dict[str, tuple[UnderstoodSelect, Named, Types]] = {}  # by statements that ask the same

    @property
    def noted(self) -> int:
        """How many notes there are by now."""
        return sum(len(computed.notes) for computed in self.context.computed.values())

    def answer(self, statement: Statement) -> Answer:
        """One statement; its result can be read by those after it."""
        reader, noted = _Statement(self, statement), self.noted
        try:
            known = self.alike.get(statement.source or "")
            with reading(statement.batch):
                answer, result, types = reader.answer() if known is None else reader.like(*known)
            if statement.source in self.repeated and reader.read is not None and self.noted == noted:
                self.alike[statement.source or ""] = reader.read, result, types
        except RecursionError:
            answer = None
        finally:
            del reader.items, reader.read  # which hold the reader, too, so that the collector alone would free them
        if answer is None:
            raise refuse(
                f"an expression of {statement.name} nests too deeply: fold its constants and split long chains",
                statement.tree,
                code="too-large",
            )
        if "#" in statement.name:
            self.marked.append(fold(statement.name))
        self.context.results[fold(statement.name)] = result
        self.types[fold(statement.name)] = types
        self.bounds[fold(statement.name)] = reader.bounds or replace(
            table(types, answer.cores[0].rows), keys=key_columns(answer.cores[0])
        )
        return answer


class _Statement:
    """One statement: its cores, and the earlier results that it reads."""

    def __init__(self, batch: _Batch, statement: Statement) -> None:
        self.batch = batch
        self.statement = statement
        self.cores: list[Core] = []
        self.labels = 0
        self.read: UnderstoodSelect | None = None
        self.bounds: Bounds | None = None  # of outer SQL
        self.items = FromItems(batch.context, self._relation, parse)

    def answer(self) -> tuple[Answer, Named, Types]:
        """The answer, what later statements read it as, and the types of its columns."""
        statement = self.statement
        found = self._query(statement.tree, {}, statement.columns, statement.items, top=True)
        if isinstance(found, Core):
            columns = core_columns(found)
            return self._answered(None), Named(statement.name, columns), core_types(found, columns)
        if not self.cores and not self.items.reads:
            raise refuse(
                f"{statement.name} reads no private table; query public tables directly",
                statement.tree,
                code="public-table",
            )
        types = self._checked(found)
        return self._answered(found), Named(statement.name, found.columns), types

    def like(self, read: UnderstoodSelect, result: Named, types: Types) -> tuple[Answer, Named, Types]:
        """As ``answer``, of a statement that asks what an earlier one did."""
        again = read.again(self._label(), self.statement.name)
        self.cores.extend(again.cores)
        self.batch.used.extend(again.tables)
        return self._answered(again.outer), Named(self.statement.name, result.columns), types

    def _checked(self, outer: Relation) -> Types:
        """The types of outer SQL's columns, once DuckDB has agreed to run it; SQLError otherwise."""
        batch = self.batch
        for read in self.items.reads:
            if fold(read) not in batch.created:
                batch.sandbox.create(read, batch.types[fold(read)])
                batch.created.add(fold(read))
        relation, unions = gathered(outer)
        sql, noisy = relation.sql(True), noisy_types(self.cores, unions)
        # Statements of one shape are asked about once; a statement that DuckDB does not run ends the batch.
        shape = sql
        for number, name in enumerate(noisy):
            shape = shape.replace(identifier(name), f"#{number}")
        key = shape_of(shape), tuple(tuple(types) for types in noisy.values())
        self.bounds = self._bounded(sql, key, bounds_of(self.cores, unions))
        if key not in batch.described:
            batch.described[key] = self._described(sql, noisy)
        return batch.described[key]

    def _bounded(self, sql: str, key: object, noisy: Mapping[str, Bounds]) -> Bounds:
        """The bounds of outer SQL over noisy tables, before DuckDB sees it; SQLError for what can grow beyond them."""
        batch = self.batch
        failure: SQLError | None = None
        found: Bounds | None = None
        tables = {fold(name): held for name, held in noisy.items()} | {
            fold(r): batch.bounds[fold(r)] for r in self.items.reads
        }
        asked = key, tuple((held.rows, held.keys, tuple(held.columns.values())) for held in tables.values())
        if asked not in batch.bounded:
            changing = changing_function(sql)
            if changing is not None:
                raise refuse(
                    f"{changing} gives another result each time; write a constant",
                    self.statement.tree,
                    code="changing-function",
                )
            try:
                found = check(sql, batch.sandbox.connection, lambda path: tables.get(path[-1]), runs=_RUNS)
            except SQLError as error:
                failure = error
            if failure is not None or found is None:
                message = "DuckDB cannot read it" if failure is None else without_place(failure)
                known = failure is not None and failure.code in ("too-large", "recursive")
                code = failure.code if failure is not None and known else "after-the-noise"
                raise refuse(f"{self.statement.name}, after the noise: {message}", self.statement.tree, code=code)
            batch.bounded[asked] = found
        return batch.bounded[asked]

    def _described(self, sql: str, noisy: Mapping[str, Types]) -> Types:
        """The types of outer SQL's columns over noisy tables of these types, as DuckDB says; SQLError otherwise."""
        sandbox, name = self.batch.sandbox, self.statement.name
        with sandbox.scratch():  # a later result may have a core's name
            for noisy_table, bounds in noisy.items():
                sandbox.create(noisy_table, bounds)
            types, message = sandbox.describe(sql)
        if message:
            message = _without_inner_names(message, noisy)
            raise refuse(f"{name}, after the noise: {message}", self.statement.tree, code="after-the-noise")
        for column, kind in types:
            if not is_plain(kind):
                items = [one for one in self.statement.tree.selects if fold(one.alias_or_name) == fold(column)]
                at = next((one for one in items if any("start" in part.meta for part in one.walk())), None)
                what = "always NULL, of no type" if kind == '"NULL"' else f"a {kind}"
                raise refuse(f"{name}: column {column} is {what}; cast it to a plain type", at, code="after-the-noise")
        return types

    def _answered(self, outer: Relation | None) -> Answer:
        s = self.statement
        return Answer(s.name, s.named, s.replace, tuple(self.cores), outer, tuple(self.items.reads), s.text)

    # -- queries -------------------------------------------------------------------------------

    def _query(
        self,
        tree: exp.Expr,
        scope: Withs,
        columns: Sequence[str] | None,
        texts: Sequence[str] | None = None,
        *,
        top: bool = False,
    ) -> Relation | Core:
        """A query that aggregates private rows, or reads results; ``top``: a core may be all of it."""
        while isinstance(tree, exp.Subquery) and not any(v for k, v in tree.args.items() if k not in {"this", "alias"}):
            tree = tree.this
        scope = self.items.within(tree, scope)
        if isinstance(tree, exp.SetOperation):
            return self._set_operation(tree, scope, columns)
        if isinstance(tree, exp.Pivot):
            tree = self._pivoted(tree, scope)
        if not isinstance(tree, exp.Select):
            raise refuse(f"{tree.key.upper()} is not answered; write SELECT", tree, code="not-select")
        context, nested = self.batch.context, partial(self._nested, scope=scope)
        tree, sources = self.items.read(tree, scope)
        private = [(alias, rows) for alias, rows in sources if isinstance(rows, Rows)]
        if private and len(private) < len(sources):
            said = "private rows are joined with results, which is neither row-local nor a join of results; aggregate "
            said += "the rows in a WITH query of their own and join that"
            if all(context.is_public(rows) for _, rows in private):
                said = f"{private[0][0]} is a public table, which results are not joined with"
                said += "; join it to the released view"
            raise refuse(said, tree, code="rows-with-results")
        if not private:
            names = None if columns is None else tuple(columns)
            return selects.over_relations(tree, sources, names, nested)  # type: ignore[arg-type]
        name = self.statement.name
        read = applied(SelectInProgress(tree, tree, private, context, name, columns, texts, top, self._label, nested))
        self.read = read
        self.batch.used.extend(read.tables)
        self.cores.extend(read.cores)
        if len(self.cores) > MAX_CORES:
            raise refuse(f"{name} makes more than {MAX_CORES:,} groupings; split it", tree, code="too-many-groups")
        return read.cores[0] if read.outer is None else read.outer

    def _pivoted(self, pivot: exp.Pivot, scope: Withs) -> exp.Select:
        """The SELECT that a PIVOT stands for."""
        source = exp.Select(expressions=[exp.Star()], from_=exp.From(this=pivot.this))
        ((_, read),) = self.items.of(source, scope)
        names = read.names if isinstance(read, Rows) else [column.name for column in read.columns]

        def values(column: exp.Expression) -> Sequence[Scalar] | None:
            if isinstance(read, Rows):
                return self._declared(column, source, scope)
            number = next((n for n, name in enumerate(names) if fold(name) == fold(column.name)), None)
            return None if number is None or column.args.get("table") else self._of_result(read, number)

        return pivoted(pivot, names, values, private=isinstance(read, Rows))

    def _declared(self, column: exp.Expression, source: exp.Select, scope: Withs) -> Sequence[Scalar] | None:
        """The values that an expression of rows is grouped by; nothing is measured for them."""
        asked = exp.Select(
            expressions=[exp.Alias(this=column.copy(), alias=exp.to_identifier("value")), exp.Count(this=exp.Star())],
            from_=source.args["from_"].copy(),
            group=exp.Group(expressions=[column.copy()]),
        )
        cores, used = len(self.cores), len(self.batch.used)
        self._query(asked, scope, None)
        (core,) = self.cores[cores:]
        del self.cores[cores:], self.batch.used[used:]
        return labels_of(core.keys[0])

    def _of_result(self, read: Relation, number: int) -> Sequence[Scalar] | None:
        """The values of a column of a result that is a key of a SELECT over rows, as it stands there."""
        cores = {core.name: core for core in self.cores}
        if not isinstance(read, Selected) or len(read.sources) != 1 or not isinstance(read.sources[0], United):
            return None
        held = [cores[table.name] for table in read.sources[0].tables if table.name in cores]
        written = read.items[number].sql
        keys = {
            c.key for core in held for c in core.columns if isinstance(c, KeyOutput) and identifier(c.name) == written
        }
        return labels_of(next(iter(keys))) if len(keys) == 1 else None

    def _label(self) -> str:
        """A name for noisy tables that no result has; a subquery takes one before its SELECT's core is there."""
        while True:
            self.labels += 1
            label = f"{self.statement.name}#{self.labels}"
            if not any(name.startswith(fold(label)) for name in self.batch.marked):
                return label

    def _set_operation(self, tree: exp.SetOperation, scope: Withs, columns: Sequence[str] | None) -> Relation:
        for side in (tree.this, tree.expression):
            self._check_no_rows(side, scope)
        left = self._relation(tree.this, scope, columns)
        right = self._relation(tree.expression, scope, None)
        return combined(left, selects.operator(tree), right, selects.order_by(tree))

    def _check_no_rows(self, side: exp.Expr, scope: Withs) -> None:
        """Refuse a side of UNION and its like that is rows of private tables."""
        side = side.unnest()
        if isinstance(side, exp.Select) and is_row_wise(side):
            inside = self.items.within(side, scope)
            if any(isinstance(source, Rows) for _, source in self.items.of(side, inside)):
                raise refuse(
                    "rows of private tables are not united; unite what is counted of each, or add the counts",
                    side,
                    code="union-of-rows",
                )

    def _relation(self, tree: exp.Expr, scope: Withs, columns: Sequence[str] | None) -> Relation:
        found = self._query(tree, scope, columns)
        if isinstance(found, Core):
            raise SQLError("a part of the statement is no relation; write it as a view of its own")
        return found

    def _nested(self, query: exp.Expr, scope: Withs) -> Relation:
        """A subquery in an expression: a relation without companions."""
        return bare(self._relation(query, scope, None))


def _without_inner_names(message: str, noisy: Iterable[str]) -> str:
    """What DuckDB says, without the names that the columns of noisy tables have inside."""
    unknown = re.match(r'Binder Error: Column "(.*)" referenced that exists in the SELECT clause', message)
    if unknown is not None:  # every item has an alias, so DuckDB takes an unknown column for its own alias
        return f"no result that it reads has a column {unknown[1]}"
    for name in noisy:
        message = message.replace(name, "the noisy table")
    return message
