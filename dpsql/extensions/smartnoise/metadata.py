"""A first policy from the YAML metadata of OpenDP's SmartNoise SQL: what carries over, and what must be decided.

Its format (docs.smartnoise.org/sql/metadata.html): collection -> schema -> table -> settings of the table and
columns, with ``private_id``, ``type``, ``lower``, ``upper``, ``nullable`` and more, beside an optional ``engine``.
Bounds, units, limits of rows and columns without NULL carry over. What has no counterpart stays as a comment that
says what the custodian must decide; the budget, which the format does not have, is left to the custodian too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from dpsql.errors import PolicyError, nearest
from dpsql.extensions.smartnoise.yaml_text import MAX_COLUMNS, Document, Place, mapping, one_line, read_yaml
from dpsql.policy.model import BudgetPolicy
from dpsql.policy.settings import fix
from dpsql.policy.text import BUDGET, HEAD, budget_text
from dpsql.policy.values import dotted, fold, kind_of, number, quote, shown

_FLAGS = ("row_privacy", "sample_max_ids", "clamp_counts", "clamp_columns", "use_dpsu", "censor_dims")
_COUNTS = ("rows", "rows_exact", "max_ids", "max_contributions")
_SETTINGS = (*_FLAGS, *_COUNTS)
_TYPES = ("int", "float", "string", "boolean", "datetime", "date", "unknown")
_ATTRIBUTES = (
    *("type", "name", "private_id", "lower", "upper", "nullable", "cardinality"),
    *("missing_value", "sensitivity", "bounded"),
)

_NOTE = """\
# From SmartNoise metadata. What differs: every group that the policy declares is shown, none is dropped for being
# small (censor_dims, use_dpsu); counts are not cut off at 0 (clamp_counts); sums are always clamped to the bounds.
# Bounds must be public knowledge, not minima and maxima of the data. The tables are named schema.table as in the
# metadata: correct them to the names that DuckDB knows, or add source = "file.parquet" for a file.
"""


def policy_from_smartnoise(
    text: str, dataset: str | None = None, *, epsilon: str | None = None, delta: str | None = None
) -> tuple[str, list[str]]:
    """(TOML of a policy, its tables) from the YAML ``text`` of one collection.

    ``dataset`` is the data-set id, by default the collection's name and -1. ``epsilon`` and ``delta`` (decimal text)
    fill in the budget; without them it is marked "# confirm:" like every decision that the metadata leaves open, and
    the text is a policy only after a person has taken them. Raises PolicyError with the place of what
    is wrong, InterfaceError where PyYAML is not installed. Cost: linear in the text.
    """
    document = read_yaml(text)
    collection, schemas, engine = _collection(document)
    name = dataset if dataset is not None else f"{collection or 'dataset'}-1"
    lines = [HEAD + _NOTE]
    if engine is not None:
        lines.append(f"# engine {one_line(engine)}: names are compared as DuckDB does, whatever the engine was")
    lines += [f"dataset = {quote(name)}\n", _budget(epsilon, delta)]
    tables: list[str] = []
    columns = 0
    for schema, held in schemas.items():
        for table, settings in mapping(held, document.at(collection, schema)).items():
            where = document.at(collection, schema, table)
            full = ".".join(part for part in (_plain(schema), _plain(table)) if part)
            if not _plain(table):
                raise where.refuse("a table needs a name")
            if fold(full) in {fold(other) for other in tables}:
                raise where.refuse(f"{full} is described twice, for names that DuckDB takes for one; keep one of them")
            tables.append(full)
            parsed = _Table.of(full, mapping(settings, where), where)
            columns += len(parsed.columns)
            if columns > MAX_COLUMNS:
                raise where.refuse(f"more than {MAX_COLUMNS:,} columns are described; split the collection")
            lines += [*parsed.lines(), ""]
    if not tables:
        raise document.at(collection).refuse("no table is described; write schema, table and columns below it")
    return "\n".join(lines).rstrip("\n") + "\n", tables


def _budget(epsilon: str | None, delta: str | None) -> str:
    if epsilon is None:
        if delta is not None:
            raise PolicyError("budget.delta is given without epsilon; give both, or leave the budget to be confirmed")
        return budget_text(losses=False)
    given = {name: _given(name, value) for name, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    BudgetPolicy(epsilon=given.get("epsilon"), delta=given.get("delta"))  # refuses figures that are no budget
    figures = [f"{name} = {shown(value)}" for name, value in given.items()]
    return "\n".join([BUDGET.splitlines()[0], "[budget]", *figures, ""])


def _given(name: str, value: str) -> Fraction:
    try:
        return number(f"budget.{name}", Decimal(value))
    except InvalidOperation:
        pass
    raise PolicyError(f"budget.{name} is {quote(value[:40])}; write a number such as 1.0")


def _collection(document: Document) -> tuple[str, dict[str, object], str | None]:
    top = mapping(document.value, document.at())
    engine = top.pop("engine", None)
    if engine is not None and not isinstance(engine, str):
        raise document.at("engine").refuse(f"engine is {kind_of(engine)}; write its name")
    if len(top) != 1:
        held = "nothing" if not top else ", ".join(one_line(name) or '""' for name in list(top)[:4])
        raise document.at().refuse(f"one collection is read at a time, and it holds {held}; keep one beside engine")
    (name,) = top
    return name, mapping(top[name], document.at(name)), engine


@dataclass(frozen=True)
class _Column:
    """One column: its line of a policy, and what does not carry over."""

    name: str
    kind: str
    private_id: bool
    settings: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, given_name: str, given: dict[str, object], where: Place) -> _Column:
        for name in given:
            if name not in _ATTRIBUTES:
                raise where.under(name).refuse(f"it is no attribute of a column; {nearest(name, _ATTRIBUTES)}")
        if "type" not in given:
            raise where.refuse("type is missing; write type: int, float, string, boolean or datetime")
        kind = given["type"]
        if kind not in _TYPES:
            known = nearest(str(kind), _TYPES)
            raise where.under("type").refuse(f"{one_line(str(kind))} is not a type; {known}")
        if given.get("name", given_name) != given_name:
            raise where.under("name").refuse(f"it is not the name above it, {one_line(given_name)}; leave it out")
        flags = {name: _flag(given, name, where) for name in ("private_id", "nullable", "bounded")}
        settings, notes = _domain(str(kind), given, where)
        if flags["nullable"] is False:
            settings.append("nulls = false")
        if "missing_value" in given and given["missing_value"] is not None:
            notes.append("missing_value is not carried over: NULL stays NULL; decide whether to fill it in a view")
        if "sensitivity" in given and given["sensitivity"] is not None:
            notes.append("sensitivity is not carried over: it follows from the bounds; decide whether these are right")
        return cls(_plain(given_name), str(kind), flags["private_id"] is True, tuple(settings), tuple(notes))

    def lines(self) -> list[str]:
        key = dotted(self.name)
        comments = [f"# column {one_line(key)}: {note}" for note in self.notes]
        if self.kind == "unknown":
            return [
                *comments,
                f"# {one_line(key)} has type unknown; declare it, as in {one_line(key)} = {{}}, if it may be used",
            ]
        body = f"{{ {', '.join(self.settings)} }}" if self.settings else "{}"
        return [*comments, f"{key} = {body}  # {self.kind}"]


def _domain(kind: str, given: dict[str, object], where: Place) -> tuple[list[str], list[str]]:
    """Settings of the column's domain, and notes on what is missing of it."""
    bounds = {name: given[name] for name in ("lower", "upper") if given.get(name) is not None}
    if bounds and kind not in ("int", "float"):
        name = next(iter(bounds))
        raise where.under(name).refuse(f"bounds are for int and float, not for {kind}; leave them out")
    cardinality = given.get("cardinality")
    if cardinality is not None and (
        isinstance(cardinality, bool) or not isinstance(cardinality, int) or cardinality < 0
    ):
        raise where.under("cardinality").refuse(f"it is {one_line(str(cardinality))}; write a whole number")
    if kind == "boolean":
        return ["values = [false, true]"], []
    if kind in ("int", "float"):
        exact = {name: _bound(value, kind, where.under(name)) for name, value in bounds.items()}
        if len(exact) == 2:
            if exact["lower"] > exact["upper"]:
                raise where.under("lower").refuse(
                    f"lower {shown(exact['lower'])} is above upper {shown(exact['upper'])}; swap or correct them"
                )
            return [f"{name} = {_figure(exact[name], kind)}" for name in ("lower", "upper")], []
        if exact:
            (name,) = exact
            missing = "upper" if name == "lower" else "lower"
            return [], [
                f"{name} is {shown(exact[name])}, {missing} is missing; decide it and declare both for sums and groups"
            ]
        return [], ["no bounds; declare lower and upper, or values, for sums and groups"]
    if kind == "string" and cardinality:
        return [], [
            f"cardinality {cardinality} does not say which values; list public ones, values = [...], for groups"
        ]
    if kind == "string":
        return [], ["list public values, values = [...], for groups; without them it may stand in conditions"]
    return [], []


