"""The tables behind a connection: what the policy declares of them, where each lies, and the engine that reads them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import duckdb

from dpsql.engines.files import located
from dpsql.errors import OperationalError, PolicyError
from dpsql.measure import ConnectionEngine, FileEngine, Opening, TableSource, read_schemas
from dpsql.policy import Policy, TablePolicy, check_schema, csv_schema


@dataclass(eq=False)
class Holdings:
    """Private and public tables of one policy, behind one engine. Holds no row and no exact value."""

    engine: Opening
    policy: Policy

    @cached_property
    def private(self) -> dict[str, TableSource]:
        """Where each private table lies."""
        return {name: self._source(table) for name, table in self.policy.tables.items() if not table.public}

    @cached_property
    def public(self) -> dict[str, TableSource]:
        """Where each table lies that the policy declares public."""
        return {name: self._source(table) for name, table in self.policy.tables.items() if table.public}

    @property
    def sources(self) -> dict[str, TableSource]:
        """Where every table of the policy lies."""
        return {**self.private, **self.public}

    @property
    def attachable(self) -> duckdb.DuckDBPyConnection | None:
        """The user's own DuckDB connection, if the tables are behind one: the releases are attached to it."""
        return self.engine.connection if isinstance(self.engine, ConnectionEngine) else None

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all tables, held against the policy. Reads no row.

        Raises PolicyError where a declaration does not fit, OperationalError where a table cannot be found.
        """
        schemas = read_schemas(self.engine, [*self.private.values(), *self.public.values()])
        check_schema(self.policy, schemas)
        self.check_disjoint()
        return schemas

    def files(self) -> dict[str, str]:
        """Names and times of the last change of the files behind the tables, by place: a table with a source, or "".

        "" is the database. A place whose files cannot be listed is left out, as are tables that no file holds: those in
        memory, those of Spark, and those that grow by periods. Nothing of it may reach an analyst; what is kept is
        ``dpsql.privacy.file_marks``.
        """
        times: dict[str, str] = {}
        with contextlib.suppress(OSError):
            database = self.engine.file() if isinstance(self.engine, FileEngine | ConnectionEngine) else None
            still = [source for name, source in self.sources.items() if self.policy.table(name).periods is None]
            if database is not None and any(source.path is None for source in still):
                # What a writer has committed and not yet merged stands in a file beside it.
                times[""] = _times([database]) + _times([Path(f"{database}.wal")], missing="none")
        for name, source in self.sources.items():
            if source.path is not None and self.policy.table(name).periods is None:
                with contextlib.suppress(OSError, OperationalError):
                    times[name] = _times(located(source).files)
        return times

    def check_disjoint(self) -> None:
        """PolicyError where two private tables are, by now, the same data: one charge would pay for two looks."""
        check_disjoint(self.policy, self.sources)

    def _source(self, table: TablePolicy) -> TableSource:
        path, types = self.policy.source_path(table.name), csv_schema(table)
        csv_types, remote = types if table.is_csv else None, self.policy.spark_table(table.name)
        return TableSource(table.name, path, csv_types, pattern=table.is_pattern, declared=types, remote=remote)


def _times(files: Sequence[Path], missing: str = "") -> str:
    """Name and time of the last change of each file; ``missing`` where there is none, or OSError."""
    if missing and not files[0].exists():
        return missing
    return "".join(f"{path.name}\n{os.stat(path).st_mtime_ns}\n" for path in files)


def check_disjoint(policy: Policy, sources: Mapping[str, TableSource]) -> None:
    """Hold the files of all private tables and those of public ones against each other. Reads no row.

    Sensitivities add up over the tables that share a unit (``dpsql.workloads.compile.sensitivity``) and are taken apart
    for all others, since no neighbour moves both. That is true of rows of two tables only where no row is in both.
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
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino
