"""Standing batches: what is released of every period of a table once that is over, and what of it was released.

A schedule is an event of the ledger (kind ``schedule``), appended and never changed; the newest of a name counts, and a
name is given once. Its charge of a period has an id that follows from its name and that period, so that the ledger
takes it once, however often, from however many machines, and after whatever crash it is asked for: the charge that is
there is found again, and nothing is spent. A measurement that was cut off is made anew under the same charge; the first
that is recorded is the only one that anybody ever sees (`Ledger.record`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

from dpsql.common.arrays import Json
from dpsql.errors import IntegrityError, ProgrammingError, nearest
from dpsql.privacy import chain

KIND = "schedule"


@dataclass(frozen=True)
class Schedule:
    """One standing batch. ``first``: the name of the earliest period of ``table`` that it releases.

    ``epsilon``, ``delta`` and ``rho`` are what each period is charged, as a request gives them; ``views`` the results
    of the batch; ``label`` who asks. Over a horizon of n periods ``kernel`` and ``factors`` (n,) are the integers of
    what is measured after each (``dpsql.linalg.over_time``; without a last period ``kernel`` alone), ``windows`` the
    sums that they were chosen for, and ``strategy`` the hash of what is measured of one period; none of them ever
    changes.
    """

    name: str
    sql: str
    table: str
    first: str
    views: tuple[str, ...]
    epsilon: str | None = None
    delta: str | None = None
    rho: str | None = None
    label: str = ""
    removed: bool = False
    kernel: tuple[int, ...] = field(default=(), repr=False)
    factors: tuple[int, ...] = field(default=(), repr=False)
    windows: tuple[int, ...] = ()
    strategy: str = field(default="", repr=False)

    def charge_id(self, period: str) -> str:
        """The id of its charge of a period, the same on every machine."""
        return f"schedule {self.name} {period}"

    def as_dict(self) -> Json:
        """Public and JSON-ready; `from_dict` reads it back."""
        held = {name: list(value) if isinstance(value, tuple) else value for name, value in self.__dict__.items()}
        over = ("kernel", "factors", "windows", "strategy")
        return {name: value for name, value in held.items() if value or name not in over}

    @classmethod
    def from_dict(cls, stored: Json) -> Schedule:
        """Inverse of `as_dict`."""
        lists: Json = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        return cls(**{**stored, **lists})


def newest(connection: sqlite3.Connection) -> dict[str, Schedule]:
    """Every schedule by its name, removed ones too, in the order in which they were added."""
    rows = connection.execute("SELECT details FROM events WHERE kind = ? ORDER BY id", (KIND,))
    found: dict[str, Schedule] = {}
    for (text,) in rows:
        held = Schedule.from_dict(json.loads(text))
        found[held.name] = held
    return found


def declare(connection: sqlite3.Connection, schedule: Schedule) -> None:
    """Append what holds of a schedule from now on, inside the caller's transaction.

    Raises IntegrityError for a name that was given before, or a result that another schedule has.
    """
    held = newest(connection)
    before = held.get(schedule.name)
    if not schedule.removed:
        if before is not None:
            raise IntegrityError(
                f"a schedule named {schedule.name} {'was removed' if before.removed else 'is there'}, and what it "
                "charged bears its name; choose another"
            )
        mine = {view.casefold() for view in schedule.views}
        for other in held.values():
            both = [view for view in other.views if view.casefold() in mine]
            if both and not other.removed:
                raise IntegrityError(
                    f"the schedule {other.name} releases {both[0]} of every period, so that two would answer to one "
                    "name: rename the result, or remove that schedule"
                )
    chain.note(connection, KIND, chain.last_number(connection), schedule.as_dict())


def named(schedules: Iterable[Schedule], name: str) -> Schedule:
    """The schedule of that name that was not removed; ProgrammingError."""
    standing = {one.name: one for one in schedules if not one.removed}
    if name not in standing:
        raise ProgrammingError(f"there is no schedule {' '.join(name.split())}: {nearest(name, standing)}")
    return standing[name]
