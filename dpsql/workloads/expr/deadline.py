"""How long a batch may be understood and compiled: what is not done by then is refused, before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from time import monotonic

from dpsql.errors import SQLError

SHARE, GRACE = 1.1, 0.5
"""Understanding and compiling may take SHARE times the limit and GRACE seconds: a plan is worth more than none."""


@dataclass(frozen=True)
class Deadline:
    """``at``: monotonic seconds."""

    at: float = inf

    @classmethod
    def within(cls, began: float, limit: float | None) -> Deadline:
        """That of a plan with ``time_limit=limit`` seconds from ``began`` on; none for None, and for 0 and below, which
        the search refuses.
        """
        return cls() if limit is None or limit <= 0 else cls(began + SHARE * limit + GRACE)

    def passed(self) -> bool:
        return self.at < inf and monotonic() > self.at

    def check(self, done: int, all_of: int, what: str) -> None:
        """SQLError past the deadline, with how much of the batch was done: ``done`` of ``all_of`` ``what``."""
        if self.passed():
            raise SQLError(
                f"the time limit ended when {done:,} of {all_of:,} {what} were done; allow more time, or split the "
                "batch",
                code="too-large",
            )


NONE = Deadline()
