"""Spark: private tables of its catalogs, counted where they lie; only the histogram comes to this process.

The scan is the one that DuckDB would run, written for Spark with a closed list of functions (``functions``) and run in
a session of its own (``session``). What has no equal meaning there is refused by ``SparkTables.check``, before the
charge.

Retries. The statement reads, and adds whole numbers up; it has no random, no time and no order in it but that of equal
rows. Spark takes the result of each partition once, whichever attempt of a task was first, and an attempt gives what
any other gives: so retried, speculative and recomputed tasks, and executors that come and go, change no count. A job
that fails in the end gives no numbers; the charge stands.

Precondition: the table is Parquet, ORC, Delta or Iceberg, whose readers have a value for all that can be stored;
text formats guess and skip, each in its way. Neighbours are rows as read. The files must not change during a scan.

A scan as a statement of Spark: admitted part by part, and written with the types of its columns.

What has no equal meaning on Spark raises NotSupportedError. Which rules were used follows from the scan and the column
types alone.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from dpsql.engines.base import IntArray, Scan, TableSource
from dpsql.engines.limits import UNLIMITED, Limits, check_outcome
from dpsql.errors import OperationalError, PolicyError
from dpsql.extensions.spark import values
from dpsql.extensions.spark.expressions import Columns, Scope, Writer
from dpsql.extensions.spark.session import check_alive, check_session, inside, private_session
from dpsql.extensions.spark.values import Expr, quote, refusal
from dpsql.workloads.expr.scan import Joined, Relation, Select, Table, Union
from dpsql.workloads.expr.value_sql import select_text
from dpsql.workloads.expr.values import CountRows, Gathered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


_MOST_KEYS = 2**62


@dataclass(frozen=True)
class Source:
    """A table of Spark: how a statement writes it, and its columns' DuckDB types."""

    reference: str
    types: Mapping[str, str]


@dataclass(frozen=True)
class Digit:
    """A column of a scan in the number that Spark groups by: ``key // factor % radix``, 0 for NULL, 1 for ``low``."""

    factor: int
    radix: int
    low: int

    def of(self, key: IntArray) -> IntArray:
        """The column; NaN is NULL, as of a column of Arrow."""
        place = key // self.factor % self.radix
        digit = place + (self.low - 1)
        return digit if place.all() else np.where(place == 0, np.nan, digit)


def written(select: Select, tables: Mapping[str, Source]) -> tuple[str, dict[str, Digit | None]]:
    """The statement of a scan for Spark, and the scan's columns: BIGINT, and text where it reads what was counted.

    ``tables`` are the tables that it names. Columns that are digits are in the statement's first, the others are its
    own. Raises NotSupportedError.
    """
    if not _counts(select) and not (isinstance(select.source, Select) and _counts(select.source)):
        raise refusal("rows are not brought back, only counts and sums", "take a local release on one machine")
    text, columns, digits = _select(select, tables, "BIGINT")
    return text, dict.fromkeys(columns) | dict(zip(columns, digits, strict=False))


def _counts(select: Select) -> bool:
    return any(isinstance(value, CountRows | Gathered) for _, value in select.columns)


def _select(select: Select, tables: Mapping[str, Source], cast: str = "") -> tuple[str, Columns, Sequence[Digit]]:
    """The text of a SELECT and its columns; ``cast``: the type that all of them get, but for text of groups.

    Where digits come with it, they are its first columns, and one number stands for them.
    """
    source, scope = _from(select.source, tables)
    writer = Writer(scope)
    texts = {name: writer.value(value) for name, value in select.columns}
    if not select.columns:
        columns = scope.columns("").items()
        texts = {name: replace(column, text=writer.layers.column(column.text)) for name, column in columns}
    listed = [name for name, value in texts.items() if cast and value.type == "VARCHAR" and not _counts(select)]
    for name, value in texts.items():
        if cast and not value.whole and name not in listed:
            raise refusal(
                f"a column of {value.type} cannot be brought back",
                "only counts and sums come from Spark; use a local release on one machine",
            )
    keys = select.group_by
    key, digits = packed(list(texts.values())[:keys]) if cast else ("", [])
    shown = {name: f"CAST({value.text} AS {cast})" if cast else value.text for name, value in texts.items()}
    # What is no text, as Parquet may hold it, has no name.
    shown |= {name: f"CASE WHEN is_valid_utf8({texts[name].text}) THEN {texts[name].text} END" for name in listed}
    if digits:
        shown = {"dpsql_key": key, **dict(list(shown.items())[keys:])}
    where = [] if select.where is None else [writer.value(select.where).text]
    (text, *where), source = writer.layers.written([_listed(shown), *where], source)
    text = f"SELECT {text} FROM {source}"  # noqa: S608
    if where:
        text += f" WHERE {where[0]}"
    if keys:
        text += f" GROUP BY {', '.join(str(at + 1) for at in range(1 if digits else keys))}"
    if cast:
        return text, {name: values.column(quote(name), cast) for name in texts}, digits
    return text, {name: Expr(quote(name), value.type, value.low, value.high) for name, value in texts.items()}, digits


