"""Checks of single settings; every message names the full key and what to write instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from dpsql.errors import PolicyError
from dpsql.policy.values import dotted, fold, kind_of

T = TypeVar("T")


class Findings:
    """Collects what is wrong with a policy, so that its author sees all of it at once.

    Checks run inside ``each()``, which keeps a PolicyError instead of raising it; ``refuse`` raises what was kept.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []

    @contextlib.contextmanager
    def each(self) -> Iterator[None]:
        """One check, whose failure does not keep the next from running."""
        try:
            yield
        except PolicyError as error:
            self.errors += [message for message in error.errors if message not in self.errors]

    def refuse(self) -> None:
        """Nothing, or one PolicyError of all that was kept."""
        if self.errors:
            raise PolicyError(*self.errors)


def fix(obj: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass inside its ``__post_init__``."""
    object.__setattr__(obj, name, value)


def text(where: str, value: object) -> str:
    """``value``, checked to be a string with something in it."""
    if not isinstance(value, str):
        raise PolicyError(f"{where} is {kind_of(value)}; write a string")
    if not value.strip():
        raise PolicyError(f"{where} is empty; write a name")
    return value


def flag(where: str, value: object) -> bool:
    """``value``, checked to be a boolean."""
    if not isinstance(value, bool):
        raise PolicyError(f"{where} is {kind_of(value)}; write true or false")
    return value


def positive(where: str, value: object) -> int:
    """``value``, checked to be an integer from 1 to 10^15."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PolicyError(f"{where} is {kind_of(value)}; write a whole number such as 5")
    if not 1 <= value <= 10**15:
        raise PolicyError(f"{where} is out of range; write a whole number from 1 to 10^15")
    return value


def names(where: str, value: object) -> tuple[str, ...]:
    """``value``, checked to be a list of distinct names."""
    if not isinstance(value, list | tuple):
        raise PolicyError(f'{where} is {kind_of(value)}; write a list of columns, such as ["id"]')
    out = tuple(text(f"{where}[{i}]", name) for i, name in enumerate(value))
    if len({fold(name) for name in out}) < len(out):
        raise PolicyError(f"{where} names a column twice; keep one of them")
    return out


def references(where: str, value: object) -> Mapping[str, tuple[str, str]]:
    """``value``, checked to be a table of column = "table.column"; (table, column) by column."""
    if not isinstance(value, Mapping):
        raise PolicyError(f'{where} is {kind_of(value)}; write {{ patient_id = "patients.id" }}')
    out: dict[str, tuple[str, str]] = {}
    for name, target in value.items():
        if isinstance(target, tuple):
            out[name] = target
            continue
        table, dot, column = text(f"{where}.{dotted(name)}", target).rpartition(".")
        if not dot or not table or not column:
            raise PolicyError(f'{where}.{dotted(name)} is "{target}"; write the table and the column, "patients.id"')
        out[name] = (table, column)
    return folded(where, out, "references")


def folded(where: str, items: Mapping[str, T], what: str) -> Mapping[str, T]:
    """A read-only copy of ``items``; two names that DuckDB takes for one are refused."""
    seen: dict[str, str] = {}
    for name in items:
        text(where, name)
        twin = seen.setdefault(fold(name), name)
        if twin != name:
            raise PolicyError(
                f"{where} declares {dotted(twin)} and {dotted(name)}, one name in DuckDB; keep one of the {what}"
            )
    return MappingProxyType(dict(items))
