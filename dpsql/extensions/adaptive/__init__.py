"""Counts over many columns by marginals that are chosen by the data, in rounds: ``method="adaptive"``."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "adaptive",
    "measures marginals in rounds that are chosen by the data",
    methods={"adaptive": "dpsql.extensions.adaptive.adaptive_plan:make_adaptive_plan"},
)
