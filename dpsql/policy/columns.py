"""What is public about one column: its domain, bounds and grid, exact and checked once."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpsql.errors import PolicyError
from dpsql.policy.settings import Findings, fix, flag, text
from dpsql.policy.types import column_type, sql_type
from dpsql.policy.values import Bound, Key, dotted, kind_of, moment, number, shown

DOMAIN_CAP = 1_000_000
"""The most group keys that one column may have."""


@dataclass(frozen=True)
class ColumnPolicy:
    """What is public about one column.

    ``values`` lists the group keys, ``lower`` and ``upper`` (inclusive) bound what SUM adds up and give the group keys
    of integers and dates, ``step`` is the grid that SUM rounds to. A column with none of them may stand in predicates
    only. ``other`` collects values outside the domain, in results called ``other_label`` (given as ``other``, of
    texts), or NULL with a companion column that is TRUE; ``nulls = False`` says that the schema guarantees that there
    are none. ``public``: everybody knows the column's value in every row, such as an id; a local release may keep it as
    it is, nothing else treats it in another way. ``groups = "discover"``: GROUP BY finds the values first where there
    are none (the extension ``discovery``). ``where`` is the full key of the column in the policy, for
    messages.
    """

    name: str
    values: tuple[Key, ...] | None = None
    lower: Bound | None = None
    upper: Bound | None = None
    step: Fraction | None = None
    other: bool = False
    nulls: bool = True
    type: str | None = None
    public: bool = False
    groups: str | None = None
    _: KW_ONLY
    where: str = field(default="", compare=False, repr=False)
    other_label: str | None = field(default=None, repr=False)

    @property
    def declared(self) -> bool:
        """Whether the policy names the column; else a batch computes it."""
        return not self.where.startswith("columns.")

    def __post_init__(self) -> None:
        if not self.where:
            fix(self, "where", dotted("columns", self.name))
        found = Findings()
        if isinstance(self.other, str):
            fix(self, "other_label", self.other)
            fix(self, "other", True)
        for name in ("other", "nulls", "public"):
            with found.each():
                flag(self.key(name), getattr(self, name))
        with found.each():
            if self.type is not None:
                fix(self, "type", str(sql_type(text(self.key("type"), self.type), self.key("type"))))
        with found.each():
            if self.values is not None:
                fix(self, "values", self._checked_values(self.values))
        if self.groups not in (None, "discover"):
            found.errors.append(f'{self.key("groups")} is {self.groups!r}; write "discover", or leave it out')
        with found.each():
            self._read_bounds()
        if not found.errors:  # bounds and values are compared once each is right by itself
            with found.each():
                self._check_bounds()
        if self.other and self.values is None and self.lower is None and self.upper is None:
            found.errors.append(f"{self.key('other')} needs a domain; declare values, or lower and upper, beside it")
        if self.other_label is not None and not found.errors:
            with found.each():
                self._check_label(self.other_label, self.values or (0,))
        found.refuse()

    def key(self, *parts: str) -> str:
        """The full key of a setting of this column: ``tables.visits.columns.age.lower``."""
        return f"{self.where}.{dotted(*parts)}"

    def domain(self, duckdb_type: str | None = None) -> tuple[Key, ...] | None:
        """The public group keys in order, or None where no domain is declared.

        ``duckdb_type`` is the column's type in the table; without it the declared ``type`` counts, and
        without either bounds that are integers are taken for those of an integer column. Keys are
        ``values`` as declared; else every integer (or every step) from ``lower`` to ``upper``, every
        step of a DECIMAL column as Decimal, every day between two dates. Floating-point and
        TIMESTAMP columns have keys only from ``values``. NULL and OTHER are not in the tuple.
        Cost O(keys). Raises PolicyError past DOMAIN_CAP keys.
        """
        if self.values is not None:
            return self.values
        if isinstance(self.lower, Fraction) and isinstance(self.upper, Fraction):
            return self._number_domain(self.lower, self.upper, duckdb_type or self.type)
        if isinstance(self.lower, datetime) or isinstance(self.upper, datetime):
            return None
        if self.lower is None or isinstance(self.lower, Fraction):
            return None
        if self.upper is None or isinstance(self.upper, Fraction):
            return None
        days = (self.upper - self.lower).days + 1
        self._check_size(days, "years or months as values")
        return tuple(self.lower + timedelta(days=i) for i in range(days))

    def size(self, duckdb_type: str | None = None) -> int | None:
        """How many keys ``domain`` has, without listing them; None where there is none."""
        if self.values is not None:
            return len(self.values)
        if isinstance(self.lower, Fraction) and isinstance(self.upper, Fraction):
            grid = self._grid(self.lower, self.upper, duckdb_type or self.type)
            return None if grid is None else int((self.upper - self.lower) / grid) + 1
        found = self.domain(duckdb_type)
        return None if found is None else len(found)

    def _grid(self, lower: Fraction, upper: Fraction, duckdb_type: str | None) -> Fraction | None:
        """The distance of two keys of a number's domain."""
        kind = None if duckdb_type is None else column_type(duckdb_type).kind
        whole = lower.denominator == upper.denominator == 1 and (self.step is None or self.step.denominator == 1)
        if whole and kind in (None, "integer"):
            return self.step or Fraction(1)
        return self.step if kind in (None, "decimal") else None

    def _number_domain(self, lower: Fraction, upper: Fraction, duckdb_type: str | None) -> tuple[Key, ...] | None:
        grid = self._grid(lower, upper, duckdb_type)
        if grid is None:
            return None
        kind = None if duckdb_type is None else column_type(duckdb_type).kind
        whole = lower.denominator == upper.denominator == grid.denominator == 1
        count = int((upper - lower) / grid) + 1
        self._check_size(count, "a larger step")
        if whole and kind != "decimal":
            start, by = int(lower), int(grid)
            return tuple(start + i * by for i in range(count))
        return tuple(Decimal(shown(lower + i * grid)) for i in range(count))

    def _check_size(self, count: int, remedy: str) -> None:
        if count > DOMAIN_CAP:
            raise PolicyError(
                f"{self.where} has {count} group keys from lower to upper, more than {DOMAIN_CAP}; "
                f"declare narrower bounds or {remedy}"
            )

    def _checked_values(self, values: object) -> tuple[Key, ...]:
        where = self.key("values")
        if not isinstance(values, list | tuple):
            raise PolicyError(f"{where} is {kind_of(values)}; write a list such as [1, 2, 3]")
        if not values:
            raise PolicyError(f"{where} is empty; list the public values, or leave values out")
        out: list[Key] = []
        for i, value in enumerate(values):
            here = f"{where}[{i}]"
            if isinstance(value, bool | str):
                out.append(value)
            elif isinstance(value, date):
                out.append(moment(here, value))
            elif isinstance(value, int):
                out.append(int(number(here, value)))
            elif isinstance(value, Decimal):
                number(here, value)
                # Minus zero equals zero but prints differently.
                out.append(value if value else Decimal(0))
            else:
                raise PolicyError(
                    f"{here} is {kind_of(value)}; values are strings, numbers, booleans, dates or timestamps"
                )
            if kind_of(out[-1]) != kind_of(out[0]):
                raise PolicyError(
                    f"{here} is {kind_of(out[-1])} and {where}[0] is {kind_of(out[0])}; write all values in one type"
                )
        if len(set(out)) < len(out):
            again = next(value for i, value in enumerate(out) if value in out[:i])
            raise PolicyError(f"{where} lists {shown(again)} twice; keep one of them")
        return tuple(out)

    def _check_label(self, label: str, values: tuple[Key, ...]) -> None:
        if not all(isinstance(value, str) for value in values):
            raise PolicyError(f"{self.key('other')} names a group among numbers or dates; write other = true")
        if not label or label in values:
            raise PolicyError(f"{self.key('other')} is {shown(label)}, one of the values or empty; write '(other)'")

    def _read_bounds(self) -> None:
        found = Findings()
        for name in ("lower", "upper"):
            value = getattr(self, name)
            if value is not None:
                with found.each():
                    here = self.key(name)
                    fix(self, name, moment(here, value) if isinstance(value, date) else number(here, value))
        found.refuse()

    def _check_bounds(self) -> None:
        # Numbers, dates and timestamps are compared only after kind_of found them to be one type.
        lower: Any = self.lower
        upper: Any = self.upper
        if (lower is None) != (upper is None):
            given, missing = ("lower", "upper") if upper is None else ("upper", "lower")
            raise PolicyError(f"{self.key(missing)} is missing beside {given}; declare both")
        if self.step is not None:
            fix(self, "step", number(self.key("step"), self.step))
            if self.step <= 0:
                raise PolicyError(f"{self.key('step')} is {shown(self.step)}; write a positive number")
            if lower is None:
                raise PolicyError(f"{self.key('step')} needs bounds; declare lower and upper beside it")
        if lower is None or upper is None:
            return
        if kind_of(lower) != kind_of(upper):
            raise PolicyError(
                f"{self.key('lower')} is {kind_of(lower)} and upper is {kind_of(upper)}; write both in one type"
            )
        if lower > upper:
            raise PolicyError(
                f"{self.key('lower')} is {shown(lower)}, above upper {shown(upper)}; swap or correct them"
            )
        if isinstance(lower, Fraction) and isinstance(upper, Fraction):
            if self.step is not None and ((upper - lower) / self.step).denominator != 1:
                raise PolicyError(
                    f"{self.key('step')} {shown(self.step)} does not divide upper - lower = "
                    f"{shown(upper - lower)}; choose a step that does"
                )
        elif self.step is not None:
            raise PolicyError(f"{self.key('step')} is for numbers; dates go by day, leave it out")
        for i, value in enumerate(self.values or ()):
            numeric = isinstance(value, int | Decimal) and not isinstance(value, bool)
            same = isinstance(lower, Fraction) if numeric else kind_of(value) == kind_of(lower)
            if not same or not lower <= value <= upper:
                raise PolicyError(
                    f"{self.key('values')}[{i}] {shown(value)} is not between lower {shown(lower)} and upper "
                    f"{shown(upper)}; leave the bounds out or widen them"
                )
