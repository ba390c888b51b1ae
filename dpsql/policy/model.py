"""What a policy declares of its budget and of each table: values that are frozen, checked once and exact.

Every number is a Fraction of the decimal text that the custodian wrote, so that budgets add up
and grids divide without rounding. Every message names the full key and what to write instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction

from dpsql.errors import PolicyError, nearest
from dpsql.policy.at_most import AtMost, bounds_of
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.periods import Periods
from dpsql.policy.settings import Findings, fix, flag, folded, names, positive, references, text
from dpsql.policy.values import dotted, fold, number, shown

SPARK = "spark:"
# Of more than a letter, which is a drive.
_PROTOCOL = re.compile(r"[A-Za-z][\w+.-]+:")
"""How a source that names a table of a Spark catalog begins: ``source = "spark:catalog.schema.table"``."""
_PART = r"(?:`((?:[^`]|``)+)`|([^`.\s]+))"
_SPARK_NAME = re.compile(rf"{_PART}\.{_PART}\.{_PART}")

BUDGET_FIGURES = (
    *("epsilon", "delta", "rho", "pure_epsilon", "local_epsilon", "discovery_delta"),
    *("max_epsilon_per_release", "max_rho_per_release", "max_local_epsilon_per_release", "losses"),
)
BUDGET_RULES = ("approval", "private_releases")
"""What a budget says besides figures: true or false."""


@dataclass(frozen=True)
class BudgetPolicy:
    """The whole budget of a data set, fixed when its ledger is created.

    Either ``epsilon`` (with ``delta`` or pure) or ``rho`` of zCDP alone. ``pure_epsilon`` is the
    part of epsilon kept for pure releases: none of it with a delta, all of it without. Given an
    epsilon it is always a Fraction after construction, given a rho None. ``local_epsilon`` is the
    replace-one account of local releases and stands apart from the others. ``discovery_delta`` is the part of delta
    (or, beside rho, a chance that the promise leaves out) that is kept for finding the values of columns.

    ``max_..._per_release`` cap what one release may cost: ``max_epsilon`` a pure release and, at the policy's
    delta, a Gaussian one; ``max_rho`` any release of a rho policy; ``max_local_epsilon`` a local one. ``losses``: the
    epsilon (or rho) for which the first run on a version of the data also measures what limits cut. These may
    change while the ledger lives, the other figures may not. So may the rules of a server's analysts: ``approval``, the
    custodian says yes to each batch before it is charged; ``private_releases``, each sees their own releases and those
    of nobody's account.
    """

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    rho: Fraction | None = None
    pure_epsilon: Fraction | None = None
    local_epsilon: Fraction = Fraction(0)
    max_epsilon_per_release: Fraction | None = None
    max_rho_per_release: Fraction | None = None
    max_local_epsilon_per_release: Fraction | None = None
    discovery_delta: Fraction | None = None
    losses: Fraction | None = None
    approval: bool = False
    private_releases: bool = False

    def __post_init__(self) -> None:
        for name in BUDGET_RULES:
            flag(f"budget.{name}", getattr(self, name))
        for name in BUDGET_FIGURES:
            value = getattr(self, name)
            if value is None:
                continue
            value = number(f"budget.{name}", value)
            fix(self, name, value)
            may_be_zero = name in ("pure_epsilon", "local_epsilon")
            if value < 0 or (value == 0 and not may_be_zero):
                floor = "0 or more" if may_be_zero else "a positive number"
                raise PolicyError(f"budget.{name} is {shown(value)}; write {floor}")
        self._check_caps()
        if self.discovery_delta is not None:
            most = Fraction(1) if self.rho is not None else self.delta
            if most is None or self.discovery_delta >= most:
                raise PolicyError(
                    f"budget.discovery_delta is {shown(self.discovery_delta)}; it is the part of budget.delta that is "
                    "kept for finding groups, write less than delta, such as half of it"
                )
        if self.rho is not None:
            for name in ("epsilon", "delta", "pure_epsilon"):
                if getattr(self, name) is not None:
                    raise PolicyError(f"budget.rho excludes budget.{name}; keep one of the two")
            return
        if self.epsilon is None:
            raise PolicyError("budget.epsilon is missing; write epsilon = 1.0, or rho = 0.1 alone")
        if self.delta is not None and self.delta >= 1:
            raise PolicyError(f"budget.delta is {shown(self.delta)}; write a number below 1, such as 1e-9")
        if self.pure_epsilon is None:
            fix(self, "pure_epsilon", self.epsilon if self.delta is None else Fraction(0))
        elif self.pure_epsilon > self.epsilon:
            raise PolicyError(
                f"budget.pure_epsilon is {shown(self.pure_epsilon)}, above budget.epsilon "
                f"{shown(self.epsilon)}; it is a part of it, write at most as much"
            )
        elif self.delta is None and self.pure_epsilon != self.epsilon:
            raise PolicyError(
                "budget.pure_epsilon keeps a part of epsilon, but without budget.delta the rest "
                "cannot be spent; add delta or leave pure_epsilon out"
            )

    def _check_caps(self) -> None:
        total = self.epsilon if self.rho is None else self.rho
        if self.losses is not None and total is not None and self.losses > total:
            raise PolicyError(f"budget.losses is {shown(self.losses)}, more than the whole budget; write less, as 0.02")
        for name in ("epsilon", "rho", "local_epsilon"):
            cap: Fraction | None = getattr(self, f"max_{name}_per_release")
            whole: Fraction | None = getattr(self, name)
            if cap is None:
                continue
            if not whole:
                raise PolicyError(f"budget.max_{name}_per_release caps budget.{name}, which is not given; drop one")
            if cap > whole:
                raise PolicyError(
                    f"budget.max_{name}_per_release is {shown(cap)}, above budget.{name} {shown(whole)}; write less"
                )


@dataclass(frozen=True)
class TablePolicy:
    """What is public about one table, and what its privacy unit is.

    ``unit`` is "row" or the column whose value identifies whom to protect; such a unit has at most
    ``max_rows_per_unit`` rows in the answers, and ``at_most`` says how they spread. "visits.patient_id" is a unit that
    another table holds, found through declared references. ``key`` are the columns that no two rows share,
    ``references`` says which column refers to which (table, column of its key). ``expected_rows`` is a public guess for
    plans, ``largest_unit`` a public bound on the rows that one unit has, by which it is measured what limits cut,
    ``minimum`` the least count that results show (``dpsql.running.minimum``), ``rows_public`` allows releases
    that publish the number of rows, ``counts`` names the column of
    a pre-aggregated table that says how many units a row stands for. ``periods`` cut a table that grows; then
    ``max_rows_per_unit`` rows of a unit count in each period, and the budget holds for units with rows in at most
    ``max_periods_per_unit`` of them (``dpsql.privacy.periods``).

    Key and references are the custodian's word: data that break them change answers, never the
    guarantee (``dpsql.workloads.expr.rows``). Which tables share a unit: ``dpsql.policy.units``.
    """

    name: str
    columns: Mapping[str, ColumnPolicy] = field(default_factory=dict)
    unit: str = "row"
    max_rows_per_unit: int | None = None
    at_most: tuple[AtMost, ...] = ()
    expected_rows: int | None = None
    minimum: int | None = None
    rows_public: bool = False
    public: bool = False
    source: str | None = None
    counts: str | None = None
    unique: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    periods: Periods | None = None
    max_periods_per_unit: int | None = None
    largest_unit: int | None = None
    _: KW_ONLY
    where: str = field(default="", compare=False, repr=False)
    reduction: float = field(
        default=1.0, compare=False, repr=False
    )  # rows of a unit as declared, over those that count

    def __post_init__(self) -> None:
        if not self.where:
            fix(self, "where", dotted("tables", self.name))
        found = Findings()
        with found.each():
            fix(self, "columns", folded(self.key("columns"), self.columns, "columns"))
        with found.each():
            fix(self, "unique", names(self.key("key"), self.unique))
        with found.each():
            fix(self, "references", references(self.key("references"), self.references))
        for name in ("unit", "source", "counts"):
            with found.each():
                if name == "unit" or getattr(self, name) is not None:
                    text(self.key(name), getattr(self, name))
        for name in ("rows_public", "public"):
            with found.each():
                flag(self.key(name), getattr(self, name))
        for name in ("max_rows_per_unit", "expected_rows", "minimum", "max_periods_per_unit", "largest_unit"):
            with found.each():
                if getattr(self, name) is not None:
                    positive(self.key(name), getattr(self, name))
        with found.each():
            if self.periods is not None:
                fix(self, "periods", Periods.of(self.key("periods"), self.periods))
        found.refuse()  # what follows holds settings against each other
        with found.each():
            self._check_periods()
        with found.each():
            fix(self, "at_most", bounds_of(self.key("at_most"), self.at_most, self.max_rows_per_unit))
        with found.each():
            if self.public:
                self._check_public()
            else:
                self._check_unit()
        with found.each():
            if self.source is not None:
                self._check_source(self.source)
        found.refuse()

    def key(self, *parts: str) -> str:
        """The full key of a setting of this table: ``tables.visits.unit``."""
        return f"{self.where}.{dotted(*parts)}"

    @property
    def not_counted(self) -> str:
        """Why no histogram of units says what the limits of the table cut; empty where one can."""
        if self.unit == "row" or self.public or tuple(map(fold, self.unique)) == (fold(self.unit),):
            return "no limit cuts its rows"
        if "." in self.unit:
            return "another table says whose its rows are"
        if self.periods is not None:
            return "its limits hold in each period"
        return ""

    @property
    def periods_per_unit(self) -> int | None:
        """For units with rows in how many periods the whole budget holds; None where it is for any number."""
        return 1 if self.unit == "row" else self.max_periods_per_unit

    def column(self, name: str) -> ColumnPolicy:
        """The column of that name in any case; PolicyError with the nearest names where there is none."""
        found = {fold(n): c for n, c in self.columns.items()}.get(fold(name))
        if found is None:
            raise PolicyError(
                f"{self.key('columns', name)} is not declared, so the column cannot be used; "
                f"{nearest(name, self.columns)}"
            )
        return found

    def counting(self, rows: int) -> TablePolicy:
        """The table where at most ``rows`` rows of a unit count, if the policy lets more count."""
        if self.max_rows_per_unit is None or self.max_rows_per_unit <= rows:
            return self
        kept = tuple(filter(None, (bound.within(rows) for bound in self.at_most)))
        reduction = self.reduction * self.max_rows_per_unit / rows
        return replace(self, max_rows_per_unit=rows, at_most=kept, reduction=reduction)

    @property
    def is_csv(self) -> bool:
        """Whether the source is CSV files, whose types only the policy can give."""
        return self.source is not None and not self.is_spark and fold(self.source).endswith((".csv", ".csv.gz"))

    @property
    def is_spark(self) -> bool:
        """Whether the source is a table of a Spark catalog."""
        return is_spark(self.source)

    @property
    def is_pattern(self) -> bool:
        """Whether the source is a pattern that names of files match, such as "flights/*.parquet"."""
        return self.source is not None and not self.is_spark and any(char in self.source for char in "*?[")

    def _check_public(self) -> None:
        given = {
            "unit": self.unit != "row",
            "max_rows_per_unit": self.max_rows_per_unit is not None,
            "at_most": bool(self.at_most),
            "rows_public": self.rows_public,
            "minimum": self.minimum is not None,
            "counts": self.counts is not None,
            "references": bool(self.references),
            "periods": self.periods is not None,
            "largest_unit": self.largest_unit is not None,
        }
        for name, is_given in given.items():
            if is_given:
                raise PolicyError(f"{self.key(name)} is for private tables and {self.key('public')} is true; drop one")

    def _check_unit(self) -> None:
        if self.counts is not None and self.unit != "row":
            raise PolicyError(
                f"{self.key('unit')} names a column, but a table of counts has no rows of units; leave unit out"
            )
        if self.unit != "row" and self.max_rows_per_unit is None:
            raise PolicyError(
                f"{self.key('max_rows_per_unit')} is missing; say how many rows of one {self.unit} may count"
            )
        if self.unit == "row" and self.at_most:
            raise PolicyError(f'{self.key("at_most")} needs a unit column; a unit of "row" has one row, leave it out')
        if self.unit == "row" and self.counts is None and self.max_rows_per_unit not in (None, 1):
            raise PolicyError(
                f'{self.key("max_rows_per_unit")} needs a unit column; a unit of "row" has one row, leave it out'
            )
        if self.largest_unit is not None and self.largest_unit < (self.max_rows_per_unit or 1):
            raise PolicyError(
                f"{self.key('largest_unit')} is {self.largest_unit}, below max_rows_per_unit {self.max_rows_per_unit}; "
                "write the most rows that one unit can have in the table"
            )

    def _check_periods(self) -> None:
        if self.periods is None:
            if self.max_periods_per_unit is not None:
                raise PolicyError(f"{self.key('max_periods_per_unit')} needs periods; declare them, or leave it out")
            return
        if self.counts is not None:
            raise PolicyError(f"{self.key('periods')}: a table of counts has no periods; leave one of them out")
        if fold(self.periods.column) not in {fold(name) for name in self.columns}:
            raise PolicyError(
                f"{self.key('periods')} names the column {self.periods.column}, which is not declared; add "
                f"{dotted(self.periods.column)} = {{}} to {self.key('columns')}"
            )
        if self.unit == "row" and self.max_periods_per_unit not in (None, 1):
            raise PolicyError(
                f'{self.key("max_periods_per_unit")} needs a unit column; a unit of "row" is in one period, leave it '
                "out"
            )

    def _check_source(self, source: str) -> None:
        where = self.key("source")
        if self.is_spark:
            spark_parts(where, source)
            return
        known = fold(source).endswith((".parquet", ".csv", ".csv.gz"))
        if "://" in source or (not known and _PROTOCOL.match(source)):
            raise PolicyError(
                f"{where} is {shown(source)}; name local files, without a protocol; other tables are copied into a "
                "DuckDB database with CREATE TABLE ... AS"
            )
        last = source.replace("\\", "/").rpartition("/")[2]
        is_folder = not self.is_pattern and "." not in last
        if not is_folder and not known:
            raise PolicyError(
                f'{where} is {shown(source)}; name a .parquet or .csv file, a pattern such as "data/*.parquet", '
                'or a folder of Parquet files that ends in "/"'
            )
        if not self.is_csv:
            return
        if not self.columns:
            raise PolicyError(f"{self.key('columns')} is missing; declare the columns of a CSV file with types")
        needed = {fold(c) for c in self.columns} | {fold(c) for c in self.named_columns}
        declared = {fold(c.name): c for c in self.columns.values()}
        for name in sorted(needed):
            if name not in declared or declared[name].type is None:
                key = declared[name].key("type") if name in declared else self.key("columns", name, "type")
                raise PolicyError(
                    f'{key} is missing; write type = "INTEGER" or the like, since the types of a CSV file '
                    "would otherwise be guessed from private values"
                )

    @property
    def named_columns(self) -> list[str]:
        """The columns that the settings name; a unit with a dot is a column of another table."""
        unit = None if self.unit == "row" or "." in self.unit else self.unit
        day = None if self.periods is None else self.periods.column
        return [c for c in (unit, self.counts, day, *self.unique, *self.references) if c is not None]


def is_spark(source: object) -> bool:
    """Whether a source is a Spark table, not files."""
    return isinstance(source, str) and source.lower().startswith(SPARK)


def spark_parts(where: str, source: str) -> tuple[str, str, str]:
    """Catalog, schema and table of a source; a part with a dot stands in backticks. PolicyError for anything else.

    All three are named, so that no setting of a session decides which table is read.
    """
    found = _SPARK_NAME.fullmatch(source[len(SPARK) :])
    if found is None:
        raise PolicyError(
            f'{where} is {shown(source)}; write catalog, schema and table, such as "spark:spark_catalog.default.visits"'
        )
    parts = [found[n] or found[n - 1].replace("``", "`") for n in (2, 4, 6)]
    catalog, schema, table = parts
    if schema.lower() == "global_temp":
        raise PolicyError(f"{where} names a temporary view of Spark; name a table of a catalog")
    return catalog, schema, table
