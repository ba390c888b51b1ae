"""Questions to a local release: SQL to a result with errors. Post-processing of what was released, so free.

Numbers that are linear in rows (COUNT, SUM, their combinations) are estimated as in ``estimators``; AVG, ratios,
variances and quantiles are formulas over them, with the intervals that formulas have elsewhere; HAVING, ORDER BY,
LIMIT, windows and outer SQL run over the estimated tables (``dpsql.running.result_tables``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InterfaceError, SQLError, quoted
from dpsql.extensions.local.estimators import Estimator, joint_rows
from dpsql.extensions.local.functions import shape_of
from dpsql.extensions.local.listing import listed
from dpsql.extensions.local.places import Places
from dpsql.extensions.local.released import explained, released_scope
from dpsql.policy import Policy
from dpsql.policy.types import Schemas
from dpsql.release.result import Result
from dpsql.running.result_tables import tables_of
from dpsql.sql import Answer, parse, understand
from dpsql.workloads.expr.batch import Core, KeyOutput, Table

ESTIMATORS = ("unbiased", "proper")
MOST_JOINT = 500
"""The most numbers of a group that one formula or quantile takes together."""

_SCALE = 1e6


@dataclass(frozen=True)
class _Normal:
    """Estimates are taken as normal: sums of independent bounded rows. In the units of ``joint_rows`` / _SCALE."""

    kind: str = "gaussian"
    parameter: Fraction = Fraction(10**12)
    variance: float = _SCALE**2


@dataclass(frozen=True)
class _Unscaled:
    common_steps: int = 1


@dataclass(frozen=True, eq=False)
class Estimated:
    """Statements understood and estimated; what ``tables_of`` makes results from."""

    queries: tuple[Answer, ...]
    cores: tuple[tuple[Core, tuple[slice, ...]], ...]
    estimators: tuple[Estimator, ...] = field(repr=False)
    alpha: float
    kind: str
    noise: _Normal = field(default_factory=_Normal)
    compiled: _Unscaled = field(default_factory=_Unscaled)

    @property
    def answers(self) -> Estimated:
        """What combinations of answers need."""
        return self

    @cached_property
    def _numbers(self) -> tuple[Floats, Floats, Floats]:
        """Values, standard errors, half-widths of all numbers."""
        reach = float(-ndtri(self.alpha / 2))
        values, errors, widths = [], [], []
        for estimator in self.estimators:
            for output in range(len(estimator.shape.query.outputs)):
                value, error = estimator.value(output), estimator.stderr(output)
                width = reach * error
                if self.kind == "proper":
                    value, step = estimator.proper(output)
                    # Rounding moves a value by half a step at most; clipping to what is possible only brings it nearer.
                    width = width + step / 2
                values.append(value)
                errors.append(error)
                widths.append(width)
        return tuple(np.concatenate(held) if held else np.zeros(0) for held in (values, errors, widths))  # type: ignore[return-value]

    @property
    def values(self) -> Floats:
        """The estimates of all numbers, constants left out."""
        return self._numbers[0]

    @property
    def errors(self) -> Floats:
        return self._numbers[1]

    @property
    def widths(self) -> Floats:
        """The half-widths of their intervals at level 1 - alpha."""
        return self._numbers[2]

    def rows(self, parts: Sequence[slice], noise: object) -> Floats:
        """Rows whose inner products are the estimated covariances of a group's numbers; see ``Answers.rows``."""
        if self.kind == "proper":
            raise InterfaceError(
                "the proper estimator is for counts and sums; averages, ratios and quantiles have no grid of possible "
                "answers: leave estimator out"
            )
        place = next(at for at, (_, slices) in enumerate(self.cores) if parts[0] in slices)
        estimator = self.estimators[place]
        outputs = [self.cores[place][1].index(part) for part in parts]
        if len(outputs) > MOST_JOINT:
            raise SQLError(
                f"a quantile over {len(outputs):,} declared values takes more than {MOST_JOINT} numbers together; "
                "declare a coarser domain before the release, or ask for counts",
                code="too-large",
            )
        groups, k = estimator.shape.groups, len(outputs)
        covariances = np.zeros((groups, k, k))
        for i, one in enumerate(outputs):
            for j in range(i, k):
                covariances[:, i, j] = covariances[:, j, i] = estimator.covariance(one, outputs[j])
        return joint_rows(covariances) / _SCALE