def _bound(value: object, kind: str, where: Place) -> Fraction:
    exact: Fraction | None = None
    if isinstance(value, str):
        written = value.strip()[:60]
        try:
            value = Decimal(written)
        except InvalidOperation:
            raise where.refuse(f"{one_line(written)} is not a number; write one, such as 120") from None
    if isinstance(value, float) and math.isfinite(value):
        value = Decimal(repr(value))  # the shortest text that is this number, which is what stands in the file
    if isinstance(value, int | Decimal) and not isinstance(value, bool) and Decimal(value).is_finite():
        try:
            exact = number("it", value)
        except PolicyError as error:
            raise where.refuse(str(error).removeprefix("it ")) from None
    if exact is None:
        said = "a date" if isinstance(value, date) else one_line(str(value)[:40])
        raise where.refuse(f"it is {said}; write a finite number, such as 120")
    if kind == "int" and exact.denominator != 1:
        raise where.refuse(f"{shown(exact)} is no bound of an int; write a whole number, or type: float")
    return exact


def _figure(value: Fraction, kind: str) -> str:
    text = shown(value)
    return text if kind == "int" or "." in text else text + ".0"


def _flag(given: Mapping[str, object], name: str, where: Place) -> bool | None:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise where.under(name).refuse(f"it is {one_line(str(value)[:40])}; write true or false")
    return value


