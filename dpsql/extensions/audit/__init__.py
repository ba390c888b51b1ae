"""The audit of a batch on generated databases: ``dpsql audit``."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "audit",
    "holds a batch to its promise on generated neighbouring databases",
    commands="dpsql.extensions.audit.command_line:COMMANDS",
)
