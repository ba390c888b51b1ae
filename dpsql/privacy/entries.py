"""The rows of a ledger as values, how they are read, and under which names their results are shown.

Renaming, dropping and showing again concern the views alone. What was charged stays charged, and the noisy measurement
stays in the ledger, so that a dropped result still answers the batch that it was made for; running that batch again
shows it again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from dpsql.common.arrays import Json
from dpsql.errors import DataError, IntegrityError, ProgrammingError, nearest
from dpsql.privacy import chain
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger_file import LedgerFile
from dpsql.privacy.periods import Reads

_KEPT = 2**13  # rows: a ledger is read often, and its rows never change


@dataclass(frozen=True)
class Entry:
    """One row of the ledger: a charge and its release if there was one, or an answer that was free. All is public.

    id: release number, from 1. charge_id: the caller's idempotency key. time, released: UTC, ISO 8601;
    released and payload are None where the measurement was never recorded. label: who asked, as the caller
    said it. renamed: the names under which its results are shown by now, None for one that was dropped; None
    altogether where nothing was renamed or dropped.
    """

    id: int
    charge_id: str
    time: str
    dataset: str
    label: str
    charge: Charge
    description: Json
    released: str | None = None
    payload: bytes | None = None
    renamed: tuple[str | None, ...] | None = None

    @cached_property
    def reads(self) -> Reads | None:
        """The periods that the charge names; None where it is for everything."""
        return Reads.of(self.description)

    @property
    def lost(self) -> bool:
        """Whether it charges what a ledger had spent that was lost (`ledger_restore`), and no release of this one."""
        return bool(self.description.get("lost"))

    @property
    def measures_nothing(self) -> bool:
        """Whether it pays for no release: it charges what was lost, or sets delta aside (`reserve`)."""
        return self.lost or self.description.get("kind") == "reserve"

    @property
    def limits(self) -> Json:
        """The limits of the tables that it reads, as the policy had them (``policy.limits``); empty in old ledgers."""
        return dict(self.description.get("limits") or {})

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results that the charge pays for, as its batch calls them."""
        return tuple(str(name) for name in self.description.get("names", ()))

    @property
    def shown(self) -> tuple[str | None, ...]:
        """The name of each result in the releases by now; None for one that was dropped."""
        return self.results if self.renamed is None else self.renamed

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the results that are shown."""
        return tuple(name for name in self.shown if name is not None)


def read_entries(
    connection: sqlite3.Connection,
    file: LedgerFile,
    where: str = "",
    values: tuple[object, ...] = (),
    *,
    free: str | None = "",
    payload: bool = False,
) -> list[Entry]:
    """Charges that meet ``where`` (fixed text), and free answers that meet ``free`` (None: none of them), oldest first.

    Payloads only if asked, digests checked.
    """
    columns = ", ".join(f"charges.{name}" for name in chain.CHARGE_COLUMNS.split(", "))
    extra = "releases.payload, releases.digest" if payload else "NULL, NULL"
    rows = connection.execute(
        f"SELECT {columns}, releases.time, {extra} FROM charges"  # noqa: S608 - fixed texts
        f" LEFT JOIN releases ON releases.id = charges.id {where} ORDER BY charges.id",
        values,
    )
    renamed = {
        release: tuple(json.loads(names))
        for release, names in connection.execute("SELECT release, names FROM views ORDER BY id")
    }
    found = []
    for number, charge_id, time, dataset, label, _, _, cost, text, released, data, digest in rows:
        head = number, charge_id, time, dataset, label
        if data is not None and not chain.intact(data, digest):
            raise file.error(f"is damaged: measurement {number} was altered; restore the newest backup")
        held = _charged(head, cost, text, released, renamed.get(number))
        if held is None:
            raise file.error(f"is damaged: charge {number} is none that dpsql makes; restore the newest backup")
        found.append(held if data is None else replace(held, payload=data))
    if free is None:
        return found
    extra = "payload, digest" if payload else "NULL, NULL"
    answers = connection.execute(
        f"SELECT {chain.ANSWER_COLUMNS}, {extra} FROM answers {free} ORDER BY id",  # noqa: S608 - fixed texts
        values,
    )
    for number, time, dataset, label, text, data, digest in answers:
        if data is not None and not chain.intact(data, digest):
            raise file.error(f"is damaged: answer {number} was altered; restore the newest backup")
        body = json.loads(text)
        charge = Charge.free(str(body.get("guarantee", "")))
        found.append(Entry(number, "", time, dataset, label, charge, body, time, data, renamed.get(number)))
    return sorted(found, key=lambda entry: entry.id)


@lru_cache(_KEPT)
def _charged(
    head: tuple[int, str, str, str, str],
    cost: str,
    text: str,
    released: str | None,
    renamed: tuple[str | None, ...] | None,
) -> Entry | None:
    """The charge as it was written, None where no charge is so. Its description is one object, changed by nobody.

    ``head``: number, id, time, data set and label.
    """
    try:
        spent = Charge.from_dict(json.loads(cost))
    except DataError:
        return None
    return Entry(*head, spent, json.loads(text), released, None, renamed)


Names = dict[int, tuple[str | None, ...]]


def renamed(entries: Iterable[Entry], name: str, to: str, release: int | None = None) -> Names:
    """The new names where every result that is shown as ``name`` (of one release, if given) is shown as ``to``.

    Raises ProgrammingError where nothing is called ``name``, IntegrityError where something else is called ``to``.
    """
    held = [entry for entry in entries if entry.released is not None]
    found: Names = {}
    for entry in held:
        mine = release is None or entry.id == release
        hits = [mine and shown is not None and shown.lower() == name.lower() for shown in entry.shown]
        others = [shown for shown, hit in zip(entry.shown, hits, strict=True) if shown is not None and not hit]
        if to.lower() in (other.lower() for other in others):
            raise IntegrityError(
                f"a view named {_flat(to)} exists already; choose another name, or drop that one first"
            )
        if any(hits):
            found[entry.id] = tuple(to if hit else shown for shown, hit in zip(entry.shown, hits, strict=True))
    if not found:
        raise _unknown(held, name, release)
    return found


def dropped(entries: Iterable[Entry], names: Sequence[str], release: int | None = None) -> Names:
    """The names that are left where ``names`` (of one release, if given; all of its results without names) go.

    Raises ProgrammingError where there is nothing of that name, or no such release.
    """
    held = [entry for entry in entries if entry.released is not None]
    if release is not None:
        mine = [entry for entry in held if entry.id == release]
        if not mine:
            raise ProgrammingError(f"there is no release {release}; 'dpsql releases list' shows those there are")
    else:
        mine = held
    lowered = {name.lower() for name in names}
    found: Names = {}
    gone: set[str] = set()
    for entry in mine:
        left = tuple(None if name is None or not names or name.lower() in lowered else name for name in entry.shown)
        if left != entry.shown:
            found[entry.id] = left
            gone |= {name.lower() for name in entry.views} - {name.lower() for name in left if name is not None}
    for name in names:
        if name.lower() not in gone:
            raise _unknown(held, name, release)
    if not found:
        raise ProgrammingError(f"all results of release {release} are dropped already")
    return found


def _unknown(entries: Sequence[Entry], name: str, release: int | None) -> ProgrammingError:
    known = [view for entry in entries if release is None or entry.id == release for view in entry.views]
    where = "no release shows" if release is None else f"release {release} does not show"
    hint = nearest(name, known)
    return ProgrammingError(f"{where} a result {_flat(name)}: {hint}")


def _flat(name: str) -> str:
    return " ".join(name.split())
