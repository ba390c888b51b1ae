"""Random batches as pairs of texts: what a user writes, and what DuckDB is asked over prepared rows.

The oracle's text has the user's clauses word for word. It differs where privacy makes a difference, and
nowhere else: each group key ``k`` is read as ``k__g`` (its declared value, or NULL) and ``k__o`` (value, null, other
or outside); what is summed as ``k__c`` (clamped and on the grid); rows with ``pad`` stand for the declared groups, so
that GROUP BY finds empty ones, and no aggregate sees them. The views ``p_<table>`` hold these columns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import duckdb
from helpers import policy_of
from noiseless import Pipeline, rows_of

Pair = tuple[str, str]

POLICY = """
[tables.{name}]
unit = "row"
[tables.{name}.columns]
state = {{ values = ["NY", "NJ", "CA"], other = true }}
sex = {{ values = ["f", "m", ""] }}
age = {{ lower = 0, upper = 29 }}
kids = {{ lower = 0, upper = 2, other = true }}
flag = {{ values = [true, false] }}
day = {{ lower = 2020-01-30, upper = 2020-02-02 }}
cost = {{ lower = -10.0, upper = 30.0, step = 0.25 }}
price = {{ lower = -5, upper = 5 }}
mass = {{ lower = 0.0, upper = 1024.0 }}
big = {{ lower = -1000, upper = 3000 }}
note = {{}}
seen = {{}}
"""

TYPES = {
    "state": "VARCHAR", "sex": "VARCHAR", "age": "INTEGER", "kids": "TINYINT", "flag": "BOOLEAN", "day": "DATE",
    "cost": "DOUBLE", "price": "DECIMAL(9,2)", "mass": "DOUBLE", "big": "BIGINT", "note": "VARCHAR",
    "seen": "TIMESTAMP",
}  # fmt: skip

# Values of rows: within the domain, then adversarial ones. Doubles between grid points lie at no tie. A list of values
# without OTHER is a promise, which rows must keep.
INSIDE = {
    "state": ["'NY'", "'NJ'", "'CA'"],
    "sex": ["'f'", "'m'", "''"],
    "age": ["0", "1", "9", "10", "18", "29"],
    "kids": ["0", "1", "2"],
    "flag": ["true", "false"],
    "day": ["'2020-01-30'", "'2020-01-31'", "'2020-02-01'", "'2020-02-02'"],
    "cost": ["-10", "-0.25", "0", "7.5", "29.75", "30"],
    "price": ["-5", "-0.01", "0", "0.01", "4.99", "5"],
    "mass": ["0", "1", "512", "1023.5", "1024"],
    "big": ["-1000", "-7", "0", "1", "3000"],
    "note": ["'a'", "'ab'", "'b_'", "'A'"],
    "seen": ["'2020-01-01 00:00:00'", "'2020-02-29 12:00:00'", "'1999-12-31 23:59:59.999999'"],
}
OUTSIDE = {
    "state": ["''", "'ny'", "'XX'", "'NY '"],
    "sex": [],
    "age": ["-2147483648", "-1", "30", "2147483647"],
    "kids": ["-128", "127", "3"],
    "flag": [],
    "day": ["'2020-01-29'", "'2020-02-03'", "'0001-01-01'", "'9999-12-31'"],
    "cost": ["'nan'", "'inf'", "'-inf'", "1e300", "'-0.0'", "3.2", "-10.01", "5e-324"],
    "price": ["9999999.99", "-9999999.99", "5.01"],
    "mass": ["'nan'", "'inf'", "'-inf'", "-1", "1e300"],
    "big": ["-9223372036854775808", "9223372036854775807", "3001"],
    "note": ["''", "'%'", "'日本'", "'it''s'"],
    "seen": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"],
}


@dataclass(frozen=True)
class Key:
    """A group key that a statement may have: ``text`` over the columns ``needs``, and its groups.

    ``values`` are SQL literals of type ``type``; ``null`` and ``other`` whether it has such groups. ``label`` and
    ``kind`` are SQL over the raw columns for ``k__g`` and ``k__o``. ``column``: the text is a column.
    """

    name: str
    text: str
    needs: tuple[str, ...]
    type: str
    values: tuple[str, ...]
    null: bool
    other: bool
    label: str
    kind: str
    column: bool = False

    @property
    def groups(self) -> tuple[str, ...]:
        """The declared groups as SQL rows."""
        rows = [f"(CAST({value} AS {self.type}), 'value')" for value in self.values]
        rows += [f"(CAST(NULL AS {self.type}), 'null')"] * self.null
        return (*rows, *[f"(CAST(NULL AS {self.type}), 'other')"] * self.other)

    @property
    def clear(self) -> bool:
        """Whether each group has a label of its own."""
        return not (self.null and self.other)


def _column(name: str, values: Sequence[str], *, other: bool = False, null: bool = True) -> Key:
    listed = ", ".join(f"CAST({value} AS {TYPES[name]})" for value in values)
    kind = (
        f"CASE WHEN {name} IN ({listed}) THEN 'value' WHEN {name} IS NULL THEN '{'null' if null else 'outside'}' ELSE "
    )
    label = f"CASE WHEN {name} IN ({listed}) THEN {name} END"
    found = f"'{'other' if other else 'outside'}' END"
    return Key(name, "{" + name + "}", (name,), TYPES[name], tuple(values), null, other, label, kind + found, True)


def _expression(
    name: str, text: str, needs: str, type_: str, values: Sequence[str], *,
    null: bool = True, other: str = "", outside: str = "false", label: str = "",
) -> Key:  # fmt: skip
    """``other`` and ``outside`` are conditions for these kinds of rows."""
    columns = tuple(needs.split())
    raw = label or text.format(**{column: column for column in columns})
    elsewhere = f"WHEN {outside} THEN 'outside' WHEN {other or 'false'} THEN 'other'"
    kind = f"CASE {elsewhere} WHEN ({raw}) IS NULL THEN 'null' ELSE 'value' END"
    label = f"CASE WHEN ({kind}) = 'value' THEN CAST({raw} AS {type_}) END"
    return Key(name, text, columns, type_, tuple(values), null, bool(other), label, kind)


_AGE_OUT = "(age < 0 OR age > 29)"
_KIDS_OUT = "(kids < 0 OR kids > 2)"
_DAY_OUT = "(day < DATE '2020-01-30' OR day > DATE '2020-02-02')"

COLUMN_KEYS = (
    _column("state", INSIDE["state"], other=True),
    _column("sex", INSIDE["sex"]),
    _column("age", [str(value) for value in range(30)]),
    _column("kids", ["0", "1", "2"], other=True),
    _column("flag", ["true", "false"]),
    _column("day", INSIDE["day"]),
)
EXPRESSION_KEYS = (
    _expression("x_grown", "CASE WHEN {age} >= 18 THEN 'adult' WHEN {age} >= 0 THEN 'child' ELSE 'odd' END", "age",
                "VARCHAR", ["'adult'", "'child'", "'odd'"], null=False),
    _expression("x_dear", "CASE WHEN {cost} > 5 THEN 'dear' WHEN {flag} THEN 'flagged' END", "cost flag",
                "VARCHAR", ["'dear'", "'flagged'"]),
    _expression("x_decade", "{age} // 10", "age", "INTEGER", ["0", "1", "2"], outside=_AGE_OUT),
    _expression("x_rest", "{big} % 3", "big", "BIGINT", ["-2", "-1", "0", "1", "2"],
                outside="(big < -1000 OR big > 3000)"),
    _expression("x_month", "month({day})", "day", "BIGINT", ["1", "2"],
                outside="(day < DATE '2020-01-30' OR day > DATE '2020-02-02')"),
    _expression("x_any_month", "month({seen})", "seen", "BIGINT", [str(month) for month in range(1, 13)]),
    _expression("x_old", "{age} > 10", "age", "BOOLEAN", ["false", "true"]),
    _expression("x_first", "({state} = 'NY' OR {sex} IS NULL)", "state sex", "BOOLEAN", ["false", "true"]),
    _expression("x_sex", "coalesce({sex}, 'unknown')", "sex", "VARCHAR", ["'f'", "'m'", "''", "'unknown'"], null=False),
    _expression("x_upper", "upper({sex})", "sex", "VARCHAR", ["'F'", "'M'", "''"]),
    _expression("x_kids", "CASE WHEN {age} < 10 THEN {kids} ELSE 9 END", "age kids", "INTEGER", ["0", "1", "2", "9"],
                other=f"(age < 10 AND {_KIDS_OUT})"),
    _expression("x_twice", "CASE {kids} WHEN 0 THEN 'none' WHEN 1 THEN 'some' WHEN 2 THEN 'some' ELSE 'none' END",
                "kids", "VARCHAR", ["'none'", "'some'"], null=False),
    _expression("x_none", "CASE WHEN {note} LIKE 'a%' THEN NULL WHEN {note} IS NULL THEN 1 ELSE 2 END", "note",
                "INTEGER", ["1", "2"]),
    _expression("x_label", "strftime({day}, '%Y-%m')", "day", "VARCHAR", ["'2020-01'", "'2020-02'"], outside=_DAY_OUT),
    _expression("x_name", "dayname({day})", "day", "VARCHAR", ["'Thursday'", "'Friday'", "'Saturday'", "'Sunday'"],
                outside=_DAY_OUT),
    _expression("x_hour", "strftime({seen}, '%H h')", "seen", "VARCHAR", [f"'{hour:02} h'" for hour in range(24)]),
    _expression("x_mass", "round({mass} / 512)", "mass", "DOUBLE", ["0", "1", "2"],
                outside="(NOT isnan(mass) AND (mass < 0 OR mass > 1024))",
                label="CASE WHEN NOT isnan(mass) THEN round(mass / 512) END"),
    _expression("x_both", "{sex} || '-' || year({day})", "sex day", "VARCHAR", ["'f-2020'", "'m-2020'", "'-2020'"],
                outside=_DAY_OUT),
)  # fmt: skip
# Functions whose groups follow from the declared domain of a stored column; of a joined one they do not.
_STORED = {"x_month", "x_upper", "x_label", "x_name", "x_mass", "x_both"}
KEYS = {key.name: key for key in (*COLUMN_KEYS, *EXPRESSION_KEYS)}

# What SUM sees of a column.
CLAMPED = {
    "age": "CASE WHEN age IS NOT NULL THEN least(greatest(age, 0), 29) END",
    "kids": "CASE WHEN kids IS NOT NULL THEN least(greatest(kids, 0), 2) END",
    "big": "CASE WHEN big IS NOT NULL THEN least(greatest(big, -1000), 3000) END",
    "cost": "CASE WHEN cost IS NOT NULL THEN round((least(greatest(cost, -10), 30) + 10) * 4) / 4 - 10 END",
    "price": "CASE WHEN price IS NOT NULL THEN least(greatest(price, -5::DECIMAL(9,2)), 5::DECIMAL(9,2)) END",
    "mass": "CASE WHEN mass IS NOT NULL THEN round(least(greatest(mass, 0), 1024) * 1024) / 1024 END",
}
BOUNDS = {"age": (0, 29), "kids": (0, 2), "big": (-1000, 3000), "cost": (-10, 30), "price": (-5, 5), "mass": (0, 1024)}


def prepared(name: str, source: str) -> str:
    """The view of a table or join that the oracle reads."""
    hidden = [f"{key.label} AS {key.name}__g, {key.kind} AS {key.name}__o" for key in KEYS.values()]
    hidden += [f"{text} AS {column}__c" for column, text in CLAMPED.items()]
    # NaN is NULL wherever it is read.
    read = ", ".join(f"CASE WHEN NOT isnan({column}) THEN {column} END AS {column}" for column in ("cost", "mass"))
    return f"CREATE VIEW p_{name} AS SELECT *, {', '.join(hidden)} FROM (SELECT * REPLACE ({read}) FROM {source})"


def filled(table: str, rows: int, outside: float, nulls: float, rng: random.Random) -> list[str]:
    """CREATE TABLE and INSERT of random rows, duplicates among them."""
    made = [f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in TYPES.items())})"]
    listed: list[str] = []
    for _ in range(rows):
        if listed and rng.random() < 0.2:
            listed.append(rng.choice(listed))
            continue
        values = []
        for name, kind in TYPES.items():
            pool = OUTSIDE[name] if OUTSIDE[name] and rng.random() < outside else INSIDE[name]
            values.append("NULL" if rng.random() < nulls else f"CAST({rng.choice(pool)} AS {kind})")
        listed.append(f"({', '.join(values)})")
    return made + ([f"INSERT INTO {table} VALUES {', '.join(listed)}"] if listed else [])


# -- units with several rows, and joins towards them --------------------------------------------

UNITS = """
[tables.visits]
unit = "pid"
max_rows_per_unit = 1000
references = { pid = "people.person" }
[tables.visits.columns]
state = { values = ["NY", "NJ", "CA"], other = true }
kids = { lower = 0, upper = 2, other = true }
cost = { lower = -10.0, upper = 30.0, step = 0.25 }
mass = { lower = 0.0, upper = 1024.0 }
big = { lower = -1000, upper = 3000 }
seen = {}
pid = {}
[tables.people]
unit = "person"
max_rows_per_unit = 1
key = ["person"]
[tables.people.columns]
sex = { values = ["f", "m", ""] }
age = { lower = 0, upper = 29 }
flag = { values = [true, false] }
day = { lower = 2020-01-30, upper = 2020-02-02 }
price = { lower = -5, upper = 5 }
[tables.places]
public = true
key = ["place"]
[tables.places.columns]
note = {}
"""

_VISITS = ("state", "kids", "cost", "mass", "big", "seen")
_PEOPLE = ("sex", "age", "flag", "day", "price")
# FROM as the user writes it. Every column has one table, so that no name needs a qualifier.
JOINS = {
    "inner_": "visits JOIN people ON pid = person JOIN places ON region = place",
    "outer_": "visits LEFT JOIN people ON pid = person LEFT JOIN places ON region = place",
    "mixed_": "visits LEFT JOIN places ON place = region JOIN people ON person = pid",
    "comma_": "visits, people, places WHERE pid = person AND region = place",
}


def with_units(rng: random.Random) -> list[str]:
    """CREATE TABLE of visits, people and places; visits of nobody, nowhere and of people who are not there."""
    made = filled("seed_", 60, 0.2, 0.15, rng)
    made += [
        "CREATE TABLE visits AS SELECT CASE WHEN i % 3 = 0 THEN 40 + i % 20 ELSE i % 12 END AS pid, i % 5 AS region, "
        f"{', '.join(_VISITS)} FROM (SELECT *, row_number() OVER () AS i FROM seed_)",
        "UPDATE visits SET pid = NULL WHERE pid % 11 = 0",
        "UPDATE visits SET region = NULL WHERE pid % 13 = 1",
        "INSERT INTO visits SELECT * FROM visits WHERE pid % 3 = 0",
        f"CREATE TABLE people AS SELECT i AS person, {', '.join(_PEOPLE)} "
        "FROM (SELECT *, row_number() OVER () AS i FROM seed_) WHERE i < 50",
        "CREATE TABLE places AS SELECT * FROM (VALUES (0, 'a'), (1, NULL), (2, 'ab'), (3, '')) AS v(place, note)",
    ]
    return made


@lru_cache(1)
def _without_rows() -> Pipeline:
    connection = duckdb.connect()
    rng = random.Random("none")
    for statement in [*filled("rows_", 0, 0, 0, rng), *with_units(rng)]:
        connection.execute(statement)
    return Pipeline.of(policy_of(POLICY.format(name="rows_") + UNITS), connection)


def groups_of(keys: Sequence[Key], statement: str) -> tuple[str, ...]:
    """The groups of ``keys``, k0, k1, ... in a statement by them, whose tables are ``rows_`` and those of units.

    That are those that dpsql lists: which WHERE excludes is held in ``test_excluded_groups``, which of several
    functions of one column meet in ``test_joined_keys``; here, that no row is ever in another.
    """
    names, rows = rows_of(_without_rows().results(statement)[0])
    found = []
    for row in (dict(zip(names, values, strict=True)) for values in rows):
        cells = []
        for at, key in enumerate(keys):
            other, label = row.get(f"k{at}_other", False), row[f"k{at}"]
            text = "NULL" if label is None else f"'{str(label).replace(chr(39), chr(39) * 2)}'"
            kind = "other" if other else "null" if label is None else "value"
            cells.append(f"CAST({text} AS {key.type}), '{kind}'")
        found.append(f"({', '.join(cells)})")
    return tuple(found)


@dataclass
class Scope:
    """What a SELECT reads: FROM in both texts, WITH before it, and the names of columns and of keys' columns there."""

    source: Pair
    with_: list[Pair]
    columns: dict[str, str]
    keys: dict[str, str] = field(default_factory=dict)  # keys that a derived table computes as a column
    prefix: str = ""
    joined: bool = False

    def raw(self, name: str) -> str:
        return f"{self.prefix}{self.columns[name]}"

    def hidden(self, name: str, suffix: str) -> str:
        """The oracle's own column of a column or key."""
        return f"{self.prefix}{name}__{suffix}"

    def key(self, key: Key) -> str:
        """The user's text of a key."""
        if key.name in self.keys:
            return f"{self.prefix}{self.keys[key.name]}"
        return key.text.format(**{name: self.raw(name) for name in key.needs})

    def available(self) -> list[Key]:
        known = [k for k in KEYS.values() if k.name in self.keys or all(name in self.columns for name in k.needs)]
        return [key for key in known if not (self.joined and key.name in _STORED)]


@dataclass(frozen=True)
class Statement:
    """A statement in both texts; ``ordered``: the order of its rows is part of the answer.

    ``exact``: both sides give the same doubles, so that they may decide about rows.
    """

    name: str
    user: str
    oracle: str
    ordered: bool
    columns: tuple[str, ...]
    keys: tuple[str, ...] = ()
    exact: bool = False


HIDDEN = [f"{name}__{end}" for name in KEYS for end in "go"] + [f"{name}__c" for name in CLAMPED]