def ask(
    sql: str,
    places: Places,
    policy: Policy,
    schemas: Schemas,
    *,
    estimator: str = "unbiased",
    alpha: float = 0.05,
) -> Estimated:
    """Understand and estimate statements over a release.

    Raises SQLError for what is not answered, among it columns that were not released; InterfaceError for options.
    """
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        raise InterfaceError(f"estimator is {quoted(estimator)}; write one of {', '.join(map(repr, ESTIMATORS))}")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1:
        raise DataError("alpha is 1 - confidence and lies between 0 and 1, such as 0.05")
    released = places.released
    refused: SQLError | None = None
    try:
        return _estimated(sql, places, *released_scope(released, policy, schemas), estimator, float(alpha))
    except SQLError as error:
        refused = explained(error, sql, released, policy) if isinstance(sql, str) else error
    pointed = refused.pointed(sql) if isinstance(sql, str) else ""
    if pointed:
        refused.add_note(pointed)
    raise refused


def _estimated(
    sql: str, places: Places, policy: Policy, tables: Mapping[str, Table], estimator: str, alpha: float
) -> Estimated:
    understood = understand(parse(sql), policy, tables)
    cores, estimators, start = [], [], 0
    for answer in understood.answers:
        for core in answer.cores:
            if len(core.queries) != 1 or _counts_units(core, understood.tables):
                raise SQLError(
                    f"{answer.name}: what is counted of units is no statistical query over single rows; count rows",
                    code="count-distinct",
                )
            (query,) = core.queries
            shape = shape_of(query, understood.tables[query.table])
            slices = []
            for _ in core.places:
                slices.append(slice(start, start + core.rows))
                start += core.rows
            cores.append((core, tuple(slices)))
            estimators.append(Estimator(shape, listed(shape, places), places.released.response))
    return Estimated(understood.answers, tuple(cores), tuple(estimators), alpha, estimator)


def _counts_units(core: Core, tables: Mapping[str, Table]) -> bool:
    source = tables[core.queries[0].table].source
    return source is not None and (source.distinct or source.of is not None or source.windows is not None)


def result_of(estimated: Estimated, *, errors: bool = True) -> Result:
    """The result of the last statement."""
    tables = tables_of(estimated, estimated.values, errors=errors)
    return Result.from_columns(tables[-1].columns)


def bounds_of(estimated: Estimated) -> list[dict[str, object]]:
    """Error bounds of every number that depend on no row: one record a number.

    statement, column, group (its place in the result), worst_stderr (whatever the rows hold), scale (sum of c_i), and
    Theorem 1's bounds of the mean squared error: upper_bound and lower_bound of number / scale, the second asymptotic.
    upper_error is the root of the first times scale: what the theorem says of the number itself.
    """
    found: list[dict[str, object]] = []
    for (core, _), estimator in zip(estimated.cores, estimated.estimators, strict=True):
        columns = {
            c.output: c.title or c.name for c in core.columns if not isinstance(c, KeyOutput) and hasattr(c, "output")
        }
        for place, output in enumerate(core.outputs):
            worst = estimator.worst_stderr(place)
            for group, (scale, upper, lower) in enumerate(estimator.distortion(place)):
                found.append(
                    {
                        "statement": core.name.split("#")[0],
                        "column": columns.get(place, output.name or "in a formula"),
                        "group": group,
                        "worst_stderr": float(worst[group]),
                        "scale": scale,
                        "upper_bound": upper,
                        "lower_bound": lower,
                        "upper_error": scale * upper**0.5,
                    }
                )
    return found
