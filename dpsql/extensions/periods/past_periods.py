"""How the numbers of releases of a standing batch follow from the measurements that they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dpsql.errors import Error
from dpsql.extensions.periods.one_period import check_no_day
from dpsql.extensions.periods.over_time import combination_over_time
from dpsql.policy.types import Schemas
from dpsql.privacy.entries import Entry
from dpsql.release.payload import unpack
from dpsql.running.earlier import Combination
from dpsql.running.earlier.same_question import types_of
from dpsql.running.past_releases import PastReleases
from dpsql.running.planned_again import PlannedAgain


def of_period(
    past: PastReleases, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
) -> Combination | PlannedAgain | None:
    """``PastReleases.behind`` of one period: as another period of the batch that was measured just as this one is.

    What a batch that never names the day asks of two periods differs in their rows alone, so that what follows from
    equal integers and equal noise is the same but for y.
    """
    if entry.description.get("rests_on") or entry.charge.noise == "none" or entry.id not in entries:
        return past.measured_with(entry, entries, alpha, schemas)
    _, measurement = unpack(past.books.ledger().release(entry.id).payload or b"")
    schedule, stored = str(entry.description["schedule"]), sorted((measurement.stored or {}).items())
    said = schedule, entry.description.get("types"), types_of(schemas), alpha
    mark = repr((said, replace(measurement, y=(len(measurement.y),)), stored))
    with past.lock:
        known = past.alike.get(mark)
        if known is None:
            found = past.resting_on(frozenset({entry.id}), entry, {entry.id: entry}, alpha, schemas)
            if stored and isinstance(found, Combination) and _names_no_day(past, schedule):
                past.alike[mark] = found
            return found
    one = replace(known.answers.observed[0], y=measurement.y)
    return replace(known, answers=replace(known.answers, observed=(one,)), rests_on=(entry.id,))


def _names_no_day(past: PastReleases, schedule: str) -> bool:
    held = [one for one in past.books.ledger().schedules() if one.name == schedule]
    try:
        for one in held:
            check_no_day(one.sql, past.policy.table(one.table))
    except Error:
        return False
    return bool(held)


def of_horizon(
    past: PastReleases, entry: Entry, entries: Mapping[int, Entry], alpha: float, schemas: Schemas
) -> Combination | None:
    """``PastReleases.behind`` of a release of a horizon: it rests on all earlier ones whose noise has not faded."""
    name, place = entry.description.get("schedule"), int(entry.description["horizon"]["place"])
    mine = [e for e in entries.values() if e.description.get("schedule") == name and "horizon" in e.description]
    at = {int(e.description["horizon"]["place"]): e for e in mine}
    one = next((one for one in past.books.ledger().schedules() if one.name == name), None)
    prepared = past.prepared(entry, schemas)
    if one is None or prepared is None or any(before not in at for before in range(place)):
        return None
    return combination_over_time(prepared, one, [at[k].id for k in range(place + 1)], past.measurement, alpha)
