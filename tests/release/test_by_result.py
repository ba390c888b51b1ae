"""What is known by the names of results: other keys are errors of ours, and KeyErrors as of any mapping."""

from __future__ import annotations

import pytest

from dpsql import Error, NoResultError, ProgrammingError
from dpsql.release.by_result import ByResult, no_result


@pytest.mark.parametrize("key", [0, -1, None, 1.5, ("q1",), b"q1", "nope"])
def test_a_key_that_no_result_has(key: object) -> None:
    held = ByResult(q1=1.0, q2=2.0)
    with pytest.raises(NoResultError, match="q1, q2") as caught:
        held[key]  # type: ignore[index]
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, ProgrammingError | Error)
    assert str(caught.value) == str(no_result("the batch", key, held))  # no repr of it, as KeyError would show
    assert held["q1"] == 1.0
    assert held.get("nope") is None
    assert "nope" not in held
