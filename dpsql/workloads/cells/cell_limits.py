"""Caps on what telling cells apart costs, from public sizes: a batch is refused before it exhausts the machine."""

from __future__ import annotations

from dpsql.errors import SQLError

MAX_COMBINATIONS = 50_000_000
# Blocks that are no conjunctions are resolved for every combination, at eight bytes each.
MAX_CELLS_TIMES_BLOCKS = 200_000_000
# States are held in memory for all blocks at once, eight bytes each, or one for a conjunction.
MAX_STATE_BYTES = 800_000_000
# Atoms of a condition times the ways in which one axis resolves it: about 20 s of work.
MAX_RESOLUTIONS = 10_000_000
MAX_OF_ONE = 250_000  # of one condition: under a second
# Pairs of a cell and a block that counts it: each is an entry of W, 12 bytes in each of a few copies.
MAX_COUNTED = 60_000_000
# States times blocks times changes on the last axis: about 20 s for each sweep.
MAX_SWEEP = 1_000_000_000_000


def check_condition(work: int, name: str, most: int | None = None) -> None:
    """``work``: atoms of a condition times the ways in which the axis ``name`` resolves it."""
    most = MAX_RESOLUTIONS if most is None else most
    if work > most:
        raise SQLError(
            f"a condition over {name} and other columns has too many parts ({work:,} steps, at most "
            f"{most:,}): split it over several statements",
            code="too-large",
        )


def check_states(states: int, sets: int, others: int, name: str) -> None:
    """States after an axis: a byte each for every conjunction (``sets``), eight for every other block."""
    if states * (sets + 8 * others) > MAX_STATE_BYTES:
        raise SQLError(
            f"the batch tells {states:,} sets of rows apart by {name}, over {sets + others:,} query blocks; at most "
            f"{MAX_STATE_BYTES // max(1, sets + 8 * others):,} are planned with as many: split the batch",
            code="too-large",
        )


def check_counted(entries: int, cells: int, blocks: int) -> None:
    """``entries``: pairs of a cell and a block that counts it."""
    if entries > MAX_COUNTED:
        raise SQLError(
            f"the batch tells {cells:,} cells apart, and its {blocks:,} query blocks count {entries:,}; at most "
            f"{MAX_COUNTED:,} are planned: split the batch",
            code="too-large",
        )


def check_sweep(work: int, blocks: int) -> None:
    """``work``: states times blocks times changes on the last axis."""
    if work > MAX_SWEEP:
        raise SQLError(
            f"the batch's {blocks:,} query blocks take {work:,} steps to tell apart, at most {MAX_SWEEP:,} are "
            "planned: split the batch into batches of fewer conditions, or over fewer columns",
            code="too-large",
        )


def check_work(combinations: int, users: int, blocks: int, name: str) -> None:
    """Combinations of states and regions before they are merged, ``users`` blocks resolved for each."""
    if combinations > MAX_COMBINATIONS or combinations * users > MAX_CELLS_TIMES_BLOCKS:
        raise SQLError(
            f"the batch makes {combinations:,} combinations of regions at {name}, over {blocks:,} query "
            f"blocks; at most {MAX_COMBINATIONS:,} combinations and {MAX_CELLS_TIMES_BLOCKS:,} with those of their "
            "queries that are no plain conjunctions are planned: split the batch into batches over fewer columns",
            code="too-large",
        )
