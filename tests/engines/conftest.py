"""Engines themselves are under test here: an open connection gets the one that users get."""

from __future__ import annotations

import helpers
import pytest

from dpsql.measure import ConnectionEngine


@pytest.fixture(autouse=True)
def whole_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """``helpers.engine_of`` leaves no check out."""
    monkeypatch.setattr(helpers, "HeldEngine", ConnectionEngine)
