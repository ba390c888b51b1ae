"""Answers: what a batch's statements ask, as private queries and the SQL that runs over them afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpsql.common.notes import Note
from dpsql.common.quoting import identifier
from dpsql.sql.outer.relation import Relation
from dpsql.workloads.expr.batch import Core, Query, Table


@dataclass(frozen=True)
class Answer:
    """One statement, understood: the result that it names and the private queries it rests on.

    ``name`` is a view's (``named``) or q1, q2, ... Without ``outer`` the result is the noisy table of its
    one core; with it, ``outer`` is run over the noisy tables of ``cores`` and over the earlier results of
    the batch that it ``reads``. ``text`` is the statement as DuckDB would write it, for the list of releases.
    """

    name: str
    named: bool
    replace: bool
    cores: tuple[Core, ...]
    outer: Relation | None = None
    reads: tuple[str, ...] = ()
    text: str = field(default="", repr=False)

    @property
    def aliases(self) -> dict[str, str]:
        """What the result calls columns of the noisy tables that it shows unchanged, by their names in these."""
        names = {identifier(column.name): column.name for core in self.cores for column in core.columns}
        items = getattr(self.outer, "items", ())
        return {names[item.sql]: item.name for item in items if item.sql in names}

    @property
    def meaning(self) -> list[object]:
        """What tells this statement from another over the same tables, as JSON can hold it."""
        outer = None if self.outer is None else [self.outer.sql(True), self.outer.sql(False)]
        # What was hidden by another rule is another question: "from" was the word while its SQL judged a number.
        hiding = [repr(core) if core.minimum is None else f"{core!r} at least {core.minimum}" for core in self.cores]
        return [self.name, self.text, outer, list(self.reads), hiding]


@dataclass(frozen=True)
class Understood:
    """A batch, understood; ``tables`` hold the columns that its statements compute or join.

    ``notes`` are what a reader of the plan should know, such as a constant that is none of the declared values.
    """

    answers: tuple[Answer, ...]
    tables: Mapping[str, Table] = field(repr=False)
    notes: tuple[Note, ...] = ()

    @property
    def queries(self) -> tuple[Query, ...]:
        """The private queries of all statements, in order."""
        return tuple(query for answer in self.answers for core in answer.cores for query in core.queries)
