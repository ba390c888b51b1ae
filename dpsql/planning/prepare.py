"""From SQL text to what every way to pay for a batch shares: statements understood, cells and W compiled, strategies.

Public and free, as all of planning: SQL text, policy and column types decide, never a row.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from time import monotonic

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.common.notes import BIAS, Note
from dpsql.errors import DataError, InternalError, SQLError, listed
from dpsql.planning.by_period import by_period
from dpsql.planning.named_strategy import check_fits
from dpsql.planning.one_by_one import HELD, Columns, balanced, beside_one_by_one
from dpsql.planning.options import PlanOptions
from dpsql.policy import Policy
from dpsql.privacy.periods import Reads
from dpsql.sql import Answer, parse, table_of, understand
from dpsql.sql.aggregate.range_keys import check_long
from dpsql.sql.outer.answers import Understood
from dpsql.sql.parse.options import check_table, read_options
from dpsql.sql.parse.trees import loosened, uncollected
from dpsql.sql.resolve.batch_tables import one_row_each
from dpsql.sql.sums_of_rows import sums_of_rows
from dpsql.strategies import MatrixStrategy, Strategy, lined_strategy, select
from dpsql.strategies.cached.cache import default_folder
from dpsql.strategies.choose.best import STRATEGIES
from dpsql.strategies.choose.task import NO_TIME, catalogue
from dpsql.strategies.kronecker.level_strategy import LevelStrategy, level_strategy
from dpsql.strategies.kronecker.structured import StructuredStrategy
from dpsql.strategies.targets import Limits, strategies_for
from dpsql.workloads.compile import choice
from dpsql.workloads.compile.choice import compile_any
from dpsql.workloads.compile.compiled import Batch, Compiled, compile_batch
from dpsql.workloads.compile.histograms import MAX_HISTOGRAM
from dpsql.workloads.compile.layout import Span
from dpsql.workloads.compile.line_batch import Lined, compile_line, line_of_batch
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.structured import Structured, compile_structured
from dpsql.workloads.expr.batch import Core
from dpsql.workloads.expr.deadline import NONE, Deadline
from dpsql.workloads.families.matrix import Workload

Say = Callable[[str], None]
MOST_LISTED = 2**17
"""Cells of a batch that is measured block by block, which are listed for this alone."""
_DEFAULT = PlanOptions()
_AIM = 0.99
_POWER = 5.0  # what a column counts more is its excess to this power, or to less where that was too far
_SMALL = 1.1  # excess up to which a quarter of the power is enough
_SURE = 1.05  # times ``HELD``: worse than this on the mean, columns are first tried one by one
_ROUNDS = 6


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch understood and compiled under a policy, before any budget.

    ``reads``: the periods that it reads and is charged to, None where that is everything (``by_period``).
    ``one_matrix``: what it compiles to where it is held as blocks beside that (``as_blocks``), else None.
    ``named``: the strategy that the call names (``dpsql.planning.named_strategy``), "" where it names none.
    ``late``: what a time limit left out of the searches for strategies, as ``watched`` has it.
    """

    sql: str
    policy: Policy = field(repr=False)
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    understood: Understood = field(repr=False)
    compiled: Batch = field(repr=False)
    rows_per_unit: int | None = None
    reads: Reads | None = None
    one_matrix: Compiled | None = field(default=None, repr=False)
    named: str = ""
    late: list[str] = field(default_factory=list, repr=False)
    _weighed: dict[str, Prepared] = field(default_factory=dict, init=False, repr=False)

    def weighed(self, noise: str, objective: str | None) -> Prepared:
        """The batch as the objective weighs its numbers for a kind of noise; the same object where nothing changes."""
        if objective != "balanced":
            return self
        if noise not in self._weighed:
            made = balanced(self.compiled, noise)
            # Where columns are as long in either norm, both kinds of noise share what is worked out of the batch.
            same = (other for other in self._weighed.values() if _same_objective(made, other.compiled))
            self._weighed[noise] = next(same, None) or replace(self, compiled=made)
        return self._weighed[noise]

    @cached_property
    def chooser(self) -> Chooser:
        """Its strategies."""
        return Chooser(self.compiled, late=self.late, named=self.named)

    def strategy(self, noise: str, options: PlanOptions, rival: float = np.inf) -> Strategy:
        """The strategy of least error by the objective of ``options`` of all that are known for a kind of noise.

        Where no bound proves what the search finds, what the balanced objective takes is compared, too
        (``Chooser.better``). ``rival``: as in ``Chooser.strategy``.
        """
        began, limit, chooser = monotonic(), options.time_limit, self.weighed(noise, options.objective).chooser
        if options.objective in (None, "balanced") or self.compiled.line is not None or self.named:
            return chooser.strategy(noise, options, rival=rival)
        half = options if limit is None or noise == "gaussian" else options.within(limit / 2)
        found = chooser.strategy(noise, half, rival=rival)
        if found.gap is not None and found.gap <= options.tolerance:
            return found
        left = options if limit is None else options.within(max(limit - (monotonic() - began), 1e-9) / 2)
        STRATEGIES.offer(lambda: found)
        with contextlib.suppress(DataError), STRATEGIES.heard_by(None):
            return chooser.better(found, self.balanced_strategy(noise, left), left)
        return found

    def balanced_strategy(self, noise: str, options: PlanOptions) -> Strategy:
        """The strategy of the balanced objective, by which no column does worse than one by one where that can be."""
        mine = replace(options, objective="balanced")
        return no_worse_than_one_by_one(self, self.weighed(noise, "balanced").chooser.strategy(noise, mine), mine)

    @cached_property
    def over_cells(self) -> Compiled | None:
        """The batch over its cells one by one; None of blocks with more than MOST_LISTED, and of long lines.

        Blocks are compiled so once more.
        """
        if self.compiled.matrix is not None:
            return self.compiled.matrix
        if self.compiled.line is not None or self.compiled.cells > MOST_LISTED:
            return None
        return compile_batch(self.understood.queries, self.understood.tables, boxes=False)

    def by(self, named: str) -> Prepared:
        """The batch over listed cells, for the strategy of that name; itself for "".

        Raises DataError where the strategy does not fit it.
        """
        if not named:
            return self
        compiled = self.over_cells
        if compiled is None:
            raise DataError(
                f"method={named!r} needs cells that are listed, at most {MOST_LISTED:,}, and this batch has "
                f"{self.compiled.cells:,}; ask for fewer or coarser columns in one batch, or use method='auto'"
            )
        check_fits(named, compiled)
        return replace(self, compiled=compiled, named=named)

    def as_blocks(
        self, objective: str, tolerance: float = _DEFAULT.tolerance, deadline: Deadline = NONE
    ) -> Prepared | None:
        """The same batch as blocks for Gaussian noise, where it is one matrix that takes long; None elsewhere.

        Of one column only blocks whose groupings nest, which are planned within the tolerance at once.
        """
        joint, queries, tables = self.compiled.matrix, self.understood.queries, self.understood.tables
        blocks = None if joint is None else choice.blocks_beside(joint, queries, tables, deadline)
        if blocks is None:
            return None
        made = replace(self, compiled=blocks, one_matrix=joint)
        if choice.over_one_column(blocks) and not made.weighed("gaussian", objective).nested(tolerance, deadline):
            return None
        return made

    def without_bounds(self) -> Prepared | None:
        """The same batch without ``at_most``, where units are then tied to rows or to each other; else None.

        Bounds keep them untied, and may so add to errors. Those of periods, by which releases are paid, are kept, and
        those by which rows of a group count units.
        """
        tables, queries = self.understood.tables, self.understood.queries
        bounded = {n: t for n, t in tables.items() if t.policy.at_most and t.source is not None and t.source.of is None}
        if self.compiled.matrix is None or not bounded or not self._counts_units:
            return None
        if any(table.policy.periods is not None for table in tables.values()):
            return None
        if any(query.table in bounded and one_row_each(tables[query.table], query.keys) for query in queries):
            return None
        free = {
            n: replace(t, source=replace(t.source, caps=(), freed=True))
            for n, t in bounded.items()
            if t.source is not None
        }
        try:
            compiled = compile_any(queries, {**tables, **free})
        except SQLError:  # more that a unit can change than is planned
            return None
        if compiled.matrix is None or all(
            layout.tie is None and layout.together is None for layout in compiled.layouts
        ):
            return None
        names = listed(sorted({table.policy.name for table in free.values()}))
        why = f"the batch has smaller errors without the bounds of at_most on {names}, and is planned without them"
        note = Note(why, BIAS)
        notes = *self.understood.notes, note
        return replace(
            self, understood=replace(self.understood, tables={**tables, **free}, notes=notes), compiled=compiled
        )

    def without_sum_bounds(self) -> Prepared | None:
        """The same batch with sums of rows in the place of sums within bounds, where it has both (``sums_of_rows``).

        One matrix, as without them; else None, and where periods decide which rows are read.
        """
        by_rows = None if self.compiled.matrix is None or self.reads is not None else sums_of_rows(self.understood)
        if by_rows is None:
            return None
        try:
            compiled = compile_any(by_rows.queries, by_rows.tables)
        except SQLError:  # as above
            return None
        return None if compiled.matrix is None else replace(self, understood=by_rows, compiled=compiled)

    @property
    def _counts_units(self) -> bool:
        return any(layout.source.counts_units for layout in self.compiled.layouts)

    @property
    def long_with_units(self) -> bool:
        """Whether one matrix that is planned source by source takes long, so that blocks come first."""
        joint = self.compiled.matrix
        return joint is not None and not joint.units.listable and choice.takes_long(joint)

    def with_units_in_blocks(self) -> Prepared | None:
        """The same batch as blocks, where it is one matrix with counts of units of which no list is made; else None.

        Blocks do not know that units are counted of the rows that others count, and see more of what groupings share.
        """
        joint = self.compiled.matrix
        if joint is None or joint.units.listable or not self._counts_units:
            return None
        try:
            blocks = compile_structured(self.understood.queries, self.understood.tables)
        except SQLError:  # too large, or a value that is counted once
            return None
        return replace(self, compiled=blocks, one_matrix=joint)

    def nested(self, tolerance: float, deadline: Deadline = NONE) -> bool:
        """Whether a batch of blocks is planned on levels within the tolerance, until the deadline."""
        assert isinstance(self.compiled, Structured)  # noqa: S101 - its caller made it so
        found = level_strategy(self.compiled, tolerance, deadline.at)
        return found is not None and found.gap is not None and found.gap <= tolerance


