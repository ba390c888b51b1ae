"""Names and texts as DuckDB's SQL writes them, whatever characters they have."""

from __future__ import annotations


def identifier(name: str) -> str:
    """A name as SQL writes an identifier, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def dotted(name: str) -> str:
    """``schema.table`` as identifiers, one for each part."""
    return ".".join(map(identifier, name.split(".")))


def string(text: str) -> str:
    """A text as a string literal."""
    return "'" + text.replace("'", "''") + "'"
