"""A policy: read from TOML (known keys, then their types, then their meaning), looked up, and written back."""

from __future__ import annotations

import datetime as dt
import functools
import glob
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Self

from dpsql.common.arguments import path as a_path
from dpsql.common.arguments import taking
from dpsql.common.arguments import text as a_text
from dpsql.common.arrays import Json
from dpsql.common.interrupted_calls import guards_calls
from dpsql.errors import OperationalError, PolicyError, nearest
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BUDGET_RULES, BudgetPolicy, TablePolicy, is_spark, spark_parts
from dpsql.policy.settings import Findings, fix, folded, text
from dpsql.policy.text import policy_text
from dpsql.policy.units import Unit, check_units, doubtful_units_of, unit_labels, unit_of
from dpsql.policy.values import dotted, fold, kind_of

PLACES = ("database", "anchor")
TOP_KEYS = ("dataset", *PLACES, "budget", "tables", "views")
TABLE_KEYS = (
    "unit",
    "max_rows_per_unit",
    "at_most",
    "expected_rows",
    "minimum",
    "rows_public",
    "public",
    "source",
    "counts",
    "key",
    "references",
    "periods",
    "max_periods_per_unit",
    "largest_unit",
    "columns",
)
VIEW_KEYS = ("sql",)
SETTINGS = {"key": "unique"}
"""Settings of a table that are called otherwise in ``TablePolicy``."""
NEEDED = {
    "dataset": 'name the data set and its version, such as dataset = "visits-2024-1"',
    "budget": "write [budget] with epsilon = 1.0, or rho = 0.1",
    "tables": "declare at least one, such as [tables.visits]",
}
COLUMN_KEYS = ("values", "lower", "upper", "step", "other", "nulls", "type", "public", "groups")


@guards_calls
@dataclass(frozen=True)
class Policy:
    """A data set's public declaration. ``path`` is the file it came from; files that it names are relative to it.

    ``views`` are row-wise SELECTs by name, which a batch may read as if they were tables. ``database``: the DuckDB file
    with the tables that name no source. ``anchor``: a file kept elsewhere that detects an older copy of the ledger put
    back. A connection may name other places. ``today``: the day that decides which periods are closed; None for the
    day that it is (UTC).
    """

    dataset: str
    budget: BudgetPolicy
    tables: Mapping[str, TablePolicy]
    path: Path | None = field(default=None, compare=False)
    views: Mapping[str, str] = field(default_factory=dict)
    database: str | None = None
    anchor: str | None = None
    today: dt.date | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        text("dataset", self.dataset)
        for name in PLACES:
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
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
        open_ended = [t for t in self.tables.values() if not t.not_counted and t.largest_unit is None]
        if self.budget.losses is not None and open_ended:
            raise PolicyError(
                *(
                    f"{t.key('largest_unit')} is missing: budget.losses measures what limits cut, by a histogram that "
                    f"ends there; write the most rows that one {t.unit} can have, as far as that is public"
                    for t in open_ended
                )
            )

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
        """The policy of a TOML text. Raises one PolicyError with the full key of everything that is wrong."""
        dataset, budget, tables, views, places = _parsed(text)
        return cls(dataset, budget, tables, None if path is None else Path(path), views, **places)

    @taking(name=a_text())
    def table(self, name: str) -> TablePolicy:
        """The table of that name in any case; PolicyError with the nearest names where there is none."""
        found = {fold(n): t for n, t in self.tables.items()}.get(fold(name))
        if found is None:
            raise PolicyError(
                f"{dotted('tables', name)} is not declared, so the table cannot be used; {nearest(name, self.tables)}"
            )
        return found

    @property
    def day(self) -> dt.date:
        """The day that decides which periods are closed."""
        return self.today or dt.datetime.now(dt.UTC).date()

    @functools.cached_property
    def units(self) -> Mapping[str, Unit | None]:
        """Where each private table's unit is; None for single rows."""
        return {t.name: unit_of(self.tables, t) for t in self.tables.values() if not t.public}

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        """What each private table's unit is called; tables of equal labels share a unit."""
        return unit_labels(self.tables)

    @functools.cached_property
    def doubtful_units(self) -> tuple[str, ...]:
        """A line for each two units that may well be one person, and are protected apart."""
        return tuple(doubtful_units_of(self.tables))

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
        folder = self._folder
        return (Path(glob.escape(str(folder))) if table.is_pattern else folder) / table.source

    @taking(name=a_text())
    def place(self, name: str) -> Path | None:
        """The file that the policy names as its "database" or "anchor", relative to its folder; None without."""
        named = getattr(self, name)
        return None if named is None else self._folder / named

    @property
    def _folder(self) -> Path:
        return Path.cwd() if self.path is None else self.path.absolute().parent

    def spark_table(self, name: str) -> tuple[str, str, str] | None:
        """Catalog, schema and table of Spark that table ``name`` names as its source; None for any other."""
        table = self.table(name)
        return spark_parts(table.key("source"), table.source) if table.source is not None and table.is_spark else None

    def counting(self, rows: int | None) -> Policy:
        """The policy under which at most ``rows`` rows of a unit count, of each table with a unit column."""
        if rows is None:
            return self
        return replace(self, tables={name: table.counting(rows) for name, table in self.tables.items()})

    def to_toml(self) -> str:
        """TOML text that parses back to an equal policy; comments of the original are not kept."""
        places = {name: getattr(self, name) for name in PLACES}
        return policy_text(self.dataset, self.budget, self.tables, self.views, places)


