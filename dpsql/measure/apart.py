"""Tables that read one file: a row of it is a row of each of them, so that they must share a privacy unit.

Sensitivities add up over the tables that share a unit (``dpsql.workload.compile.sensitivity``) and are taken apart for
all others, since no neighbour moves both. That is true of rows of two tables only where no row is in both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dpsql.engines.base import TableSource
from dpsql.engines.files import located
from dpsql.errors import PolicyError
from dpsql.policy import Policy


def check_apart(policy: Policy, sources: Mapping[str, TableSource]) -> None:
    """Hold the files of all private tables and those of public ones against each other. Reads no row.

    A file is known by device and number, whatever path or link leads to it. Raises PolicyError where two tables
    read one file and are not protected by one unit; OperationalError where a source has no file.
    """
    listed = {name: sources[name] for name in policy.tables if sources[name].path is not None}
    if len(listed) < 2:
        return
    seen: dict[object, str] = {}
    for name, source in listed.items():
        for path in located(source).files:
            other = seen.setdefault(_identity(path), name)
            if other != name and not _share(policy, name, other):
                raise PolicyError(
                    f"tables {other} and {name} read one file, so that one row of it counts in both, and are not "
                    "protected together; declare the file once, or give both tables the same unit column"
                )


def _share(policy: Policy, name: str, other: str) -> bool:
    """Whether a unit of one table is one of the other; two public tables protect nothing."""
    if policy.table(name).public or policy.table(other).public:
        return policy.table(name).public and policy.table(other).public
    return policy.labels[name] == policy.labels[other]


def _identity(path: Path) -> object:
    try:
        held = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return held.st_dev, held.st_ino
