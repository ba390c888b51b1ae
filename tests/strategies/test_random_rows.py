"""Second moments of units whose rows are in random columns, and the bound that they prove, against all such units."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg import inner
from dpsql.strategies.choose import random_rows
from dpsql.strategies.choose.random_rows import Draw, least_of_random_rows
from dpsql.workloads.families.matrix import Workload
from dpsql.workloads.families.patterns import Patterns


def patterns_of(cells: np.ndarray, most: int) -> Patterns:
    """Units counted in groups ``cells`` (T x J, numbered in each count), and rows by column."""
    found, start = [], 0
    for own in cells:
        found.append(np.where(own >= 0, own + start, -1))
        start += int(own.max()) + 1
    J = cells.shape[1]
    return Patterns(np.stack(found), most, tuple(range(len(cells) + 1)), start + J, start + np.arange(J))


def every(given: Patterns, draw: Draw) -> np.ndarray:
    """What each of the units of ``draw`` adds to x, all as likely (n x units)."""
    assert given.rows is not None
    vectors, regular = [], np.flatnonzero((given.cells >= 0).all(axis=0))
    columns = regular if regular.size == draw.J else np.arange(draw.J)
    for chosen in itertools.combinations(columns.tolist(), draw.columns):
        for heavy in chosen:
            x = np.zeros(given.size)
            inside = given.cells[:, chosen]
            x[inside[inside >= 0]] = 1.0
            x[given.rows[list(chosen)]] = 1.0
            x[given.rows[heavy]] += draw.rows - draw.columns
            vectors.append(x)
    return np.array(vectors).T


def workload(given: Patterns, seed: int) -> Workload:
    """Rows by column and by the groups of each count, units by each, of random weights."""
    assert given.rows is not None
    draw, rows = np.random.default_rng(seed), [np.eye(given.size)]
    for own in given.cells:
        for group in np.unique(own[own >= 0]):
            one = np.zeros((1, given.size))
            one[0, given.rows[own == group]] = 1.0
            rows.append(one)
    stacked = np.unique(np.concatenate(rows), axis=0).astype(np.int64)
    weight = draw.integers(1, 4, size=len(stacked)).astype(np.float64)
    return Workload(sparse.csr_array(stacked), inner.Diagonal(weight), None, None, "W")


CELLS = {
    "two": np.array([[0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 0, 1]]),
    "not of one size": np.array([[0, 0, 0, 1, 2, 2], [0, 1, -1, 1, -1, 1]]),
    "mostly in none": np.array([[0, 0, -1, 1, -1, -1], [-1, 1, -1, 0, -1, 1]]),
    "all and each": np.array([[0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]),
    "halves and each": np.array([[0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5]]),
}


def the_law(given: Patterns, W: Workload, draws: list[tuple[float, Draw]]) -> np.ndarray:
    """E[y y^T] by every unit."""
    weights, span = np.sqrt(np.asarray(W.inner.diagonal())), W.span.toarray()
    moved = [(share, weights[:, None] * (span @ every(given, draw))) for share, draw in draws]
    return sum((share * Y @ Y.T / Y.shape[1] for share, Y in moved), np.zeros((len(span),) * 2))


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.few(every=3)
def test_the_bound_is_that_of_every_unit(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The eigenvalues of the whole second moment, with and without columns that are exchanged."""
    given = patterns_of(CELLS[name], 4)
    W = workload(given, seed) if seed else flat(given)
    chosen: list[tuple[float, Draw]] = []
    real = random_rows._Queries.second

    def second(asked: random_rows._Queries, draws: list[tuple[float, Draw]]) -> np.ndarray:
        chosen[:] = draws
        return real(asked, draws)

    monkeypatch.setattr(random_rows._Queries, "second", second)
    found = least_of_random_rows(W, given, 1e-3, math.inf)
    law = the_law(given, W, chosen)
    values = np.maximum(np.linalg.eigvalsh(law), 0.0)
    assert found == pytest.approx(float(np.sqrt(values).sum()) ** 2, rel=1e-6)
    assert sum(share for share, _ in chosen) == pytest.approx(1.0)


def flat(given: Patterns) -> Workload:
    W = workload(given, 1)
    return Workload(W.span, inner.Diagonal(np.ones(W.span.shape[0])), None, None, "W")


def test_columns_of_a_group_of_their_own_are_exchanged() -> None:
    given = patterns_of(CELLS["halves and each"], 3)
    apart, rest = whole(given, flat(given)).exchanged()
    assert [n for n, _ in apart] == [2, 2]
    assert rest.units.shape[0] == 0 or np.count_nonzero(np.diff(rest.rows.indptr) + np.diff(rest.units.indptr)) == 8


def whole(given: Patterns, W: Workload) -> random_rows._Queries:
    held: list[random_rows._Queries] = []
    real = random_rows._Queries.exchanged
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_rows._Queries, "exchanged", lambda asked: held.append(asked) or real(asked))
        least_of_random_rows(W, given, 1e-3, math.inf)
    return held[0]


def test_of_many_queries_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    given = patterns_of(CELLS["two"], 3)
    monkeypatch.setattr(random_rows, "CUBES", 1.0)
    assert least_of_random_rows(flat(given), given, 1e-3, math.inf) == 0.0
