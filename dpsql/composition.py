"""The composition root: it finds the extensions that are installed and gives them to the registry.

Beside the public faces (``dpsql``, ``dpsql.workload``, ``dpsql.strategy``, ``dpsql.bounds``) it is the only module of
the kernel that may import an extension. An extension is a package in ``dpsql/extensions`` whose ``EXTENSION`` says what
it adds; a folder that is not there adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from dpsql.registry import Extension

_FOLDER = Path(__file__).with_name("extensions")


def shipped() -> Iterator[Extension]:
    """The extensions in ``dpsql/extensions``."""
    for folder in sorted(_FOLDER.glob("*/__init__.py")):
        yield import_module(f"dpsql.extensions.{folder.parent.name}").EXTENSION
