"""Units counted over the same rows, and rows measured apart from them: what is known of both against all that is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import sparse
from test_kinds import CASES, all_of, patterns

from dpsql.linalg.exact import products_above
from dpsql.workloads.compile.unlisted import bounded_norm
from dpsql.workloads.families import units_and_rows
from dpsql.workloads.families.contributions import Part
from dpsql.workloads.families.patterns import Patterns

BOTH = [case for case in CASES if case[1] is not None and len(case) == 5]  # no classes


def unlike(patch: pytest.MonkeyPatch) -> None:
    """As if groups were neither few nor alike."""
    patch.setattr(Patterns, "listable", False)
    patch.setattr(units_and_rows, "kinds_of", lambda patterns: None)


def unlisted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Patterns, "listable", False)


def shortfall(case: tuple, seed: int, times: int) -> tuple[int, int]:  # type: ignore[type-arg]
    """How often the bound is below the longest vector, and how often it is reached."""
    given, draw, C = patterns(*case), np.random.default_rng(seed), all_of(patterns(*case))
    J, N = given.cells.shape[1], given.columns.shape[1]
    below = reached = 0
    for _ in range(times):
        K = np.zeros((N, N), dtype=np.int64)
        for part, least in ((slice(N - J), -4), (slice(N - J, N), -1)):
            size = len(range(N)[part])
            moved = draw.integers(least, 4, size=(draw.integers(1, size + 1), size))
            K[part, part] = moved.T @ moved + draw.integers(0, 9) * np.eye(size, dtype=np.int64)
        bound = units_and_rows.reach_apart(given, K[: N - J, : N - J], K[N - J :, N - J :])
        true = int(np.einsum("ci,ij,cj->c", C, K, C).max())
        below += bound < true
        reached += bound == true
    return below, reached


@pytest.mark.parametrize("case", BOTH)
@pytest.mark.parametrize("told", [None, unlisted, unlike])
@pytest.mark.few(every=3)
def test_the_bound_is_never_below(
    case: tuple,  # type: ignore[type-arg]
    told: Callable[[pytest.MonkeyPatch], None] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if told is not None:
        told(monkeypatch)
    assert shortfall(case, 3, 25)[0] == 0


def test_the_bound_is_often_reached() -> None:
    assert sum(shortfall(case, 3, 25)[1] for case in BOTH) > 25


def no_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(units_and_rows, "_ranked", lambda K, most: np.zeros((len(K), most + 1), dtype=K.dtype))


def one_less(patch: pytest.MonkeyPatch) -> None:
    real = units_and_rows.reach_of_rows
    patch.setattr(units_and_rows, "reach_of_rows", lambda K, most, nobody: real(K, most - 1, nobody=nobody))


def more_needed(patch: pytest.MonkeyPatch) -> None:
    real = units_and_rows._up_to
    patch.setattr(units_and_rows, "_up_to", lambda S, needed, reached: real(S, needed + 1, reached))


@pytest.mark.parametrize("mutant", [no_others, one_less, more_needed])
@pytest.mark.few(every=2)
def test_the_search_sees(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert sum(shortfall(case, 4, 20)[0] for case in BOTH) > 0


@pytest.mark.parametrize("case", BOTH)
@pytest.mark.few(every=3)
def test_no_vector_is_longer_than_the_sensitivity(case: tuple) -> None:  # type: ignore[type-arg]
    """Long integers, units and rows measured apart, as a plan does."""
    given, draw = patterns(*case), np.random.default_rng(6)
    units, n = given.cells.max() + 1, given.size
    mixing = np.zeros((n, n), dtype=np.int64)
    for part in (slice(units), slice(units, n)):
        size = len(range(n)[part])
        mixing[part, part] = draw.integers(-(2**40), 2**40, size=(size, size)) + 2**42 * np.eye(size, dtype=np.int64)
    each = [np.unique(own[own >= 0]) for own in (*given.cells, given.rows)]
    eye = sparse.csc_array(np.eye(n, dtype=np.int64))
    parts = [Part(eye[:, own], 1, min(given.most, own.size)) for own in each[:-1]]
    parts.append(Part(eye[:, each[-1]], given.most, 1))
    whole = Patterns(given.cells, given.most, tuple(range(len(parts))), n, given.rows)
    found = bounded_norm(2, mixing, sparse.csr_array(eye), parts, None, [whole])
    moved = mixing.astype(object) @ (given.columns.toarray() @ all_of(given).T).astype(object)
    assert max((moved**2).sum(axis=0)) <= found


def test_products_are_rounded_up() -> None:
    draw = np.random.default_rng(7)
    mixing = draw.integers(-(2**50), 2**50, size=(9, 6))
    columns = sparse.csc_array(draw.integers(-3, 4, size=(6, 5)))
    (K,), bits = products_above(mixing, [columns], 20)
    P = mixing.astype(object) @ columns.toarray().astype(object)
    exact = P.T @ P
    assert all(int(above) << bits >= true for above, true in zip(K.ravel(), exact.ravel(), strict=True))
    assert np.abs(np.ldexp(K.astype(float), bits) - exact.astype(float)).max() <= 1e-9 * float(np.diag(exact).max())
    assert int(np.abs(K).max()) * 40**2 < 2**63
