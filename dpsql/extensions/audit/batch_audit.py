"""The audit: a policy and a batch, held to their promise on generated neighbouring databases.

    report = audit(policy, batch, epsilon=1)      # or dpsql audit POLICY BATCH.sql --epsilon 1
    print(report)

Nothing private is read: rows are made from the declared domains and from values that have broken scans. It shows
faults, it proves nothing; what is proved is in the docstrings of ``dpsql.measure``, ``dpsql.workloads.expr.rows`` and
``dpsql.privacy``. Thresholds fail right code less than once in a million audits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpsql.errors import DataError, OperationalError
from dpsql.extensions.audit.ledger import check_ledger
from dpsql.extensions.audit.noise import chi_square, fit
from dpsql.extensions.audit.privacy import distance, quotients, selected
from dpsql.extensions.audit.sensitivity import Search, brute_force
from dpsql.extensions.audit.world import Check, World, WorldOf
from dpsql.measure import synthetic
from dpsql.measure.adaptive import AdaptiveJob
from dpsql.policy import Policy
from dpsql.release.text_table import grid_of

__all__ = ["Check", "Report", "audit", "audited"]

Z, P = 5.0, 1e-6
"""A fault is what lies 5 standard errors past its claim, or has a p-value below 1e-6."""


@dataclass(frozen=True)
class Report:
    """The outcome of an audit. ``figures`` are its numbers, for programs; all of generated rows, so public."""

    privacy: str
    checks: tuple[Check, ...]
    figures: Mapping[str, object] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every check passed."""
        return all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, object]:
        """The report as values that JSON can hold."""
        checks = [
            {"check": check.name, "holds": check.holds, "found": check.found, "limit": check.limit}
            for check in self.checks
        ]
        return {"holds": self.holds, "privacy": self.privacy, "checks": checks, **self.figures}

    def __str__(self) -> str:
        rows = [[check.name, check.found, check.limit, "ok" if check.holds else "FAILED"] for check in self.checks]
        table = replace(grid_of(("check", "found", "limit", ""), ["VARCHAR"] * 4, rows, len(rows)), note="").text()
        failed = sum(not check.holds for check in self.checks)
        last = (
            "Every check holds." if self.holds else f"{failed} of {len(rows)} checks FAILED: do not release with this."
        )
        return f"Audit of {self.privacy}\non generated rows; no private row was read.\n\n{table}\n\n{last}"


