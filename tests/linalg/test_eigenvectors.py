"""LAPACK's default for eigenvectors ends with an error on some Gram matrices of groups that are alike."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_eigenvectors_are_found_by_dividing(path: Path) -> None:
    text = path.read_text()
    assert "eigh(" not in text or not by_default(text)


def test_the_search_sees() -> None:
    assert by_default("s, V = linalg.eigh(M)") == [1]
    assert not by_default('linalg.eigh(M, driver="evd"); np.linalg.eigh(M)')
