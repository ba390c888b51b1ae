"""The values of a policy: frozen, checked once, exact.

Every number is a Fraction of the decimal text that the custodian wrote, so that budgets add up
and grids divide without rounding. Every message names the full key and what to write instead.
"""

from __future__ import annotations

import functools
import glob
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Self

from dpsql.arguments import path as a_path
from dpsql.arguments import taking
from dpsql.arguments import text as a_text
from dpsql.errors import OperationalError, PolicyError, nearest
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.settings import fix, flag, folded, names, positive, references, text
from dpsql.policy.spark_source import is_spark, spark_parts
from dpsql.policy.units import Unit, check_units, unit_labels, unit_of
from dpsql.policy.values import dotted, fold, number, shown

BUDGET_FIGURES = (
    *("epsilon", "delta", "rho", "pure_epsilon", "local_epsilon"),
    *("max_epsilon_per_release", "max_rho_per_release", "max_local_epsilon_per_release"),
)


@dataclass(frozen=True)
class BudgetPolicy:
    """The whole budget of a data set, fixed when its ledger is created.

    Either ``epsilon`` (with ``delta`` or pure) or ``rho`` of zCDP alone. ``pure_epsilon`` is the
    part of epsilon kept for pure releases: none of it with a delta, all of it without. Given an
    epsilon it is always a Fraction after construction, given a rho None. ``local_epsilon`` is the
    replace-one purse of local releases and stands apart from the others.

    ``max_..._per_release`` cap what one release may cost: ``max_epsilon`` a pure release and, at the policy's
    delta, a Gaussian one; ``max_rho`` any release of a rho policy; ``max_local_epsilon`` a local one. Caps may
    change while the ledger lives, the other figures may not.
    """

    epsilon: Fraction | None = None
    delta: Fraction | None = None
    rho: Fraction | None = None
    pure_epsilon: Fraction | None = None
    local_epsilon: Fraction = Fraction(0)
    max_epsilon_per_release: Fraction | None = None
    max_rho_per_release: Fraction | None = None
    max_local_epsilon_per_release: Fraction | None = None

    def __post_init__(self) -> None:
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
    ``max_rows_per_unit`` rows in the answers. "visits.patient_id" is a unit that another table holds, found
    through declared references. ``key`` are the columns that no two rows share, ``references`` says which
    column refers to which (table, column of its key). ``expected_rows`` is a public guess for plans,
    ``rows_public`` allows releases that publish the number of rows, ``counts`` names the column of
    a pre-aggregated table that says how many units a row stands for.

    Key and references are the custodian's word: data that break them change answers, never the
    guarantee (``dpsql.workload.expr.rows``). Which tables share a unit: ``dpsql.policy.units``.
    """

    name: str
    columns: Mapping[str, ColumnPolicy] = field(default_factory=dict)
    unit: str = "row"
    max_rows_per_unit: int | None = None
    expected_rows: int | None = None
    rows_public: bool = False
    public: bool = False
    source: str | None = None
    counts: str | None = None
    unique: tuple[str, ...] = ()
    references: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    _: KW_ONLY
    where: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.where:
            fix(self, "where", dotted("tables", self.name))
        fix(self, "columns", folded(self.key("columns"), self.columns, "columns"))
        fix(self, "unique", names(self.key("key"), self.unique))
        fix(self, "references", references(self.key("references"), self.references))
        text(self.key("unit"), self.unit)
        for name in ("rows_public", "public"):
            flag(self.key(name), getattr(self, name))
        for name in ("source", "counts"):
            if getattr(self, name) is not None:
                text(self.key(name), getattr(self, name))
        for name in ("max_rows_per_unit", "expected_rows"):
            if getattr(self, name) is not None:
                positive(self.key(name), getattr(self, name))
        if self.public:
            self._check_public()
        else:
            self._check_unit()
        if self.source is not None:
            self._check_source(self.source)

    def key(self, *parts: str) -> str:
        """The full key of a setting of this table: ``tables.visits.unit``."""
        return f"{self.where}.{dotted(*parts)}"

    def column(self, name: str) -> ColumnPolicy:
        """The column of that name in any case; PolicyError with the nearest names where there is none."""
        found = {fold(n): c for n, c in self.columns.items()}.get(fold(name))
        if found is None:
            raise PolicyError(
                f"{self.key('columns', name)} is not declared, so the column cannot be used; "
                f"{nearest(name, self.columns)}"
            )
        return found

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
            "rows_public": self.rows_public,
            "counts": self.counts is not None,
            "references": bool(self.references),
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
        if self.unit == "row" and self.counts is None and self.max_rows_per_unit not in (None, 1):
            raise PolicyError(
                f'{self.key("max_rows_per_unit")} needs a unit column; a unit of "row" has one row, leave it out'
            )

    def _check_source(self, source: str) -> None:
        where = self.key("source")
        if self.is_spark:
            spark_parts(where, source)
            return
        if "://" in source:
            raise PolicyError(f"{where} is {shown(source)}; name local files, without a protocol")
        last = source.replace("\\", "/").rpartition("/")[2]
        is_folder = not self.is_pattern and "." not in last
        if not is_folder and not fold(source).endswith((".parquet", ".csv", ".csv.gz")):
            raise PolicyError(
                f'{where} is {shown(source)}; name a .parquet or .csv file, a pattern such as "data/*.parquet", '
                'or a folder of Parquet files that ends in "/"'
            )
        if not self.is_csv:
            return
        if not self.columns:
            raise PolicyError(f"{self.key('columns')} is missing; declare the columns of a CSV file with types")
        needed = {fold(c) for c in self.columns} | {fold(c) for c in self._own_columns()}
        declared = {fold(c.name): c for c in self.columns.values()}
        for name in sorted(needed):
            if name not in declared or declared[name].type is None:
                key = declared[name].key("type") if name in declared else self.key("columns", name, "type")
                raise PolicyError(
                    f'{key} is missing; write type = "INTEGER" or the like, since the types of a CSV file '
                    "would otherwise be guessed from private values"
                )

    def _own_columns(self) -> list[str]:
        """The columns that the settings name; a unit with a dot is another table's."""
        unit = None if self.unit == "row" or "." in self.unit else self.unit
        return [c for c in (unit, self.counts, *self.unique, *self.references) if c is not None]


