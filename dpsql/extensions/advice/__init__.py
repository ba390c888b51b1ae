"""Advice before anything is spent: first policies, expected workloads, what-if, suggestions and prospects."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "advice",
    "advises before anything is spent: first policies, expected workloads, what other budgets give",
    commands="dpsql.extensions.advice.command_line:COMMANDS",
    connection="dpsql.extensions.advice.connection:Advising",
    plan="dpsql.extensions.advice.plan:Advised",
    provides={"expected_estimates": "dpsql.extensions.advice.prospects:expected_estimates"},
)
