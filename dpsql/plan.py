"""Plans: what a batch would release, how, at what cost and with which errors. Public and free."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql import bounds
from dpsql.errors import SQLError
from dpsql.plan_explain import explain
from dpsql.plan_picture import plan_picture
from dpsql.plan_text import plan_head, plan_rows, plan_text
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import Answers, MatrixAnswers, ResidualAnswers
from dpsql.sql import Answer, parse, table_of, understand
from dpsql.sql.options import check_table, read_options
from dpsql.strategy import Strategy, StructuredStrategy, select, structured_strategy
from dpsql.strategy.cache import default_folder
from dpsql.workload.batch import Core, Measured
from dpsql.workload.choice import compile_any
from dpsql.workload.compile import Compiled
from dpsql.workload.layout import common_multiplicity
from dpsql.workload.relation import relation_text
from dpsql.workload.sensitivity import sensitivity_of
from dpsql.workload.structured import Structured

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Alternative:
    """Another way to pay for the same request, and what it would have given.

    ``error``: what the strategy minimises, total squared error of the batch or the largest, in its units.
    """

    charge: Charge
    method: str
    error: float
    affordable: bool = True


@dataclass(frozen=True, eq=False)
class Plan:
    """A batch understood and planned; ``Connection.run`` measures it.

    Everything here is public: it depends on the SQL text, the policy, the column types and the
    requested budget, never on a row. ``queries`` are the statements, understood. ``charge`` is what a run spends,
    ``noise`` the law of the integer noise, ``alpha`` = 1 - confidence of the intervals, ``policy`` the policy's text.
    ``answers`` turns noisy measurements into answers; ``errors`` and ``widths`` (m,) are
    the standard error and the half-width of the pointwise interval of every released number, in the order of W's rows.
    ``notes`` say what may be a slip of the pen: a constant that is none of a column's declared values.
    ``expected_rows`` are the policy's guesses, by table.
    """

    sql: str
    dataset: str
    queries: tuple[Answer, ...] = field(repr=False)
    compiled: Compiled | Structured = field(repr=False)
    strategy: Strategy | StructuredStrategy = field(repr=False)
    charge: Charge
    noise: Noise
    alternatives: tuple[Alternative, ...]
    alpha: float
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    policy: str = field(repr=False)
    answers: Answers = field(repr=False)
    errors: Floats = field(repr=False)
    widths: Floats = field(repr=False)
    affordable: bool = True
    notes: tuple[str, ...] = ()
    expected_rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def cells(self) -> int:
        """How many cells the batch distinguishes."""
        return self.compiled.cells

    @property
    def sensitivity(self) -> int:
        """How far one privacy unit can move what is measured: L1 for Laplace, *squared* L2 for Gaussian noise."""
        return scaled_sensitivity(self.strategy, self.compiled)

    @property
    def error(self) -> float:
        """What the objective minimises (total or largest squared error, in comparable units), noise included."""
        return self.charge.unit_variance * true_error(self.strategy, self.compiled)

    @property
    def privacy(self) -> str:
        """The guarantee of this release by itself, with its neighbouring relation."""
        return f"differential privacy at {self.charge.guarantee}, {relation_text(self.compiled.layouts)}"

    @property
    def gap(self) -> float | None:
        """Gaussian: error <= (1 + gap) x the least of any Gaussian matrix mechanism; None for Laplace.

        The strategy's lower bound is for units with rows in one table; a mechanism for units with rows in several
        can do no better, and what such units cost beyond it counts as gap.
        """
        alone = self.strategy.gap
        if alone is None:
            return None
        compiled = self.compiled
        rows = compiled.common_steps * common_multiplicity(compiled.layouts)
        shared = self.sensitivity / (self.strategy.l2_squared * rows**2)
        return alone if shared == 1.0 else (1.0 + alone) * shared - 1.0

    @functools.cached_property
    def bound_ratio(self) -> float:
        """Error of the strategy over the SVD bound of the batch's merged cells (privacy factor left out).

        The bound holds for Gaussian noise (Li and Miklau 2013, Thm 4.2); beside Laplace noise it is a
        yardstick. Cost: one eigendecomposition. NaN for a batch of blocks for which no bound is known.
        """
        if isinstance(self.strategy, StructuredStrategy):
            bound = self.strategy.lower_bound
            return float("nan") if bound is None else self.strategy.expected / bound
        return float(self.strategy.expected / bounds.svd_bound(self.strategy.planned))

    @functools.cached_property
    def stderr(self) -> dict[str, Floats]:
        """Standard errors by result: (rows,), or (rows, columns) where it has several private columns."""
        return self._by_result(self.errors)

    @functools.cached_property
    def half_width(self) -> dict[str, Floats]:
        """Half-widths of the pointwise intervals at level 1 - alpha, shaped as ``stderr``."""
        return self._by_result(self.widths)

    @functools.cached_property
    def naive_stderr(self) -> dict[str, Floats]:
        """What each number's standard error would be, were every result column paid for apart.

        The same charge split evenly over the result columns, each measured at its own sensitivity
        with the same kind of noise (epsilon / k for Laplace, mu^2 / k for Gaussian).
        """
        return self._by_result(self.naive_errors)

    @functools.cached_property
    def naive_errors(self) -> Floats:
        """``naive_stderr`` of every number, in the order of W's rows."""
        return _naive(self.compiled, self.charge)

    @functools.cached_property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]:
        """Every core of every statement in order, with the rows of W that each of its outputs takes."""
        spans: dict[int, list[slice]] = {}
        for span in self.compiled.spans:
            spans.setdefault(span.query, []).append(slice(span.start, span.stop))
        found, first = [], 0
        for core in (core for answer in self.queries for core in answer.cores):
            found.append((core, tuple(spans[first + query][at] for query, at in core.places)))
            first += len(core.queries)
        return tuple(found)

    def _by_result(self, values: Floats) -> dict[str, Floats]:
        """The values of all measured columns, statement by statement; groupings of one statement below each other."""
        cores = iter(self.cores)
        found: dict[str, Floats] = {}
        for answer in self.queries:
            parts = []
            for _ in answer.cores:
                core, slices = next(cores)
                outputs = [column.output for column in core.columns if isinstance(column, Measured)]
                columns = [values[slices[output]] for output in outputs]
                parts.append(np.stack(columns, axis=1) if columns else np.zeros((core.rows, 0)))
            wide = max((part.shape[1] for part in parts), default=0)
            whole = np.concatenate([part for part in parts if part.shape[1] == wide] or [np.zeros((0, 0))])
            found[answer.name] = whole[:, 0] if wide == 1 else whole
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One record a result column: its name, how many numbers, errors; what ``str`` and ``df`` show."""
        return plan_rows(self)

    def df(self) -> pandas.DataFrame:
        """``rows`` as a pandas frame. Raises InterfaceError where pandas is not installed."""
        from dpsql.release.result import Result

        return Result.from_columns(_columns(self.rows())).df()

    def explain(self) -> str:
        """What of each statement is private, what is derived from it, and what DuckDB does afterwards, as text."""
        return explain(self, plan_head(self))

    def plot(self) -> Figure:
        """The errors of all result columns as a matplotlib figure. InterfaceError without matplotlib."""
        return plan_picture(self)

    def __str__(self) -> str:
        return plan_text(self)


def _columns(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[Any]]]:
    kinds = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}
    return [(name, kinds[type(rows[0][name])], [row[name] for row in rows]) for name in rows[0]]


def make_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    *,
    alpha: float = 0.05,
    tolerance: float = 1e-3,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    objective: str = "total",
) -> Plan:
    """Plan a batch. Free: reads no row and spends nothing.

    Where several purses could pay (``charge_for``), every way is planned and the one of least
    total squared error (or least largest error, with ``objective="max"``) that the purses still hold is taken.
    OPTIONS clauses of the batch (``dpsql.sql.options``) are held against the policy; their budget is the request's
    (``dpsql.request``). ``tolerance`` is the certified gap
    aimed at for Gaussian noise, ``time_limit`` seconds from now: what understanding and
    compiling leave of them is for the search, shared by all ways. A strategy that
    took long to select is kept in a folder and found again (``dpsql.strategy.cache``; ``DPSQL_CACHE=off`` keeps
    none). Raises SQLError, PolicyError, DataError and BudgetError before any data are touched.
    """
    began, say = monotonic(), progress or (lambda _: None)
    tables = {name: table_of(declared, schemas[name]) for name, declared in policy.tables.items()}
    with _pointing(sql):
        text, clauses = read_options(sql)
        understood = understand(parse(text), policy, tables)
    for options, answer in zip(clauses, understood.answers, strict=False):  # no clauses, or one entry an answer
        if options is not None:
            for query in (query for core in answer.cores for query in core.queries):
                check_table(options, understood.tables[query.table].policy)
    say(f"{len(understood.answers)} statements understood")
    compiled = compile_any(understood.queries, understood.tables)
    if not compiled.answered.size:
        raise SQLError("no number of the batch depends on the data; there is nothing to measure")
    say(f"{compiled.cells:,} cells, {compiled.numbers:,} numbers")
    # One object for all ways to pay: what is worked out of it once is kept with it.
    workload = None if isinstance(compiled, Structured) else compiled.workload(compiled.objective)
    ways = []
    charges = tuple(charge_for(request, state.budget))
    folder = default_folder()
    for number, charge in enumerate(charges):
        share = time_limit
        if time_limit is not None and time_limit > 0:  # what is left, in equal parts; select refuses the rest
            share = max(time_limit - (monotonic() - began), 1e-9) / (len(charges) - number)
        strategy: Strategy | StructuredStrategy
        if workload is None:
            assert isinstance(compiled, Structured)  # noqa: S101 - narrows the type for the checker
            strategy = structured_strategy(
                compiled, charge.noise, tolerance=tolerance, time_limit=share, progress=progress, objective=objective
            )
        else:
            strategy = select(
                workload,
                charge.noise,
                tolerance=tolerance,
                time_limit=share,
                progress=progress,
                cache=folder,
                objective=objective,
            )
        ways.append((charge.unit_variance * true_error(strategy, compiled), charge, strategy))
    ways.sort(key=lambda way: (not state.affords(way[1]), way[0]))
    _, charge, strategy = ways[0]
    common = compiled.common_steps
    noise = charge.calibrate(scaled_sensitivity(strategy, compiled))
    answers = _answers(strategy, compiled)
    return Plan(
        sql=sql,
        dataset=policy.dataset,
        queries=understood.answers,
        compiled=compiled,
        strategy=strategy,
        charge=charge,
        noise=noise,
        alternatives=tuple(Alternative(c, s.method, error, state.affords(c)) for error, c, s in ways[1:]),
        alpha=alpha,
        policy=policy.to_toml(),
        schemas={name: dict(schemas[name]) for layout in compiled.layouts for name in layout.source.tables},
        answers=answers,
        errors=answers.errors(noise, common),
        widths=answers.widths(noise, alpha, common),
        affordable=state.affords(charge),
        notes=understood.notes,
        expected_rows={name: t.expected_rows for name, t in policy.tables.items() if t.expected_rows is not None},
    )


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


def _answers(strategy: Strategy | StructuredStrategy, compiled: Compiled | Structured) -> Answers:
    """How noisy measurements become answers."""
    if isinstance(strategy, StructuredStrategy):
        batch = strategy.structured
        return ResidualAnswers(batch.blocks, strategy.residuals, batch.sizes, batch.numbers)
    assert isinstance(compiled, Compiled)  # noqa: S101 - narrows the type for the checker
    matrix = strategy.reconstruction(compiled.workload(compiled.scale))
    return MatrixAnswers(matrix, compiled.answered, compiled.numbers)


def scaled_sensitivity(strategy: Strategy | StructuredStrategy, compiled: Compiled | Structured) -> int:
    """L1, or squared L2, sensitivity of L B, L the batch's common steps, by the kind of noise."""
    laplace = strategy.noise == "laplace"
    known = strategy.l1 if laplace else strategy.l2_squared
    found = sensitivity_of(strategy.noise, strategy.measured, compiled.layouts, known)
    return found * compiled.common_steps ** (1 if laplace else 2)