def audit(
    policy: Policy,
    batch: str,
    *,
    epsilon: object = None,
    delta: object = None,
    rho: object = None,
    schemas: Mapping[str, Mapping[str, str]] | None = None,
    trials: int = 1000,
    pairs: int = 200,
    draws: int = 100_000,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Report:
    """Audit a batch at a budget.

    ``schemas``: column types by table, where they are known (only types: ``Connection.schemas``); else they follow
    from the policy. ``trials``: noisy measurements of each of two neighbouring databases. ``pairs``: about how
    many scans the search for the largest change may take for each kind of unit. ``draws``: noise held against its law.
    ``options`` go to ``Connection.plan``. Needs a temporary folder for a ledger. Cost: some seconds for a small batch,
    2 x ``trials`` measurements. Raises what planning the batch raises, and DataError for too few trials.
    """
    for name, value, least in (("trials", trials, 100), ("pairs", pairs, 20), ("draws", draws, 1000)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DataError(f"{name} must be a whole number of at least {least}, or the audit could not tell anything")
    with tempfile.TemporaryDirectory(prefix="dpsql-audit-") as folder:
        world = World.of(policy, batch, Path(folder), schemas=schemas, epsilon=epsilon, delta=delta, rho=rho, **options)
        return audited(world, trials=trials, pairs=pairs, draws=draws, progress=progress)


def audited(
    world: WorldOf[Any],
    *,
    trials: int = 1000,
    pairs: int = 200,
    draws: int = 100_000,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """The audit of a world; as ``audit``."""
    say = progress or (lambda _: None)
    checks: list[Check] = []
    say("neighbouring databases")
    search, failure = Search(), ""
    try:
        search = brute_force(world, pairs=pairs)
    except OperationalError as error:
        failure = str(error)
    figures: dict[str, object] = {"pairs": search.pairs, "scans": search.scans, "noise": world.plan.noise.kind}
    checks.append(Check("no row makes a scan fail", not failure, failure or f"{search.scans:,} scans", "0 failures"))
    if not failure:
        checks.append(_sensitivity(world, search, figures))
        say("noisy measurements")
        if world.plan.estimated:
            checks += _rounds(world, search, trials, draws, figures)
        else:
            checks += _distance(world, search, trials, figures)
    say("noise against its law")
    if world.plan.estimated:
        checks.append(_noise_of_rounds(world, draws, figures))
    else:
        checks += _noise(world, draws, figures)
    say("ledger")
    checks += check_ledger(world)
    return Report(world.plan.privacy, tuple(checks), figures)


def _sensitivity(world: World, search: Search, figures: dict[str, object]) -> Check:
    paid = world.paid
    share = float(search.largest / paid)
    figures |= {"sensitivity": str(world.plan.sensitivity), "largest_move": str(search.largest), "attained": share}
    return Check(
        "no unit moves the cells further than the noise covers",
        0 < search.largest <= paid,
        f"{share:.4g} of the claim, {search.pairs:,} neighbouring pairs",
        "1",
    )


def _distance(world: World, search: Search, trials: int, figures: dict[str, object]) -> list[Check]:
    if not search.reached:
        return [Check("neighbours are as close as claimed", False, "found no unit that moves anything: try more pairs")]
    gap = distance(world, search, trials)
    figures |= {
        f"{gap.measure}_claimed": gap.claimed,
        f"{gap.measure}_found": gap.estimated,
        "units": gap.units,
        "trials": gap.trials,
        "z": gap.z,
        "z_if_doubled": gap.power,
    }
    several = "" if gap.units == 1 else f" of {gap.units} units"
    wrong = "rho" if gap.measure == "mu" else "epsilon"
    checks = [
        Check(
            f"{gap.measure}{several} between neighbours is as claimed",
            gap.z < Z,
            f"{gap.estimated:.4g} for {gap.claimed:.4g}, z = {gap.z:.2f}",
            f"z < {Z:g}; a doubled {wrong} has z = {gap.power:.3g}",
        )
    ]
    if gap.event is not None:
        figures["z_of_event"] = gap.event
        checks.append(
            Check("no event is likelier than e^epsilon allows", gap.event < Z, f"z = {gap.event:.2f}", f"z < {Z:g}")
        )
    return checks


def _rounds(
    world: WorldOf[AdaptiveJob], search: Search, trials: int, draws: int, figures: dict[str, object]
) -> list[Check]:
    if not search.reached:
        return [Check("neighbours are as close as claimed", False, "found no unit that moves anything: try more pairs")]
    gap = quotients(world, search, max(10, trials // 20))
    drawn = selected(world, search, max(1000, draws // 20))
    measure, bound = ("mu squared", "mu squared") if world.gaussian else ("epsilon", "e^epsilon")
    figures |= {
        f"{measure}_claimed": gap.claimed,
        f"{measure}_found": gap.largest,
        "transcripts": gap.transcripts,
        "share_of_a_selection": gap.selection,
        "share_of_an_answer": gap.answer,
        "selection_p": drawn.p,
    }
    rounding = 1 + 1e-9  # of the logarithms of the selections' laws
    return [
        Check(
            f"no transcript tells more than {bound} allows",
            gap.largest <= gap.claimed * rounding,
            f"{gap.largest:.4g} for {gap.claimed:.4g}, {gap.transcripts:,} transcripts",
            "exact quotients",
        ),
        Check(
            "no selection and no answer spends more than its part",
            max(gap.selection, gap.answer) <= rounding,
            f"{gap.selection:.4g} and {gap.answer:.4g} of it",
            "1",
        ),
        Check(
            "selections have their law",
            drawn.p > P,
            f"p = {drawn.p:.3g}, {drawn.draws:,} draws of {drawn.candidates:,} candidates",
            f"p > {P:g}",
        ),
    ]


def _noise_of_rounds(world: WorldOf[AdaptiveJob], draws: int, figures: dict[str, object]) -> Check:
    p = chi_square(synthetic.noise_of(world.job, draws), world.plan.noise)
    figures |= {"draws": draws, "chi_square_p": p}
    return Check("the noise has its law", p > P, f"p = {p:.3g}, {draws:,} draws", f"p > {P:g}")


def _noise(world: World, draws: int, figures: dict[str, object]) -> list[Check]:
    fitted = fit(world, draws // 2)
    figures |= {"draws": fitted.draws, "chi_square_p": fitted.p}
    related = max(abs(fitted.between_neighbours), abs(fitted.between_releases))
    figures["z_of_correlation"] = related
    return [
        Check("the noise has its law", fitted.p > P, f"p = {fitted.p:.3g}, {fitted.draws:,} draws", f"p > {P:g}"),
        Check("no draw tells of another", related < Z, f"z = {related:.2f} between draws and releases", f"z < {Z:g}"),
    ]
