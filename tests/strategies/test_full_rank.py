"""Proofs that rounded roots have full rank, held against elimination."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from scipy import sparse

from dpsql.linalg import modular
from dpsql.strategies.core import integer


@pytest.mark.parametrize("seed", range(40))
def test_symmetric_roots_are_of_full_rank_only_where_elimination_says_so(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, lost = int(rng.integers(2, 12)), seed % 2
    half = rng.integers(-9, 10, size=(n, n - lost))
    whole = half @ half.T  # positive semidefinite; of lost rank with one column less
    assert integer.full_rank(whole) == (modular.rank(whole) == n)
    assert not (lost and integer._positive(whole))


def test_what_is_nearly_of_lost_rank_is_not_called_positive() -> None:
    """In floats [[a^2, a b], [a b, b^2 - 1]] of large a and b looks semidefinite: its determinant is -a^2."""
    a, b = 2**25 + 1, 2**25 - 1
    negative = np.array([[a * a, a * b], [a * b, b * b - 1]])
    singular = np.array([[a * a, a * b], [a * b, b * b]])
    assert not integer._positive(negative)
    assert not integer._positive(singular)
    assert not integer.full_rank(singular)


def test_a_well_conditioned_symmetric_root_is_proved_without_elimination(monkeypatch: pytest.MonkeyPatch) -> None:
    root = 1000 * np.eye(50, dtype=np.int64) + 7
    root[0, 1] = root[1, 0] = 0
    monkeypatch.setattr(modular, "rank", lambda matrix: pytest.fail("eliminated"))
    assert integer.full_rank(root)
    unlike = root.copy()
    unlike[0, 2] = 9
    assert not integer._positive(unlike)


@pytest.mark.parametrize("seed", range(20))
def test_tall_roots_are_of_full_rank_only_where_elimination_says_so(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, lost = int(rng.integers(2, 12)), seed % 2
    tall = rng.integers(-99, 100, size=(n + 5, n - lost)) @ rng.integers(-9, 10, size=(n - lost, n))
    assert integer.full_rank(tall) == (modular.rank(tall) == n)


@pytest.mark.parametrize("sound", [True, False])
def test_roots_that_fall_into_parts_are_judged_part_by_part(sound: bool) -> None:
    """Copies of one tall root on mixed-up rows and columns: their rank, and the error of their inverse."""
    rng = np.random.default_rng(11)
    tall = rng.integers(-9, 10, (30, 25))
    if not sound:
        tall[:, 3] = 2 * tall[:, 4]
    whole = scipy.linalg.block_diag(*[tall] * 24)[rng.permutation(720)][:, rng.permutation(600)]
    assert integer.full_rank(whole) == (modular.rank(whole) == 600) == sound
    half = rng.standard_normal((40, 600))
    moved = sparse.csr_array(rng.random((600, 600)) * (rng.random((600, 600)) < 0.001) + np.eye(600))
    for coords in (None, moved):
        piece = integer.Piece(sparse.csr_array((600, 1)), whole.astype(float), moved, half.T @ half, coords)
        C = whole.astype(float) if coords is None else whole @ coords.toarray()
        expected = np.sum((half @ np.linalg.pinv(C)) ** 2) if sound else np.inf
        assert piece.trace(whole) == pytest.approx(expected, rel=1e-8)
