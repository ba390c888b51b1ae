"""Under which names released results are shown: renamed, dropped, shown again.

That concerns the views alone. What was charged stays charged, and the noisy measurement stays in the ledger, so that a
dropped result still answers the batch that it was made for; running that batch again shows it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dpsql.errors import IntegrityError, ProgrammingError, nearest
from dpsql.privacy.entries import Entry

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
    hint = nearest(name, known).replace("declared are", "there are").replace("is declared", "is shown")
    return ProgrammingError(f"{where} a result {_flat(name)}: {hint}")


def _flat(name: str) -> str:
    return " ".join(name.split())
