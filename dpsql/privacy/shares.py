"""By whom a budget was spent: the charges of a ledger added up by label and purse.

A label is what the caller said of itself. Inside one process nothing can check it: whoever may call
``run`` may write any label. Where it must be trusted, the custodian's server sets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from dpsql.errors import listed
from dpsql.privacy.amounts import GRID, show
from dpsql.privacy.entries import Entry

MOST_LINES = 10  # of a text; all shares are in JSON


@dataclass(frozen=True)
class Share:
    """What one label has spent of one purse: ``units`` of 1e-12 over ``count`` charges, for ``results``."""

    label: str
    purse: str
    units: int
    count: int
    results: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Spent, in the purse's measure; these add up to what the purse has spent."""
        return self.units / GRID

    def __str__(self) -> str:
        measure = "mu squared" if self.purse == "gaussian" else "epsilon"
        names = listed(self.results, 3)
        charges = "1 charge" if self.count == 1 else f"{self.count} charges"
        spent = f"{self.purse} {measure} {show(Fraction(self.units, GRID))} in {charges}"
        return f"by {self.label or '(no label)'}: {spent}" + (f" for {names}" if names else "")


def shares(entries: Iterable[Entry]) -> tuple[Share, ...]:
    """The charges added up by label and purse, in order of their first charge; every result is named once."""
    units: dict[tuple[str, str], int] = {}
    count: dict[tuple[str, str], int] = {}
    results: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        if entry.charge.noise == "none":  # free answers are nobody's spending
            continue
        key = (entry.label, entry.charge.purse)
        units[key] = units.get(key, 0) + entry.charge.units
        count[key] = count.get(key, 0) + 1
        results.setdefault(key, {}).update(dict.fromkeys(entry.results))
    return tuple(Share(*key, units[key], count[key], tuple(results[key])) for key in units)


def share_lines(found: tuple[Share, ...]) -> list[str]:
    """Lines for people, at most `MOST_LINES`."""
    lines = [f"  {_printable(str(share))}" for share in found[:MOST_LINES]]
    if len(found) > MOST_LINES:
        lines.append(f"  and {len(found) - MOST_LINES} more labels")
    return lines


def _printable(text: str) -> str:
    """On one line, with escapes for what could steer the terminal of whoever reads another's label."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in joined)
