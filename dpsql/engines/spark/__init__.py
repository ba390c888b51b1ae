"""Spark as an engine: private tables of its catalogs, counted where they lie."""

from dpsql.engines.spark.engine import SparkEngine
from dpsql.engines.spark.session import is_session

__all__ = ["SparkEngine", "is_session"]
