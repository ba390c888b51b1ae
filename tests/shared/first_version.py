"""The ledger and releases file that the first version wrote (tests/fixtures/first_version), copied to a folder."""

from __future__ import annotations

import lzma
import runpy
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parents[1] / "fixtures" / "first_version"
MADE: dict[str, Any] = runpy.run_path(str(FIXTURE / "make.py"))
"""What ``make.py`` released, by the names that it has there."""
DAY = "2024-03-05"
VIEWS = {
    **{"by_ward": 4, "by_age": 10, "all_rows": 1, "by_word": 6, "made_up": 40, "made_up_2": 4, "chosen": 14},
    **{"shown": 30, "visits_word": 4, "visits_drug": 3, "visits_code": 2, "survey_synthetic": 200, "monthly": 4},
    **{"trend": 2, "visits_fee_bounds": 1},
}
"""How many rows each result has."""
ENTRIES = 17


def first_version(folder: Path, *, releases: bool = True) -> Path:
    """The policy, beside the tables, the ledger and, unless it is to be made anew, the releases file."""
    for name in ("first.ledger", "first.releases.duckdb")[: 1 + releases]:
        (folder / name).write_bytes(lzma.decompress((FIXTURE / f"{name}.xz").read_bytes()))
    (folder / "first.ledger").chmod(0o600)
    MADE["tables"](folder / "first.duckdb")
    policy = folder / "first.toml"
    policy.write_bytes((FIXTURE / "first.toml").read_bytes())
    return policy
