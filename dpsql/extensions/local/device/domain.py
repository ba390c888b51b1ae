"""The finite joint domain of several columns: one number from 0 to k - 1 for every combination of categories.

A column's categories are its declared values in order, then OTHER where it is declared, then NULL. A combination is
numbered in mixed radix, the last column fastest. Every record has exactly one number, whatever it holds, so that
neither an error nor a missing row can tell what was in it:

- None, NaN and NaT are NULL; any other value that is not declared is OTHER.
- A declaration is taken at its word. Without NULL, a NULL counts as OTHER; without OTHER, any other value counts as
  NULL; with neither, both count as the first value. A wrong word changes answers, never the guarantee.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsql.errors import DataError, InterfaceError, PolicyError, nearest
from dpsql.policy import ColumnPolicy, TablePolicy
from dpsql.policy.columns import DOMAIN_CAP
from dpsql.policy.values import Key, fold
from dpsql.privacy.response import Codes

JOINT_CAP = 10**9
"""The most combinations of one release. Errors grow with their number (at epsilon 1 almost in proportion)."""

Objects = NDArray[np.object_]


class _Special(enum.Enum):
    OTHER = "OTHER"

    def __repr__(self) -> str:
        return "OTHER"


OTHER = _Special.OTHER
"""The category of all values that are not declared."""


@dataclass(frozen=True)
class Categories:
    """One column's categories: ``values``, then OTHER where ``other``, then None (NULL) where ``nulls``."""

    name: str
    values: tuple[Key, ...]
    other: bool = False
    nulls: bool = True

    def __post_init__(self) -> None:
        if not self.values:
            raise PolicyError(f"the domain of {self.name!r} has no value but NULL or OTHER; list its public values")
        if len(set(self.all)) < len(self.all) or None in self.values or OTHER in self.values:
            raise PolicyError(f"the domain of {self.name!r} lists a value twice; keep one of them")

    @functools.cached_property
    def all(self) -> tuple[Any, ...]:
        """Every category, in the order of its number."""
        return (*self.values, *([OTHER] if self.other else []), *([None] if self.nulls else []))

    def __len__(self) -> int:
        return len(self.all)

    @functools.cached_property
    def _private(self) -> _Places:
        null = len(self.all) - 1 if self.nulls else None
        other = len(self.values) if self.other else None
        outside = next(place for place in (other, null, 0) if place is not None)
        return _Places(self.all, null if null is not None else outside, outside)

    @functools.cached_property
    def _public(self) -> _Places:
        return _Places(self.all, len(self.all) - 1 if self.nulls else -1, -1)

    def places(self, column: object) -> Codes:
        """The category of each value of a private column, (n,): every value has one, see the module."""
        return self._private.of(_listed(self, column))

    def place(self, value: object) -> int:
        """The category of one private value."""
        return int(self.places([value])[0])

    def public_places(self, column: object) -> Codes:
        """The category of each value of a released column, -1 where a value is none of them."""
        return self._public.of(_listed(self, column))


class _Places(dict[object, int]):
    """Category to number; what is not in it counts as NULL if it is a missing value, else as outside."""

    def __init__(self, categories: tuple[object, ...], null: int, outside: int) -> None:
        super().__init__((category, i) for i, category in enumerate(categories))
        self.null, self.outside = null, outside

    def __missing__(self, value: object) -> int:
        if _is_missing(value):
            return self.null
        # A float is the decimal that it shows as: 0.1 is the declared 0.1.
        return self.get(Decimal(repr(value)), self.outside) if type(value) is float else self.outside

    def of(self, values: Sequence[object]) -> Codes:
        try:
            return np.fromiter(map(self.__getitem__, values), dtype=np.int64, count=len(values))
        except TypeError:  # a value that cannot be hashed, such as a list, is no category
            return np.array([self._one(value) for value in values], dtype=np.int64)

    def _one(self, value: object) -> int:
        try:
            return self[value]
        except TypeError:
            return self.outside


def _is_missing(value: object) -> bool:
    # pandas is optional: its markers are known by name. None is here where no NULL is declared.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and math.isnan(value)


