"""A backup put in the place of a ledger that is lost, with everything charged that the backup lacks.

Nothing that was spent is forgotten. What was spent since the backup is, for each account, the larger of what the anchor
counts and what the custodian says; where no anchor counts it, all that is left, or what the custodian says and at least
what the releases show (``known``). On top comes what a ledger that is in place spent on a line of its own. It is
charged to the restored ledger without a measurement, and its numbers are not given out again. Nobody counts who spent
it, so that it counts for every analyst, too, and all of them are suspended: somebody may have been so. Requests that
were approved and not yet charged are refused, as they may have been charged since. An anchor
counts every charge that noise was drawn for (`anchor`), so with one the count is exact or, of charges cut off before
noise, more.

The file that was in place is kept under another name. It and all copies of its line are refused from then on where
there is an anchor, as their links are not those that the anchor holds.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from dpsql.errors import LedgerError, listed
from dpsql.privacy import anchor as anchors
from dpsql.privacy import chain, ledger_schema
from dpsql.privacy.amounts import GRID, to_units
from dpsql.privacy.analysts import suspend_all
from dpsql.privacy.budget import Budget, BudgetAccount, mu_units
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger_checks import NAME_ANCHOR, check_whole, is_anchored
from dpsql.privacy.ledger_copies import Copy, copy_to, draft_beside, read_copy
from dpsql.privacy.ledger_file import REMEDIES, LedgerFile, remedy, sync
from dpsql.privacy.requests import take_back
from dpsql.privacy.state import BudgetState

LABEL = "a ledger that was lost"
Units = Mapping[str, int]


@dataclass(frozen=True)
class Restored:
    """What a restore did.

    Links of the ledger by now; ``lost``: what was charged, in the words of a budget; ``kept`` and ``releases``: where
    the ledger and the releases file are that were in place, None where there was none or it stayed; ``suspended``:
    analysts who cannot ask until the custodian resumes them.
    """

    links: int
    lost: tuple[str, ...]
    kept: Path | None
    releases: Path | None = None
    suspended: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Gap:
    """What lies between a backup and the ledger that was lost.

    ``counted``: units by account that were spent since, None where nobody counts. ``why``: in words what makes the
    backup not the newest, "" where it is. ``number``: the last one that was given out, as far as is known.
    """

    counted: Units | None
    why: str
    number: int
    besides: Units
    """Units that the ledger in place spent on a line of its own, and that nobody counts."""


@dataclass(frozen=True)
class Loss:
    """What a backup lacks, as far as it is known.

    ``charged``: None refuses a backup that is not known to be the newest; True charges what is counted since it was
    made, or all that is left where nobody counts; an amount, epsilon of each account (rho in a rho policy), is charged
    where it is more than what is counted. ``least_spent``: units by account that were spent at least, if nobody counts;
    ``number``: the last number known to be given out.
    """

    charged: Fraction | bool | None = None
    least_spent: Units = field(default_factory=dict)
    number: int = 0


def restore(
    source: Path,
    path: Path,
    dataset: str,
    budget: Budget,
    *,
    anchor: Path | None,
    loss: Loss = Loss(),
    timeout: float = 30.0,
) -> Restored:
    """Put the backup ``source`` at ``path``, with what it lacks charged; ``source`` stays as it is."""
    file, place = LedgerFile(source, timeout), LedgerFile(path, timeout)
    backup = read_copy(file, budget)
    if backup.dataset != dataset:
        raise file.error(
            f"is of data set {backup.dataset!r}, and the policy says {dataset!r}; write the former into the policy,"
            " restore, then declare the new version with 'dpsql policy renew'"
        )
    same = path.exists() and source.exists() and os.path.samefile(path, source)
    if backup.anchored and anchor is None:
        raise file.error(f"is held to an anchor, and none is named; {NAME_ANCHOR}")
    with _locked(place, budget) as in_place:
        mark = None if anchor is None else anchors.read(anchor)
        if mark is not None and mark.ledger != backup.mark.ledger:
            raise file.error(f"is of another ledger than the anchor {anchor}; name a backup of that one")
        if same:
            if mark is not None and backup.holds(mark):
                raise file.error("is in place and has the newest link of its anchor; there is nothing to restore")
            in_place = None
        besides = {} if in_place is None else _diverged_spending(backup, in_place, file, place)
        gap = _gap(backup, in_place, besides, mark, anchor, place)
        left, charged = _charged(backup, budget, gap, loss.charged, loss.least_spent)
        if gap.why and loss.charged is None:
            raise file.error(f"{gap.why}; {_advice(gap, budget, left, charged)}")
        with draft_beside(place) as draft:
            copy_to(file, draft, lambda _: None)
            drafted = LedgerFile(draft, timeout)
            stands_for = None if mark is None else {"link": mark.link, "head": mark.head}
            details = {"link": backup.mark.link, "lost": charged, "stands_for": stands_for}

            def work(connection: sqlite3.Connection) -> tuple[anchors.Mark, tuple[str, ...]]:
                ledger_schema.upgrade(connection)
                last = max(gap.number, loss.number, chain.last_number(connection))
                chain.note(connection, "restored", last, details)
                for account, units in charged.items():
                    _charge(connection, dataset, budget, account, units)
                held_back = suspend_all(connection) if gap.why else ()
                if gap.why:
                    take_back(connection)
                if anchor is not None and not is_anchored(connection):
                    chain.note(connection, "anchored", chain.last_number(connection), {})
                check_whole(connection, drafted, ledger_schema.SCHEMA_VERSION, payloads=False)
                return chain.newest(connection), held_back

            newest, suspended = drafted.run(work, write=True)
            if anchor is not None:  # a process that dies from here on leaves a ledger that is refused, to restore again
                anchors.reset(anchor, newest)
            kept = _set_aside(path)
            os.replace(draft, path)
            sync(path.absolute().parent)
    return Restored(newest.link, _amounts(budget, charged), kept, suspended=suspended)


def _diverged_spending(backup: Copy, in_place: Copy, file: LedgerFile, place: LedgerFile) -> Units:
    """What the ledger in place spent on links that the backup lacks; LedgerError if it has every link of the backup."""
    common = in_place.shared(backup)
    if common == len(backup.heads):
        raise file.error(
            f"has nothing that {place.path} lacks, which is in place and whole; if that one is older than its"
            f" anchor, restore it instead: 'dpsql ledger restore {place.path} --lost'"
        )

    def work(connection: sqlite3.Connection) -> dict[str, int]:
        current = ledger_schema.version_of(connection) == ledger_schema.SCHEMA_VERSION
        events = connection.execute("SELECT details FROM events WHERE kind = 'restored'").fetchall() if current else []
        # What a restore charged for the very line of the backup is in the backup itself.
        mine = [json.loads(text)["stands_for"] for (text,) in events]
        counted = [mark is not None and backup.holds(replace(backup.mark, **mark)) for mark in mine]
        spent: dict[str, int] = {}
        rows = connection.execute(
            "SELECT purse, units, description FROM charges JOIN chain ON chain.kind = 'charge' AND"
            " chain.row = charges.id WHERE chain.link > ?",
            (common,),
        )
        for account, units, text in rows:
            if not (json.loads(text).get("lost") and counted and all(counted)):
                spent[account] = spent.get(account, 0) + units
        return spent

    return place.run(work)


def _gap(
    backup: Copy,
    in_place: Copy | None,
    besides: Units,
    mark: anchors.Mark | None,
    anchor: Path | None,
    place: LedgerFile,
) -> _Gap:
    marks = [mark, in_place.mark if in_place is not None and in_place.mark.ledger == backup.mark.ledger else None]
    number = max((held.number or 0 for held in marks if held is not None), default=0)
    if mark is None:
        why = "there is no anchor" if anchor is None else f"the anchor {anchor} is gone"
        return _Gap(None, f"may be older than the one that was lost: {why}, so nobody counts", number, besides)
    if backup.holds(mark):
        why = f"lacks what {place.path}, which is in place and whole, spent on a line of its own" if besides else ""
        return _Gap({}, why, number, besides)
    if mark.spent is None:
        return _Gap(None, f"is older than the anchor {anchor}, which does not count", number, besides)
    spent = backup.mark.spent or {}
    counted = {name: max(0, units - spent.get(name, 0)) for name, units in mark.spent.items()}
    if in_place is not None and in_place.holds(mark):
        besides = {}  # the anchor counts it
    return _Gap(counted, f"is older than the anchor {anchor}", number, besides)


def _charged(
    backup: Copy, budget: Budget, gap: _Gap, lost: Fraction | bool | None, least_spent: Units
) -> tuple[dict[str, int], dict[str, int]]:
    """What each account has left in the backup, and what is to be charged of it; the latter as if --lost were given."""
    left, charged = {}, {}
    spent = backup.mark.spent or {}
    for account, total in budget.totals.items():
        # What was lost may have read any period, also one of which nothing is spent yet (`periods`).
        left[account] = total if backup.by_period else max(0, total - spent.get(account, 0))
        stated = None if lost is None or isinstance(lost, bool) else _units(budget, account, lost)
        if gap.counted is not None:
            units = max(gap.counted.get(account, 0), stated or 0)
        elif stated is not None:
            units = max(stated, least_spent.get(account, 0) - spent.get(account, 0))
        else:
            units = left[account]
        units = min(left[account], units + gap.besides.get(account, 0))
        if units > 0:
            charged[account] = units
    return left, charged


def _units(budget: Budget, account: str, amount: Fraction) -> int:
    """Units of an account for an amount of epsilon, or of rho in a rho policy."""
    if amount <= 0:
        return 0
    if account == "gaussian" and budget.rho is not None:
        return -to_units(-2 * amount)
    if account == "gaussian" and budget.delta is not None:
        return mu_units(amount, budget.delta) + 1
    return -to_units(-amount)


def _advice(gap: _Gap, budget: Budget, left: Units, charged: Units) -> str:
    find = "find the newer ledger, or restore this one with --lost, which counts"
    if gap.counted is not None:
        said = _amounts(budget, charged)
        return f"{find} {listed(said, 3)} as spent" if said else f"{find} nothing more as spent, as nothing was"
    amount = "rho" if budget.rho is not None else "epsilon"
    return (
        f"{find} all that is left as spent ({listed(_amounts(budget, left), 3)}), or with --lost 0.5 where you know"
        f" that no account spent more than {amount} 0.5 since"
    )


def _amounts(budget: Budget, charged: Units) -> tuple[str, ...]:
    """What is charged, as a budget says it: "epsilon 0.5 of the pure account"."""
    totals = budget.totals
    state = BudgetState(budget, tuple(BudgetAccount(name, total, 0) for name, total in totals.items()))
    return tuple(
        f"{state.figures(BudgetAccount(name, totals[name], units))[1]} of the {name} account"
        for name, units in charged.items()
        if units
    )


def _charge(connection: sqlite3.Connection, dataset: str, budget: Budget, account: str, units: int) -> None:
    """Charge what a lost ledger spent, whatever a policy allows for one release; it pays for no measurement."""
    noise = {"pure": "laplace", "gaussian": "gaussian", "local": "response"}[account]
    (said,) = _amounts(budget, {account: units})
    epsilon = None if account == "gaussian" else Fraction(units, GRID)
    charge = Charge(account, units, noise, f"{said}, lost", epsilon)
    connection.execute("UPDATE purses SET spent = min(total, spent + ?) WHERE name = ?", (units, account))
    number = 1 + chain.last_number(connection)
    text = chain.canonical({"lost": True, "names": []})
    key = f"lost-{secrets.token_hex(16)}"
    row = (number, key, chain.now(), dataset, LABEL, account, units, chain.canonical(charge.as_dict()), text)
    connection.execute(f"INSERT INTO charges ({chain.CHARGE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
    chain.append(connection, "charge", number, row)


@contextmanager
def _locked(place: LedgerFile, budget: Budget) -> Generator[Copy | None]:
    """The ledger in place, which nobody writes meanwhile; None where there is none that can be read."""
    if not place.path.is_file():
        yield None
        return
    busy: str | None = None
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(place.connected())
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if remedy(error) == REMEDIES["SQLITE_BUSY"]:
                busy = remedy(error)
        if busy is not None:
            raise place.error(busy)
        found: Copy | None = None
        with suppress(LedgerError):  # damaged, or no ledger of this budget: what it spent is not known
            found = read_copy(place, budget)
        yield found


def _set_aside(path: Path) -> Path | None:
    """Give what is at ``path`` a second name and return that, None where nothing is there; its journal moves along."""
    at = 1
    while os.path.lexists(kept := path.with_name(f"{path.name}.before-restore-{at}")):
        at += 1
    with suppress(FileNotFoundError):  # SQLite would take it for that of the restored file
        os.replace(path.with_name(path.name + "-journal"), kept.with_name(kept.name + "-journal"))
    if not os.path.lexists(path):
        return None
    os.link(path, kept)
    return kept