@uncollected()
def prepare(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    progress: Say | None = None,
    deadline: Deadline = NONE,
    rows_per_unit: int | None = None,
    blocks: bool = False,
) -> Prepared:
    """Understand and compile a batch. Raises SQLError and PolicyError; a refusal shows its place in the text.

    SQLError past ``deadline``, too, with how far it came. ``rows_per_unit``: as in ``PlanOptions``. ``blocks``: block
    by block whatever is better, also where only a part of the numbers can be measured (``compile_structured``).
    """
    say, policy = progress or (lambda _: None), policy.counting(rows_per_unit)
    understood, reads = understood_for(sql, policy, schemas, deadline, MAX_HISTOGRAM if blocks else 0)
    say(f"{len(understood.answers)} statements understood")
    line = line_of_batch(understood.queries)
    compiled: Batch
    if line is not None:
        compiled = compile_line(understood.queries, understood.tables, line)
    elif blocks:
        compiled = compile_structured(understood.queries, understood.tables, shown=True)
    else:
        compiled = compile_any(understood.queries, understood.tables, deadline)
    if not compiled.answered.size:
        why = "".join(f" ({note})" for note in understood.notes[:3])
        raise SQLError(f"no number of the batch depends on the data; there is nothing to measure{why}")
    say(f"{compiled.cells:,} cells, {compiled.numbers:,} numbers")
    return Prepared(sql, policy, schemas, understood, compiled, rows_per_unit, reads)


