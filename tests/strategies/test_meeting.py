"""Tables that a unit moves at once: the lower bound from what is known of each, against the least error."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from unit_worlds import least

from dpsql.strategies.core.bound_over_tables import least_of_tables


def test_ten_rows_and_their_unit() -> None:
    """The least error of (10, 1), (10, 0), (0, 1): means are all that there is."""
    assert least_of_tables([(10.0, 10.0), (1.0, 1.0)]) == pytest.approx(110.5125, rel=1e-5)


def test_tables_without_means_share_nothing() -> None:
    assert least_of_tables([(3.0, 0.0), (2.0, 0.0), (1.0, 0.0)]) == pytest.approx(36.0, rel=1e-6)
    assert least_of_tables([(2.0, 1.0)]) == 4.0


@pytest.mark.parametrize("tables", [2, 3, 9])
def test_no_table_takes_anything(tables: int) -> None:
    assert least_of_tables([(1.0, 0.5)] + [(0.0, 0.0)] * (tables - 1)) == pytest.approx(1.0, rel=1e-6)


def test_of_many_tables_it_is_no_less_than_of_some() -> None:
    norms = [(1.0 + t, 0.9**t) for t in range(9)]
    assert least_of_tables(norms) >= least_of_tables(norms[:5]) >= 15.0


def test_no_strategy_is_better() -> None:
    """Random laws of what a unit moves of each table, against the optimum over all that it may then do."""
    draw = np.random.default_rng(3)
    for _ in range(25):
        laws, norms = [], []
        for _ in range(draw.integers(1, 4)):
            d, N = draw.integers(1, 4), draw.integers(1, 5)
            moved = draw.normal(size=(d, N)) + draw.normal(size=(d, 1)) * draw.choice([0.0, 1.0, 3.0])
            chance = draw.dirichlet(np.ones(N))
            norm = np.linalg.svd(moved * np.sqrt(chance), compute_uv=False).sum()
            norms.append((float(norm), float(np.linalg.norm(moved @ chance))))
            laws.append(np.hstack([np.zeros((d, 1)), moved]))
        vectors = np.array([
            np.concatenate([law[:, at] for law, at in zip(laws, chosen, strict=True)])
            for chosen in product(*(range(law.shape[1]) for law in laws))
        ])  # fmt: skip
        true = least(np.eye(vectors.shape[1]), vectors[abs(vectors).sum(axis=1) > 0], 1e-4)
        assert least_of_tables(norms) <= true.upper * (1 + 1e-9)