def _listed(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{text} AS {quote(name)}" for name, text in texts.items())


def packed(keys: Sequence[Expr]) -> tuple[str, list[Digit]]:
    """One BIGINT for several whole numbers of known ranges, and each number as a digit of it.

    Spark hashes, compares and shuffles one BIGINT where it would several. A mixed-radix number: key i with w values,
    NULL beside them, is a digit below w + 1. Nothing where there is no second key, or where 62 bits do not hold all.
    """
    if len(keys) < 2:
        return "", []
    texts, digits, factor = [], [], 1
    for key in keys:
        if not key.whole or key.type == "HUGEINT" or key.high < key.low:
            return "", []
        digits.append(Digit(factor, key.high - key.low + 2, key.low))
        texts.append(f"coalesce(CAST({key.text} AS BIGINT) - {_long(key.low - 1)}, 0L) * {factor}L")
        factor *= digits[-1].radix
        if factor > _MOST_KEYS:
            return "", []
    return " + ".join(texts), digits


def _long(number: int) -> str:
    return f"{number}L" if number >= 0 else f"({number}L)"


def _from(relation: Relation, tables: Mapping[str, Source]) -> tuple[str, Scope]:
    base, joins = (relation.base, relation.joins) if isinstance(relation, Joined) else (relation, ())
    text, alias, columns = _item(base, tables)
    sources = {alias: columns}
    for match in joins:
        if match.nearest:
            raise refusal(
                "EXISTS or IN tied to the row by two inequalities is not answered there",
                "write LAG or LEAD over the rows of the unit, or read Parquet files with DuckDB",
            )
        second, name, columns = _item(match.rows, tables)
        sources[name] = columns
        writer = Writer(Scope(sources))
        text += f" LEFT JOIN {second} ON {writer.layers.inlined(writer.value(match.on).text)}"
    return text, Scope(sources)


def _item(relation: Table | Select | Union, tables: Mapping[str, Source]) -> tuple[str, str, Columns]:
    """A table or subquery of FROM, its alias, and its columns."""
    alias = "" if isinstance(relation, Union) else relation.alias
    alias = alias or "dpsql_rows"
    if isinstance(relation, Table):
        source = tables[relation.name]
        text, inner = source.reference, {name: values.column("", kind) for name, kind in source.types.items()}
    elif isinstance(relation, Union):
        texts, parts, _ = zip(*(_select(part, tables) for part in relation.parts), strict=True)
        text = f"({' UNION ALL '.join(texts)})"
        inner = {
            name: replace(one, low=min(c[name].low for c in parts), high=max(c[name].high for c in parts))
            for name, one in parts[0].items()
        }
    else:
        text, inner, _ = _select(relation, tables)
        text = f"({text})"
    columns = {name.lower(): replace(kind, text=f"{quote(alias)}.{quote(name)}") for name, kind in inner.items()}
    return f"{text} AS {quote(alias)}", alias, columns


__all__ = ["SparkEngine"]

T = TypeVar("T")
FORMATS = ("parquet", "orc", "delta", "iceberg")
TYPES = {
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "timestamp_ntz": "TIMESTAMP",
}
_CATALOG = ("spark_catalog", "default")
_MOST_PLANS = 64  # stored at once; a scan whose plan is gone plans again
_Key = tuple[tuple[tuple[str, ...], ...], str]


@dataclass(frozen=True, eq=False)
class _Planned:
    """A statement that Spark has planned: its DataFrame, which holds its session, and the columns of its scan."""

    frame: DataFrame
    columns: Mapping[str, Digit | None]


@dataclass(frozen=True)
class _Plans:
    """What ``SparkTables.check`` planned and no ``scan`` has taken yet, the newest few, by tables and statement."""

    by_key: dict[_Key, _Planned] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, key: _Key, planned: _Planned) -> None:
        with self.lock:
            self.by_key.pop(key, None)
            self.by_key[key] = planned
            for oldest in list(self.by_key)[:-_MOST_PLANS]:
                del self.by_key[oldest]

    def take(self, key: _Key) -> _Planned | None:
        with self.lock:
            return self.by_key.pop(key, None)