def understood_for(
    sql: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]], deadline: Deadline = NONE, most_numbers: int = 0
) -> tuple[Understood, Reads | None]:
    """A batch understood, with the periods that it reads. Raises as ``prepare``. ``most_numbers``: of a statement."""
    known = {name: table_of(declared, schemas[name]) for name, declared in policy.tables.items()}
    if most_numbers:
        known = {name: replace(table, most_numbers=most_numbers) for name, table in known.items()}
    with _pointing(sql), uncollected():  # until all that was parsed is let go
        text, clauses = read_options(sql)
        statements = parse(text)
        understood = understand(statements, policy, known, deadline)
        for statement in statements:
            loosened(statement.tree)
        check_long(understood.answers)
    for options, answer in zip(clauses, understood.answers, strict=False):  # no clauses, or one entry an answer
        if options is not None:
            for query in (query for core in answer.cores for query in core.queries):
                check_table(options, understood.tables[query.table].policy)
    tables, reads = by_period(policy, understood.tables, understood.queries)
    return replace(understood, tables=tables), reads


def understood_of(sql: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Understood:
    """What the statements of a batch ask, whatever its OPTIONS and whenever its periods end. Raises as ``prepare``."""
    tables = {name: table_of(declared, schemas[name]) for name, declared in policy.tables.items()}
    found = understand(parse(read_options(sql)[0]), policy, tables)
    whenever = replace(policy, today=dt.date.max)
    return replace(found, tables=by_period(whenever, found.tables, found.queries)[0])


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


@contextmanager
def watched(options: PlanOptions, late: list[str]) -> Iterator[PlanOptions]:
    """``options`` for one search; ``late`` hears of the methods that it had no time for, and "" where its time ended.

    A search that ended at its limit may have been cut short, and counts as that.
    """
    began, limit = monotonic(), options.time_limit
    if limit is None:
        yield options
        return

    def heard(text: str) -> None:
        if text.startswith(NO_TIME):
            late.append(text.removeprefix(NO_TIME))
        options.say(text)

    yield replace(options, progress=heard)
    if monotonic() - began >= limit:
        late.append("")


class Chooser:
    """The strategies of one compiled batch, for every kind of noise that could pay for it."""

    def __init__(
        self,
        compiled: Batch,
        *,
        cached: bool = True,
        late: list[str] | None = None,
        named: str = "",
    ) -> None:
        self.compiled, self._late, self._named = compiled, [] if late is None else late, named
        # One object for all ways to pay: what is worked out of it once is kept with it.
        self._planned = compiled.small.total_weighted
        self._folder = default_folder() if cached else None

    def strategy(
        self, noise: str, options: PlanOptions = _DEFAULT, method: str = "auto", rival: float = np.inf
    ) -> Strategy:
        """The strategy of least total (or, with the objective "max", least largest) squared error for that noise.

        The batch says what its errors count: "balanced" is the total of a batch that is weighed so. ``method``: one
        that is known to serve; all are tried where it is none of ``select``. Where the call names a strategy, that is
        taken. ``rival``: the error of another plan (``known`` there).
        """
        with watched(options, self._late) as mine:
            return self._strategy(noise, mine, self._named or method, rival)

    def _strategy(self, noise: str, options: PlanOptions, method: str, rival: float) -> Strategy:
        label = options.objective or "total"
        objective = "max" if label == "max" else "total"
        small = self.compiled.small
        planned = small.weighted if objective == "max" and small.repeats else self._planned
        # A line multiplies the norm of what is measured of every value; only L1 and L2 multiply.
        pure = noise == "laplace" and self.compiled.line is None
        # Of other workloads a search plans parts, or what is weighed otherwise.
        whole = type(planned) is Workload and (planned.units is None or planned.units.listable)

        def hear(make: Callable[[], Strategy]) -> None:
            if whole and objective != "max":
                offer(lambda: self._labelled(made, label) if isinstance(made := make(), MatrixStrategy) else made)

        with STRATEGIES.taken() as offer, STRATEGIES.heard_by(hear):
            found = select(
                *(planned, "pure" if pure else noise, method if method in catalogue() else "auto"),
                tolerance=options.tolerance,
                time_limit=options.time_limit,
                progress=options.progress,
                cache=self._folder,
                objective=objective,
                known=rival,
            )
        return self._labelled(found, label)

    def _labelled(self, strategy: MatrixStrategy | StructuredStrategy | LevelStrategy, label: str) -> Strategy:
        """A strategy as the plan has it: of the whole line of a long column, with the name of its objective."""
        if isinstance(self.compiled, Lined) and isinstance(strategy, MatrixStrategy):
            return lined_strategy(self.compiled, strategy, label)
        return strategy if strategy.objective == label else replace(strategy, objective=label)

    def better(self, strategy: Strategy, other: Strategy, options: PlanOptions) -> Strategy:
        """``strategy``, or what has less error by its objective: ``other``, or for the largest error what starts there.

        Both are strategies for the numbers of this batch and one kind of noise.
        """
        batch, objective, noise = self.compiled, strategy.objective, strategy.noise
        others: list[Strategy] = []
        if isinstance(strategy, MatrixStrategy) and isinstance(other, MatrixStrategy):
            others.append(other.instead(strategy.planned, objective))
            if objective == "max" and noise == "laplace":
                with watched(options, self._late) as mine:
                    limits = Limits(mine.tolerance, mine.time_limit, mine.progress)
                    others += strategies_for(strategy.planned, "pure", limits, other)
        elif isinstance(other, StructuredStrategy) and batch.blocks:
            planned = replace(other.planned, blocks=batch.blocks)
            value = other.largest(planned) if objective == "max" else other.error(planned)
            others.append(replace(other, planned=planned, expected=value, objective=objective))
        best = min((strategy, *others), key=lambda one: true_error(one, batch))
        considered = (*strategy.considered, *((one.method, one.value) for one in others))
        if best is strategy or not isinstance(best, MatrixStrategy | StructuredStrategy):
            return best
        return replace(best, lower_bound=strategy.lower_bound, considered=considered)

    def gaussian_bound(self, objective: str) -> float:
        """At most the ``true_error`` of any strategy for Gaussian noise; 0 where no bound is known soon."""
        units = self.compiled.units
        if objective == "max" or units is None or not units.listable:
            return 0.0
        from dpsql.lower_bounds.sampled import sampled_bound

        assert isinstance(self._planned, Workload)  # noqa: S101 - as units are listed
        return sampled_bound(self._planned) * units.common**2

    def beside(self, strategy: Strategy) -> Floats:
        """Mean squared errors of the columns (k,) over those one by one, of a balanced batch of listed cells."""
        matrix = self.compiled.matrix
        assert matrix is not None  # noqa: S101 - its callers know
        squares = np.zeros(matrix.numbers)
        if matrix.once.repeats:
            each = strategy.variances(matrix.distinct)[matrix.distinct_place]
            squares[matrix.answered] = each * matrix.objective[matrix.answered] ** 2
        else:
            squares[matrix.answered] = strategy.variances(self._planned)
        squares *= true_error(strategy, matrix) / strategy.value
        return beside_one_by_one(squares, matrix, strategy.noise)

    def instead(self, other: MatrixStrategy, best: Strategy) -> Strategy:
        """``other``, with its error in the units of this batch and the certificate of ``best``."""
        assert isinstance(self._planned, Workload)  # noqa: S101 - as in ``beside``
        return replace(
            other,
            planned=self._planned,
            expected=other.error(self._planned),
            lower_bound=best.lower_bound,
            considered=best.considered,
        )


def _same_objective(one: Batch, other: Batch) -> bool:
    """Whether two weighings of one matrix are the same."""
    if one.matrix is None or other.matrix is None:
        return False
    return np.array_equal(one.matrix.objective, other.matrix.objective)


def no_worse_than_one_by_one(prepared: Prepared, strategy: Strategy, options: PlanOptions) -> Strategy:
    """``strategy``, or a strategy of the balanced objective under which no column does worse than one by one.

    Where one does, it counts more in further rounds; the strategy that leaves the worst column best is taken. Its
    certificate is that of ``strategy``, of the balanced objective. Columns of statements that weigh less than 1 may do
    worse, and those of batches of blocks and of long lines are not held.
    """
    began, noise, weighed = monotonic(), strategy.noise, prepared.weighed(strategy.noise, "balanced")
    compiled, first = weighed.compiled, weighed.chooser
    if compiled.matrix is None or prepared.named:
        return strategy
    columns = Columns.of(compiled)
    held = columns.weights >= 1
    beside, squares = first.beside(strategy), columns.weights**2
    unit, beside = strategy.value / float(squares @ beside), beside * held
    others = min((value for name, value in strategy.considered if name != strategy.method), default=np.inf)
    best, times, gained = strategy, np.ones(beside.size), 0.0
    power = _POWER if beside.max() > _SMALL else _POWER / 4
    if held.all() and np.average(beside, weights=squares) > _SURE * HELD:
        # What holds all columns would have less error by the weights for which this was searched.
        with contextlib.suppress(DataError):
            asked = one_by_one_strategy(prepared, noise, options)
            if first.beside(asked).max() <= HELD and isinstance(asked, MatrixStrategy):
                return first.instead(asked, strategy)
    for number in range(_ROUNDS):
        left = None if options.time_limit is None else options.time_limit - (monotonic() - began)
        if beside.max() <= HELD:
            break
        if left is not None and left <= 0:
            prepared.late.append("")
            break
        if gained and np.log(beside.max() / HELD) > gained * (_ROUNDS - number + 1):
            break  # all steps that are left and one more, each as good as the best so far, would not do
        more = np.maximum(beside / _AIM, 1.0) ** power
        # Another method may serve the new weights better, if it had less error by the first, which are no larger.
        late = number >= _ROUNDS // 2 and others < unit * float((squares * times * more) @ beside)
        method = "auto" if late else strategy.method
        try:
            weighed_again = Chooser(balanced(prepared.compiled, noise, times * more), late=prepared.late)
            again = weighed_again.strategy(noise, options.within(left), method)
            after = first.beside(again) * held
        except (DataError, InternalError):  # too large, or weights too unlike in size for integers
            again, after = strategy, np.full(beside.size, np.inf)
        if after.max() < beside.max():
            gained = max(gained, float(np.log(beside.max() / after.max())))
            best, beside, times = again, after, times * more
            if held.all() and np.average(beside, weights=squares * times) > HELD:
                break  # the least mean by these weights: what holds all columns would have less
        else:  # a step too far
            power /= 4
    if beside.max() > HELD:
        with contextlib.suppress(DataError):  # of very many queries that depend on each other
            asked = one_by_one_strategy(prepared, noise, options)
            best = asked if (first.beside(asked) * held).max() < beside.max() else best
    return strategy if best is strategy or not isinstance(best, MatrixStrategy) else first.instead(best, strategy)


def one_by_one_strategy(prepared: Prepared, noise: str, options: PlanOptions) -> Strategy:
    """The columns of a batch of listed cells themselves, each at its own length: one by one, or better by inference.

    Prefix counts of a quantile are measured one by one, too, though there are better ways. No search, so that any time
    limit leaves time for it.
    """
    columns = Columns.of(prepared.compiled)
    alone = Chooser(balanced(prepared.compiled, noise, columns.sizes / columns.weights**2))
    return alone.strategy(noise, options.within(None), "workload")


def scaled_sensitivity(strategy: Strategy, compiled: Batch) -> int:
    """L1, or squared L2, sensitivity of L B, L the batch's common steps, by the kind of noise."""
    compiled = strategy.as_measured(compiled)
    order = 1 if strategy.noise == "laplace" else 2
    if compiled.units is not None:
        # The strategy's own is over all contributions.
        found = (strategy.l1 if order == 1 else strategy.l2_squared) * compiled.units.common**order
    else:
        found = sensitivity_of(strategy.noise, strategy.measured, compiled.layouts, strategy.blocks)
    return -int(-Fraction(found) * compiled.common_steps**order // 1)


def true_error(strategy: Strategy, compiled: Batch, other: Batch | None = None) -> float:
    """What the objective minimises, at the sensitivity to a whole unit, in the units of ``Strategy.value``.

    ``other``: the same batch, as the objective weighs it for another kind of noise; then in its units.
    """
    value, common = strategy.value, strategy.as_measured(compiled).common_steps
    if other is not None and other is not compiled:
        value = strategy.error(other.weighted)
    if strategy.noise == "laplace":
        return value * (scaled_sensitivity(strategy, compiled) / (strategy.l1 * common)) ** 2
    return value * scaled_sensitivity(strategy, compiled) / (strategy.l2_squared * common**2)


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