@dataclass(frozen=True)
class Policy:
    """A data set's public declaration. ``path`` is the file it came from; sources are relative to it.

    ``views`` are row-wise SELECTs by name, which a batch may read as if they were tables.
    """

    dataset: str
    budget: BudgetPolicy
    tables: Mapping[str, TablePolicy]
    path: Path | None = field(default=None, compare=False)
    views: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text("dataset", self.dataset)
        if not self.tables:
            raise PolicyError("tables is missing; declare at least one, such as [tables.visits]")
        fix(self, "tables", folded("tables", self.tables, "tables"))
        fix(self, "views", folded("views", self.views, "views"))
        taken: dict[str, str] = {}
        for name in self.tables:
            # A name without a schema is one of main: two declarations of one table would count its rows apart.
            other = taken.setdefault(fold(name).removeprefix("main."), name)
            if other != name:
                raise PolicyError(
                    f"{dotted('tables', other)} and {dotted('tables', name)} name one table, and one row of it would "
                    "count in both; keep one of them"
                )
        for name, sql in self.views.items():
            text(dotted("views", name, "sql"), sql)
            if fold(name) in taken:
                raise PolicyError(f"{dotted('views', name)} has the name of a table; choose another name")
        check_units(self.tables)

    @classmethod
    @taking(path=a_path())
    def load(cls, path: str | Path) -> Self:
        """The policy of a TOML file.

        Raises OperationalError where the file cannot be read, PolicyError where it is not a policy.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            reason = error.strerror or "unreadable"
            raise OperationalError(f"policy file {path}: {reason}; check the path") from None
        try:
            decoded = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PolicyError(f"policy file {path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
        return cls.parse(decoded, path=path)

    @classmethod
    def parse(cls, text: str, path: str | Path | None = None) -> Self:
        """The policy of a TOML text. Raises PolicyError with the full key of what is wrong."""
        from dpsql.policy.parse import parse_policy  # the reader builds these classes, so it comes later

        dataset, budget, tables, views = parse_policy(text)
        return cls(dataset, budget, tables, None if path is None else Path(path), views)

    @taking(name=a_text())
    def table(self, name: str) -> TablePolicy:
        """The table of that name in any case; PolicyError with the nearest names where there is none."""
        found = {fold(n): t for n, t in self.tables.items()}.get(fold(name))
        if found is None:
            raise PolicyError(
                f"{dotted('tables', name)} is not declared, so the table cannot be used; {nearest(name, self.tables)}"
            )
        return found

    @functools.cached_property
    def units(self) -> Mapping[str, Unit | None]:
        """Where each private table's unit is; None for single rows."""
        return {t.name: unit_of(self.tables, t) for t in self.tables.values() if not t.public}

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        """What each private table's unit is called; tables of equal labels share a unit."""
        return unit_labels(self.tables)

    @taking(name=a_text())
    def view(self, name: str) -> str | None:
        """The SQL text of the view of that name in any case, None where the policy has none."""
        return {fold(n): sql for n, sql in self.views.items()}.get(fold(name))

    @taking(name=a_text())
    def source_path(self, name: str) -> Path | None:
        """Where the files of table ``name`` are, relative to the policy's folder (or the current one).

        A file, a folder, or a pattern; in a pattern the folder's own name stands for itself.
        """
        table = self.table(name)
        if table.source is None or table.is_spark:
            return None
        folder = Path.cwd() if self.path is None else self.path.absolute().parent
        return (Path(glob.escape(str(folder))) if table.is_pattern else folder) / table.source

    def spark_table(self, name: str) -> tuple[str, str, str] | None:
        """Catalog, schema and table of Spark that table ``name`` names as its source; None for any other."""
        table = self.table(name)
        return spark_parts(table.key("source"), table.source) if table.source is not None and table.is_spark else None

    def to_toml(self) -> str:
        """TOML text that parses back to an equal policy; comments of the original are not kept."""
        from dpsql.policy.text import policy_text  # the writer reads these classes, so it comes later

        return policy_text(self)
