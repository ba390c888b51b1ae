"""Corners: every extreme way in which a row changes x, by hand and with its caps."""

from __future__ import annotations

import numpy as np
import pytest

from dpsql.errors import SQLError
from dpsql.workloads.cells.corners import corners_of


def columns(entries, size):
    return {tuple(column) for column in corners_of(entries, size).toarray().T}


def test_counts_alone_are_unit_vectors():
    assert columns([np.array([[0, 1, -1, 1]])], 2) == {(1, 0), (0, 1)}


def test_a_sum_goes_both_ways_beside_its_count():
    assert columns([np.array([[0, 2], [1, -1]])], 3) == {(1, 1, 0), (1, -1, 0), (0, 0, 1)}


def test_without_a_count_the_first_sign_is_fixed():
    assert columns([np.array([[-1], [0], [1]])], 2) == {(1, 1), (1, -1)}


def test_tables_do_not_mix():
    assert columns([np.array([[0]]), np.array([[1], [2]])], 3) == {(1, 0, 0), (0, 1, 1), (0, 1, -1)}


def test_many_sums_over_many_cells_are_refused():
    entry = np.arange(7 * 20_000).reshape(7, -1)
    with pytest.raises(SQLError, match="corners of cells"):
        corners_of([entry], 7 * 20_000)


def test_seventeen_sums_in_one_cell_are_refused():
    with pytest.raises(SQLError, match="17 summed columns meet"):
        corners_of([np.arange(18).reshape(18, 1)], 18)


@pytest.mark.long
def test_sixteen_sums_in_one_cell_have_all_their_corners():
    found = corners_of([np.arange(17).reshape(17, 1)], 17)
    assert found.shape == (17, 2**16)
    assert len(np.unique(found.toarray(), axis=1).T) == 2**16
