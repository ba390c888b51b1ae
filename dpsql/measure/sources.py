"""The tables behind a connection: what the policy declares of them, where each lies, and the engine that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import duckdb

from dpsql.measure import ConnectionEngine, Engine, TableSource, check_apart, read_schemas
from dpsql.policy import Policy, TablePolicy, check_schema, csv_schema


@dataclass(eq=False)
class Holdings:
    """Private and public tables of one policy, behind one engine. Holds no row and no exact value."""

    engine: Engine
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
        found = read_schemas(self.engine, [*self.private.values(), *self.public.values()])
        check_schema(self.policy, found)
        self.check_apart()
        return found

    def check_apart(self) -> None:
        """PolicyError where two private tables are, by now, the same data: one charge would pay for two looks."""
        check_apart(self.policy, self.sources)

    def _source(self, table: TablePolicy) -> TableSource:
        path, types = self.policy.source_path(table.name), csv_schema(table)
        csv_types, remote = types if table.is_csv else None, self.policy.spark_table(table.name)
        return TableSource(table.name, path, csv_types, pattern=table.is_pattern, declared=types, remote=remote)