def _listed(categories: Categories, column: object) -> Sequence[object]:
    """The values of a column as Python values, those of numpy's types as what Python has for them."""
    if isinstance(column, list | tuple):
        return [value.item() if isinstance(value, np.generic) else value for value in column]
    array = np.asarray(column)
    if array.ndim != 1:
        raise InterfaceError(f"column {categories.name!r} must have one dimension; give one value for each row")
    if array.dtype.kind != "M":
        listed: list[object] = array.tolist()
        return listed
    moments = array.astype("datetime64[us]")
    exact = (moments == array) | np.isnat(array)
    days = moments.astype("datetime64[D]")
    is_date = bool(categories.values) and type(categories.values[0]) is date
    if is_date:
        exact &= (days == moments) | np.isnat(array)
    shown = (days if is_date else moments).tolist()
    return [value if same else _Inexact for value, same in zip(shown, exact.tolist(), strict=True)]


class _Inexact:
    """In place of a moment between two that Python can write."""


@dataclass(frozen=True)
class Domain:
    """The product of several columns' categories; ``size`` is k. Make one with `Domain.of` or `Domain.declared`.

    Raises PolicyError for no column, one name twice, a single combination (nothing to hide) and more than
    JOINT_CAP combinations, with the size and groups of columns that could be released apart.
    """

    columns: tuple[Categories, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise PolicyError("a local release needs at least one column; name columns with a declared domain")
        names = [fold(column.name) for column in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise PolicyError(f"column {name} is named twice; name each column once")
        for column in self.columns:
            _check_size(column.name, len(column))
        if self.size == 1:
            raise PolicyError("the joint domain has a single combination, so there is nothing to hide; add a column")
        if self.size > JOINT_CAP:
            groups = " and ".join("(" + ", ".join(group) + ")" for group in self._groups())
            raise PolicyError(
                f"the joint domain of {len(names)} columns has {self.size:,} combinations, more than {JOINT_CAP:,}; "
                f"release groups of columns apart, such as {groups}, whose epsilons add up, or declare coarser domains"
            )

    @classmethod
    def of(cls, columns: Mapping[str, ColumnPolicy | Iterable[object]]) -> Domain:
        """From column -> its categories: a list with None for NULL and OTHER for values not listed, or a ColumnPolicy.

        Only what is listed is declared: ``["yes", "no"]`` says that there are no NULLs. Raises PolicyError.
        """
        if not isinstance(columns, Mapping):
            raise InterfaceError("a domain is a mapping of columns to their values, such as {'smoker': ['yes', 'no']}")
        return cls(tuple(_categories(name, declared) for name, declared in columns.items()))

    @classmethod
    def declared(cls, table: TablePolicy, names: Sequence[str], types: Mapping[str, str] | None = None) -> Domain:
        """Of these columns of a table, as its policy declares them. Raises PolicyError without a finite domain.

        ``types``: the columns' DuckDB types by name, where they are known; else those that the policy declares count.
        """
        listed = isinstance(names, Sequence) and not isinstance(names, str)
        if not listed or not all(isinstance(name, str) for name in names):
            example = names if isinstance(names, str) else "age"
            raise InterfaceError(f'columns must be a list of names; write ["{example}"]')
        known = {fold(name): kind for name, kind in (types or {}).items()}
        columns = [table.column(name) for name in names]
        return cls(tuple(_declared(column, known.get(fold(column.name))) for column in columns))

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """How many categories each column has."""
        return tuple(len(column) for column in self.columns)

    @functools.cached_property
    def size(self) -> int:
        """k, the number of combinations."""
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    def axis(self, name: str) -> int:
        """Which column has that name, in any case. Raises PolicyError with the nearest names."""
        for i, column in enumerate(self.columns):
            if fold(column.name) == fold(name):
                return i
        raise PolicyError(f"column {name!r} is not part of this release; {nearest(str(name), self.names)}")

    def encode(self, columns: Mapping[str, object]) -> Codes:
        """The number of each of n private records, given column by column, (n,) int64. Never fails on a value.

        Raises InterfaceError where a column is missing or columns differ in length; further columns are ignored.
        About 0.1 microseconds a value.
        """
        codes: Codes | None = None
        for column in self.columns:
            if column.name not in columns:
                raise InterfaceError(f"column {column.name!r} is missing; give every column of the domain")
            places = column.places(columns[column.name])
            if codes is not None and codes.shape != places.shape:
                raise InterfaceError(f"column {column.name!r} has another length than the columns before it")
            codes = places if codes is None else codes * len(column) + places
        return np.zeros(0, dtype=np.int64) if codes is None else codes

    def places(self, codes: Codes) -> tuple[Codes, ...]:
        """The category of each column, from the numbers of n records. Raises DataError for a number out of range."""
        if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < self.size:
            raise DataError(f"numbers of records must lie between 0 and {self.size - 1}; give released ones")
        left, out = codes, []
        for size in reversed(self.shape):
            left, place = np.divmod(left, size)
            out.append(place)
        return tuple(reversed(out))

    def decode(self, codes: Codes) -> dict[str, Objects]:
        """The records of these numbers, column by column: declared values, OTHER, and None for NULL."""
        return {
            column.name: _objects(column.all)[places]
            for column, places in zip(self.columns, self.places(codes), strict=True)
        }

    def public_places(self, columns: Mapping[str, object]) -> tuple[Codes, ...]:
        """The categories of released records, column by column. Raises DataError for a value outside the domain."""
        out: list[Codes] = []
        for column in self.columns:
            if column.name not in columns:
                raise InterfaceError(f"column {column.name!r} is missing; give every column that was released")
            places = column.public_places(columns[column.name])
            if out and places.shape != out[0].shape:
                raise InterfaceError(f"column {column.name!r} has another length than the columns before it")
            if places.size and int(places.min()) < 0:
                row = int(np.argmin(places))
                raise DataError(
                    f"row {row} has a value of {column.name!r} outside the domain; give rows as they were released"
                )
            out.append(places)
        return tuple(out)

    def _groups(self) -> list[list[str]]:
        """The columns in order, cut wherever the next one would pass the cap."""
        groups: list[list[str]] = []
        size = JOINT_CAP
        for column in self.columns:
            size *= len(column)
            if size > JOINT_CAP:
                groups.append([])
                size = len(column)
            groups[-1].append(column.name)
        return groups


def _check_size(name: str, size: int) -> None:
    if size > DOMAIN_CAP:
        raise PolicyError(f"column {name} has {size:,} categories, more than {DOMAIN_CAP:,}; declare a coarser domain")


def _objects(categories: tuple[object, ...]) -> Objects:
    out = np.empty(len(categories), dtype=object)
    out[:] = categories
    return out


def _categories(name: str, declared: ColumnPolicy | Iterable[object]) -> Categories:
    if not isinstance(name, str) or not name:
        raise PolicyError(f"columns of a domain have names, and {name!r} is none; write text")
    if isinstance(declared, ColumnPolicy):
        return Categories(name, _declared(declared).values, declared.other, declared.nulls)
    if isinstance(declared, str | bytes) or not isinstance(declared, Iterable):
        raise PolicyError(f"the domain of {name!r} must be a list of its values, such as ['yes', 'no', None]")
    listed: list[Any] = [v.item() if isinstance(v, np.generic) else v for v in declared]
    listed = [Decimal(repr(v)) if isinstance(v, float) else v for v in listed]
    _check_size(name, len(listed))
    values = [v for v in listed if v is not None and v is not OTHER]
    for special, word in ((None, "None"), (OTHER, "OTHER")):
        if sum(v is special for v in listed) > 1:
            raise PolicyError(f"the domain of {name!r} lists {word} twice; keep one of them")
    nulls, other = any(v is None for v in listed), any(v is OTHER for v in listed)
    if not values:
        return Categories(name, (), other, nulls)
    # The policy's own checks: one type, no value twice, exact numbers.
    column = ColumnPolicy(name, values=tuple(values), other=other, nulls=nulls)
    return Categories(name, column.values or (), other, nulls)


def _declared(column: ColumnPolicy, kind: str | None = None) -> Categories:
    size = column.size(kind)
    if size is not None:
        _check_size(column.where, size)
    values = None if size is None else column.domain(kind)
    if values is None and (kind or column.type or "").upper() == "BOOLEAN":
        values = (False, True)
    if values is None:
        raise PolicyError(
            f"{column.where} has no finite domain, so it cannot be released; declare values, or lower and upper "
            "of an integer or date column"
        )
    return Categories(column.name, values, column.other, column.nulls)
