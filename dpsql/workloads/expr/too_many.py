"""Refusals of batches of too many numbers: how many, the cap, whose they are, and the columns to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from dpsql.errors import SQLError, listed
from dpsql.workloads.expr.batch import Query


def check_numbers(queries: Sequence[Query], cap: int) -> None:
    """Raise SQLError where the queries have more than ``cap`` numbers together."""
    sizes = [len(query.outputs) * prod(len(key) for key in query.keys) for query in queries]
    total = sum(sizes)
    if total <= cap:
        return
    statements: dict[str, list[int]] = {}
    for number, query in enumerate(queries):
        statements.setdefault(query.name.partition("#")[0], []).append(number)
    name, mine = max(statements.items(), key=lambda item: sum(sizes[number] for number in item[1]))
    largest = sum(sizes[number] for number in mine)
    remedy = "split it"
    if len(statements) > 1:
        remedy = f"split it; {name} alone has {largest:,}"
    if largest > cap or len(statements) == 1:
        keys = [[key.name for key in queries[number].keys] for number in mine]
        groupings = f" in {len(mine):,} groupings" if len(mine) > 1 else ""
        dropped = to_leave_out(keys, [sizes[number] for number in mine], cap)
        remedy = f"{name} has {largest:,}{groupings}: " + (
            f"combine fewer of its columns, coarsen them, or leave out {listed(dropped)}" if dropped else "split it"
        )
    raise SQLError(f"the batch has {total:,} numbers, at most {cap:,} are planned together: {remedy}", code="too-large")


def to_leave_out(parts: Sequence[Sequence[str]], sizes: Sequence[int], cap: int) -> list[str]:
    """Names without whose parts at most ``cap`` of the ``sizes`` are left, those of the most first.

    Cost: the names of all parts, once for each name that is left out.
    """
    left = [(frozenset(names), size) for names, size in zip(parts, sizes, strict=True)]
    found: list[str] = []
    while sum(size for _, size in left) > cap:
        totals: dict[str, int] = {}
        for names, size in left:
            for name in names:
                totals[name] = totals.get(name, 0) + size
        if not totals:
            return []
        worst = max(totals, key=totals.__getitem__)
        found.append(worst)
        left = [(names, size) for names, size in left if worst not in names]
    return found
