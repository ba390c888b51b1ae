"""Values by the name of a result: a dict whose missing keys are errors of ours, and KeyErrors as of any dict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from dpsql.errors import NoResultError, nearest

T = TypeVar("T")


def no_result(where: str, key: object, names: Iterable[str]) -> NoResultError:
    """The error of a key that no result has: a number, for one; results go by their names."""
    hint = nearest(key if isinstance(key, str) else "", names, "its results are:")
    if isinstance(key, str):
        return NoResultError(f"{where} has no result {' '.join(key.split())}: {hint}")
    return NoResultError(f"{where} has no result by {type(key).__name__}: give a name as a text; {hint}")


class ByResult(dict[str, T]):
    """A value for each result of a batch, in their order."""

    def __missing__(self, key: object) -> T:
        raise no_result("the batch", key, self)
