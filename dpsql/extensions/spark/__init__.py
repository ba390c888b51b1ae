"""Spark as an engine: private tables of its catalogs, counted where they lie."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "spark",
    "counts private tables of Spark's catalogs where they lie",
    requires="spark",
    provides={"engine": "dpsql.extensions.spark.opening:opened"},
)
