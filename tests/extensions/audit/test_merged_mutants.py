"""Mutants of what several rooms share: one fault where there is one place, seen by a check that is cheap.

As in test_mutants: the check passes on the real code first, then the fault is put in and it must fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from math import prod
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql import strategy, workload
from dpsql.common import quoting
from dpsql.extensions.audit import noise as audited
from dpsql.linalg import exact
from dpsql.planning import text
from dpsql.policy import Policy
from dpsql.privacy.noise import Noise
from dpsql.release.columns import Numbers
from dpsql.release.range_table import RangeNumber, RangeTable
from dpsql.sql.resolve import relations
from dpsql.strategies.marginals import marginal_strategy

Patch = pytest.MonkeyPatch
Check = Callable[[Path], None]

MARGINALS = workload.marginals((2, 3, 4), sets=[(0, 1), (1, 2), ()], weights=[1.0, 3.0, 2.0])
POLICY = """
dataset = "merged-1"
[budget]
rho = 1000000.0
[tables.a]
unit = "id"
max_rows_per_unit = 1
key = ["id"]
[tables.a.columns]
'x"y' = { values = ["f", "m"], nulls = false }
[tables.b]
unit = "who"
max_rows_per_unit = 2
references = { who = "a.id" }
[tables.b.columns]
v = { lower = 0, upper = 9 }
"""


def connected(folder: Path) -> dpsql.Connection:
    """Two tables that join, of which one has a quote in a column's name."""
    duck = duckdb.connect()
    duck.execute('CREATE TABLE a (id INTEGER, "x""y" VARCHAR); CREATE TABLE b (id INTEGER, who INTEGER, v INTEGER)')
    duck.execute("INSERT INTO a VALUES (1, 'f'), (2, 'm'); INSERT INTO b VALUES (1, 1, 5), (2, 2, 7)")
    return dpsql.connect(duck, policy=Policy.parse(POLICY), ledger=folder / "merged.ledger")


# -- the checks -------------------------------------------------------------------------------------


def check_product(_: Path) -> None:
    """The exact product is that of Python's integers, words and signs and all."""
    matrix = np.random.default_rng(0).integers(-(2**40), 2**40, (3, 5))
    vector = [7**60, -(7**60), 2**150 + 1, 0, -1]
    assert exact.product(matrix, vector, 170) == list(matrix.astype(object) @ np.array(vector, dtype=object))


def check_tables(_: Path) -> None:
    """What a strategy of tables says of its errors is what dense algebra says, for residuals and for blocks."""
    for made in (marginal_strategy.residual_strategy, marginal_strategy.block_strategy):
        found = made(MARGINALS)
        B, R = found.matrix(), np.asarray(found.reconstruction(MARGINALS))
        order = 2 if found.noise == "gaussian" else 1
        assert found.sensitivity == pytest.approx(np.linalg.norm(B, order, axis=0).max())
        squares = found.sensitivity**2 * (R * R).sum(axis=1)
        assert found.variances(MARGINALS) == pytest.approx(squares)
        assert found.error(MARGINALS) == pytest.approx(squares.sum())


def check_bound(_: Path) -> None:
    """The certificate of all marginals of two attributes is the closed form worked out by hand."""
    k, d = 6, 7
    c = [k * (k - 1) / 2 / d**2, (k - 1) * (d - 1) / d, (d - 1) ** 2]
    p = [1.0, (d - 1) / d, ((d - 1) / d) ** 2]
    least = (np.sqrt(c[0] * p[0]) + k * np.sqrt(c[1] * p[1]) + k * (k - 1) / 2 * np.sqrt(c[2] * p[2])) ** 2
    found = strategy.select(workload.marginals([d] * k, order=2))
    assert found.lower_bound == pytest.approx(least)
    assert 0 <= found.gap <= 1e-3


def check_ranges(_: Path) -> None:
    """A range's row is the sum of its values, by difference of two prefix sums of its group."""
    values = [[3, 1, 4, 1], [5, 9, 2, 6]]
    sums = Numbers(np.concatenate([[0, *np.cumsum(group)] for group in values]).astype(float))
    number = RangeNumber(sums, (1.0, 1.0), 0.0, 2.0)
    shown = (("low", "INTEGER", ("from", 0)), ("high", "INTEGER", ("to", 0)), ("n", "DOUBLE", ("value", 0)))
    keys = ((("a", "b"), (False, False)),)
    table = RangeTable("r", True, shown, (10, 4), "INTEGER", (number,), keys, Numbers(np.arange(5.0)))
    wanted = [(10 + i, 10 + j, float(sum(group[i : j + 1]))) for group in values for i in range(4) for j in range(i, 4)]
    assert table.rows(0, len(table)) == wanted


def check_scope(folder: Path) -> None:
    """A name that two tables have is refused, and says where it stands."""
    said = None
    try:
        connected(folder).plan("SELECT COUNT(*) FROM b JOIN a ON b.who = a.id WHERE id > 3", rho=1)
    except dpsql.SQLError as error:
        said = str(error)
    assert said is not None
    assert "could be" in said


def check_quoting(folder: Path) -> None:
    """A quote in a name stays a part of the name."""
    rows = connected(folder).run('SELECT "x""y", COUNT(*) AS n FROM a GROUP BY "x""y"', rho=100_000)["q1"].fetchall()
    assert [row[0] for row in rows] == ["f", "m"]
    assert [row[1] for row in rows] == pytest.approx([1, 1], abs=0.5)


