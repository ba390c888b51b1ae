"""Names and texts as DuckDB's SQL writes them, whatever characters they have."""

from __future__ import annotations

from collections.abc import Iterable


def identifier(name: str) -> str:
    """A name as SQL writes an identifier, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def dotted(name: str) -> str:
    """``schema.table`` as identifiers, one for each part."""
    return ".".join(map(identifier, name.split(".")))


def string(text: str) -> str:
    """A text as a string literal."""
    return "'" + text.replace("'", "''") + "'"


def free_name(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken in any case; it is taken from then on."""
    unique, copy = name, 0
    while unique.lower() in taken:
        copy += 1
        unique = f"{name}_{copy}"
    taken.add(unique.lower())
    return unique


def distinct_names(names: Iterable[str]) -> list[str]:
    """The names, numbered where one is taken in any case."""
    taken: set[str] = set()
    return [free_name(name, taken) for name in names]
