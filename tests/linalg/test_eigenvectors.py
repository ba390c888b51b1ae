"""LAPACK's default for eigenvectors ends with an error on some Gram matrices of groups that are alike."""

from __future__ import annotations

import ast
from pathlib import Path

import dpsql

ROOT = Path(dpsql.__file__).parent


def of_scipy(call: ast.Call) -> bool:
    """Whether it is scipy's ``linalg.eigh``; numpy's has one driver, which divides and conquers."""
    held = call.func
    return (
        isinstance(held, ast.Attribute)
        and held.attr == "eigh"
        and ast.unparse(held.value) in ("linalg", "scipy.linalg")
    )


def by_default(text: str) -> list[int]:
    """Lines that leave the driver of eigenvectors to scipy."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and of_scipy(node)]
    return [call.lineno for call in calls if all(word.arg != "driver" for word in call.keywords)]


def test_eigenvectors_are_found_by_dividing() -> None:
    texts = {path.relative_to(ROOT): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    asking = {path: text for path, text in texts.items() if "eigh(" in text}
    assert asking
    assert not {path: lines for path, text in asking.items() if (lines := by_default(text))}


def test_the_search_sees() -> None:
    assert by_default("s, V = linalg.eigh(M)") == [1]
    assert not by_default('linalg.eigh(M, driver="evd"); np.linalg.eigh(M)')
