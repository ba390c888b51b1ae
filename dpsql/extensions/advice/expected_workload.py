"""Expected workloads: what analysts are likely to ask, declared in a word and released once, so that they ask for free.

A declaration is a family of groupings over columns of one table, and what is counted or summed in each group:

    ranges(age)                       all ranges of values of a column
    prefixes(age)                     all ranges from its least value
    marginals(2, sex, state, plan)    all groupings by up to two of these columns
    groups(sex, state)                one grouping by all of them, from which every coarser one follows
    ranges(age) of count, sum(cost)   with sums; counts alone where nothing is said

It is written out as a batch of SQL statements, one a grouping, which is planned, priced and measured like any other.
What is released answers every later question about the same columns that lies in its row space
(``dpsql.running.answer_free``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpsql.common.quoting import dotted, identifier
from dpsql.errors import DataError, PolicyError, nearest
from dpsql.policy import Policy, TablePolicy

FAMILIES = ("ranges", "prefixes", "marginals", "groups")
_FORM = re.compile(r"\s*(?P<family>[a-z]+)\s*\((?P<arguments>[^()]*)\)\s*(?:of\s+(?P<measures>.+?))?\s*", re.IGNORECASE)
_MEASURE = re.compile(r"(?P<function>count|sum|avg)\s*(?:\(\s*(?P<column>[^()]*?)\s*\))?", re.IGNORECASE)
_HINT = (
    "write ranges(age), prefixes(age), marginals(2, sex, state) or groups(sex, state), each perhaps of count, sum(cost)"
)
MOST_GROUPINGS = 200


@dataclass(frozen=True)
class Expected:
    """One declaration: its family, the order of marginals (0 for others), columns, and what is measured."""

    family: str
    order: int
    columns: tuple[str, ...]
    measures: tuple[tuple[str, str], ...]

    def groupings(self) -> Iterable[tuple[str, ...]]:
        """Which columns are grouped by together."""
        if self.family != "marginals":
            return [self.columns]
        sizes = range(self.order, -1, -1)
        return [chosen for size in sizes for chosen in itertools.combinations(self.columns, size)]


def workload_sql(policy: Policy, declared: str | Sequence[str], table: str | None = None) -> str:
    """The batch of an expected workload: a ``CREATE VIEW`` for each grouping, named after family and columns.

    ``declared``: one declaration or several, see the module. ``table``: the private table; needed where the policy has
    several. Raises DataError for declarations that are none, PolicyError for unknown tables and columns.
    """
    texts = [declared] if isinstance(declared, str) else list(declared)
    if not texts:
        raise DataError(f"the workload is empty; {_HINT}")
    chosen = _table(policy, table)
    statements: dict[str, str] = {}
    for text in texts:
        expected = parse(text, chosen)
        for columns in expected.groupings():
            name, statement = _statement(expected, columns, chosen.name)
            if statements.setdefault(name, statement) != statement:
                raise DataError(f"two declarations of the workload are both called {name}; declare each grouping once")
    if len(statements) > MOST_GROUPINGS:
        raise DataError(
            f"the workload has {len(statements)} groupings, at most {MOST_GROUPINGS} are declared at once: name fewer "
            "columns, or marginals of a lower order"
        )
    return ";\n".join(statements.values())


def parse(text: str, table: TablePolicy) -> Expected:
    """A declaration, its columns held against the policy's. Raises DataError and PolicyError."""
    form = _FORM.fullmatch(text) if isinstance(text, str) else None
    family = "" if form is None else form["family"].lower()
    if form is None or family not in FAMILIES:
        found = f": {nearest(family, FAMILIES)}" if family else ""
        raise DataError(f"{' '.join(str(text).split())!r} declares no workload{found}; {_HINT}")
    arguments = [part.strip() for part in form["arguments"].split(",") if part.strip()]
    order = 0
    if family == "marginals":
        if not arguments or not arguments[0].isdecimal():
            raise DataError(f"marginals need their order first, marginals(2, sex, state); {text!r} has none")
        order = int(arguments.pop(0))
        if not 1 <= order <= len(arguments):
            raise DataError(f"{text!r}: the order is from 1 to the number of columns, {len(arguments)} here")
    columns = tuple(_column(name, table) for name in arguments)
    if not columns or len(set(columns)) < len(columns) or (family in ("ranges", "prefixes") and len(columns) > 1):
        raise DataError(f"{text!r} needs {'one column' if family in ('ranges', 'prefixes') else 'different columns'}")
    measures = []
    for part in _split(form["measures"] or "count"):
        measure = _MEASURE.fullmatch(part)
        if measure is None or (measure["function"].lower() != "count" and not measure["column"]):
            raise DataError(f"{part!r} is not measured; write of count, sum(cost) or avg(cost)")
        measured = measure["column"] or ""
        measures.append((measure["function"].lower(), "" if measured in ("", "*") else _column(measured, table)))
    return Expected(family, order, columns, tuple(dict.fromkeys(measures)))


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _table(policy: Policy, name: str | None) -> TablePolicy:
    private = [held for held in policy.tables.values() if not held.public]
    if name is None:
        if len(private) == 1:
            return private[0]
        names = ", ".join(held.name for held in private)
        raise DataError(f"the policy has several private tables; name one with table=... (--table NAME): {names}")
    for held in private:
        if held.name.lower() == name.lower():
            return held
    raise PolicyError(f"the policy has no private table {name}: {nearest(name, [t.name for t in private])}")


def _column(name: str, table: TablePolicy) -> str:
    bare = name[1:-1] if len(name) > 1 and name[0] == name[-1] == '"' else name
    for known in table.columns:
        if known.lower() == bare.lower():
            return known
    raise PolicyError(f"{table.name} has no column {bare}: {nearest(bare, list(table.columns))}")


def _statement(expected: Expected, columns: Sequence[str], table: str) -> tuple[str, str]:
    """The name of a grouping's view, and the statement that makes it."""
    keys = [identifier(column) for column in columns]
    if expected.family in ("ranges", "prefixes"):
        keys = [f"dp_{expected.family}({keys[0]})"]
    outputs = []
    for function, column in expected.measures:
        called = {"count": "COUNT", "sum": "SUM", "avg": "AVG"}[function]
        title = "n" if not column else f"{'n' if function == 'count' else function}_{column}"
        outputs.append(f"{called}({identifier(column) if column else '*'}) AS {identifier(title)}")
    said = "marginal" if expected.family == "marginals" else expected.family
    name = "_".join([said, *columns]) if columns else "marginal_total"
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    source = dotted(table)
    listed = ", ".join([*keys, *outputs])
    return name.lower(), f"CREATE VIEW {identifier(name)} AS SELECT {listed} FROM {source}{grouped}"  # noqa: S608 - quoted
