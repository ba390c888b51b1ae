"""Spark as an engine: private tables of its catalogs, counted where they lie."""
