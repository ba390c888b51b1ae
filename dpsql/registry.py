"""The registry of extensions: what each of them adds to the kernel, by name.

The kernel looks things up here and imports no extension. ``dpsql.composition`` finds the extensions that are installed
and hands them over when the registry is first asked; a program may add one of its own with ``register``.

Whatever an extension adds is written as ``"package.module:name"`` and imported when it is first used, so that an
extension costs nothing where nobody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from dpsql.errors import InterfaceError


@dataclass(frozen=True)
class Extension:
    """What one extension adds. Each value is ``"package.module:name"``.

    ``commands``: a ``dpsql.surfaces.grammar.Commands``, for the command line. ``connection`` and ``plan``: classes
    whose methods every ``Connection`` and ``Plan`` gets. ``engine``: a function that takes what ``connect`` was given
    as its database and the limits of a scan, and returns an engine, or None where it is none of its own.
    ``requires``: the optional extra whose packages it needs, "" where it needs none.
    """

    name: str
    summary: str
    version: str = ""
    requires: str = ""
    commands: str = ""
    connection: str = ""
    plan: str = ""
    engine: str = ""
    methods: Mapping[str, str] = field(default_factory=dict)


_EXTENSIONS: dict[str, Extension] = {}
_FINDERS: list[Callable[[], Iterator[Extension]]] = []


def register(extension: Extension) -> None:
    """Add an extension. Raises InterfaceError where another one has its name."""
    known = _EXTENSIONS.get(extension.name)
    if known is not None and known != extension:
        raise InterfaceError(f"an extension named {extension.name!r} is registered already; choose another name")
    _EXTENSIONS[extension.name] = extension


def find_with(finder: Callable[[], Iterator[Extension]]) -> None:
    """Have ``finder`` give its extensions when the registry is first asked."""
    _FINDERS.append(finder)


def extensions() -> tuple[Extension, ...]:
    """All extensions, in the order of their names."""
    while _FINDERS:
        for extension in _FINDERS.pop()():
            register(extension)
    return tuple(_EXTENSIONS[name] for name in sorted(_EXTENSIONS))


def resolve(name: str) -> Any:
    """What ``"package.module:name"`` names; the module is imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
