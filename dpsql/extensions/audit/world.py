"""One audited batch: its plan over generated tables, its job, and what neighbouring databases do to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import sqlglot

from dpsql.common.pattern_block import PatternBlock, sizes_of
from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.extensions.audit.database import Rows, Synthetic
from dpsql.extensions.audit.values import constants
from dpsql.measure import Job, synthetic
from dpsql.measure.adaptive import AdaptiveJob
from dpsql.planning.plan import Plan
from dpsql.policy import Policy
from dpsql.policy.values import fold

J = TypeVar("J", bound=Job, covariant=True)


@dataclass(frozen=True)
class Check:
    """One check: ``found`` and ``limit`` in words, ``holds`` where it passed."""

    name: str
    holds: bool
    found: str
    limit: str = ""


@dataclass(frozen=True)
class WorldOf(Generic[J]):
    """A batch planned over generated tables. Make it with ``of``.

    ``job`` is what ``Connection.run`` measures for ``plan``. ``used`` are the folded words of the batch and of the
    policy's views: columns with no such name cannot matter.
    """

    tables: Synthetic
    con: Connection
    plan: Plan
    job: J
    used: frozenset[str]

    @classmethod
    def of(
        cls,
        policy: Policy,
        batch: str,
        folder: Path,
        *,
        schemas: Mapping[str, Mapping[str, str]] | None = None,
        **request: Any,
    ) -> WorldOf[Any]:
        """Tables, ledger (in ``folder``) and the plan for a ``request``, which is as that of ``Connection.plan``.

        Raises what that raises, and PolicyError.
        """
        text = "; ".join([batch, *policy.views.values()])
        tables = Synthetic(policy, schemas, constants(text))
        held = replace(tables.policy, anchor=None)  # the anchor that the policy names is another ledger's
        con = connect(tables.connection, policy=held, ledger=folder / "audit.ledger", label="audit")
        plan = con.plan(batch, **request)
        job = con._batches.job(plan, "audit", "audit").audited
        words = frozenset(fold(token.text) for token in sqlglot.tokenize(text, read="duckdb"))
        made: type[WorldOf[Any]] = WorldInRounds if plan.estimated else WorldOf
        return made(tables, con, plan, job, words)

    @property
    def gaussian(self) -> bool:
        """Whether the noise is Gaussian: norms are L2 and squared then, else L1."""
        return self.plan.noise.kind == "gaussian"

    @property
    def paid(self) -> Fraction:
        """The sensitivity (squared for Gaussian noise) that the noise protects at what is charged."""
        charge, noise = self.plan.charge, self.job.noise
        return noise.parameter * (charge.mu_squared if self.gaussian else charge.epsilon or Fraction(0))

    def size(self, change: Sequence[int]) -> int:
        """How large a change of B x is: squared L2 for Gaussian noise, else L1, or by the blocks of the noise."""
        if self.job.blocks:
            ends = itertools.accumulate(self.job.blocks)
            parts = (change[end - size : end] for size, end in zip(self.job.blocks, ends, strict=True))
            return sum(_size_in(block, part) for block, part in zip(self.job.blocks, parts, strict=True))
        return sum(d * d if self.gaussian else abs(d) for d in change)

    def exact(self) -> list[int]:
        """L B x of the rows as they are."""
        return synthetic.exact(self.job, self.tables.engine)

    def with_rows(self, rows: Rows) -> list[int]:
        """L B x of the rows as they are and these, which are gone afterwards."""
        self.tables.connection.execute("BEGIN TRANSACTION")
        try:
            self.tables.insert(rows)
            return self.exact()
        finally:
            self.tables.connection.execute("ROLLBACK")

    def change(self, base: Rows, unit: Rows) -> list[int]:
        """How ``unit``'s rows change L B x where they join ``base``, which stays."""
        self.tables.fill(base)
        before = self.exact()
        return [a - b for a, b in zip(self.with_rows(unit), before, strict=True)]


World: TypeAlias = WorldOf[Job]


class WorldInRounds(WorldOf[AdaptiveJob]):
    """A batch that is measured in rounds, where one candidate counts at a time."""

    @property
    def paid(self) -> Fraction:
        """The reach of the candidates, in parts that are whole for each."""
        return Fraction(math.lcm(*set(self.job.reach)))

    def size(self, change: Sequence[int]) -> int:
        """The largest change of a candidate, each a share of its reach (in parts of ``paid``)."""
        whole = int(self.paid)
        moved = (sum(map(abs, change[self.job.part(i)])) for i in range(len(self.job.reach)))
        return max((d * (whole // reach) for d, reach in zip(moved, self.job.reach, strict=True)), default=0)


def _size_in(block: int, change: Sequence[int]) -> int:
    """How large a change of a block is: its largest entry, or its steps where the block is for patterns."""
    if isinstance(block, PatternBlock):
        return int(sizes_of(np.array(change, dtype=object)[:, None], block.limit)[0])
    return max(map(abs, change))
