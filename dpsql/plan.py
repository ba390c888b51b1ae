"""Plans: what a batch would release, how, at what cost and with which errors. Public and free."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql import bounds
from dpsql.errors import PolicyError, SQLError
from dpsql.plan_picture import plan_picture
from dpsql.plan_text import plan_rows, plan_text
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import half_widths, standard_errors
from dpsql.sql import parse, table_of, understand
from dpsql.strategy import Strategy, select
from dpsql.workload.batch import Query
from dpsql.workload.compile import Compiled, compile_batch

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Alternative:
    """Another way to pay for the same request, and what it would have given.

    ``error``: total squared error of the batch, in the units the strategy minimises.
    """

    charge: Charge
    method: str
    error: float
    affordable: bool = True


@dataclass(frozen=True, eq=False)
class Plan:
    """A batch understood and planned; ``Connection.run`` measures it.

    Everything here is public: it depends on the SQL text, the policy, the column types and the
    requested budget, never on a row. ``charge`` is what a run spends, ``noise`` the law of the
    integer noise, ``alpha`` = 1 - confidence of the intervals, ``policy`` the policy's text.
    ``answers`` (m x p) turns noisy measurements into answers; ``errors`` and ``widths`` (m,) are
    the standard error and the half-width of the pointwise interval of every released number, in the order of W's rows.
    """

    sql: str
    dataset: str
    compiled: Compiled = field(repr=False)
    strategy: Strategy = field(repr=False)
    charge: Charge
    noise: Noise
    alternatives: tuple[Alternative, ...]
    alpha: float
    schemas: Mapping[str, Mapping[str, str]] = field(repr=False)
    policy: str = field(repr=False)
    answers: Any = field(repr=False)
    errors: Floats = field(repr=False)
    widths: Floats = field(repr=False)
    affordable: bool = True

    @property
    def queries(self) -> tuple[Query, ...]:
        """The statements of the batch, understood."""
        return self.compiled.queries

    @property
    def cells(self) -> int:
        """How many cells the batch distinguishes."""
        return self.compiled.cells

    @property
    def sensitivity(self) -> int:
        """How far one row can move what is measured: L1 for Laplace, *squared* L2 for Gaussian noise; exact."""
        return sensitivity_of(self.strategy, self.compiled.common_steps)

    @property
    def privacy(self) -> str:
        """The guarantee of this release by itself, with its neighbouring relation."""
        tables = ", ".join(layout.table for layout in self.compiled.layouts)
        return f"differential privacy at {self.charge.guarantee}, for adding or removing one row of {tables}"

    @property
    def gap(self) -> float | None:
        """Gaussian: error <= (1 + gap) x the least of any Gaussian matrix mechanism; None for Laplace."""
        return self.strategy.gap

    @functools.cached_property
    def bound_ratio(self) -> float:
        """Error of the strategy over the SVD bound of the batch's merged cells (privacy factor left out).

        The bound holds for Gaussian noise (Li and Miklau 2013, Thm 4.2); beside Laplace noise it is a
        yardstick. Cost: one eigendecomposition.
        """
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
        return self._by_result(_naive(self.compiled, self.charge))

    def _by_result(self, values: Floats) -> dict[str, Floats]:
        found: dict[str, list[Floats]] = {query.name: [] for query in self.queries}
        for span in self.compiled.spans:
            found[self.queries[span.query].name].append(values[span.start : span.stop])
        return {name: columns[0] if len(columns) == 1 else np.stack(columns, axis=1) for name, columns in found.items()}

    def rows(self) -> list[dict[str, Any]]:
        """One record a result column: its name, how many numbers, errors; what ``str`` and ``df`` show."""
        return plan_rows(self)

    def df(self) -> pandas.DataFrame:
        """``rows`` as a pandas frame. Raises InterfaceError where pandas is not installed."""
        from dpsql.release.result import Result

        return Result.from_columns(_columns(self.rows())).df()

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
) -> Plan:
    """Plan a batch. Free: reads no row and spends nothing.

    Where several purses could pay (``charge_for``), every way is planned and the one of least
    total squared error that the purses still hold is taken. ``tolerance`` is the certified gap
    aimed at for Gaussian noise, ``time_limit`` seconds for the search. Raises SQLError,
    PolicyError, DataError and BudgetError before any data are touched.
    """
    say = progress or (lambda _: None)
    private = {name: table for name, table in policy.tables.items() if not table.public}
    tables = {name: table_of(declared, schemas[name]) for name, declared in private.items()}
    queries = understand(parse(sql), policy, tables)
    for name in dict.fromkeys(query.table for query in queries):
        _check_unit(policy, name)
    say(f"{len(queries)} statements understood")
    compiled = compile_batch(queries, tables)
    if not compiled.answered.size:
        raise SQLError("no number of the batch depends on the data; there is nothing to measure")
    say(f"{compiled.cells:,} cells, {len(compiled.scale):,} numbers")
    workload = compiled.workload(compiled.objective)
    ways = []
    for charge in charge_for(request, state.budget):
        strategy = select(workload, charge.noise, tolerance=tolerance, time_limit=time_limit, progress=progress)
        ways.append((charge.unit_variance * strategy.expected, charge, strategy))
    ways.sort(key=lambda way: (not state.affords(way[1]), way[0]))
    _, charge, strategy = ways[0]
    common = compiled.common_steps
    noise = charge.calibrate(sensitivity_of(strategy, common))
    answers = strategy.reconstruction(compiled.workload(compiled.scale))
    errors, widths = np.zeros(len(compiled.scale)), np.zeros(len(compiled.scale))
    errors[compiled.answered] = standard_errors(answers, noise) / common
    widths[compiled.answered] = half_widths(answers, noise, alpha) / common
    return Plan(
        sql=sql,
        dataset=policy.dataset,
        compiled=compiled,
        strategy=strategy,
        charge=charge,
        noise=noise,
        alternatives=tuple(Alternative(c, s.method, error, state.affords(c)) for error, c, s in ways[1:]),
        alpha=alpha,
        policy=policy.to_toml(),
        schemas={layout.table: dict(schemas[layout.table]) for layout in compiled.layouts},
        answers=answers,
        errors=errors,
        widths=widths,
        affordable=state.affords(charge),
    )


def sensitivity_of(strategy: Strategy, common_steps: int) -> int:
    """L1, or squared L2, sensitivity of L B for L = ``common_steps``, by the kind of noise; exact."""
    if strategy.noise == "laplace":
        return strategy.l1 * common_steps
    return strategy.l2_squared * common_steps**2


def _check_unit(policy: Policy, name: str) -> None:
    table = policy.table(name)
    if table.unit != "row":
        raise PolicyError(
            f'{table.key("unit")} is "{table.unit}"; this version protects single rows only: it answers tables '
            'with unit = "row", or with one row per unit'
        )
    if table.counts is not None:
        raise PolicyError(
            f"{table.key('counts')}: pre-aggregated tables are not answered by this version; give one row per unit"
        )


def _naive(compiled: Compiled, charge: Charge) -> Floats:
    """Standard errors of one independent measurement per result column, at an even share of the charge."""
    share = len(compiled.spans)
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
            errors[span.start : span.stop] = (reach * share * charge.unit_variance) ** 0.5
    return errors
