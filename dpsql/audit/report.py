"""What an audit found: checks with their outcome, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpsql.release.text_table import text_table


@dataclass(frozen=True)
class Check:
    """One check: ``found`` and ``limit`` in words, ``holds`` where it passed."""

    name: str
    holds: bool
    found: str
    limit: str = ""


@dataclass(frozen=True)
class Report:
    """The outcome of an audit. ``figures`` are its numbers, for programs; all of generated rows, so public."""

    privacy: str
    checks: tuple[Check, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every check passed."""
        return all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        checks = [
            {"check": check.name, "holds": check.holds, "found": check.found, "limit": check.limit}
            for check in self.checks
        ]
        return {"holds": self.holds, "privacy": self.privacy, "checks": checks, **self.figures}

    def __str__(self) -> str:
        rows = [[check.name, check.found, check.limit, "ok" if check.holds else "FAILED"] for check in self.checks]
        table = text_table(("check", "found", "limit", ""), ["VARCHAR"] * 4, rows, limit=len(rows)).rsplit("\n", 1)[0]
        failed = sum(not check.holds for check in self.checks)
        last = (
            "Every check holds." if self.holds else f"{failed} of {len(rows)} checks FAILED: do not release with this."
        )
        return f"Audit of {self.privacy}\non generated rows; no private row was read.\n\n{table}\n\n{last}"
