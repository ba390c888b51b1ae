import numpy as np
import pytest
from scipy import sparse

from dpsql.linalg.linked import linked_by, linked_parts


def test_parts_are_numbered_by_their_first_vertices():
    number, part = linked_parts(6, (np.array([4, 1, 5]), np.array([1, 3, 5])))
    assert number == 4
    assert part.tolist() == [0, 1, 2, 1, 1, 3]
    assert linked_parts(2, (np.zeros(0, dtype=int), np.zeros(0, dtype=int)))[1].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_few_edges_and_many_have_the_same_parts(seed):
    generator = np.random.default_rng(seed)
    ends = tuple(generator.integers(0, 12, (2, int(generator.integers(1, 16)))))
    number, part = linked_parts(12, ends)
    # The same edges, each so often that they are many.
    again, other = linked_parts(12, tuple(np.tile(end, 17) for end in ends))
    assert number == again == part.max() + 1
    assert part.tolist() == other.tolist()
    assert part.dtype == other.dtype == np.int64


def test_rows_and_columns_that_stored_entries_link():
    matrix = sparse.csc_array(np.array([[1, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 0]]))
    number, rows, columns = linked_by(matrix)
    assert number == 3
    assert (rows.tolist(), columns.tolist()) == ([0, 1, 0], [0, 1, 0, 2])
