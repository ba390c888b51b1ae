"""Results of a batch without noise, for tests alone: the tables that a release would have, from exact answers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
from helpers import engine_of, exact_answers, tables_of, understood
from scipy import sparse

from dpsql.planning.plan import Plan
from dpsql.planning.plan_values import Accuracy, Payment, Statements
from dpsql.policy import Policy
from dpsql.privacy.noise import Noise
from dpsql.reconstruct import MatrixAnswers
from dpsql.release.record import ReleaseTable
from dpsql.running.result_tables import tables_of as release_tables
from dpsql.workloads.compile.compiled import compile_batch

# Errors of this size let a quotient of exact numbers pass for well known; they change no digit that is compared.
_TINY = 1e-12


@dataclass(frozen=True)
class Pipeline:
    """A policy over an open connection, its schemas read once."""

    policy: Policy
    connection: duckdb.DuckDBPyConnection
    tables: dict[str, Any]

    @classmethod
    def of(cls, policy: Policy, connection: duckdb.DuckDBPyConnection) -> Pipeline:
        """The pipeline of a policy and a connection whose tables do not change."""
        return cls(policy, connection, tables_of(policy, engine_of(connection)))

    def plan(self, batch: str) -> tuple[Plan, Any]:
        """A plan whose strategy is none, and the exact answers (m,) without constants."""
        found = understood(batch, self.policy, self.tables)
        compiled = compile_batch(found.queries, found.tables)
        _, exact = exact_answers(compiled, self.policy, engine_of(self.connection))
        for span in compiled.spans:
            for row in range(span.start, span.stop):
                exact[row] -= span.output.constant
        nothing: Any = None
        zeros = np.zeros(len(compiled.scale))
        size = len(compiled.answered)
        answers = MatrixAnswers.of(
            sparse.csr_array(sparse.eye_array(size, format="csr") * (_TINY * compiled.common_steps)),
            compiled.answered,
            compiled.numbers,
        )
        plan = Plan(
            statements=Statements(batch, self.policy.dataset, found.answers, "", {}, {}),
            compiled=compiled,
            strategy=nothing,
            payment=Payment(nothing),
            accuracy=Accuracy(Noise.gaussian(Fraction(1)), answers, 0.05, zeros, zeros),
        )
        return plan, np.array([float(value) for value in exact])

    def results(self, batch: str, *, errors: bool = False) -> tuple[ReleaseTable, ...]:
        """The results of the batch in order."""
        plan, values = self.plan(batch)
        return release_tables(plan, values, errors=errors)


def rows_of(table: ReleaseTable) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows of a result."""
    return [name for name, _, _ in table.columns], list(zip(*(values for _, _, values in table.columns), strict=True))
