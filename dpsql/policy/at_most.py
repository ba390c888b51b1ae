"""What a policy says of one unit's rows in a table, as ``at_most``: how they spread, and what they add to sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

from dpsql.errors import PolicyError, nearest
from dpsql.policy.settings import positive, text
from dpsql.policy.values import dotted, fold, kind_of, number, shown

_OF_ROWS, _OF_SUMS = ("per", "rows", "groups"), ("sum", "lower", "upper", "per")


@dataclass(frozen=True)
class AtMost:
    """How many rows one unit has for each value of ``per``, an expression over the table's columns, and for how many.

    ``rows`` of them count for each value, and rows of ``groups`` values; None where that is not bounded. Or what one
    unit adds to the ``sum`` of an expression for each value of ``per``, or without it to all groups together: from
    ``lower`` (None: 0, of values that are not negative) to ``upper``. Data that break a bound are cut to it inside the
    scan.
    """

    per: str | None = None
    rows: int | None = None
    groups: int | None = None
    sum: str | None = None
    lower: Fraction | None = None
    upper: Fraction | None = None

    def __str__(self) -> str:
        said = []
        if self.upper is not None:
            least = "" if self.lower is None else f"{shown(self.lower)} to "
            each = "" if self.per is None else f" for each value of {self.per}"
            said.append(f"{least}{shown(self.upper)} in the sum of {self.sum}{each}")
        if self.rows is not None:
            said.append(f"{self.rows} row{'' if self.rows == 1 else 's'} for each value of {self.per}")
        if self.groups is not None:
            said.append(f"{self.groups} value{'' if self.groups == 1 else 's'} of {self.per}")
        return " and ".join(said)

    def within(self, most: int) -> AtMost | None:
        """What is left to bound where at most ``most`` rows of a unit count anyway; None for nothing."""
        rows, groups = (None if figure is None or figure >= most else figure for figure in (self.rows, self.groups))
        return None if (rows, groups, self.sum) == (None, None, None) else replace(self, rows=rows, groups=groups)

    @property
    def settings(self) -> dict[str, str | int | Fraction]:
        """What is given, by its key in a policy."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in given.items() if value is not None}


def bounds_of(where: str, value: object, most: int | None) -> tuple[AtMost, ...]:
    """``value``, checked to be a list of bounds that agree with each other and with ``most`` rows a unit."""
    if not isinstance(value, list | tuple):
        raise PolicyError(f'{where} is {kind_of(value)}; write a list such as [{{ rows = 1, per = "month(day)" }}]')
    out: list[AtMost] = []
    for i, item in enumerate(value):
        here = f"{where}[{i}]"
        given = item.settings if isinstance(item, AtMost) else item
        if not isinstance(given, Mapping):
            raise PolicyError(f'{here} is {kind_of(given)}; write {{ rows = 1, per = "month(day)" }}')
        known = _OF_SUMS if "sum" in given else _OF_ROWS
        for name in given:
            if name not in known:
                raise PolicyError(f"{here}.{dotted(name)} is not a setting; {nearest(name, known)}")
        bound = _of_sum(here, given) if "sum" in given else _of_rows(here, given, most)
        if any((fold(o.sum or ""), fold(o.per or "")) == (fold(bound.sum or ""), fold(bound.per or "")) for o in out):
            what = bound.per if bound.sum is None else f"the sum of {bound.sum}"
            both = "rows and groups" if bound.sum is None else "lower and upper"
            raise PolicyError(f"{here} bounds {what} again; write {both} of it together")
        out.append(bound)
    for i, bound in enumerate(out):
        _check_together(f"{where}[{i}]", bound, out)
    return tuple(out)


def _of_rows(here: str, given: Mapping[str, object], most: int | None) -> AtMost:
    if given.get("per") is None:
        raise PolicyError(f'{here}.per is missing; name a column or an expression of it, such as "month(day)"')
    per, figures = text(f"{here}.per", given["per"]), dict[str, int | None]()
    for name in ("rows", "groups"):
        figure = given.get(name)
        figures[name] = None if figure is None else positive(f"{here}.{name}", figure)
        if most is not None and (figures[name] or 0) > most:
            raise PolicyError(
                f"{here}.{name} is {figure}, but at most {most} rows of a unit count (max_rows_per_unit); write "
                "less, or leave it out"
            )
    if not any(figures.values()):
        raise PolicyError(f"{here} bounds nothing; write rows, how many a unit has for each value, or groups")
    return AtMost(per, figures["rows"], figures["groups"])


def _of_sum(here: str, given: Mapping[str, object]) -> AtMost:
    if given.get("upper") is None:
        raise PolicyError(f"{here}.upper is missing; say how much one unit adds to the sum at most")
    upper = number(f"{here}.upper", given["upper"])
    lower = None if given.get("lower") is None else number(f"{here}.lower", given["lower"])
    if lower is not None and lower > upper:
        raise PolicyError(f"{here}.lower is {shown(lower)}, above upper {shown(upper)}; swap them")
    if upper < 0 or (lower or 0) > 0:
        raise PolicyError(f"{here} leaves out 0, which a unit without rows adds; write lower <= 0 <= upper")
    if upper == 0 and not lower:
        raise PolicyError(f"{here} leaves nothing of the sum but 0; write a larger upper")
    per = None if given.get("per") is None else text(f"{here}.per", given["per"])
    return AtMost(per, sum=text(f"{here}.sum", given["sum"]), lower=lower, upper=upper)


def _check_together(here: str, bound: AtMost, bounds: Sequence[AtMost]) -> None:
    """PolicyError where a bound for each group is above the one for all of them together, and says nothing."""
    for other in bounds:
        if bound.per is None or other.per is not None or fold(other.sum or "") != fold(bound.sum or ""):
            continue
        whole, each = (max(one.upper or 0, -(one.lower or 0)) for one in (other, bound))
        if each > whole:
            raise PolicyError(
                f"{here} lets one unit add {shown(Fraction(each))} for a value of {bound.per}, but "
                f"{shown(Fraction(whole))} to all groups together; write less, or leave it out"
            )
