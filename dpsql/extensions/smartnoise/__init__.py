"""A first policy from the metadata of SmartNoise SQL: ``dpsql policy import``."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "smartnoise",
    "makes a first policy from SmartNoise's YAML metadata",
    requires="yaml",
    commands="dpsql.extensions.smartnoise.command_line:COMMANDS",
)
