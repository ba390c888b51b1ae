"""Makes the engine of the Spark session that ``dpsql.connect`` was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpsql.engines.base import Opening
from dpsql.engines.limits import Limits
from dpsql.errors import InterfaceError


def opened(database: Any, limits: Limits) -> Callable[[], Opening] | None:
    """What makes the engine of a Spark session, None for anything else. Raises InterfaceError for limits it lacks.

    What it is made of is imported now: most processes have no Spark.
    """
    if not is_session(database):
        return None
    if limits.memory is not None:
        raise InterfaceError("memory_limit is for scans of DuckDB; give Spark's executors what they need")

    def engine() -> Opening:
        from dpsql.extensions.spark.engine import SparkEngine

        return SparkEngine(database, limits)

    return engine


def is_session(value: object) -> bool:
    """Whether something is a session of Spark, known by where its class comes from."""
    return any(
        kind.__name__ == "SparkSession" and kind.__module__.split(".")[0] == "pyspark" for kind in type(value).__mro__
    )
