"""From SQL text to what every way to pay for a batch shares: statements understood, cells and W compiled, strategies.

Public and free, as all of planning: SQL text, policy and column types decide, never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dpsql.errors import SQLError
from dpsql.planning.options import PlanOptions
from dpsql.policy import Policy
from dpsql.sql import Answer, parse, table_of, understand
from dpsql.sql.aggregate.range_keys import check_long
from dpsql.sql.outer.answers import Understood
from dpsql.sql.parse.options import check_table, read_options
from dpsql.strategy import Strategy, lined_strategy, select, structured_strategy
from dpsql.strategy.cached.cache import default_folder
from dpsql.workload.compile.choice import compile_any
from dpsql.workload.compile.compiled import Compiled
from dpsql.workload.compile.layout import Span
from dpsql.workload.compile.line_batch import Lined, compile_line, line_of_batch
from dpsql.workload.compile.sensitivity import sensitivity_of
from dpsql.workload.compile.structured import Structured
from dpsql.workload.expr.batch import Core
from dpsql.workload.expr.deadline import NONE, Deadline

Say = Callable[[str], None]
_DEFAULT = PlanOptions()


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch understood and compiled under a policy, before any budget."""

    sql: str
    policy: Policy = field(repr=False)
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    understood: Understood = field(repr=False)
    compiled: Compiled | Structured | Lined = field(repr=False)
    rows_per_unit: int | None = None


def prepare(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    progress: Say | None = None,
    deadline: Deadline = NONE,
    rows_per_unit: int | None = None,
) -> Prepared:
    """Understand and compile a batch. Raises SQLError and PolicyError; a refusal shows its place in the text.

    SQLError past ``deadline``, too, with how far it came. ``rows_per_unit``: as in ``PlanOptions``.
    """
    say, policy = progress or (lambda _: None), policy.counting(rows_per_unit)
    tables = {name: table_of(declared, schemas[name]) for name, declared in policy.tables.items()}
    with _pointing(sql):
        text, clauses = read_options(sql)
        understood = understand(parse(text), policy, tables, deadline)
        check_long(understood.answers)
    for options, answer in zip(clauses, understood.answers, strict=False):  # no clauses, or one entry an answer
        if options is not None:
            for query in (query for core in answer.cores for query in core.queries):
                check_table(options, understood.tables[query.table].policy)
    say(f"{len(understood.answers)} statements understood")
    line = line_of_batch(understood.queries)
    compiled: Compiled | Structured | Lined
    if line is not None:
        compiled = compile_line(understood.queries, understood.tables, line)
    else:
        compiled = compile_any(understood.queries, understood.tables, deadline)
    if not compiled.answered.size:
        why = "".join(f" ({note})" for note in understood.notes[:3])
        raise SQLError(f"no number of the batch depends on the data; there is nothing to measure{why}")
    say(f"{compiled.cells:,} cells, {compiled.numbers:,} numbers")
    return Prepared(sql, policy, schemas, understood, compiled, rows_per_unit)


def understood_of(sql: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Understood:
    """What the statements of a batch ask; its OPTIONS are not held against the policy. Raises as ``prepare``."""
    tables = {name: table_of(declared, schemas[name]) for name, declared in policy.tables.items()}
    return understand(parse(read_options(sql)[0]), policy, tables)


@contextmanager
def _pointing(sql: str) -> Iterator[None]:
    """A refusal within shows its place in the user's text, as a note below the message."""
    try:
        yield
    except SQLError as error:
        shown = error.pointed(sql) if isinstance(sql, str) else ""
        if shown:
            error.add_note(shown)
        raise


class Chooser:
    """The strategies of one compiled batch, for every kind of noise that could pay for it."""

    def __init__(self, compiled: Compiled | Structured | Lined, *, cached: bool = True) -> None:
        self.compiled = compiled
        # One object for all ways to pay: what is worked out of it once is kept with it.
        small = compiled.inner if isinstance(compiled, Lined) else compiled
        self._workload = None if isinstance(small, Structured) else small.workload(small.objective)
        self._folder = default_folder() if cached else None

    def strategy(self, noise: str, options: PlanOptions = _DEFAULT) -> Strategy:
        """The strategy of least total (or, with the objective "max", least largest) squared error for that noise."""
        objective = options.objective or "total"
        if isinstance(self.compiled, Structured):
            return structured_strategy(
                *(self.compiled, noise),
                tolerance=options.tolerance,
                time_limit=options.time_limit,
                progress=options.progress,
                objective=objective,
            )
        assert self._workload is not None  # noqa: S101 - narrows the type for the checker
        found = select(
            *(self._workload, noise),
            tolerance=options.tolerance,
            time_limit=options.time_limit,
            progress=options.progress,
            cache=self._folder,
            objective=objective,
        )
        return lined_strategy(self.compiled, found, objective) if isinstance(self.compiled, Lined) else found


def scaled_sensitivity(strategy: Strategy, compiled: Compiled | Structured | Lined) -> int:
    """L1, or squared L2, sensitivity of L B, L the batch's common steps, by the kind of noise."""
    compiled = strategy.as_measured(compiled)
    order = 1 if strategy.noise == "laplace" else 2
    if isinstance(compiled, Compiled):
        # The strategy's own is over all contributions.
        found = (strategy.l1 if order == 1 else strategy.l2_squared) * compiled.units.common**order
    else:
        found = sensitivity_of(strategy.noise, strategy.measured, compiled.layouts)
    return int(found * compiled.common_steps**order)


def true_error(strategy: Strategy, compiled: Compiled | Structured | Lined) -> float:
    """What the objective minimises, at the sensitivity to a whole unit, in the units of ``Strategy.value``."""
    common = strategy.as_measured(compiled).common_steps
    if strategy.noise == "laplace":
        return strategy.value * (scaled_sensitivity(strategy, compiled) / (strategy.l1 * common)) ** 2
    return strategy.value * scaled_sensitivity(strategy, compiled) / (strategy.l2_squared * common**2)


def cores_of(answers: Sequence[Answer], spans: Sequence[Span]) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
    """Every core of every statement in order, with the rows of W that each of its outputs takes."""
    held: dict[int, list[slice]] = {}
    for span in spans:
        held.setdefault(span.query, []).append(slice(span.start, span.stop))
    found, first = [], 0
    for core in (core for answer in answers for core in answer.cores):
        found.append((core, tuple(held[first + query][at] for query, at in core.places)))
        first += len(core.queries)
    return tuple(found)
