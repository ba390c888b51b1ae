"""The ledger of an audited batch: what is charged, what stays charged, and what is refused.

Everything happens in a ledger of the audit's own, under the policy's budget.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dpsql.errors import BudgetError, LedgerError, OperationalError
from dpsql.extensions.audit.privacy import steps_of
from dpsql.extensions.audit.world import Check, World, WorldOf
from dpsql.measure import synthetic
from dpsql.privacy.amounts import GRID
from dpsql.privacy.budget import BudgetAccount
from dpsql.privacy.ledger import Entry, Ledger
from dpsql.release.books import budget_of
from dpsql.release.payload import unpack


def check_ledger(world: WorldOf[Any]) -> list[Check]:
    """Run the batch once, let a scan fail, ask for too much, tamper with a copy."""
    found = [_order(world), _calibration(world)]
    world.tables.fill({})
    try:
        world.con.run(world.plan, fresh=True)
    except BudgetError:
        return [*found, Check("the policy's budget holds the batch", False, "refused: ask for less")]
    steps: tuple[Callable[[Ledger], Check], ...] = (
        lambda ledger: _charged(world, ledger),
        _adds_up,
        _chain,
        _tampered,
        lambda ledger: _not_refunded(world, ledger),
        lambda ledger: _refused(world, ledger),
        lambda ledger: _adds_up(ledger, "after all that "),
    )
    for step in steps:
        try:
            found.append(step(_ledger(world)))
        except LedgerError as error:
            return [*found, Check("the ledger stays whole", False, str(error))]
    return found


def _ledger(world: World) -> Ledger:
    return Ledger.open(world.con.ledger_path, world.con.policy.dataset, budget_of(world.con.policy))


class _Steps:
    """Stands where the ledger stands and remembers when it was asked."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def failed_scans(self) -> dict[str, object]:
        return {}

    def charge(self, *_: object, **__: object) -> int:
        self.log.append("charge")
        return 1

    def record(self, *_: object) -> None:
        self.log.append("record")


def _order(world: World) -> Check:
    """A measurement whose scan says when it runs."""
    steps = _Steps()
    synthetic.noisy(world.job, world.tables.engine, steps, before_scan=lambda: steps.log.append("scan"))
    found = [step for i, step in enumerate(steps.log) if i == 0 or step != steps.log[i - 1]]
    return Check("the charge is committed before the scan", found == ["charge", "scan", "record"], ", ".join(found))


def _calibration(world: WorldOf[Any]) -> Check:
    if world.plan.estimated:
        job, charge = world.job, world.plan.charge
        charged = charge.mu_squared if world.gaussian else charge.epsilon
        steps = [step for step, _, _ in steps_of(job, synthetic.transcript_of(job, world.exact()))]
        holds = sum(map(job.cost, steps)) <= job.spends == charged
        return Check("no part of the run is left out of what is charged", holds, f"{len(steps)} steps")
    paid, claimed = world.paid, world.plan.sensitivity
    same = paid == claimed and world.job.noise == world.plan.noise
    measure = "squared L2" if world.gaussian else "block" if world.plan.noise.blocks else "L1"
    return Check("the noise is calibrated to exactly what is charged", same, f"{measure} sensitivity {claimed:.6g}")


def _charged(world: World, ledger: Ledger) -> Check:
    entry = ledger.entries()[-1]
    kept = unpack(ledger.release(entry.id).payload or b"")[1]
    same = entry.charge == world.plan.charge and kept.law == world.plan.noise
    return Check("the ledger has that charge and that noise", same, entry.charge.guarantee)


def _adds_up(ledger: Ledger, when: str = "") -> Check:
    entries, state = ledger.entries(), ledger.state()
    good = True
    for account in state.accounts:
        units = sum(entry.charge.units for entry in entries if entry.charge.account == account.name)
        good = good and account.spent_units == units <= account.total_units
    return Check(f"{when}spent is the sum of {_count(entries)} and within the total", good, str(state).split("\n")[0])


def _count(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} charge{'' if len(entries) == 1 else 's'}"


def _chain(ledger: Ledger) -> Check:
    try:
        links = ledger.verify()
    except LedgerError as error:
        return Check("the hash chain verifies", False, str(error))
    return Check("the hash chain verifies", links >= 3, f"{links} links")


def _tampered(ledger: Ledger) -> Check:
    """Each of these changes, made to a copy by hand, must be noticed."""
    changes = (
        "UPDATE purses SET spent = 0",
        "DELETE FROM charges",
        "UPDATE charges SET units = 1",
        "UPDATE releases SET payload = x'00'",
        "UPDATE purses SET total = total * 2",
        "UPDATE identity SET ledger = 'other'",
        "DELETE FROM chain WHERE link > 1",
    )
    copy = Path(f"{ledger.path}.copy")
    missed = []
    for change in changes:
        copy.write_bytes(ledger.path.read_bytes())
        with closing(sqlite3.connect(copy)) as connection:
            # Whoever can write the file can take away what would stop them, and put it back.
            guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in guards:
                connection.execute(f'DROP TRIGGER "{name}"')
            connection.execute("PRAGMA ignore_check_constraints = 1")
            connection.execute(change)
            for _, text in guards:
                connection.execute(text)
            connection.commit()
        try:
            Ledger.open(copy, ledger.dataset, ledger.budget).verify()
            missed.append(change)
        except LedgerError:
            pass
        finally:
            os.unlink(copy)
    found = f"{len(changes) - len(missed)} of {len(changes)} changes noticed"
    return Check("a ledger altered by hand is refused", not missed, found)


def _not_refunded(world: World, ledger: Ledger) -> Check:
    """A scan that fails after the charge."""
    name = "a failed scan leaves its charge"
    before = _account(ledger, world).spent_units

    def fail() -> None:
        raise OperationalError("the disk is gone")

    raised = False
    try:
        synthetic.noisy(world.job, world.tables.engine, ledger, before_scan=fail)
    except BudgetError:  # which is an OperationalError, too
        return Check(name, True, "not tried: the budget holds the batch once")
    except OperationalError:
        raised = True
    after = _account(ledger, world).spent_units
    holds = raised and after == before + world.plan.charge.units and len(ledger.unreleased()) == 1
    return Check(name, holds, f"{(after - before) / GRID:.6g} charged, nothing released")


def _refused(world: World, ledger: Ledger) -> Check:
    """Ask for the batch again and again: refused before the account runs over, and a refusal changes nothing."""
    room = _account(ledger, world).remaining_units // world.plan.charge.units
    name = "what the account does not hold is refused"
    if room > 20:
        return Check(name, True, f"not tried: the account holds the batch {room:,} times more")
    world.tables.fill({})
    granted = 0
    while granted <= room:
        try:
            synthetic.noisy(world.job, world.tables.engine, _Always(ledger))
            granted += 1
        except BudgetError:
            break
    left = _account(ledger, world).remaining_units
    return Check(name, granted == room and 0 <= left < world.plan.charge.units, f"{granted} more granted, then refused")


class _Always:
    """A ledger that keeps the charges of the one behind it and no measurements."""

    def __init__(self, ledger: Ledger) -> None:
        self.charge = ledger.charge
        self.failed_scans = ledger.failed_scans

    def record(self, *_: object) -> None:
        pass


def _account(ledger: Ledger, world: World) -> BudgetAccount:
    """The account that the batch is paid from."""
    return next(account for account in ledger.state().accounts if account.name == world.plan.charge.account)
