"""Row sources: what one scan reads, and how many of its rows one privacy unit may have.

A source has one row for each row of its base table, whatever is joined to it: every join is a LEFT JOIN
that finds at most one row. Its rows belong to units, and at most ``limit`` rows of a unit count.

**Claim.** Neighbours are D and D - u, that is D without all rows that unit u owns. From one to the
other the source loses the rows of u, at most ``limit`` of which counted, and all other rows that counted
count on, with all their joined values as they were. So a linear function of the rows that count moves by a
sum of at most ``limit`` rows' contributions.

Who owns a row: in a table that stores its unit, the value of that column; else who owns the row that the
first step of the ``path`` finds. Several rows may have the key that is looked for, since data may break
what the policy declares: the least in the order of ``Join.first`` is taken, which are the columns that
decide who owns it. Ownership depends on nothing that a batch asks, so that it is one relation for all releases.

Which of the owner's rows is found: the least in ``Join.order``, all columns that the policy names, in an order that is
the same wherever the table is joined. Ties are equal in all that a batch reads of a private row.

**Proof.** Let r be a row of the base table whose owner w is not u.
(1) A join on the path. The row t that r finds is the least among those with r's key and owned by w, as
owners are found along the path. D - u still has t, and no candidate that D has not. Rows that tie with t in
``first`` have its owner, so that all of them remain, and the choice among them by their other values is the same.
(2) A join with ``unit``: candidates are the rows with r's key that w owns. All remain, and so does the least of them.
(3) A join to a public table: it is the same in both.
By induction over the joins, a key that r takes from an earlier join is the same in both, so r finds the
same values, or none, in both. If no owner is found (the key dangles, or a unit is NULL), the owner is "no
value", which is one unit like the others.
Truncation, and the choice of the least row of a unit in ``RowSource.order``, look at the rows of one unit only
(``measure/from_sql.py``), so that those of w stay as they are.

**Claim.** Let u be a unit and T a private table. In all scans of a batch the rows of u find one row of T by every join
that ``agrees``, whatever the scans read and whatever conditions the batch has. Where a source is over T itself and
``RowSource.agrees``, this row is the one row of u that counts. No row of another unit changes which row it is.

**Proof.** By induction over the joins, all rows of u look for one key in all scans: it is made of the unit, which is
the same for all rows of u, and of columns in the ``order`` of a row of u that is one for all scans. (The key of a join
on the path is the unit itself where the row that it finds has its unit for a key.) So the candidates
are one set, the rows of T that u owns and that have this key. A choice is made before the scan computes anything of a
row, so that no condition takes a candidate away. The least in ``order`` is then one row, or several that are equal in
all that a batch reads; ``one_choice`` holds ``order`` to be the same for all scans. A base with an ``order`` has the
unit alone as its key, so that the rows of u in T are the rows with this key: the same candidates, and the same least
row. Rows of other units are no candidates. QED.

So what u changes in all scans of a batch is what they measure on the rows of u alone, in which u has one row of T. This
does not hold for the unit NULL: NULL equals nothing, so that its rows find no row by a join, while the least of its
rows in T counts where T is scanned. Nor does it hold for columns outside of ``order``, which the policy does not name,
for public tables, of which a join takes the least row in what the scan reads, or for a table that grows, of which a
scan reads the rows of some periods and a join those of all. EXISTS and rows of units read all rows of u.

Values that are counted instead of rows, each once in a cell (``each``): a pair of a cell and a value is there in D - u
unless all rows that counted with it were u's, and no other pair comes. So each cell loses at most as many values as
rows of u counted in it, and what moves is a part of what the rows themselves move: a sum of at most ``limit`` of them.

Rows of units (``Units``): one row for each owner of a source's rows, a function of the rows that it owns. By the above
all rows of w, with what their joins find, are the same in D and in D - u, so is w's one row; only u's goes. Along a
value (``Along``) w has a row for each of its values: all of them are functions of w's rows, too, so that the nearest to
what a row of w has is the same row in both. No two have one value, so that it is one.

Windows (``Windows``): columns of the base that follow from rows with equal ``apart``, which all have one owner: it
holds the unit, or the key by which the path begins, and rows with one key find one row. The rows of w are the same in D
and in D - u, and so are those among them that count in the window and what is computed of them. Ties in the order are
equal in every column that a scan may read, so that whichever comes first, the rows are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from dpsql.errors import InternalError
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.lines import Line
from dpsql.workloads.expr.unit_sums import UnitSum
from dpsql.workloads.expr.values import Compared, Stored, Test, Value, Within, stored

EVERY = "dpsql every row"
"""The unit of a public table whose rows are one group, and what every row is joined to it by: TRUE, of no column."""
MATCHED = "dpsql matched"
"""The column of every join that is TRUE where a row was found, and NULL where none was."""
KEPT = "dpsql kept"
"""The column of rows of units that have conditions: 0 where these hold, so that the row counts."""


@dataclass(frozen=True)
class Join:
    """At most one row of ``table`` for each row of the source, under the name ``name``.

    ``pairs``: (a column of the base or of an earlier join, a column of ``table``), equal in the row that is
    found; NULL equals nothing. ``unit`` is one more pair, of the row's unit and ``table``'s, where NULL
    equals NULL. ``first`` and ``order`` are columns of ``table``: of several rows with that key the least in
    ``first`` is found, among equal ones the least in ``order``, which is the same in all joins to a private table, and
    among those the least in what else the scan uses. ``of``: what is joined is not the table itself but these rows of
    its units. ``nearest`` compares their column ``along`` with a value of the row: of the rows with that key for which
    it holds the one is found whose column is nearest to the value.
    """

    name: str
    table: str
    pairs: tuple[tuple[Stored, Stored], ...]
    first: tuple[Stored, ...] = ()
    unit: tuple[Stored, Stored] | None = None
    private: bool = False
    of: Units | None = field(default=None, repr=False)
    nearest: Compared | None = field(default=None, repr=False)
    order: tuple[Stored, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.order and (self.of is not None or {column.source for column in self.order} != {self.name}):
            raise InternalError(f"join {self.name}: rows are ordered by columns of their table, rows of units by none")
        along = None if self.of is None else self.of.along
        if (along is None) != (self.nearest is None):
            raise InternalError(f"join {self.name}: rows along a value are found by the nearest, and no others are")
        if self.nearest is None or along is None:
            return
        operators = {">", ">="} if along.upwards else {"<", "<="}
        if self.nearest.operator not in operators or {part.source for part in stored(self.nearest.left)} != {self.name}:
            raise InternalError(f"join {self.name}: the nearest is where the rows that it stands for begin")

    @property
    def lefts(self) -> tuple[Stored, ...]:
        """The columns of the base and of earlier joins that decide which row is found."""
        near = () if self.nearest is None else stored(self.nearest.right)
        pairs = (*self.pairs, *((self.unit,) if self.unit else ()))
        return (*(left for left, _ in pairs if left.name != EVERY), *near)


@dataclass(frozen=True)
class OfUnit:
    """A column of rows of units: ``function`` of ``value`` over the rows of a unit.

    A row's value lies on ``each``, the column on ``line``; outside of them it is NULL. Functions are count, sum, min,
    max, median, distinct (how many values there are) and those that take the value of one row: arg_min and arg_max,
    which pass over NULL, and arg_min_null and arg_max_null. ``by``, on its line, says which row: the one where it is
    least or greatest, and among those the least or greatest value, so that no order of rows decides. Rows where
    ``where`` does not hold (None: it always does) are left out.
    """

    name: str
    function: str
    value: Value
    each: Line
    line: Line
    by: tuple[Value, Line] | None = None
    where: Test | None = None


@dataclass(frozen=True)
class Along:
    """The column ``name`` of rows of units that have a row for each of its values, NULL among them.

    ``value`` is that of a row, on ``line``. The other columns are over all rows of the unit from this value on,
    ``upwards`` or downwards: what EXISTS asks of rows whose value is greater, or less, than another one.
    """

    name: str
    value: Value
    line: Line
    upwards: bool


@dataclass(frozen=True)
class Units:
    """One row for each unit that owns a row of ``of``; ``along`` a value one for each of its values.

    With ``keys``, by their names, one for each unit and values of these, which lie on their lines.

    ``unit`` is the column that says which, ``columns`` are computed over its rows where ``where`` holds (None:
    everywhere); ``of.limit`` bounds nothing here. A row of a unit counts where it had such rows and ``having``, over
    the columns, holds. One that does not count stays, as a scan leaves no row out, and the column ``KEPT`` says so. A
    sum is of whole numbers, so that it does not depend on the order of rows. Of a public table it is one row for each
    value of a column, which every row may see.
    """

    of: RowSource
    where: Test | None
    unit: str
    columns: tuple[OfUnit, ...]
    having: Test | None = None
    along: Along | None = None
    keys: tuple[tuple[str, Value, Line], ...] = ()

    def __post_init__(self) -> None:
        if self.along is not None and (self.having or any(c.function not in {"min", "max"} for c in self.columns)):
            raise InternalError(f"{self.of.table}: along a value there are least and greatest ones alone")
        if self.of.unit is None or any(c.function == "sum" and not c.each.discrete for c in self.columns):
            raise InternalError(f"{self.of.table}: rows of units need a unit, and sums of whole numbers")

    @property
    def conditional(self) -> bool:
        """Whether the rows have a column ``KEPT``; along a value those that do not count have none."""
        if self.along is not None:
            return False
        return self.where is not None or self.having is not None or self.of.conditional


@dataclass(frozen=True)
class OfPlace:
    """A column of the base by a row's place among those of its unit: ``function`` in the order of ``by``.

    ``row_number``, ``rank`` and ``dense_rank`` have no ``value``; ``lag`` and ``lead`` take that of the row ``steps``
    before or after, ``first_value`` that of the first. A window holds the rows that are equal in ``apart`` and alike in
    whether ``where`` holds. ``by`` says of each value whether it falls. Values are NULL outside of their lines.
    """

    name: str
    function: str
    value: tuple[Value, Line] | None
    steps: int
    line: Line
    apart: tuple[tuple[Value, Line], ...]
    by: tuple[tuple[Value, Line, bool], ...]
    where: Test | None = None


@dataclass(frozen=True)
class Windows:
    """``columns`` by the place of a row of the base, beside the ``stored`` columns that a scan may read of it."""

    columns: tuple[OfPlace, ...]
    stored: tuple[Stored, ...]


@dataclass(frozen=True)
class Each:
    """What a distinct source counts instead of units: a column, on ``line``, stored, or computed by ``value``."""

    column: str
    line: Line
    value: Value | None

    @property
    def computed(self) -> Value:
        """The value of a row."""
        return Stored(self.column, self.line.type) if self.value is None else self.value


@dataclass(frozen=True)
class RowSource:
    """The rows of ``table`` with what ``joins`` find for each, at most ``limit`` of which count for a unit.

    ``unit`` is the column that says who owns a row, None where every row is a unit of its own. ``path`` names
    the joins that lead to it. ``protects`` labels the unit: sources with equal labels share it. ``distinct``
    sources count units instead of rows: a unit counts once in each cell, in at most ``limit`` cells, and
    where the unit is NULL in none. ``caps`` bound how its rows spread. ``single``: the declared key says that a unit
    has one row, so that none is left out. ``each``: a distinct source counts its values, once in each cell, instead of
    units. ``added``: it adds up what each unit has in each cell. ``of``: the base is not the table itself but these
    rows of its units. ``windows``: columns of the base that follow from other rows of the unit. ``only``: rows
    elsewhere are in no cell, and are not read, which changes no answer where keys hold; never beside ``windows``.
    ``public``: rows of a public table, grouped by ``unit``, which protects nobody. ``freed``: the policy has caps that
    the batch is planned without. ``order``: of each unit the least row of the base in these columns is taken, before
    anything is joined or computed, and it is the only one; empty where the rows that count are chosen by what the batch
    reads. ``given``: the policy says that each row of the base has a unit in a column of its own; others are not read.
    See the module for what neighbours may change.
    """

    table: str
    joins: tuple[Join, ...] = ()
    unit: Stored | None = None
    path: tuple[str, ...] = ()
    limit: int = 1
    protects: str = ""
    distinct: bool = False
    caps: tuple[Cap, ...] = field(default=(), repr=False)
    single: bool = field(default=False, compare=False, repr=False)
    of: Units | None = field(default=None, repr=False)
    each: Each | None = field(default=None, repr=False)
    added: UnitSum | None = field(default=None, repr=False)
    windows: Windows | None = field(default=None, repr=False)
    only: Within | None = field(default=None, compare=False, repr=False)
    public: bool = field(default=False, repr=False)
    freed: bool = field(default=False, compare=False, repr=False)
    order: tuple[Stored, ...] = field(default=(), repr=False)
    given: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.protects:
            object.__setattr__(self, "protects", f"row of {self.table}")
        known = {""}
        for join in self.joins:
            if join.name in known or not join.pairs or not {left.source for left in join.lefts} <= known:
                raise InternalError(f"join {join.name}: joins need names of their own, and keys from earlier ones")
            if join.private and join.name not in self.path and not self._joins_same_unit(join):
                raise InternalError(f"join {join.name}: a private table is joined by unit, or on the way to it")
            known.add(join.name)
        if self.unit is None:
            private = any(join.private for join in self.joins)
            if self.limit != 1 or self.path or self.counts_units or self.caps or private:
                raise InternalError(f"{self.table}: a single row owns nothing but itself")
        elif self.of is not None and (
            self.path or (self.limit != 1 and not self.of.keys) or self.unit.name != self.of.unit
        ):
            if not self.public:
                raise InternalError(f"{self.table}: a row of a unit is the only one, and says whose it is")
        elif self.limit < 1 or self.unit.source != (self.path[-1] if self.path else ""):
            raise InternalError(f"{self.table}: its unit is not where the path leads")
        if self.each is not None and (not self.distinct or self.of is not None):
            raise InternalError(f"{self.table}: values are counted of rows, each once")
        self._check_path()
        self._check_order()
        if self.windows is not None and not all(map(self._keeps_to_one_unit, self.windows.columns)):
            raise InternalError(f"{self.table}: a window holds rows of several units")

    def _keeps_to_one_unit(self, column: OfPlace) -> bool:
        """Whether rows that are equal in ``column.apart`` have one owner."""
        return bool(self.owners) and set(self.owners) <= {value for value, _ in column.apart}

    @property
    def owners(self) -> tuple[Stored, ...]:
        """Columns of the base that say whose a row is: its unit, or the key by which the path to it begins."""
        if self.unit is None or self.of is not None:
            return ()
        first = next((join for join in self.joins if self.path[:1] == (join.name,)), None)
        return (self.unit,) if first is None else tuple(left for left, _ in first.pairs)

    @property
    def agrees(self) -> bool:
        """Whether the row of a unit that counts here is the one that every join by the unit alone finds.

        Of a table that grows a scan reads the rows of some periods, and a join those of all.
        """
        return bool(self.order) and self.only is None

    @property
    def conditional(self) -> bool:
        """Whether the base is rows of units that may not count."""
        return self.of is not None and self.of.conditional

    @property
    def most(self) -> int:
        """How many rows of a unit count at most, by ``limit`` and all of ``caps``."""
        return min([cap.most(self.limit) for cap in self.caps], default=self.limit)

    @property
    def counts_units(self) -> bool:
        """Whether units are counted, each once in a cell."""
        return self.distinct and self.each is None and self.added is None

    @property
    def grouped(self) -> tuple[Cap, ...]:
        """The bounds whose groups the scan tells apart."""
        return self.caps if self.added is None else self.added.caps

    def _joins_same_unit(self, join: Join) -> bool:
        """Whether every row that the join finds belongs to the owner of the row that it is found for."""
        return self.unit is not None and join.unit is not None and join.unit[0] == self.unit

    def _check_path(self) -> None:
        by_name = {join.name: join for join in self.joins}
        before = ""
        for step, name in enumerate(self.path):
            join = by_name.get(name)
            if join is None or join.unit is not None or {left.source for left, _ in join.pairs} != {before}:
                raise InternalError(f"{self.table}: the path to its unit is broken at {name}")
            after = by_name.get(self.path[step + 1]) if step + 1 < len(self.path) else None
            decides = (self.unit,) if after is None else tuple(left for left, _ in after.pairs)
            if join.first != decides:
                raise InternalError(f"join {name}: what decides the owner must decide which row is found")
            before = name

    def _check_order(self) -> None:
        if self.added is not None and (not self.distinct or self.unit is None or self.of is not None or self.each):
            raise InternalError(f"{self.table}: what units add is of their rows")
        single = self.unit is not None and not self.unit.source and self.limit == 1 and self.of is None
        if self.order and (not single or any(column.source for column in self.order)):
            raise InternalError(f"{self.table}: the least row is that of a unit of one row, by columns of the table")
        for join in self.joins:
            if join.private and join.of is None and not join.order:
                raise InternalError(f"join {join.name}: a private table has one order for all scans")
        one_choice([self])

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table that the scan reads, public ones too, the base first."""
        units = [self.of, *(join.of for join in self.joins)]
        below = [table for each in units if each is not None for table in each.of.tables]
        return tuple(dict.fromkeys([self.table, *(join.table for join in self.joins), *below]))

    @property
    def no_row_without_unit(self) -> bool:
        """Whether the scan reads no row without a unit."""
        return self.given and self.unit is not None and not self.path and self.of is None and self.windows is None

    @property
    def plain(self) -> bool:
        """Whether the scan reads the base table as it is, every row of it."""
        return self.unit is None and not self.joins and not self.distinct


