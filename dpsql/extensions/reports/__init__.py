"""Pictures of plans and budgets, and pages of HTML: ``dpsql report``."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "reports",
    "draws plans, matrices and budgets, and writes plans and releases as HTML pages",
    requires="plot",
    commands="dpsql.extensions.reports.command_line:COMMANDS",
    plan="dpsql.extensions.reports.plan:Drawn",
)