def check_views(folder: Path) -> None:
    """What a plan's text shows of errors are the plan's own."""
    plan = connected(folder).plan("SELECT COUNT(*) AS n, SUM(v) AS s FROM b", rho=1)
    shown = [line.split() for line in str(plan).splitlines() if line.startswith("q1 ")]
    for line, error in zip(shown, plan.errors.tolist(), strict=True):
        assert text.figure(error) in line


def check_law(_: Path) -> None:
    """Counts of one draw in eight too many in the middle have no chance under the law."""
    expected = np.full(40, 2500.0)
    assert audited.chi_square_of(expected, expected) > 0.99
    off = expected * np.where(np.arange(40) % 2, 1.06, 0.94)
    assert audited.chi_square_of(off, expected) < 1e-6
    noise = Noise.gaussian(Fraction(10**6))
    draws = np.rint(np.random.default_rng(0).normal(0, 1000, 100_000)).astype(int).tolist()
    assert audited.chi_square(draws, noise) > 1e-6
    assert audited.chi_square([value * 19 // 20 for value in draws], noise) < 1e-6


# -- the faults -------------------------------------------------------------------------------------


def words_too_wide(patch: Patch) -> None:
    """Words of the data so long that an int64 product may wrap."""
    patch.setattr(exact, "word_width", lambda _: 40)


def error_without_sensitivity(patch: Patch) -> None:
    """Errors of tables for noise of one, whatever the sensitivity is."""
    real = marginal_strategy.MarginalStrategy.variances
    patch.setattr(marginal_strategy.MarginalStrategy, "variances", lambda self, W: real(self, W) / self.sensitivity**2)


def residual_of_a_subset_lost(patch: Patch) -> None:
    """The residual spaces of a marginal without its total."""
    real = type(MARGINALS).residuals
    patch.setattr(type(MARGINALS), "residuals", lambda self: {T: g for T, g in real(self).items() if T})


def multipliers_counted_once(patch: Patch) -> None:
    """What a table says of a space within it, as if it had no other attributes."""
    real = marginal_strategy.precisions

    def wrong(sizes: Any, spaces: Any, tables: Any) -> Any:
        return real(sizes, spaces, {T: t * prod(sizes[i] for i in T) for T, t in tables.items()})

    patch.setattr(marginal_strategy, "precisions", wrong)


def prefix_sum_of_the_next(patch: Patch) -> None:
    """A range from one place too far."""
    real = RangeTable.between
    patch.setattr(RangeTable, "between", lambda self, g, i, j: real(self, g, np.minimum(i + 1, j), j))


def first_of_two_names(patch: Patch) -> None:
    """A name that two tables have is the first table's."""

    def place(self: Any, node: Any) -> relations.Place:
        for at, relation in enumerate(self.every):
            column = relation.stored(node.name)
            if column is not None and (not node.table or relation.answers_to(node.table)):
                return relations.Place(at, column)
        raise AssertionError(node.name)

    patch.setattr(relations.Relations, "place", place)


def quotes_not_doubled(patch: Patch) -> None:
    """A name between quotes, as it is."""
    real = quoting.identifier
    for name, module in list(sys.modules.items()):
        if name.startswith("dpsql.") and getattr(module, "identifier", None) is real:
            patch.setattr(module, "identifier", lambda name: f'"{name}"')


def text_of_the_noise_without_scale(patch: Patch) -> None:
    """A plan's text with half the errors."""
    real = text.plan_rows

    def halved(plan: Any) -> list[dict[str, Any]]:
        return [row | {"stderr": row["stderr"] and row["stderr"] / 2} for row in real(plan)]

    patch.setattr(text, "plan_rows", halved)


def bins_all_in_one(patch: Patch) -> None:
    """A chi-square of one bin agrees with everything."""
    real = audited._merged
    patch.setattr(audited, "_merged", lambda counts, expected: tuple(a[:1] for a in real(counts, expected)))


# (what was merged, the fault, what catches it)
MERGED: list[tuple[str, Callable[[Patch], None], Check]] = [
    ("exact integer products", words_too_wide, check_product),
    ("one Strategy of tables and blocks", error_without_sensitivity, check_tables),
    ("residual and Kronecker marginals", residual_of_a_subset_lost, check_bound),
    ("residual and Kronecker marginals", multipliers_counted_once, check_tables),
    ("long ranges by prefix sums", prefix_sum_of_the_next, check_ranges),
    ("scope of names", first_of_two_names, check_scope),
    ("quoting of identifiers", quotes_not_doubled, check_quoting),
    ("views of a plan", text_of_the_noise_without_scale, check_views),
    ("chi-square of the audit", bins_all_in_one, check_law),
]


@pytest.mark.parametrize(("family", "mutant", "check"), MERGED, ids=[m.__name__ for _, m, _ in MERGED])
@pytest.mark.few(every=3)
def test_a_mutant_of_what_is_shared_is_caught(
    tmp_path: Path,
    monkeypatch: Patch,
    family: str,
    mutant: Callable[[Patch], None],
    check: Check,
    assurance: Callable[..., None],
) -> None:
    for name in ("real", "wrong"):
        (tmp_path / name).mkdir()
    check(tmp_path / "real")
    mutant(monkeypatch)
    with pytest.raises((AssertionError, dpsql.Error)):
        check(tmp_path / "wrong")
    assurance("mutants killed", threat="", mutant=mutant.__name__, by=f"test: {check.__name__} ({family})")
