"""Local releases: rows released once, each randomised, and questions about them."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "local",
    "releases randomised rows once, and answers questions about them",
    commands="dpsql.extensions.local.command_line:COMMANDS",
    connection="dpsql.extensions.local.connection:ReleasingLocally",
    provides={"compared_locally": "dpsql.extensions.local.comparison:compared"},
)