@dataclass(frozen=True, eq=False)
class SparkEngine:
    """Tables behind a session that the user holds open. Raises InterfaceError for one that cannot be used."""

    session: SparkSession
    limits: Limits = UNLIMITED
    _plans: _Plans = field(default_factory=_Plans, init=False, repr=False)

    def __post_init__(self) -> None:
        check_session(self.session)

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table; the data are not read."""
        return self.tables(sources).schemas

    def tables(self, sources: Sequence[TableSource]) -> SparkTables:
        """The tables as the catalogs describe them now, in a session of their own."""
        names = {source.name: table_name(source) for source in sources}

        def described() -> SparkTables:
            own = private_session(self.session)
            return SparkTables(self, own, {name: _catalog_table(own, name, parts) for name, parts in names.items()})

        tables = self._done("read the schema of the tables", described)
        _check_distinct(tables.tables)
        return tables

    def scan(self, scan: Scan) -> dict[str, IntArray]:
        """The columns of a scan, by name."""

        def work() -> dict[str, IntArray]:
            planned = self._plans.take(_key(scan))
            if planned is None:
                own = private_session(self.session)
                planned = _planned(own, scan, {t.name: _catalog_table(own, t.name, table_name(t)) for t in scan.tables})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of versions of pandas, which is not used
                taken = [np.asarray(column) for column in planned.frame.toArrow().columns]
            whole = iter(taken[1:] if any(planned.columns.values()) else taken)
            return {name: next(whole) if one is None else one.of(taken[0]) for name, one in planned.columns.items()}

        columns, outcome = inside(self.session, work, self.limits.seconds)
        check_outcome(
            *(outcome, scan.name, self.limits.seconds),
            inside="Spark",
            look_at="the executors, memory and files",
            tables=[table.name for table in scan.tables],
        )
        return columns or {}

    @contextlib.contextmanager
    def opened(self, sources: Sequence[TableSource]) -> Iterator[SparkEngine]:
        """The engine: each scan reads the files that are there then."""
        yield self

    @contextlib.contextmanager
    def materialized(self, scan: Scan) -> Iterator[Scan]:
        """The scan itself, which Spark runs as often as it is read."""
        yield scan

    def _done(self, what: str, work: Callable[[], T]) -> T:
        result, outcome = inside(self.session, lambda: (work(),), None, first=lambda: check_alive(self.session))
        if outcome == "interrupted":
            raise KeyboardInterrupt
        if result is None:
            raise OperationalError(
                f"Spark cannot {what}; check the session, its catalogs and the files (nothing was charged)"
            )
        return result[0]


@dataclass(frozen=True, eq=False)
class SparkTables:
    """Tables as the catalogs described them, and the session that described them."""

    engine: SparkEngine
    session: SparkSession
    tables: Mapping[str, _CatalogTable]

    @property
    def schemas(self) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table."""
        return {name: dict(one.source.types) for name, one in self.tables.items()}

    def check(self, scan: Scan) -> None:
        """Nothing, or the reason why ``scan`` would not be run: written, analysed and planned, not executed.

        The plan is stored for the next ``scan`` of the same statement, which is its only use: that one counts the files
        that were there when the tables were found. ``run`` looks and checks just before the charge and scans just after
        it. A file that is gone by then makes the scan fail, as during a scan; one that came meanwhile is not of this
        run. A statement that is checked again is planned again.
        """

        def planned() -> _Planned:
            made = _planned(self.session, scan, self.tables)
            made.frame._jdf.queryExecution().executedPlan()
            return made

        key = _key(scan)
        self.engine._plans.take(key)
        self.engine._plans.put(key, self.engine._done("plan the statement", planned))


@dataclass(frozen=True)
class _CatalogTable:
    """A table that can be counted, and where it lies."""

    source: Source
    location: str


