"""The modules of dpsql as syntax trees, parsed and walked once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import dpsql

PACKAGE = Path(dpsql.__file__).parent


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    """(path, tree) of every module; the link to the example batches is not followed."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "examples"]
    return tuple((path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree."""
    return tuple(ast.walk(tree))