@dataclass(frozen=True)
class _Table:
    """One table: its settings as the metadata has them, and its columns."""

    name: str
    flags: Mapping[str, bool | None]
    counts: Mapping[str, int | None]
    columns: tuple[_Column, ...]
    limit: int = 1

    def __post_init__(self) -> None:
        limit = self.counts["max_ids"] or self.counts["max_contributions"] or 1
        fix(self, "limit", limit)

    @classmethod
    def of(cls, name: str, given: dict[str, object], where: Place) -> _Table:
        flags = {flag: _flag(given, flag, where) for flag in _FLAGS}
        counts = {count: _whole(given, count, where) for count in _COUNTS}
        columns, seen = [], set()
        for column, value in given.items():
            if column in _SETTINGS:
                continue
            if not isinstance(value, dict):
                known = nearest(column, _SETTINGS) if value is not None else "write its type below it"
                raise where.under(column).refuse(f"it is no setting of a table, and a column is a mapping; {known}")
            columns.append(_Column.of(column, mapping(value, where.under(column)), where.under(column)))
            if fold(columns[-1].name) in seen or not columns[-1].name:
                raise where.under(column).refuse("DuckDB takes two columns for one here, or it has no name; rename it")
            seen.add(fold(columns[-1].name))
        if not columns:
            raise where.refuse("a table needs at least one column; write name: {type: int}")
        both = (counts["max_ids"], counts["max_contributions"])
        if None not in both and both[0] != both[1]:
            raise where.under("max_contributions").refuse("it differs from max_ids; keep one of them")
        table = cls(name, flags, counts, tuple(columns))
        if flags["row_privacy"] and table.limit != 1:
            raise where.refuse(
                f"row_privacy is true and max_ids is {table.limit}; with row_privacy it is 1 or left out"
            )
        return table

    def lines(self) -> list[str]:
        """The table's part of the policy."""
        out = [f"[{dotted('tables', self.name)}]", *self._unit()]
        rows = self.counts["rows"]
        if rows:
            out += [
                "# rows is a rough public figure in the metadata; keep it only if it was not counted from the data",
                f"# confirm: expected_rows = {rows}",
            ]
        if self.counts["rows_exact"] is not None:
            out.append("# rows_exact is not carried over: an exact number of rows is private unless it was published")
        if self.flags["clamp_columns"] is False:
            out.append("# clamp_columns was false; sums are clamped all the same: check that no value lies outside")
        out.append(f"[{dotted('tables', self.name, 'columns')}]")
        unit = self._keys()
        for column in self.columns:
            if not self.flags["row_privacy"] and unit == [column.name] and "." not in column.name:
                out.append(
                    f"# {one_line(dotted(column.name))} is the unit; it is not declared, so no condition can name it"
                )
            else:
                out += column.lines()
        return out

    def _keys(self) -> list[str]:
        return [column.name for column in self.columns if column.private_id]

    def _unit(self) -> list[str]:
        keys = self._keys()
        if self.flags["row_privacy"]:
            ignored = (
                [f"# private_id {one_line(', '.join(keys))} is not used: row_privacy protects single rows"]
                if keys
                else []
            )
            return [*ignored, 'unit = "row"']
        if len(keys) == 1 and "." not in keys[0]:
            given = self.counts["max_ids"] or self.counts["max_contributions"]
            source = "max_ids" if given else "max_ids, left out, is 1"
            rows = [
                "# sample_max_ids was false: the limit is enforced here all the same, more rows of a unit are left out"
            ]
            return [
                f"unit = {quote(keys[0])}",
                f"# {source}: how many rows of one unit count; more are left out, not sampled anew a query",
                *(rows if self.flags["sample_max_ids"] is False else []),
                f"max_rows_per_unit = {self.limit}",
            ]
        # A dot in a unit names another table's column, so that such a column cannot be one.
        reason = (
            f"# private_id is set on {one_line(', '.join(keys))}: a unit is one column (no dot); choose"
            if keys
            else "# no private_id and no row_privacy: SmartNoise answers nothing here; decide whom the noise protects"
        )
        return [reason, '# confirm: unit = "row"']


def _whole(given: Mapping[str, object], name: str, where: Place) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    least = 0 if name.startswith("rows") else 1
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**15:
        raise where.under(name).refuse(f"it is {one_line(str(value)[:40])}; write a whole number from {least} on")
    return value


def _plain(name: str) -> str:
    """A name without the quotes, backticks or brackets that escape it."""
    for left, right in (('"', '"'), ("`", "`"), ("[", "]")):
        if len(name) > 2 and name[0] == left and name[-1] == right:
            return name[1:-1].replace(right * 2, right)
    return name