def true_error(strategy: Strategy | StructuredStrategy, compiled: Compiled | Structured) -> float:
    """What the objective minimises, at the sensitivity to a whole unit, in the units of ``Strategy.value``."""
    common = compiled.common_steps
    if strategy.noise == "laplace":
        return strategy.value * (scaled_sensitivity(strategy, compiled) / (strategy.l1 * common)) ** 2
    return strategy.value * scaled_sensitivity(strategy, compiled) / (strategy.l2_squared * common**2)


def _naive(compiled: Compiled | Structured, charge: Charge) -> Floats:
    """Standard errors of one independent measurement per result column, at an even share of the charge."""
    if isinstance(compiled, Structured):
        return _naive_blocks(compiled, charge)
    share = len(compiled.spans) * common_multiplicity(compiled.layouts)
    errors = np.zeros(len(compiled.scale))
    weighted = sparse.csr_array(sparse.diags_array(compiled.scale) @ compiled.rows)
    for span in compiled.spans:
        rows = weighted[span.start : span.stop]
        reached = rows if compiled.contributions is None else rows @ compiled.contributions
        if charge.noise == "laplace":
            reach = float(abs(reached).sum(axis=0).max()) if reached.nnz else 0.0
            errors[span.start : span.stop] = reach * share * charge.unit_variance**0.5
        else:
            reach = float((reached * reached).sum(axis=0).max()) if reached.nnz else 0.0
            squared = reach * common_multiplicity(compiled.layouts) ** 2
            errors[span.start : span.stop] = (squared * len(compiled.spans) * charge.unit_variance) ** 0.5
    return errors


def _naive_blocks(compiled: Structured, charge: Charge) -> Floats:
    """``_naive`` of blocks: norms of columns multiply, and a row moves a span's count and sums together."""
    rows = {t: compiled.layouts[owned[0]].multiplicity for t, owned in enumerate(compiled.owners) if owned}
    reach = np.zeros(compiled.numbers)
    order = 1 if charge.noise == "laplace" else 2
    for block in compiled.blocks:
        longest = math.prod(
            float(np.max(abs(factor.matrix).power(order).sum(axis=0), initial=0.0)) ** (1 / order)
            for factor in block.factors
        )
        reach[block.start : block.stop] += abs(block.coefficient) * longest * rows[block.table]
    if charge.noise == "laplace":
        return np.asarray(reach * len(compiled.spans) * charge.unit_variance**0.5)
    return np.asarray(reach * (len(compiled.spans) * charge.unit_variance) ** 0.5)
