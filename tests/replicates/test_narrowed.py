"""The ranges of a line that a query reads, told by its conditions."""

from __future__ import annotations

import numpy as np
import pytest
from sqlglot import exp

from dpsql.release import Numbers, RangeNumber, RangeTable
from dpsql.replicates.matching import unselected
from dpsql.replicates.partitioned import parsed
from dpsql.replicates.stacked import places_read

N = 20
LINE = RangeTable(
    "m",
    True,
    (("k_from", "INTEGER", ("from", 0)), ("k_to", "INTEGER", ("to", 0)), ("n", "DOUBLE", ("value", 0))),
    (100, N),  # the values 100 to 119
    "INTEGER",
    (RangeNumber(Numbers(np.arange(N + 1.0) ** 2), (1.0,), 0.0, 2.0),),
    lengths=Numbers(np.arange(N + 1.0)),
)
OTHER = [("x", True), ("day", False)]


def places(sql, most=10):
    tree = parsed(sql)
    read = [(node, LINE.noisy if node.name == "m" else OTHER) for node in tree.find_all(exp.Table)]
    own = [number for number, (node, _) in enumerate(read) if node.name == "m"]
    found = places_read(tree, read, own, LINE, most)
    return None if found is None else found.tolist()


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT n FROM m WHERE k_from = 103 AND k_to = 110 AND n > 0", [0, 3, 11]),
        ("SELECT n + x FROM o, m a WHERE a.k_from = 103 AND a.k_to IN (104, 119) AND x > day", [0, 3, 5, 20]),
        ("SELECT a.n / b.n FROM m a JOIN m b ON b.k_from = 100 AND b.k_to = a.k_to WHERE a.k_from = 118", None),
        ("SELECT a.n / b.n FROM m a JOIN m b ON b.k_from = 117 AND b.n > 0 WHERE a.k_from = 118", [0, 17, 18, 19, 20]),
        ("SELECT MAX(n) FROM (SELECT n FROM m WHERE k_from IN (103, 104) AND k_to <= k_from + 1)", [0, 3, 4, 5, 6]),
        ("SELECT n FROM m WHERE k_from = 1", [0]),
        ("SELECT a.n FROM o LEFT JOIN m a ON a.k_from = 103 AND a.k_to = 103 WHERE o.day = 3", None),
        ("SELECT n FROM m WHERE k_from = 103 AND k_to = 110 OR n > 0", None),
        ("SELECT n FROM m WHERE k_from = 103", None),  # more than `most`
        ("SELECT n FROM m WHERE k_from = 103 AND k_to = 110 UNION ALL SELECT n FROM m", None),
        ("SELECT n FROM m WHERE k_from = (SELECT MAX(day) FROM o)", None),
    ],
)
def test_places_are_those_of_ranges_that_conditions_leave(sql, wanted):
    assert places(sql) == wanted


def test_some_sums_give_the_ranges_between_them():
    some = LINE.at(np.array([0, 3, 11]))
    assert some.numbers[0].sums.data.tolist() == [0, 9, 121]
    assert some.points.tolist() == [0, 3, 11]


def test_conditions_of_no_noise_stay_where_those_of_noise_are_left_out():
    clean = {"k_from", "k_to"}
    kept = unselected(parsed("SELECT n FROM m WHERE k_from = 3 AND n > 0 AND k_to < 9 ORDER BY n LIMIT 2"), clean)
    assert kept.sql("duckdb") == "SELECT n FROM m WHERE k_from = 3 AND k_to < 9 ORDER BY n"
    derived = "SELECT n FROM (SELECT n, n AS k_from FROM m) WHERE k_from = 3"  # a name says nothing there
    assert unselected(parsed(derived), clean).args.get("where") is None
    assert unselected(parsed("SELECT n FROM m"), clean) is None
