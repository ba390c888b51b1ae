"""The modules of dpsql as syntax trees, parsed and walked once in a process."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

import dpsql

PACKAGE = Path(dpsql.__file__).parent


@cache
def modules() -> tuple[tuple[Path, ast.Module], ...]:
    """(path, tree) of every module."""
    return tuple((path, parsed(path)) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    """Nothing of a tree is garbage: the collector would only look through it again and again."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree but those without fields, such as ast.Load and ast.Add."""
    found, pending = [], [tree]
    while pending:
        node = pending.pop()
        found.append(node)
        for held in vars(node).values():
            if isinstance(held, list):
                pending += [one for one in held if isinstance(one, ast.AST) and one._fields]
            elif isinstance(held, ast.AST) and held._fields:
                pending.append(held)
    return tuple(found)
