"""Rows that agree with the counts of a release: ``Release.synthetic_rows``."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "synthetic",
    "makes rows that agree with the counts of a release",
    commands="dpsql.extensions.synthetic.command_line:COMMANDS",
    connection="dpsql.extensions.synthetic.connection:MakingRows",
    provides={"synthetic_rows": "dpsql.extensions.synthetic.synthetic_rows:made_from"},
)