def _planned(session: SparkSession, scan: Scan, tables: Mapping[str, _CatalogTable]) -> _Planned:
    """The statement of a scan, analysed in ``session``."""
    statement, columns = written(scan.select, {table.name: tables[table.name].source for table in scan.tables})
    return _Planned(session.sql(statement), columns)


def _key(scan: Scan) -> _Key:
    """The tables of a scan, and DuckDB's text of it, which is one for equal scans."""
    names = {table.name: f"dpsql_table_{at}" for at, table in enumerate(scan.tables)}
    return tuple(map(table_name, scan.tables)), select_text(scan.select, names)


def table_name(source: TableSource) -> tuple[str, ...]:
    """Catalog, schema and table; a table without a source is in the default schema of Spark's own catalog."""
    if source.path is not None:
        raise PolicyError(
            f"tables.{source.name} has files as its source, and Spark reads tables of its catalogs; "
            'write source = "spark:catalog.schema.table", or connect without a session'
        )
    if source.remote is not None:
        return source.remote
    schema, _, table = source.name.rpartition(".")
    return (_CATALOG[0], schema or _CATALOG[1], table)


def _reference(parts: Sequence[str]) -> str:
    return ".".join(map(quote, parts))


def _catalog_table(session: SparkSession, name: str, parts: Sequence[str]) -> _CatalogTable:
    """A table of a catalog. Raises PolicyError for what is no table that can be counted."""
    shown = ".".join(parts)
    table = None
    with contextlib.suppress(Exception):
        table = session.table(_reference(parts))
    if table is None and not session.catalog.tableExists(_reference(parts)):
        raise PolicyError(f"tables.{name}: Spark has no table {shown}; correct the source, or the name of the table")
    description = ({} if table is None else _resolved(table)) or _description(session, parts)
    if description.get("type", "") not in ("MANAGED", "EXTERNAL"):
        raise PolicyError(f"tables.{name}: {shown} is a view or the like; the policy must name a table")
    if description.get("provider", "").lower() not in FORMATS:
        raise PolicyError(
            f"tables.{name}: {shown} is stored in a format in which one row can make a scan fail; "
            f"store it as {', '.join(FORMATS)}"
        )
    fields = (session.table(_reference(parts)) if table is None else table).schema.fields
    columns = {str(field.name): _type(field) for field in fields}
    if len({column.lower() for column in columns}) < len(fields):
        raise PolicyError(f"tables.{name}: {shown} has two columns whose names differ in case alone; rename one")
    return _CatalogTable(Source(_reference(parts), columns), description.get("location", ""))


def _resolved(table: DataFrame) -> Mapping[str, str]:
    """``_description`` of files in Spark's own catalog, where it is known without a statement; else nothing."""
    description: dict[str, str] = {}
    with contextlib.suppress(Exception):  # of views and tables of other catalogs
        relation = table._jdf.queryExecution().analyzed().child()
        properties = relation.catalogTable().get().toLinkedHashMap()
        description = {name: str(properties.apply(name.title())) for name in ("type", "provider", "location")}
    return description


def _description(session: SparkSession, parts: Sequence[str]) -> Mapping[str, str]:
    """What the catalog says of a table: its type, provider and location."""
    rows = session.sql(f"DESCRIBE TABLE EXTENDED {_reference(parts)}").collect()
    names = [str(row[0]) for row in rows]
    start = names.index("# Detailed Table Information")
    return {str(row[0]).lower(): str(row[1]) for row in rows[start + 1 :]}


def _type(field: StructField) -> str:
    """The DuckDB type of a column, or a name that no policy can declare."""
    shown = str(field.dataType.simpleString())
    stored = str((field.metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING", shown))
    if stored.startswith("char("):
        # Padded where it is read, and by other rules where it is compared.
        return "SPARK CHAR"
    if shown.startswith("decimal("):
        return shown.upper()
    return TYPES.get(shown, f"SPARK {shown.split('(')[0].split('<')[0].split()[0].upper()}")


def _check_distinct(tables: Mapping[str, _CatalogTable]) -> None:
    """PolicyError where two names of the policy are one table, or two tables over one folder."""
    seen: dict[str, str] = {}
    for name, one in tables.items():
        other = seen.setdefault(one.location or name, name)
        if other != name:
            raise PolicyError(
                f"tables {other} and {name} are one table of Spark, so that one row of it counts in both; "
                "declare it once"
            )
