"""Plans that rest on earlier releases: the new measurement complements them, and the answers are from all together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dpsql.earlier import Complement
from dpsql.planning.plan import Plan
from dpsql.planning.prepare import cores_of
from dpsql.planning.target_errors import Wanted, hint_notes
from dpsql.release import Result
from dpsql.workload.compile.compiled import Compiled


@dataclass(frozen=True, eq=False)
class ComplementPlan(Plan):
    """A plan whose ``errors`` and ``widths`` are those of earlier measurements and the new one together.

    ``compiled`` and ``strategy`` are what will be measured, over cells that the earlier batches tell apart, too;
    ``charge`` pays for that measurement alone. ``gap``: error <= (1 + gap) x the least of any Gaussian matrix mechanism
    beside the same earlier measurements. ``alone`` is the plan without them, at the same charge. What was released
    between plan and run changes nothing: the releases that it rests on stay in the ledger as they are.
    """

    earlier: tuple[int, ...] = ()
    cells_of: tuple[int, ...] = ()
    alone: Any = field(default=None, repr=False)

    @property
    def rests_on(self) -> tuple[int, ...]:
        """The earlier releases."""
        return self.earlier

    @property
    def beside(self) -> tuple[int, ...]:
        """The earlier releases whose batches share the cells that are measured."""
        return self.cells_of

    @property
    def asked(self) -> Compiled:
        """The batch over its own cells."""
        found: Compiled = self.alone.compiled
        return found

    @property
    def bound_ratio(self) -> float:
        """Error over the SVD bound of the batch without earlier releases: it may be below 1."""
        return float(self.alone.bound_ratio * self.error / self.alone.error)

    def marginal_costs(self, most: int = 40, time_limit: float | None = 30.0) -> Result:
        """Those of the plan without earlier releases."""
        found: Result = self.alone.marginal_costs(most, time_limit)
        return found

    def suggestions(self, time_limit: float | None = 30.0) -> Result:
        """Those of the plan without earlier releases."""
        found: Result = self.alone.suggestions(time_limit)
        return found

    def what_if(self, time_limit: float | None = 30.0) -> str:
        """That of the plan without earlier releases, which it says."""
        return f"Without earlier releases:\n{self.alone.what_if(time_limit)}"


def complement_plan(plan: Plan, found: Complement, wanted: Wanted | None = None) -> ComplementPlan:
    """``plan``, a batch planned alone, as ``found`` measures it at the same charge."""
    answers, compiled = found.answers, found.compiled
    held = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    widths = answers.widths(answers.law, plan.alpha, compiled.common_steps)
    notes = plan.notes if plan.origin is None else plan.origin.prepared.understood.notes
    if wanted is None:
        notes += tuple(hint_notes(plan.queries, cores_of(plan.queries, compiled.spans), widths))
    return ComplementPlan(
        **{
            **held,
            "compiled": compiled,
            "strategy": found.strategy,
            "noise": answers.law,
            "answers": answers,
            "errors": answers.errors(answers.law, compiled.common_steps),
            "widths": widths,
            "notes": notes,
            "wanted": wanted,
        },
        earlier=found.rests_on,
        cells_of=found.beside,
        alone=plan,
    )


def noted(plan: Plan, releases: tuple[int, ...]) -> Plan:
    """The plan with a note that earlier releases answer the batch as well."""
    which = f"release{'s' if len(releases) > 1 else ''} {', '.join(map(str, releases))}"
    note = f"{which} answer{'' if len(releases) > 1 else 's'} this with no more error: a run is free"
    return replace(plan, notes=(*plan.notes, note))
