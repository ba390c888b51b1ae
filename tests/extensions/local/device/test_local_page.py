"""docs/local.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from repeatable import Bytes

from dpsql.extensions.local.device import OTHER
from dpsql.privacy.response import Response, offsets_from

PAGE = (Path(__file__).parents[4] / "docs" / "local.md").read_text(encoding="utf-8")


def test_the_page_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source = Bytes(71)
    monkeypatch.setattr(Response, "sample", lambda self, count: offsets_from(self, count, source))
    block, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    assert capsys.readouterr().out.count("\n") == 1
    assert set(names["sent"]) == {"smoker", "visits"}
    assert OTHER not in names["sent"].values()
    truths = {"smokers": 1000, "visits": 1 * 1333 + 2 * 1333, "often": 333, "mean": 999 / 1000}
    for name, truth in truths.items():
        found = names[name]
        assert abs(found.value - truth) < 5 * found.stderr, name
        assert found.rows == 4000
    assert names["smokers"].stderr == pytest.approx(80, rel=0.1)
    assert names["often"].value == int(names["often"].value)