def agrees(source: RowSource, join: Join) -> bool:
    """Whether all rows of a unit find one row by ``join``, the same in every scan with such a join.

    So it is where each column that is looked for is the unit, or comes from the row that such a join finds, or from the
    one row of the unit that counts in the base. Rows of units are one for each unit. See the module for what is proved.
    """
    chosen = bool(join.order) or (join.of is not None and join.nearest is None)
    if not chosen or not join.private:
        return False
    if join.name in source.path:
        return [right for _, right in join.pairs] == [source.unit]
    by_name = {each.name: each for each in source.joins}
    return all(_is_one_value(source, left, by_name) for left in join.lefts)


def _is_one_value(source: RowSource, left: Stored, by_name: Mapping[str, Join]) -> bool:
    """Whether all rows of a unit have one value of a column, the same in every scan."""
    if left == source.unit:
        return True
    if not left.source:
        return source.agrees and left in source.order
    join = by_name[left.source]
    return (join.of is not None or left in join.order) and agrees(source, join)


def one_choice(sources: Iterable[RowSource]) -> None:
    """Raises InternalError where two of the sources, or of their joins, order the rows of one table differently."""
    orders: dict[str, tuple[str, ...]] = {}
    waiting = list(sources)
    while waiting:
        source = waiting.pop()
        for table, order in ((source.table, source.order), *((join.table, join.order) for join in source.joins)):
            names = tuple(column.name for column in order)
            if names and orders.setdefault(table, names) != names:
                raise InternalError(f"{table}: one order chooses among its rows in all scans")
        waiting += [units.of for units in (source.of, *(join.of for join in source.joins)) if units is not None]


def united(sources: Iterable[RowSource]) -> RowSource:
    """One source with the joins of all, which are over one base and agree in everything else.

    Joins are left joins that find at most one row, so that more of them change no row. Raises InternalError
    where the sources differ in anything but joins, or two joins of one name are not equal.
    """
    found: RowSource | None = None
    joins: dict[str, Join] = {}
    for source in sources:
        if found is None:
            found = source
        elif replace(found, joins=source.joins) != source:
            raise InternalError(f"{source.table}: these sources cannot be read in one scan")
        for join in source.joins:
            if joins.setdefault(join.name, join) != join:
                raise InternalError(f"{source.table}: two joins are named {join.name}")
    if found is None:
        raise InternalError("no source to read")
    return replace(found, joins=tuple(joins.values()))