def _parsed(content: str) -> tuple[str, BudgetPolicy, dict[str, TablePolicy], dict[str, str], Json]:
    """Data-set id, budget, tables, views and places of a TOML text; PolicyError with every key that is wrong.

    How tables fit together is for ``Policy`` to check, once each is right by itself.
    """
    document = _read(content)
    found = Findings()
    found.errors += _unknown("", document, TOP_KEYS)
    for name, advice in NEEDED.items():
        if name not in document:
            found.errors.append(f"{name} is missing; {advice}")
    for name in ("dataset", *PLACES):
        with found.each():
            if name in document:
                text(name, document[name])
    budget = BudgetPolicy(epsilon=Fraction(1))  # stands in for one that is wrong
    with found.each():
        given = _table("budget", document.get("budget", {"epsilon": 1}))
        found.errors += _unknown("budget", given, (*BUDGET_FIGURES, *BUDGET_RULES))
        budget = BudgetPolicy(**{name: given[name] for name in (*BUDGET_FIGURES, *BUDGET_RULES) if name in given})
    tables: dict[str, TablePolicy] = {}
    views: dict[str, str] = {}
    with found.each():
        for name, value in _table("tables", document.get("tables", {})).items():
            with found.each():
                tables[name] = _table_policy(name, value)
    with found.each():
        for name, value in _table("views", document.get("views", {})).items():
            with found.each():
                views[name] = _view(name, value)
    found.refuse()
    return document["dataset"], budget, tables, views, {name: document.get(name) for name in PLACES}


def _view(name: str, value: object) -> str:
    where = dotted("views", name)
    given = _table(where, value)
    _check_settings(where, given, VIEW_KEYS)
    if "sql" not in given:
        raise PolicyError(f'{where}.sql is missing; write sql = "SELECT ... FROM ..."')  # noqa: S608
    sql = given["sql"]
    if not isinstance(sql, str):
        raise PolicyError(f"{where}.sql is {kind_of(sql)}; write a string")
    return sql


def _read(text: str) -> Json:
    if not isinstance(text, str):
        raise PolicyError(f"a policy is a text of TOML, not {type(text).__name__}; read the file first")
    try:
        return tomllib.loads(text, parse_float=Decimal)
    except RecursionError:
        reason = "it is nested too deeply"
    except (ValueError, InvalidOperation) as error:
        # One line, and not the whole text of a number that Python cannot read.
        reason = (str(error).splitlines() or ["unreadable number"])[0][:200]
    raise PolicyError(f"the policy is not TOML: {reason}; correct it there")


def _table(where: str, value: object) -> Json:
    if not isinstance(value, dict):
        raise PolicyError(f"{where} is {kind_of(value)}; write a table, such as [{where}]")
    return value


def _check_settings(where: str, given: Mapping[str, object], valid: Iterable[str]) -> None:
    unknown = _unknown(where, given, valid)
    if unknown:
        raise PolicyError(*unknown)


def _unknown(where: str, given: Mapping[str, object], valid: Iterable[str]) -> list[str]:
    prefix = f"{where}." if where else ""
    return [f"{prefix}{dotted(name)} is not a setting; {nearest(name, valid)}" for name in given if name not in valid]


def _table_policy(name: str, value: object) -> TablePolicy:
    where = dotted("tables", name)
    given = dict(_table(where, value))
    inner = next((n for n, v in given.items() if isinstance(v, dict) and n not in TABLE_KEYS), None)
    if inner is not None and not nearest(inner, TABLE_KEYS).startswith("did you mean"):
        # [tables.main.visits] makes "main" the table and "visits" an unknown setting of it.
        raise PolicyError(
            f"{where}.{dotted(inner)} is not a setting; quote a name that has a dot, as in "
            f"[{dotted('tables', name + '.' + inner)}]"
        )
    found = Findings()
    found.errors += _unknown(where, given, TABLE_KEYS)
    columns: dict[str, ColumnPolicy] = {}
    with found.each():
        for column, settings in _table(f"{where}.columns", given.get("columns", {})).items():
            with found.each():
                columns[column] = _stand_in(where, column, settings)
                columns[column] = _column_policy(where, column, settings)
    # No default: a unit of one row is a decision about whom the noise protects.
    if "unit" not in given and "counts" not in given and given.get("public") is not True:
        found.errors.append(
            f'{where}.unit is missing; write unit = "row", or the column that identifies whom to protect'
        )
    if given.get("public") is True and "unit" in given:
        found.errors.append(f"{where}.unit is for private tables and {where}.public is true; drop one")
        del given["unit"]
    source = given.get("source")
    if isinstance(source, list) and any(is_spark(part) for part in source):
        found.errors.append(
            f"{where}.source names several things, a Spark table among them; one name is one table: "
            "keep one of them, or declare two tables"
        )
        del given["source"]
    own = {SETTINGS.get(key, key): value for key, value in given.items() if key in TABLE_KEYS and key != "columns"}
    built = None
    with found.each():
        built = TablePolicy(name, columns, where=where, **own)
    if built is None or found.errors:
        raise PolicyError(*found.errors)
    return built


def _stand_in(table: str, name: str, value: object) -> ColumnPolicy:
    """A column without a domain in the place of one that is wrong, so that its table can still be checked."""
    typed = "VARCHAR" if isinstance(value, dict) and "type" in value else None
    return ColumnPolicy(name, where=f"{table}.{dotted('columns', name)}", type=typed)


def _column_policy(table: str, name: str, value: object) -> ColumnPolicy:
    where = f"{table}.{dotted('columns', name)}"
    if not isinstance(value, dict):
        raise PolicyError(f"{where} is {kind_of(value)}; write {{ lower = 0, upper = 120 }}, or {{}}")
    found = Findings()
    found.errors += _unknown(where, value, COLUMN_KEYS)
    column = ColumnPolicy(name, where=where)
    with found.each():
        column = ColumnPolicy(name, where=where, **{key: value[key] for key in value if key in COLUMN_KEYS})
    found.refuse()
    return column
