"""What looks at exact values leaves its result behind, or a fixed text, and no frame, context or noise."""

from __future__ import annotations

from functools import partial
from types import FrameType, TracebackType

import pytest

from dpsql.errors import OperationalError
from dpsql.measure.shield import shielded

SECRET, NOISE = 987654321012345, 10**30 + 7


def exact(failure: BaseException | None, noise: list[int]) -> list[int]:
    held = SECRET
    if failure is not None:
        raise failure from ValueError(f"{held} in the context, too")
    return [held + noise[0]]


def seen(trace: TracebackType | None) -> str:
    """Everything that the frames of a traceback hold, but for those of this file."""
    frames: list[FrameType] = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename != __file__:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    return repr([frame.f_locals for frame in frames])


def test_a_result_comes_through() -> None:
    assert shielded(partial(exact, None, [NOISE]), "failed") == [SECRET + NOISE]


@pytest.mark.parametrize(
    ("failure", "kind", "said"),
    [
        (OperationalError("a fixed text of the engine"), OperationalError, "a fixed text of the engine"),
        (ValueError(str(SECRET)), OperationalError, "failed: ask again"),
        (SystemExit(str(SECRET)), OperationalError, "failed: ask again"),
        (MemoryError(), OperationalError, "failed: ask again"),
        (KeyboardInterrupt(str(SECRET)), KeyboardInterrupt, ""),
    ],
    ids=["engine", "value", "exit", "memory", "interrupt"],
)
def test_a_failure_shows_a_fixed_text_alone(failure: BaseException, kind: type[BaseException], said: str) -> None:
    with pytest.raises(kind) as caught:
        shielded(partial(exact, failure, [NOISE]), "failed: ask again")
    assert str(caught.value) == said
    assert caught.value is not failure
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    assert str(SECRET) not in seen(caught.value.__traceback__)
    assert str(NOISE) not in seen(caught.value.__traceback__)
    assert "exact" not in [entry.name for entry in caught.traceback]
