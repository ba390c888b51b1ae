"""What looks at exact values, carried out so that nothing of it survives but its result or a fixed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpsql.engines.limits import FailedScanError
from dpsql.errors import OperationalError

T = TypeVar("T")


def shielded(observe: Callable[[], T], failed: str) -> T:
    """``observe()``. Where it fails: OperationalError with the engine's fixed text, or with ``failed`` for all else.

    FailedScanError where a scan failed inside its engine.

    Noise and lies are drawn inside ``observe``: beside a noisy result, in the frame of a later failure, they would give
    the exact values away. The frames and the context of the first error hold
    exact values, so that another is raised in its place, outside any except. A Ctrl-C stays one, without its frames.
    """
    result, failure, tables = _carried_out(observe, failed)
    del observe  # its arguments may hold what no later frame should show
    if failure is KeyboardInterrupt:
        raise KeyboardInterrupt
    if isinstance(failure, str):
        raise FailedScanError(failure, tables) if tables else OperationalError(failure)
    (noisy,) = result
    return noisy


def _carried_out(
    observe: Callable[[], T], failed: str
) -> tuple[list[T], str | type[KeyboardInterrupt] | None, tuple[str, ...]]:
    """The one result of ``observe``, or the fixed text of what went wrong; no frame of it survives.

    And the tables of a scan that failed inside its engine.
    """
    try:
        return [observe()], None, ()
    except KeyboardInterrupt:
        return [], KeyboardInterrupt, ()
    except FailedScanError as error:
        text: str = error.args[0]  # no call: a Ctrl-C in one would be raised with this error as its context
        return [], text, error.tables
    except OperationalError as error:
        text = error.args[0]
        return [], text, ()
    except BaseException:  # noqa: BLE001 - whatever it is, its frames hold exact values
        return [], failed, ()
